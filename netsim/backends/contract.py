"""The contract every network backend fulfils, and the values it returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NewType, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from netsim._core import LinkLog, PeriodicLoads, SteppedNetwork
from netsim.flow import FlowGraph
from netsim.units import PS_PER_S

BACKENDS: Final = ("analytical", "fluid", "packet", "ns3", "rdma")
"""Names that `create_backend` knows; not every build contains all of them."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of a backend, known before one is made."""

    simulates_packets: bool = False
    """Flows are RoCE packets with the settings of `netsim.roce.config.RoceConfig`; links can pause (`PausesLinks`)."""
    shares_links: bool = True
    """Flows slow each other down."""
    carries_loads: bool = False
    """A load can stand for flows (`SharesCapacity`)."""
    is_calibrated: bool = False
    """Flows can take what was measured between real hosts (`netsim.backends.calibration`)."""
    sends_traffic: bool = False
    """Flows are real traffic, of one graph after the other (`netsim.backends.rdma`)."""


_CAPABILITIES: Final = {
    "analytical": Capabilities(shares_links=False, is_calibrated=True),
    "fluid": Capabilities(carries_loads=True, is_calibrated=True),
    "packet": Capabilities(simulates_packets=True),
    "ns3": Capabilities(simulates_packets=True),
    "rdma": Capabilities(sends_traffic=True),
}


def capabilities_of(backend: str) -> Capabilities:
    """Capabilities of the backend of that name; the defaults for a name that is not known."""
    return _CAPABILITIES.get(backend, Capabilities())


FIRST_WINDOW_PS: Final = PS_PER_S // 64
"""Width of the first windows of a link log; our choice: 15.6 ms show a burst of transfers."""

GraphHandle = NewType("GraphHandle", int)


@dataclass(frozen=True, slots=True)
class Completion:
    """A graph, or a flow of it marked ``notify``, has completed."""

    handle: GraphHandle
    flow: int | None
    """Index of the flow in its graph; ``None`` means the whole graph."""
    at_ps: int
    is_failed: bool = False
    """Whether the backend has given up flows of the graph (`FlowTimes.has_failed` tells which); false for a flow."""


@dataclass(frozen=True, slots=True, eq=False)
class FlowTimes:
    """Start and end of each flow of a graph, absolute; -1 where it has not happened yet."""

    start_ps: NDArray[np.int64]
    end_ps: NDArray[np.int64]
    has_failed: NDArray[np.bool_]
    """[flows] given up by the backend, or waiting for one that was."""


@dataclass(frozen=True, slots=True, eq=False)
class LinkStats:
    """Totals of directed links up to now: of all in the order of ``Topology``, or of those asked for."""

    carried_bytes: NDArray[np.float64]
    """[links] bytes transmitted."""
    busy_ps: NDArray[np.int64]
    """[links] time with at least one active flow."""


class NetworkBackend(Protocol):
    """Carries flow graphs over a topology on a clock of integer picoseconds.

    ``advance`` is inclusive and step-size independent: it runs every event with time ≤ ``until_ps`` but returns
    at the first instant at which a submitted graph (or a ``notify`` flow) completes, with all completions of that
    instant, ordered by (handle, flow, whole graph last). After it returns, ``now_ps`` is that instant, or
    ``until_ps`` where nothing completed. Submissions at ``at_ps < now_ps`` raise `netsim.errors.BackendError`.
    """

    @property
    def now_ps(self) -> int: ...

    @property
    def stepped(self) -> SteppedNetwork | None:
        """The backend as an object of the C++ core, with the same clock and completions, for event loops in C++;
        ``None`` for a backend written in Python."""
        ...

    def submit(self, graph: FlowGraph, at_ps: int) -> GraphHandle:
        """Submits a graph that starts at ``at_ps``; an empty graph completes at ``at_ps``.

        Raises:
            NoPath: the links that are up leave some flow without a path.
        """
        ...

    def advance(self, until_ps: int) -> list[Completion]: ...

    def next_event_ps(self) -> int | None:
        """A lower bound of the next completion that is never before ``now_ps``; ``None`` if all is idle."""
        ...

    def cancel(self, handle: GraphHandle) -> None:
        """Takes a running graph off the network; cancelling a completed graph does nothing."""
        ...

    def flow_times(self, handle: GraphHandle) -> FlowTimes:
        """Times of a graph's flows; kept until ``forget`` is called."""
        ...

    def sent_bytes(self, handle: GraphHandle) -> NDArray[np.int64]:
        """[flows] bytes delivered so far, also of failed flows and cancelled graphs; kept until ``forget`` is called.

        Flow-level backends count bytes that have left the sender, packet-level ones bytes that the receiver can use.
        """
        ...

    def forget(self, handle: GraphHandle) -> None:
        """Frees the record of a completed or cancelled graph."""
        ...

    def link_stats(self, links: NDArray[np.int64] | None = None) -> LinkStats:
        """Totals of these links, or of all."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class FailsLinks(Protocol):
    """A backend whose links can fail, be repaired and lose capacity while flows are on them.

    Flows on a link that fails continue over another shortest path if the links that are up leave one; otherwise they
    fail. Flows inside a server whose NVLink fails always fail, only flows that start later get another path.
    Packet-level backends lose the packets under way, reroute after ``reroute_delay``, and fail a flow when its retries
    are used up. Flow-level backends reroute at once, lose nothing, and fail a flow as soon as it has no path.
    """

    def set_link_up(self, link: int, is_up: bool) -> None:
        """Fails or repairs one direction of a cable now. Raises: BackendError, for an unknown link."""
        ...

    def set_capacity_share(self, link: int, share: float) -> None:
        """Leaves a link 0 < ``share`` ≤ 1 of its capacity from now on. Raises: BackendError, for other values."""
        ...


@runtime_checkable
class PausesLinks(Protocol):
    """A backend whose links can be paused by a storm of PFC frames."""

    def set_storm(self, link: int, priority: int, is_storming: bool) -> None:
        """Begins or ends a storm: the far end of a link keeps the sender paused in one traffic class.

        Raises: BackendError, for an unknown link or a priority that cannot be paused.
        """
        ...


@runtime_checkable
class SharesCapacity(Protocol):
    """A backend whose links can also carry traffic that is not simulated as flows (used by the coupling)."""

    def set_background_bps(self, links: NDArray[np.int64], rates_bps: NDArray[np.float64]) -> None:
        """Takes this rate of each link, at most its capacity, for background traffic from now on."""
        ...

    def link_rates_bps(self, links: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        """[links] rate of simulated flows on these links, or on all, at this instant; background not included."""
        ...

    def load_periodically(self, sources: int) -> PeriodicLoads:
        """Periodic loads of so many sources, which share links with the graphs submitted from now on and replace
        earlier loads; see ``core/include/netsim/periodic_loads.hpp``."""
        ...


@runtime_checkable
class LogsLinks(Protocol):
    """A backend that logs what its links carry over time."""

    def log_links(self, windows: int, window_ps: int = FIRST_WINDOW_PS) -> LinkLog:
        """Starts a log of the bytes that links carry, in at most ``windows`` windows (rounded up to an even number).

        Windows are ``window_ps`` wide at first; when time outgrows them, pairs are merged and the width doubles.
        Bytes are booked in the window in which they are carried, at the rates that flows have then: where flows do not
        share links that may be more than a link can carry. Packet-level backends book payload whenever it
        is sent, resends included.

        Raises:
            BackendError: less than one window or picosecond.
        """
        ...

    def update_link_log(self) -> None:
        """Brings the log up to now; without it, bytes carried in the current window may be missing."""
        ...
