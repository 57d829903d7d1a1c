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
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from netsim import Completion, SharesCapacity
from vidur_pd._core import Flight, Loop, Stage
from vidur_pd.events import EventQueue, Priority
from vidur_pd.execution.executor import Exchanges, LinkLoad
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


class PricesExposure(Protocol):
    """The executor of an instance."""

    def exposed_ps(self, flight: Flight, stage: int, stretch: float) -> int: ...


@dataclass(frozen=True, slots=True, eq=False)
class Clockwork:
    """The loop, its queue, the exchanges that its flights name, and the executors of its instances by number."""

    loop: Loop
    queue: EventQueue
    exchanges: Exchanges
    executors: Sequence[PricesExposure]


class FluidLauncher:
    """Couples iterations and transfers through link rates."""

    has_runs = True
    launches_itself = True

    def __init__(
        self, works: Clockwork, network: SharesCapacity, capacity_bps: NDArray[np.float64], transfers: Transfers
    ) -> None:
        self._works = works
        self._loop = works.loop
        self._network = network
        self._capacity_bps = capacity_bps
        self._transfers = transfers
        self._loads: dict[int, list[_MeanLoad]] = {}
        self._mean_bps = np.zeros_like(capacity_bps)
        self._mean_flows = np.zeros_like(capacity_bps)
        self._told_bps = np.zeros_like(capacity_bps)
        self._first_user = np.full(len(capacity_bps), -1, dtype=np.int64)
        self._instances_meet = False
        self._update_at_ps: set[int] = set()

    def launch(self, flight: Flight) -> None:
        self._withdraw(flight.instance)
        flight.stretch(self._stretched(flight))
        self._loop.set_out(flight)
        self._loop.schedule_landing(flight)
        self._enter(flight.instance, flight)
        self._tell_network()

    def completed(self, completion: Completion) -> None:
        raise AssertionError(f"{completion}, but iterations submit no graphs")

    def uses(self, instance: int, links: NDArray[np.int64]) -> None:
        """An instance will put bytes on these links; where two use the same one, they slow each other down."""
        users = self._first_user[links]
        self._instances_meet |= bool(((users >= 0) & (users != instance)).any())
        self._first_user[links] = instance
        self._loop.is_coupled = self._is_coupled

    def rests(self, _instance: int, /) -> None:
        """The load of the instance is gone."""
        self.traffic_changes(self._loop.now_ps)

    def traffic_changes(self, at_ps: int) -> None:
        """A transfer starts, sends its first byte or ends: both sides are updated at the end of that instant."""
        self._loop.is_coupled = self._is_coupled
        if at_ps not in self._update_at_ps:
            self._update_at_ps.add(at_ps)
            self._works.queue.schedule(at_ps, Priority.DISPATCH, self._update)

    @property
    def _is_coupled(self) -> bool:
        return self._instances_meet or self._transfers.active > 0

    def _update(self) -> None:
        """New loads of all instances, and new stretches of what they have in flight."""
        self._update_at_ps.remove(self._loop.now_ps)
        flying = self._loop.flying()
        for instance in sorted(self._loads.keys() - set(flying)):
            self._withdraw(instance)
        for instance in flying:
            self._withdraw(instance)
            flights = self._loop.flights(instance)
            self._retime(instance, flights)
            self._enter(instance, *flights)
        if not flying:  # sums of differences: leave nothing behind
            self._mean_bps.fill(0.0)
            self._mean_flows.fill(0.0)
        self._tell_network()

    def _retime(self, instance: int, flights: list[Flight]) -> None:
        """Applies new stretches where they differ from the present ones."""
        stretched = [self._stretched(flight) for flight in flights]
        if any(
            abs(new - stage.stretch) > SMALLEST_CHANGE * stage.stretch
            for flight, stretches in zip(flights, stretched, strict=True)
            for (new, _), stage in zip(stretches, flight.stages, strict=True)
        ):
            self._loop.retime(instance, stretched)

    def _stretched(self, flight: Flight) -> list[tuple[float, int]]:
        """[stages] stretch of the communication, and what compute does not hide of it then."""
        executor = self._works.executors[flight.instance]
        stretches = [self._stretch(stage) for stage in flight.stages]
        return [(stretch, executor.exposed_ps(flight, stage, stretch)) for stage, stretch in enumerate(stretches)]

    def _stretch(self, stage: Stage) -> float:
        """Of a stage's communication, from what other instances and transfers have on its links."""
        load = self._works.exchanges[stage.load].load
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
        return 1.0 + max(0.0, float((needed_ps - load.link_busy_ps).max())) / stage.communication_ps

    def _kv_bps(self, links: NDArray[np.int64]) -> NDArray[np.float64]:
        """[links] rate of the transfers."""
        return self._network.link_rates_bps()[links] if self._transfers.active else np.zeros(len(links))

    def _withdraw(self, instance: int) -> None:
        for mean in self._loads.pop(instance, ()):
            self._mean_bps[mean.links] -= mean.rate_bps
            self._mean_flows[mean.links] -= mean.flows

    def _enter(self, instance: int, *flights: Flight) -> None:
        loads = self._loads.setdefault(instance, [])
        for flight in flights:
            period_ps = flight.first_step_ps
            for stage in flight.stages:
                mean = _MeanLoad(self._works.exchanges[stage.load].load, self._capacity_bps, period_ps)
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
