"""Coupling ``fluid``: running iterations load the links they use, and slow down with what else is there.

Model. An instance repeats iterations of compute time *C* and, on an idle fabric, communication time *T* that puts
*B_l* bytes on link *l*. While it communicates it wants *d_l = B_l / T* on the link. Transfers that hold *r_l* there
leave it *max(cap_l − r_l, cap_l / 2)*; its communication stretches by *s = max_l d_l / what it gets* (at least 1). Seen
by the transfers, instances take their mean rate *B_l / (C + T·s)*, together at most half of the link. Both sides are
updated at every start and end of a transfer and of an iteration; what is done of an iteration in progress is kept and
the rest goes on at the new speed.

Ignored: the phase of collectives within an iteration (transfers see a mean, not bursts), queueing, and losses of
congestion control.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from netsim import GraphHandle, SharesCapacity
from vidur_pd.events import EventQueue
from vidur_pd.execution.executor import NO_LOAD, LinkLoad
from vidur_pd.execution.flight import Flight
from vidur_pd.execution.isolated import pass_stages, schedule_landing, truncate_at_step
from vidur_pd.metrics.quantities import PS_PER_S

SMALLEST_CHANGE = 1e-3
"""Relative change of a stretch below which an iteration in progress is left alone."""


class FluidLauncher:
    """Couples iterations and transfers through link rates."""

    def __init__(
        self,
        queue: EventQueue,
        network: SharesCapacity,
        capacity_bps: NDArray[np.float64],
        active_transfers: Callable[[], int],
    ) -> None:
        """``active_transfers`` tells how many transfers are on the network; without any there is nothing to couple."""
        self._queue = queue
        self._network = network
        self._capacity_bps = capacity_bps
        self._active_transfers = active_transfers
        self._flying: dict[int, Flight] = {}
        self._background_bps = np.zeros_like(capacity_bps)

    def launch(self, flight: Flight) -> None:
        flight.stretch = self._stretch(flight, self._rates_bps())
        stages = flight.instance.stage_free_ps
        if len(stages) > 1:
            flight.ends_ps = np.array([pass_stages(flight, stages)], dtype=np.int64)
        else:
            flight.ends_ps = flight.start_ps + np.cumsum(self._step_ps(flight, flight.stretch))
        schedule_landing(self._queue, flight)
        self._flying[flight.instance.index] = flight
        if self._active_transfers():
            self._update_background()

    def truncate(self, flight: Flight) -> None:
        truncate_at_step(self._queue, flight)

    def completed(self, handle: GraphHandle, at_ps: int) -> None:
        raise AssertionError(f"graph {handle} completed at {at_ps} ps, but iterations submit none")

    def traffic_changed(self) -> None:
        """A transfer has started or ended: both sides see new rates."""
        self._forget_landed()
        self._update_background()
        rates_bps = self._rates_bps()
        for flight in self._flying.values():
            stretch = self._stretch(flight, rates_bps)
            if abs(stretch - flight.stretch) > SMALLEST_CHANGE * flight.stretch:
                self._reschedule(flight, stretch)
        self._update_background()

    def _forget_landed(self) -> None:
        self._flying = {index: f for index, f in self._flying.items() if f in f.instance.flights}

    def _rates_bps(self) -> NDArray[np.float64] | None:
        return self._network.link_rates_bps() if self._active_transfers() else None

    @staticmethod
    def _step_ps(flight: Flight, stretch: float) -> NDArray[np.int64]:
        return flight.compute_ps + round(flight.communication_ps * stretch)

    def _stretch(self, flight: Flight, rates_bps: NDArray[np.float64] | None) -> float:
        load = _load(flight)
        if rates_bps is None or not len(load.links) or not flight.communication_ps:
            return 1.0
        wanted_bps = load.link_bytes * (8 * PS_PER_S / flight.communication_ps)
        capacity_bps, taken_bps = self._capacity_bps[load.links], rates_bps[load.links]
        fair_bps = np.where(taken_bps > 0, capacity_bps / 2, capacity_bps)
        given_bps = np.maximum(capacity_bps - taken_bps, fair_bps)
        return max(1.0, float(np.max(wanted_bps / given_bps)))

    def _reschedule(self, flight: Flight, stretch: float) -> None:
        """Keeps what is done of the step in progress; the rest and the following steps take the new stretch."""
        now_ps = self._queue.now_ps
        step = int(np.searchsorted(flight.ends_ps, now_ps, side="right"))
        if step >= flight.steps:
            return
        begin_ps = flight.start_ps if step == 0 else int(flight.ends_ps[step - 1])
        rest = (int(flight.ends_ps[step]) - now_ps) / (int(flight.ends_ps[step]) - begin_ps)
        step_ps = self._step_ps(flight, stretch)[step:]
        if len(flight.instance.stage_free_ps) > 1:
            step_ps = np.array([flight.ends_ps[0] - flight.start_ps], dtype=np.int64)
            step_ps += round(flight.communication_ps * (stretch - flight.stretch))
        step_ps[0] = max(0, round(rest * int(step_ps[0])))
        flight.ends_ps = np.concatenate((flight.ends_ps[:step], now_ps + np.cumsum(step_ps)))
        flight.stretch = stretch
        schedule_landing(self._queue, flight)

    def _update_background(self) -> None:
        """Tells the network what the running instances take of each link."""
        background_bps = np.zeros_like(self._capacity_bps)
        self._forget_landed()
        for flight in self._flying.values():
            load = _load(flight)
            step_ps = int(flight.compute_ps[0]) + flight.communication_ps * flight.stretch
            background_bps[load.links] += load.link_bytes * (8 * PS_PER_S / step_ps)
        background_bps = np.minimum(background_bps, self._capacity_bps / 2)
        changed = np.flatnonzero(background_bps != self._background_bps)
        if len(changed):
            self._network.set_background_bps(changed, background_bps[changed])
            self._background_bps = background_bps


def _load(flight: Flight) -> LinkLoad:
    """Link load of one step, over all stages."""
    loads: Sequence[LinkLoad] = [price.load for price in flight.prices]
    if len(loads) == 1:
        return loads[0]
    links = np.concatenate([load.links for load in loads]) if loads else NO_LOAD.links
    link_bytes = np.concatenate([load.link_bytes for load in loads]) if loads else NO_LOAD.link_bytes
    unique, position = np.unique(links, return_inverse=True)
    summed = np.bincount(position, weights=link_bytes, minlength=len(unique)).astype(np.float64)
    return LinkLoad(unique, summed)
