"""The contract every network backend fulfils, and the values it returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NewType, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from netsim._core import LinkLog, PeriodicLoads, SteppedNetwork
from netsim.flow import FlowGraph
from netsim.units import PS_PER_S

if TYPE_CHECKING:
    pass

BACKENDS: Final = ("analytical", "fluid", "packet", "ns3", "rdma")
"""Names that `create_backend` knows; not every build contains all of them."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend does, for those who plan a run with it."""

    simulates_packets: bool = False
    """With the settings of `netsim.roce.config.RoceConfig`; links can be paused (`PausesLinks`)."""
    shares_links: bool = True
    """Flows slow each other down."""
    carries_loads: bool = False
    """A load can stand for flows (`SharesCapacity`)."""


_CAPABILITIES: Final = {
    "analytical": Capabilities(shares_links=False),
    "fluid": Capabilities(carries_loads=True),
    "packet": Capabilities(simulates_packets=True),
    "ns3": Capabilities(simulates_packets=True),
}


def capabilities_of(backend: str) -> Capabilities:
    """Of the backend of that name; of one that is not known, those that all have."""
    return _CAPABILITIES.get(backend, Capabilities())


FIRST_WINDOW_PS: Final = PS_PER_S // 64
"""Of a log of links; our choice: 15.6 ms show a burst of transfers."""

GraphHandle = NewType("GraphHandle", int)


@dataclass(frozen=True, slots=True)
class Completion:
    """A graph, or a flow of it marked ``notify``, has completed."""

    handle: GraphHandle
    flow: int | None
    """Index of the flow in its graph; ``None`` means the whole graph."""
    at_ps: int
    is_failed: bool = False
    """Of a whole graph: the backend gave up flows of it; `FlowTimes.has_failed` tells which."""


@dataclass(frozen=True, slots=True, eq=False)
class FlowTimes:
    """Start and end of each flow of a graph, absolute; -1 where it has not happened yet."""

    start_ps: NDArray[np.int64]
    end_ps: NDArray[np.int64]
    has_failed: NDArray[np.bool_]
    """[flows] given up by the backend, or waiting for one that was."""


@dataclass(frozen=True, slots=True, eq=False)
class LinkStats:
    """What directed links have carried up to now: all in the order of ``Topology`` links, or those asked for."""

    carried_bytes: NDArray[np.float64]
    """[links] bytes whose transmission has happened."""
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
        """The same clock and completions as an object of the C++ core, for loops that are in C++ themselves; ``None``
        where only these methods give them."""
        ...

    def submit(self, graph: FlowGraph, at_ps: int) -> GraphHandle:
        """Hands over a whole graph that starts at ``at_ps``; an empty graph completes at ``at_ps``.

        Raises:
            NoPath: links that are up leave no way between the nodes of some flow.
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
        """[flows] bytes that have got through by now, of failed flows and cancelled graphs too; kept as times are.

        Backends that move rates count what has left the sender, those that move packets what the receiver can use.
        """
        ...

    def forget(self, handle: GraphHandle) -> None:
        """Frees the record of a completed or cancelled graph."""
        ...

    def link_stats(self, links: NDArray[np.int64] | None = None) -> LinkStats:
        """Of these links, or of all."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class FailsLinks(Protocol):
    """A backend whose links can fail, be repaired and lose capacity while flows are on them.

    Flows on a link that fails go on over another shortest path where links that are up leave one. The others fail, as
    do flows inside a server whose NVLink fails: those get no second path, only flows that start later do. Backends that
    move packets lose what is under way, hear of changes ``reroute_delay`` later and fail a flow when its retries are
    used up; the others reroute at once, lose nothing, and fail a flow at the instant at which it has no path.
    """

    def set_link_up(self, link: int, is_up: bool) -> None:
        """Fails or repairs one direction of a cable now. Raises: BackendError, for an unknown link."""
        ...

    def set_capacity_share(self, link: int, share: float) -> None:
        """The link has 0 < ``share`` ≤ 1 of its capacity from now on. Raises: BackendError, for other values."""
        ...


@runtime_checkable
class PausesLinks(Protocol):
    """A backend whose links can be paused by a storm of PFC frames."""

    def set_storm(self, link: int, priority: int, is_storming: bool) -> None:
        """From now on the far end of a link keeps its sender paused in a class, or no longer.

        Raises: BackendError, for an unknown link or a priority that cannot be paused.
        """
        ...


@runtime_checkable
class SharesCapacity(Protocol):
    """A backend whose links can also carry traffic that is not simulated as flows (used by the coupling)."""

    def set_background_bps(self, links: NDArray[np.int64], rates_bps: NDArray[np.float64]) -> None:
        """From now on this much of each link's capacity is taken by other traffic (at most its capacity)."""
        ...

    def link_rates_bps(self, links: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        """[links] rate of simulated flows on these links, or on all, at this instant; background not included."""
        ...

    def load_periodically(self, sources: int) -> PeriodicLoads:
        """Loads that repeat, of so many sources, together with the flows of graphs that are submitted from now on; see
        ``core/include/netsim/periodic_loads.hpp``. They take the place of earlier ones."""
        ...


@runtime_checkable
class LogsLinks(Protocol):
    """A backend that logs what its links carry over time."""

    def log_links(self, windows: int, window_ps: int = FIRST_WINDOW_PS) -> LinkLog:
        """A log of what links carry from now on, in at most so many windows (an odd number becomes the next even one),
        ``window_ps`` wide at first and twice as wide whenever time outgrows them.

        Bytes lie in the window in which they are carried, at the rates that flows have then; where flows do not see
        each other that may be more than a link can carry. On packets they are payload, whenever it is sent.

        Raises:
            BackendError: less than one window or picosecond.
        """
        ...

    def update_link_log(self) -> None:
        """Brings the log up to now; what was carried in a window that is not over may be missing otherwise."""
        ...
