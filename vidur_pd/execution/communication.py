"""Durations and link loads of collectives on the idle fabric."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

import simccl
from aicb import Communication
from netsim import Completion, FlowGraph, GraphHandle, NetworkBackend, Topology, create_backend
from netsim.backend import PACKET_BACKENDS
from netsim.roce import RoceConfig
from netsim.routing import Router as PathFinder
from vidur_pd.execution.servers import AlikeServers

Gpus = tuple[int, ...]

FAR_PS = 2**62
"""Later than any simulated instant; fits a signed 64-bit integer."""


class CollectiveFailed(RuntimeError):
    """A collective does not come to an end although nothing else is on the network."""


@dataclass(frozen=True, slots=True, eq=False)
class CollectiveCost:
    """One collective run alone."""

    duration_ps: int
    links: NDArray[np.int64]
    """[touched links] topology link indices."""
    link_bytes: NDArray[np.float64]
    """[touched links] bytes carried by each."""
    link_flows: NDArray[np.float64]
    """[touched links] mean number of its flows on each while there is one."""
    link_busy_ps: NDArray[np.float64]
    """[touched links] time for which there is one."""


NO_COST = CollectiveCost(0, np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0), np.zeros(0))


class CommunicationPricer:
    """Runs each distinct collective once on an idle copy of the fabric and remembers its cost.

    Packet-level backends get a new copy for every collective, as they remember what was there: random draws of ECN
    marks go on, and last acknowledgements are still under way.

    Sizes between grid points (eight per octave) are interpolated linearly between the two neighbours: with one protocol
    time and bytes on links are affine in the size, and a change of protocol is blurred over at most an eighth of an
    octave. With the ``analytical`` backend the duration is simccl's closed form instead. How many flows of a collective
    are on a link at a time is taken from the first size that is run. What runs within a server runs on one for all that
    are alike.
    """

    def __init__(
        self,
        topology: Topology,
        backend: str,
        gpu: str,
        stack: simccl.Stack = simccl.Stack.NCCL,
        *,
        roce: RoceConfig | None = None,
    ) -> None:
        """``roce``: settings of a packet-level backend."""
        simccl.check_measured(stack, gpu)
        self._stack = stack
        self._topology = topology
        self._paths = PathFinder(topology)
        self._servers = AlikeServers(topology)
        self._gpu = gpu
        self._is_packet_level = backend in PACKET_BACKENDS
        self._closed_form = backend == "analytical"
        self._new_idle: Callable[[], NetworkBackend] = partial(create_backend, backend, topology, roce)
        self._idle = self._new_idle()
        self._communicators: dict[Gpus, simccl.Communicator] = {}
        self._link_flows: dict[tuple[str, Gpus], NDArray[np.float64]] = {}
        self._exact: dict[tuple[str, int, Gpus], CollectiveCost] = {}
        self._priced: dict[tuple[str, int, Gpus], CollectiveCost] = {}

    def communicator(self, gpus: Gpus) -> simccl.Communicator:
        if gpus not in self._communicators:
            self._communicators[gpus] = simccl.Communicator(gpus, self._topology, self._gpu)
        return self._communicators[gpus]

    def flows(self, op: str, size_bytes: int, communicator: simccl.Communicator) -> FlowGraph:
        """The flows of a collective by the kernels that run here."""
        return simccl.plan_collective(op, size_bytes, communicator, stack=self._stack).graph()

    def cost(self, communication: Communication, gpus: Gpus) -> CollectiveCost:
        """Cost of a collective among ``gpus``; nothing among fewer than two."""
        key = (communication.op, communication.size_bytes, gpus)
        if key not in self._priced:
            home = self._servers.home(gpus)
            if home == gpus:
                self._priced[key] = self._interpolated(*key)
            else:
                self._priced[key] = self._servers.moved(self.cost(communication, home), gpus)
        return self._priced[key]

    def _interpolated(self, op: str, size_bytes: int, gpus: Gpus) -> CollectiveCost:
        if len(gpus) < 2 or size_bytes == 0:
            return NO_COST
        step = 1 << max(0, size_bytes.bit_length() - 4)
        below = size_bytes - size_bytes % step
        low = self._run(op, below, gpus)
        if below == size_bytes:
            return low
        high = self._run(op, below + step, gpus)
        return _between(low, high, (size_bytes - below) / step)

    def _run(self, op: str, size_bytes: int, gpus: Gpus) -> CollectiveCost:
        key = (op, size_bytes, gpus)
        if key not in self._exact:
            self._exact[key] = self._measure(op, size_bytes, gpus)
        return self._exact[key]

    def _measure(self, op: str, size_bytes: int, gpus: Gpus) -> CollectiveCost:
        communicator = self.communicator(gpus)
        if self._is_packet_level:
            self._idle = self._new_idle()
        before, start_ps = self._idle.link_stats(), self._idle.now_ps
        graph = self.flows(op, size_bytes, communicator)
        handle = self._idle.submit(graph, start_ps)
        completion = self._run_to_the_end(handle)
        if completion.is_failed:
            raise CollectiveFailed(
                f"network.roce: found that {op} of {size_bytes} bytes among GPUs {gpus[0]} to {gpus[-1]} does not "
                "end on the idle fabric, expected settings with which it does (retransmission_timeout, max_retries)"
            )
        after = self._idle.link_stats()
        carried, busy_ps = after.carried_bytes - before.carried_bytes, after.busy_ps - before.busy_ps
        links = np.flatnonzero(carried > 0)
        if (op, gpus) not in self._link_flows:
            self._link_flows[op, gpus] = self._flow_time_ps(graph, handle) / np.maximum(busy_ps, 1)
        self._idle.forget(handle)
        duration_ps = completion.at_ps - start_ps
        if self._closed_form:
            duration_ps = simccl.collective_time(op, size_bytes, communicator, stack=self._stack).time_ps
        link_flows = np.maximum(self._link_flows[op, gpus][links], 1.0)
        return CollectiveCost(duration_ps, links, carried[links], link_flows, busy_ps[links].astype(np.float64))

    def _run_to_the_end(self, handle: GraphHandle) -> Completion:
        """Runs the idle copy until the graph has completed."""
        while True:
            assert self._idle.next_event_ps() is not None, f"graph {handle} never completes"
            for completion in self._idle.advance(FAR_PS):
                if completion.handle == handle and completion.flow is None:
                    return completion

    def _flow_time_ps(self, graph: FlowGraph, handle: GraphHandle) -> NDArray[np.float64]:
        """[links] time that flows have spent on each, summed over flows."""
        times = self._idle.flow_times(handle)
        spent_ps = np.zeros(self._topology.links)
        columns = (graph.src, graph.dst, graph.flow_label, times.end_ps - times.start_ps)
        for src, dst, label, duration_ps in zip(*(column.tolist() for column in columns), strict=True):
            spent_ps[self._paths.route(src, dst, label)] += duration_ps
        return spent_ps


def _between(low: CollectiveCost, high: CollectiveCost, share: float) -> CollectiveCost:
    """The cost ``share`` of the way from one to the other; flows are those of the larger one where it has some."""
    links = np.union1d(low.links, high.links)
    columns = np.zeros((6, len(links)))
    for row, cost in enumerate((low, high)):
        place = np.searchsorted(links, cost.links)
        columns[row, place], columns[2 + row, place], columns[4 + row, place] = (
            cost.link_bytes,
            cost.link_busy_ps,
            cost.link_flows,
        )
    low_bytes, high_bytes, low_busy_ps, high_busy_ps, low_flows, high_flows = columns
    return CollectiveCost(
        duration_ps=round(low.duration_ps + share * (high.duration_ps - low.duration_ps)),
        links=links,
        link_bytes=low_bytes + share * (high_bytes - low_bytes),
        link_flows=np.where(high_flows > 0, high_flows, low_flows),
        link_busy_ps=low_busy_ps + share * (high_busy_ps - low_busy_ps),
    )
