"""Coupling ``fluid``: running iterations load the links they use, and slow down with what else is there.

The model is in ``core/fluid_coupling.hpp``; here it meets the network, which knows the rates of transfers and is told
what instances take of links.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from netsim import Completion, NetworkBackend, SharesCapacity
from vidur_pd._core import Flight, Loop
from vidur_pd.clock import EventQueue, Priority
from vidur_pd.execution.network_clock import catch_up

SMALLEST_CHANGE = 1e-3
"""Relative change of a rate below which it is left alone, as in ``core/loop_changes.cpp``."""
MOST_ROUNDS = 10
"""Of telling each side of the other at one instant: transfers slow iterations, which leave more to transfers."""


class SharedNetwork(NetworkBackend, SharesCapacity, Protocol):
    """A network whose links also carry what iterations put on them."""


class FluidLauncher:
    """Couples iterations and transfers through link rates."""

    has_runs = True
    launches_itself = True
    follows_network = True

    def __init__(
        self, loop: Loop, queue: EventQueue, network: SharedNetwork, capacity_bps: NDArray[np.float64]
    ) -> None:
        loop.couple(capacity_bps)
        self._loop = loop
        self._queue = queue
        self._network = network
        self._update_at_ps: set[int] = set()
        self._known_bps = np.zeros(0)
        """Rates of transfers that iterations know."""

    def launch(self, flight: Flight) -> None:
        self._ask_network()
        self._loop.launch_coupled(flight)
        self._tell_network()
        self.network_moved()

    def drop(self, _flight: Flight, /) -> None:
        """Its load is gone at the end of this instant."""
        self.traffic_changes(self._loop.now_ps)

    def set_capacity_bps(self, links: Sequence[int], capacity_bps: Sequence[float]) -> None:
        """Links have this capacity from now on; iterations in progress slow down or speed up."""
        self._loop.set_capacity(np.array(links, dtype=np.int64), np.array(capacity_bps))
        self.traffic_changes(self._loop.now_ps)

    def completed(self, completion: Completion) -> None:
        raise AssertionError(f"{completion}, but iterations submit no graphs")

    def rests(self, _instance: int, /) -> None:
        """The load of the instance is gone."""
        self.traffic_changes(self._loop.now_ps)

    def traffic_changes(self, at_ps: int) -> None:
        """A transfer starts, sends its first byte or ends: both sides are updated at the end of that instant."""
        if at_ps not in self._update_at_ps:
            self._update_at_ps.add(at_ps)
            self._queue.schedule(at_ps, Priority.DISPATCH, self._update)

    def network_moved(self) -> None:
        """Flows have begun or ended on the network, or give way to iterations: both sides are updated if the rates that
        iterations know do not hold any more. Where transfers have come or gone, the next update is under way."""
        if len(self._loop.transfer_links()) == len(self._known_bps) and not self._holds():
            self.traffic_changes(self._network.now_ps)

    def _holds(self) -> bool:
        """Whether transfers have the rates that iterations know."""
        return bool((np.abs(self._rates_bps() - self._known_bps) <= SMALLEST_CHANGE * self._known_bps).all())

    def _update(self) -> None:
        self._update_at_ps.remove(self._loop.now_ps)
        for _ in range(MOST_ROUNDS):
            self._ask_network()
            self._loop.update_coupling()
            self._tell_network()
            if self._holds():
                break

    def _ask_network(self) -> None:
        self._known_bps = self._rates_bps()
        if len(self._known_bps):
            self._loop.set_rates(self._known_bps)

    def _tell_network(self) -> None:
        links, rates_bps = self._loop.take_changed_background()
        if len(links):
            catch_up(self._network, self._loop.now_ps)
            self._network.set_background_bps(links, rates_bps)

    def _rates_bps(self) -> NDArray[np.float64]:
        """Of transfers, on the links that have some."""
        links = self._loop.transfer_links()
        return self._network.link_rates_bps(links) if len(links) else np.zeros(0)
