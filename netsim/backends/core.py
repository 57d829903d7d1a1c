"""Backends over the C++ core: its executor behind the `NetworkBackend` contract."""

from __future__ import annotations

import operator
from typing import Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

import netsim._core as _core
from netsim.backends.calibration import CalibratedFlows, MessageTimes
from netsim.backends.contract import FIRST_WINDOW_PS, Completion, FlowTimes, GraphHandle, LinkStats
from netsim.errors import BackendError
from netsim.flow import FlowGraph
from netsim.roce.wire import WireFormat
from netsim.routing import Router, core_network
from netsim.topology import Topology

_CLOCK_END_PS: Final = 2**63

Simulation = TypeVar("Simulation", bound=_core.Simulation)


class CoreBackend(Generic[Simulation]):
    """A `netsim.backends.contract.NetworkBackend` over a simulation of the core.

    An instance serves one thread at a time; instances are independent.
    """

    def __init__(self, simulation: Simulation) -> None:
        self._open: Simulation | None = simulation

    @property
    def now_ps(self) -> int:
        return self._simulation.now_ps

    @property
    def stepped(self) -> _core.SteppedNetwork:
        """See `NetworkBackend.stepped`."""
        return self._simulation

    def submit(self, graph: FlowGraph, at_ps: int) -> GraphHandle:
        """See `NetworkBackend.submit`.

        Raises:
            FlowGraphError: the graph has a cycle.
            BackendError: a start in the past, an unknown node, or two nodes without a path; nothing is submitted then.
        """
        handle = self._simulation.submit(graph, _time(at_ps, "submit at_ps"))
        return GraphHandle(handle)

    def advance(self, until_ps: int) -> list[Completion]:
        completions = self._simulation.advance(_time(until_ps, "advance until_ps"))
        if not completions:
            return []
        return [
            Completion(GraphHandle(handle), None if flow == _core.WHOLE_GRAPH else flow, at_ps, is_failed)
            for handle, flow, at_ps, is_failed in completions
        ]

    def next_event_ps(self) -> int | None:
        """See `NetworkBackend.next_event_ps`; also ``None`` where background traffic leaves no capacity to any flow."""
        return self._simulation.next_event_ps()

    def cancel(self, handle: GraphHandle) -> None:
        self._simulation.cancel(handle)

    def flow_times(self, handle: GraphHandle) -> FlowTimes:
        return FlowTimes(*self._simulation.flow_times(handle))

    def sent_bytes(self, handle: GraphHandle) -> NDArray[np.int64]:
        """See `NetworkBackend.sent_bytes`."""
        return self._simulation.sent_bytes(handle)

    def forget(self, handle: GraphHandle) -> None:
        self._simulation.forget(handle)

    def link_stats(self, links: NDArray[np.int64] | None = None) -> LinkStats:
        """See `NetworkBackend.link_stats`."""
        return LinkStats(*self._simulation.link_totals(links))

    def log_links(self, windows: int, window_ps: int = FIRST_WINDOW_PS) -> _core.LinkLog:
        """See `netsim.backends.contract.LogsLinks`."""
        return self._simulation.log_links(windows, window_ps)

    def update_link_log(self) -> None:
        """See `netsim.backends.contract.LogsLinks`."""
        self._simulation.update_link_log()

    def check_open(self) -> None:
        """Raises:
        BackendError: the backend was closed.
        """
        _ = self._simulation

    def close(self) -> None:
        """Frees the simulation; a second call does nothing."""
        self._open = None

    @property
    def _simulation(self) -> Simulation:
        if self._open is None:
            raise BackendError("backend: used after close, expected an open one")
        return self._open


def _time(value: int, name: str) -> int:
    try:
        time_ps = operator.index(value)
    except TypeError:
        raise BackendError(f"{name}: found {value!r}, expected an integer of picoseconds") from None
    if not -_CLOCK_END_PS < time_ps < _CLOCK_END_PS:
        raise BackendError(f"{name}: found {time_ps} ps, expected less than 2⁶³ ps (106 days)")
    return time_ps


class FlowBackend(CoreBackend[_core.FlowSimulation]):
    """Moves flows as fluids at rates given by a sharing rule.

    A flow ends when its last byte has drained and travelled the propagation latency of its path; between equal nodes
    it takes no time. While it drains, it occupies all links of its path at once: there is no queue, and, unless a
    `WireFormat` is given, no header, no ACK and no store-and-forward delay. Drained amounts are exact integers; an end
    is the first whole picosecond by which all bytes are through. With a ``calibration``, flows alone on their path take
    what was measured (`netsim.backends.calibration`), on the paths of the topology as long as nothing has failed.
    """

    def __init__(
        self,
        topology: Topology,
        sharing: _core.Sharing,
        wire: WireFormat | None = None,
        rate_tolerance: float = 0,
        calibration: MessageTimes | None = None,
    ) -> None:
        if wire is not None and calibration is not None:
            raise BackendError("wire: found one with a calibration, expected none (what is measured has its headers)")
        format_ = wire.to_core() if wire else None
        super().__init__(_core.FlowSimulation(core_network(topology), sharing, format_, rate_tolerance))
        self._calibrated = None if calibration is None else CalibratedFlows(calibration, Router(topology))
        self._added_ps: dict[GraphHandle, NDArray[np.int64]] = {}

    def submit(self, graph: FlowGraph, at_ps: int) -> GraphHandle:
        """See `CoreBackend.submit`. Raises: InputError also, where the calibration does not know a flow."""
        if self._calibrated is None:
            return super().submit(graph, at_ps)
        graph, added_ps = self._calibrated.applied(graph)
        handle = super().submit(graph, at_ps)
        self._added_ps[handle] = added_ps
        return handle

    def flow_times(self, handle: GraphHandle) -> FlowTimes:
        """See `NetworkBackend.flow_times`; what a calibration adds is part of a flow."""
        times = super().flow_times(handle)
        if handle not in self._added_ps:
            return times
        start_ps = np.where(times.start_ps >= 0, times.start_ps - self._added_ps[handle], times.start_ps)
        return FlowTimes(start_ps, times.end_ps, times.has_failed)

    def forget(self, handle: GraphHandle) -> None:
        super().forget(handle)
        self._added_ps.pop(handle, None)

    def set_link_up(self, link: int, is_up: bool) -> None:
        """See `netsim.backends.contract.FailsLinks`."""
        self._simulation.set_link_up(link, is_up)

    def set_capacity_share(self, link: int, share: float) -> None:
        """See `netsim.backends.contract.FailsLinks`."""
        self._simulation.set_capacity_share(link, share)
