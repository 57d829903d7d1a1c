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
iteration in progress is kept and the rest goes on at the new speed.

Ignored: where in an iteration its collectives are (transfers see a mean, not bursts; two links of a transfer are never
busy by turns), queues, and what congestion control loses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from netsim import Completion, SharesCapacity
from vidur_pd.events import EventQueue, Priority
from vidur_pd.execution.executor import LinkLoad, StagePrice
from vidur_pd.execution.flight import Flight
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
        self._capacity_bps, self._nominal_bps = capacity_bps.copy(), capacity_bps
        self._is_degraded = False
        """Some link has less than its capacity."""
        self._transfers = transfers
        self._flying: dict[int, Instance] = {}
        self._loads: dict[int, list[_MeanLoad]] = {}
        self._mean_bps = np.zeros_like(capacity_bps)
        self._mean_flows = np.zeros_like(capacity_bps)
        self._told_bps = np.zeros_like(capacity_bps)
        self._first_user = np.full(len(capacity_bps), -1, dtype=np.int64)
        self._instances_meet = False
        self._update_at_ps: set[int] = set()

    def launch(self, flight: Flight) -> None:
        instance = flight.instance
        self._flying[instance.index] = instance
        self._note_links(flight)
        if self._is_coupled:
            self._withdraw(instance)
            flight.stretch = [self._stretch(price) for price in flight.prices]
        set_out(flight, instance.stage_free_ps)
        self._schedule_landing(flight)
        if self._is_coupled:
            self._enter(instance, flight)
            self._tell_network()

    def truncate(self, flight: Flight) -> None:
        if truncate(flight, self._queue.now_ps):
            self._schedule_landing(flight)

    def drop(self, flight: Flight) -> None:
        """Its load is gone at the end of this instant."""
        del flight
        self.traffic_changes(self._queue.now_ps)

    def set_capacity_bps(self, links: Sequence[int], capacity_bps: Sequence[float]) -> None:
        """Links have this capacity from now on; iterations in progress slow down or speed up."""
        self._capacity_bps[list(links)] = capacity_bps
        self._is_degraded = bool((self._capacity_bps < self._nominal_bps).any())
        self.traffic_changes(self._queue.now_ps)

    def completed(self, completion: Completion) -> None:
        raise AssertionError(f"{completion}, but iterations submit no graphs")

    def traffic_changes(self, at_ps: int) -> None:
        """A transfer starts, sends its first byte or ends: both sides are updated at the end of that instant."""
        if at_ps not in self._update_at_ps:
            self._update_at_ps.add(at_ps)
            self._queue.schedule(at_ps, Priority.DISPATCH, self._update)

    @property
    def _is_coupled(self) -> bool:
        return self._instances_meet or self._is_degraded or self._transfers.active > 0

    def _schedule_landing(self, flight: Flight) -> None:
        schedule_landing(self._queue, flight, self._land)

    def _land(self, flight: Flight) -> None:
        """The instance may now rest: if it does not launch at this instant, its load is gone."""
        flight.instance.land(flight)
        if self._is_coupled and not flight.instance.flights:
            self.traffic_changes(self._queue.now_ps)

    def _note_links(self, flight: Flight) -> None:
        """Finds out whether two instances use the same link: only then do they slow each other down."""
        index = flight.instance.index
        for price in flight.prices if not self._instances_meet else ():
            users = self._first_user[price.load.links]
            self._instances_meet = bool(((users >= 0) & (users != index)).any())
            self._first_user[price.load.links] = index

    def _update(self) -> None:
        """New loads of all instances, and new stretches of what they have in flight."""
        self._update_at_ps.remove(self._queue.now_ps)
        for instance in list(self._flying.values()):
            self._withdraw(instance)
            if not instance.flights:
                del self._flying[instance.index]
                continue
            self._retime(instance, [[self._stretch(price) for price in flight.prices] for flight in instance.flights])
            self._enter(instance, *instance.flights)
        if not self._flying:  # sums of differences: leave nothing behind
            self._mean_bps.fill(0.0)
            self._mean_flows.fill(0.0)
        self._tell_network()

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
        return self._network.link_rates_bps()[links] if self._transfers.active else np.zeros(len(links))

    def _withdraw(self, instance: Instance) -> None:
        for mean in self._loads.pop(instance.index, ()):
            self._mean_bps[mean.links] -= mean.rate_bps
            self._mean_flows[mean.links] -= mean.flows

    def _enter(self, instance: Instance, *flights: Flight) -> None:
        loads = self._loads.setdefault(instance.index, [])
        for flight in flights:
            period_ps = int(flight.compute_ps[0]) + flight.communication_ps
            if flight.is_pipelined:
                period_ps = int(flight.ends_ps[0]) - flight.start_ps
            for price in flight.prices:
                mean = _MeanLoad(price.load, self._capacity_bps, period_ps)
                self._mean_bps[mean.links] += mean.rate_bps
                self._mean_flows[mean.links] += mean.flows
                loads.append(mean)

    def _tell_network(self) -> None:
        """Passes on what instances take of each link, where that has changed."""
        background_bps = np.clip(self._mean_bps, 0.0, MOST_BACKGROUND * self._capacity_bps)
        change_bps = np.abs(background_bps - self._told_bps)
        is_new = (change_bps > SMALLEST_CHANGE * self._capacity_bps) | ((background_bps == 0) & (change_bps > 0))
        changed = np.flatnonzero(is_new)
        if len(changed):
            self._network.set_background_bps(changed, background_bps[changed])
            self._told_bps[changed] = background_bps[changed]


class _MeanLoad:
    """What iterations of one kind take of links on average."""

    __slots__ = ("flows", "links", "rate_bps")

    def __init__(self, load: LinkLoad, capacity_bps: NDArray[np.float64], period_ps: int) -> None:
        self.links = load.links
        self.rate_bps = load.link_bytes * (8 * PS_PER_S / period_ps)
        self.flows = load.link_flows * self.rate_bps / capacity_bps[load.links]
        """[links] times the share of time in which they are there."""
