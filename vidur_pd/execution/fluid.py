"""Coupling ``fluid``: running iterations load the links they use, and slow down with what else is there.

Model. An iteration of period *P* (compute, and communication *T* on an idle fabric) puts *B_l* bytes on link *l*, by
*n_l* flows at a time, which takes *τ_l* on an idle fabric: *B_l / cap_l*, or longer where its flows have a lower rate
of their own (protocol, GPU, another link of their path). Meanwhile it shares the link with the *m_l* flows of KV
transfers, if they could use what it gets, and with those of other instances *j*, which are there a share
*B_jl / (cap_l · P_j)* of the time. It gets the larger of

- its fair share of the capacity, *n_l / (n_l + m_l + Σ_j n_jl · B_jl / (cap_l · P_j))*, and
- what is left over, unless the transfers take whatever they find: *cap_l* less their rate and *Σ_j B_jl / P_j*.

Its communication grows by the largest *B_l / what it gets − τ_l* of its links, if that is positive: a collective that
leaves a part of the link unused anyway loses nothing to a transfer that fits into it. Transfers see instances as a
mean load *B_l / P*, in all at most ``MOST_BACKGROUND`` of the link. Both sides are updated at every start, first byte
and end of a transfer and, while transfers are under way or instances share links, of an iteration; what is done of an
iteration in progress is kept and the rest goes on at the new speed. An update looks only at the instances on whose
links something has changed, so that its cost does not grow with the cluster.

Ignored: where in an iteration its collectives are (transfers see a mean, not bursts; two links of a transfer are never
busy by turns), queues, and what congestion control loses.
"""

from __future__ import annotations

import heapq
import itertools
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from netsim import Completion, SharesCapacity
from vidur_pd.events import EventQueue, Priority
from vidur_pd.execution.executor import LinkLoad, StagePrice
from vidur_pd.execution.flight import Flight
from vidur_pd.execution.link_users import LinkUsers
from vidur_pd.execution.timing import retime_stages, retime_steps, schedule_landing, set_out, truncate
from vidur_pd.instance import Instance
from vidur_pd.metrics.quantities import PS_PER_S

SMALLEST_CHANGE = 1e-3
"""Relative change of a stretch below which an iteration in progress is left alone, and share of a link's capacity below
which a change of its background is not passed on: keeps the work per iteration small, at an error of that order."""
MOST_BACKGROUND = 0.9
"""Share of a link that instances can take from transfers for good."""
SATURATED = 0.99
"""Share of what instances leave them from which on transfers are held to take whatever they find."""


class Transfers(Protocol):
    """KV transfers on the network."""

    @property
    def active(self) -> int: ...

    @property
    def flows_on_links(self) -> NDArray[np.float64]:
        """[links] pairs of GPUs with a transfer over each link."""
        ...


