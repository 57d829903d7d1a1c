"""Copies of the fabric with nothing else on them, as it is and with links that have failed or are slow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from netsim import Completion, FailsLinks, FlowGraph, GraphHandle, NetworkBackend, Topology, create_backend
from netsim.backend import PACKET_BACKENDS
from netsim.roce import RoceConfig
from netsim.routing import Router as PathFinder
from vidur_pd.execution.network_clock import FAR_PS
from vidur_pd.execution.servers import AlikeServers


@dataclass(frozen=True, slots=True)
class FabricState:
    """What has become of links since the topology was built."""

    down: frozenset[int] = frozenset()
    shares: frozenset[tuple[int, float]] = frozenset()
    """(link, share of its capacity) of slow links."""

    def slowed(self, topology: Topology) -> Topology:
        """The topology with the capacities of this state."""
        if not self.shares:
            return topology
        capacity_bps = topology.capacity_bps.copy()
        for link, share in self.shares:
            capacity_bps[link] = round(float(capacity_bps[link]) * share)
        return replace(topology, capacity_bps=capacity_bps)


@dataclass(frozen=True, slots=True, eq=False)
class IdleRun:
    """One flow graph run alone. [links] of the topology"""

    duration_ps: int
    carried_bytes: NDArray[np.float64]
    busy_ps: NDArray[np.int64]
    flow_ps: NDArray[np.float64]
    """Time that flows have spent on each link, summed over flows."""


class IdleFabric:
    """Runs one flow graph after another, each alone.

    Packet-level backends get a new copy for every graph, as they remember what was there: random draws of ECN marks go
    on, and last acknowledgements are still under way.
    """

    def __init__(self, topology: Topology, backend: str, roce: RoceConfig | None, state: FabricState) -> None:
        """``roce``: settings of a packet-level backend."""
        self._topology, self._backend, self._roce, self._state = topology, backend, roce, state
        self.servers = AlikeServers(state.slowed(topology), state.down)
        self._paths = PathFinder(topology)
        for link in state.down:
            self._paths.set_link_up(link, False)
        self._idle = self._new()

    def run(self, graph: FlowGraph) -> IdleRun | None:
        """What the graph takes; ``None`` if it does not come to an end."""
        if self._backend in PACKET_BACKENDS:
            self._idle = self._new()
        before, start_ps = self._idle.link_stats(), self._idle.now_ps
        handle = self._idle.submit(graph, start_ps)
        completion = self._end_of(handle)
        if completion.is_failed:
            return None
        after = self._idle.link_stats()
        flow_ps = self._flow_ps(graph, handle)
        self._idle.forget(handle)
        carried_bytes, busy_ps = after.carried_bytes - before.carried_bytes, after.busy_ps - before.busy_ps
        return IdleRun(completion.at_ps - start_ps, carried_bytes, busy_ps, flow_ps)

    def _new(self) -> NetworkBackend:
        made = create_backend(self._backend, self._topology, self._roce)
        for link in sorted(self._state.down):
            cast(FailsLinks, made).set_link_up(link, False)
        for link, share in sorted(self._state.shares):
            cast(FailsLinks, made).set_capacity_share(link, share)
        if self._state.down and self._backend in PACKET_BACKENDS:
            made.advance((self._roce or RoceConfig()).reroute_delay)
        return made

    def _end_of(self, handle: GraphHandle) -> Completion:
        while True:
            assert self._idle.next_event_ps() is not None, f"graph {handle} never completes"
            for completion in self._idle.advance(FAR_PS):
                if completion.handle == handle and completion.flow is None:
                    return completion

    def _flow_ps(self, graph: FlowGraph, handle: GraphHandle) -> NDArray[np.float64]:
        times = self._idle.flow_times(handle)
        spent_ps = np.zeros(self._topology.links)
        columns = (graph.src, graph.dst, graph.flow_label, times.end_ps - times.start_ps)
        for src, dst, label, duration_ps in zip(*(column.tolist() for column in columns), strict=True):
            spent_ps[self._paths.route(src, dst, label)] += duration_ps
        return spent_ps
