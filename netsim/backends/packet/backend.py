"""What all packet-level backends offer, whatever their event engine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import netsim._core as _core
from netsim.backends.contract import GraphHandle
from netsim.backends.core import CoreBackend
from netsim.flow import FlowGraph


@dataclass(frozen=True, slots=True, eq=False)
class LinkCounters:
    """What each directed link has seen up to now, in the order of ``Topology`` links."""

    packets: NDArray[np.int64]
    """[links] data packets (or cells), acknowledgements and pause frames that have begun to be sent."""
    wire_bytes: NDArray[np.int64]
    """[links] with headers, acknowledgements and pause frames."""
    payload_bytes: NDArray[np.int64]
    """[links] of data packets, what was sent again included."""
    busy_ps: NDArray[np.int64]
    """[links] time spent sending."""
    paused_ps: NDArray[np.int64]
    """[links] time in which some class was paused."""
    pauses: NDArray[np.int64]
    """[links] pause frames obeyed by the sender."""
    marks: NDArray[np.int64]
    """[links] packets marked in its queues."""
    drops: NDArray[np.int64]
    """[links] packets lost on it or at its far end."""
    queued_bytes: NDArray[np.int64]
    """[links] waiting now."""


@dataclass(frozen=True, slots=True, eq=False)
class TimeSeries:
    """Figures of all links at regular instants while something was under way."""

    at_ps: NDArray[np.int64]
    """[samples]"""
    wire_bytes: NDArray[np.int64]
    """[samples, links] cumulative"""
    queued_bytes: NDArray[np.int64]
    """[samples, links] at the instant"""
    paused_ps: NDArray[np.int64]
    """[samples, links] cumulative, as are pauses and marks"""
    pauses: NDArray[np.int64]
    marks: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PauseEvent:
    """A pause of a class for the sender on a link, or its end."""

    at_ps: int
    link: int
    priority: int
    is_pause: bool


class PacketBackend(CoreBackend[_core.PacketSimulation]):
    """A `netsim.backends.contract.NetworkBackend` that moves packets through queues.

    A flow ends when its last byte has arrived; the sender learns of it a little later (`acknowledged_ps`). Between
    GPUs of a server it takes NVLink: packets under credits, no headers, no acknowledgements. ``link_stats`` counts
    payload, once for every time it was sent, and the time spent sending.
    """

    def counters(self) -> LinkCounters:
        return LinkCounters(**self._simulation.figures())

    def largest_queues_bytes(self) -> NDArray[np.int64]:
        """[links] most that has waited in one class so far; at a host, of acknowledgements and pause frames only."""
        return self._simulation.largest_queues_bytes()

    def packet_hops(self) -> int:
        """Packets serialised on links so far: data, acknowledgements and pause frames."""
        return self._simulation.packet_hops()

    def skipped_ps(self) -> int:
        """Time that was skipped because every flow went on at the rate it had (`RoceConfig.skip_tolerance`)."""
        return self._simulation.skipped_ps()

    def look_effort(self) -> tuple[int, int]:
        """What looking for steady states has taken: instants at which there was a question whether to look, and links
        and flows that were gone through, each of which takes about as long as a packet hop."""
        return self._simulation.look_effort()

    def canonical(self, graph: FlowGraph, *, names_by_use: bool) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """A form that graphs share if one becomes the other by renaming nodes and links, and its links in the order
        that the form numbers them. ``names_by_use`` false keeps the names."""
        return self._simulation.canonical(graph, names_by_use)

    def sample_every(self, interval_ps: int) -> None:
        """Keeps a `TimeSeries` sample now, and every so often while anything is under way; 0 ends it.

        Raises:
            BackendError: a negative interval.
        """
        self._simulation.sample_every(interval_ps)

    def time_series(self) -> TimeSeries:
        return TimeSeries(**self._simulation.time_series())

    def keep_log(self, is_kept: bool = True) -> None:
        """Keeps pauses and acknowledgements from now on, or no longer."""
        self._simulation.keep_log(is_kept)

    def pauses(self) -> list[PauseEvent]:
        """What has been logged, in order."""
        return [PauseEvent(*row) for row in self._simulation.pauses()]

    def acknowledged_ps(self, handle: GraphHandle, flows: int) -> NDArray[np.int64]:
        """[flows] when the sender had the last acknowledgement of each flow of a graph; -1 where not logged."""
        times = np.full(flows, -1, dtype=np.int64)
        for graph, flow, at_ps in self._simulation.acknowledgements():
            if graph == handle:
                times[flow] = at_ps
        return times

    def set_link_up(self, link: int, is_up: bool) -> None:
        """Fails or repairs one direction of a cable now.

        What is on it is lost. After the reroute delay, flows take other ways, if there are any; flows that find none
        try again until their retries are used up. NVLink flows fail at once.

        Raises:
            BackendError: an unknown link.
        """
        self._simulation.set_link_up(link, is_up)

    def set_capacity_share(self, link: int, share: float) -> None:
        """See `netsim.backends.contract.FailsLinks`; buffers, thresholds and windows stay as they were set up."""
        self._simulation.set_capacity_share(link, share)

    def set_storm(self, link: int, priority: int, is_storming: bool) -> None:
        """From now on the far end of a link keeps its sender paused in a class, as in a PFC storm, or no longer.

        Raises:
            BackendError: an unknown link, or a priority that cannot be paused.
        """
        self._simulation.set_storm(link, priority, is_storming)