class FluidLauncher:
    """Couples iterations and transfers through link rates."""

    carries_runs = True

    def __init__(
        self, queue: EventQueue, network: SharesCapacity, capacity_bps: NDArray[np.float64], transfers: Transfers
    ) -> None:
        self._queue = queue
        self._network = network
        self._capacity_bps = capacity_bps
        self._transfers = transfers
        self._flying: dict[int, tuple[int, Instance]] = {}
        self._launches = itertools.count()
        self._loads: dict[int, list[_MeanLoad]] = {}
        self._mean_bps = np.zeros_like(capacity_bps)
        self._mean_flows = np.zeros_like(capacity_bps)
        self._told_bps = np.zeros_like(capacity_bps)
        self._untold: list[NDArray[np.int64]] = []
        self._users = LinkUsers(len(capacity_bps))
        self._beside_transfers: set[int] = set()
        self._unsettled: set[int] = set()
        self._update_at_ps: set[int] = set()

    def launch(self, flight: Flight) -> None:
        instance = flight.instance
        self._flying.setdefault(instance.index, (next(self._launches), instance))
        for price in flight.prices:
            self._users.note(instance.index, price.load.links)
        is_coupled = self._is_coupled
        before = self._withdraw(instance.index) if is_coupled else []
        if is_coupled:
            flight.stretch = [self._stretch(price) for price in flight.prices]
        set_out(flight, instance.stage_free_ps)
        self._schedule_landing(flight)
        if is_coupled:
            self._unsettled |= self._enter(instance.index, [flight], before)
            self._tell_network()
        if not is_coupled or len(instance.flights) > 1:
            self._unsettled.add(instance.index)

    def truncate(self, flight: Flight) -> None:
        if truncate(flight, self._queue.now_ps):
            self._schedule_landing(flight)

    def completed(self, completion: Completion) -> None:
        raise AssertionError(f"{completion}, but iterations submit no graphs")

    def traffic_changes(self, at_ps: int) -> None:
        """A transfer starts, sends its first byte or ends: both sides are updated at the end of that instant."""
        if at_ps not in self._update_at_ps:
            self._update_at_ps.add(at_ps)
            self._queue.schedule(at_ps, Priority.DISPATCH, self._update)

    @property
    def _is_coupled(self) -> bool:
        return self._users.meet or self._transfers.active > 0

    def _schedule_landing(self, flight: Flight) -> None:
        schedule_landing(self._queue, flight, self._land)

    def _land(self, flight: Flight) -> None:
        """The instance may now rest: if it does not launch at this instant, its load is gone."""
        instance = flight.instance
        instance.land(flight)
        if not instance.flights:
            self._unsettled.add(instance.index)
            if self._is_coupled:
                self.traffic_changes(self._queue.now_ps)

    def _update(self) -> None:
        """New loads of instances, and new stretches of what they have in flight, where other traffic has changed."""
        self._update_at_ps.remove(self._queue.now_ps)
        beside = self._users.of(self._users.used_among(self._transfers.flows_on_links)) if self._is_coupled else set()
        waiting, self._unsettled = beside | self._beside_transfers | self._unsettled, set()
        self._beside_transfers = beside
        turns = [(self._flying[index][0], index) for index in waiting if index in self._flying]
        heapq.heapify(turns)
        while turns:
            turn, settled = heapq.heappop(turns)
            for index in self._settle(self._flying[settled][1]):
                if index not in self._flying or self._flying[index][0] <= turn:
                    self._unsettled.add(index)
                elif index not in waiting:
                    waiting.add(index)
                    heapq.heappush(turns, (self._flying[index][0], index))
        if not self._flying:  # sums of differences: leave nothing behind
            self._mean_bps.fill(0.0)
            self._mean_flows.fill(0.0)
            self._untold.append(np.flatnonzero(self._told_bps))
        self._tell_network()

    def _settle(self, instance: Instance) -> set[int]:
        """Load and stretches of one instance; returns those whose links now have other traffic."""
        before = self._withdraw(instance.index)
        if not instance.flights:
            del self._flying[instance.index]
            return self._users.of(self._shared_links(before))
        self._retime(instance, [[self._stretch(price) for price in flight.prices] for flight in instance.flights])
        return self._enter(instance.index, instance.flights, before)

    def _retime(self, instance: Instance, stretches: list[list[float]]) -> None:
        """Applies new stretches, one list per flight, where they differ from the present ones."""
        flights, now_ps = instance.flights, self._queue.now_ps
        if all(
            abs(new - old) <= SMALLEST_CHANGE * old
            for flight, stretch in zip(flights, stretches, strict=True)
            for new, old in zip(stretch, flight.stretch, strict=True)
        ):
            return
        if flights[0].is_pipelined:
            retime_stages(flights, stretches, instance.stage_free_ps, now_ps)
            instance.wake()
        else:
            retime_steps(flights[0], stretches[0][0], now_ps)
        for flight in flights:
            self._schedule_landing(flight)

    def _stretch(self, price: StagePrice) -> float:
        """Of a stage's communication, from what other instances and transfers have on its links."""
        load = price.load
        if not len(load.links) or not self._is_coupled:
            return 1.0
        capacity_bps = self._capacity_bps[load.links]
        kv_bps, mean_bps = self._kv_bps(load.links), np.maximum(self._mean_bps[load.links], 0.0)
        is_greedy = kv_bps >= SATURATED * (capacity_bps - self._told_bps[load.links])
        others = np.maximum(self._mean_flows[load.links], 0.0)
        others += np.where(kv_bps > 0, self._transfers.flows_on_links[load.links], 0.0)
        fair_bps = capacity_bps * (load.link_flows / (load.link_flows + others))
        left_bps = np.where(is_greedy, 0.0, capacity_bps - kv_bps - mean_bps)
        given_bps = np.maximum(fair_bps, left_bps)
        needed_ps = 8 * PS_PER_S * load.link_bytes / given_bps
        return 1.0 + max(0.0, float((needed_ps - load.link_busy_ps).max())) / price.communication_ps

    def _kv_bps(self, links: NDArray[np.int64]) -> NDArray[np.float64]:
        """[links] rate of the transfers."""
        return self._network.link_rates_bps(links) if self._transfers.active else np.zeros(len(links))

    def _withdraw(self, index: int) -> list[_MeanLoad]:
        """Takes the load of an instance off its links and returns it."""
        loads = self._loads.pop(index, [])
        for mean in loads:
            self._mean_bps[mean.links] -= mean.rate_bps
            self._mean_flows[mean.links] -= mean.flows
            self._untold.append(mean.links)
        return loads

    def _enter(self, index: int, flights: list[Flight], before: list[_MeanLoad]) -> set[int]:
        """Puts the load of flights on their links; returns the other users of links where it was not so ``before``."""
        loads = []
        for flight in flights:
            period_ps = int(flight.compute_ps[0]) + flight.communication_ps
            if flight.is_pipelined:
                period_ps = int(flight.ends_ps[0]) - flight.start_ps
            loads += [_MeanLoad(price.load, self._capacity_bps, period_ps) for price in flight.prices]
        for mean in loads:
            self._mean_bps[mean.links] += mean.rate_bps
            self._mean_flows[mean.links] += mean.flows
            self._untold.append(mean.links)
        self._loads[index] = loads
        if [(mean.load, mean.period_ps) for mean in loads] == [(mean.load, mean.period_ps) for mean in before]:
            return set()
        return self._users.of(self._shared_links([*before, *loads])) - {index}

    def _shared_links(self, loads: list[_MeanLoad]) -> NDArray[np.int64]:
        if not self._users.meet or not loads:
            return np.zeros(0, dtype=np.int64)
        return self._users.shared(np.concatenate([mean.links for mean in loads]))

    def _tell_network(self) -> None:
        """Passes on what instances take of each link, where that has changed."""
        if not self._untold:
            return
        links = np.concatenate(self._untold)
        self._untold.clear()
        background_bps = np.clip(self._mean_bps[links], 0.0, MOST_BACKGROUND * self._capacity_bps[links])
        change_bps = np.abs(background_bps - self._told_bps[links])
        is_new = (change_bps > SMALLEST_CHANGE * self._capacity_bps[links]) | ((background_bps == 0) & (change_bps > 0))
        if is_new.any():
            changed, first = np.unique(links[is_new], return_index=True)
            self._told_bps[changed] = background_bps[is_new][first]
            self._network.set_background_bps(changed, self._told_bps[changed])


class _MeanLoad:
    """What iterations of one kind take of links on average."""

    __slots__ = ("flows", "links", "load", "period_ps", "rate_bps")

    def __init__(self, load: LinkLoad, capacity_bps: NDArray[np.float64], period_ps: int) -> None:
        self.load, self.period_ps = load, period_ps
        self.links = load.links
        self.rate_bps = load.link_bytes * (8 * PS_PER_S / period_ps)
        self.flows = load.link_flows * self.rate_bps / capacity_bps[load.links]
        """[links] times the share of time in which they are there."""
