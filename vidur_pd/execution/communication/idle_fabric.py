"""A copy of the fabric with nothing else on it, as it is and with links that have failed or are slow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from netsim import Completion, FailsLinks, FlowGraph, GraphHandle, Topology, create_backend
from netsim.backend import PACKET_BACKENDS
from netsim.roce import RoceConfig
from netsim.routing import Router as PathFinder
from vidur_pd.execution.communication.live_fabric import INTACT, FabricState
from vidur_pd.execution.communication.servers import AlikeServers
from vidur_pd.execution.network_clock import FAR_PS


@dataclass(frozen=True, slots=True, eq=False)
class IdleRun:
    """One flow graph run alone."""

    duration_ps: int
    links: NDArray[np.int64]
    """[touched links] rising: links that have carried something."""
    carried_bytes: NDArray[np.float64]
    """[touched links]"""
    busy_ps: NDArray[np.int64]
    """[touched links]"""
    flow_ps: NDArray[np.float64]
    """[touched links] time that flows have spent on each, summed over flows."""


class IdleFabric:
    """Runs one flow graph after another, each alone, in the state of the links that is asked for.

    Packet-level backends get a new copy for every graph, as they remember what was there: random draws of ECN marks go
    on, and last acknowledgements are still under way.
    """

    def __init__(self, topology: Topology, backend: str, roce: RoceConfig | None) -> None:
        """``roce``: settings of a packet-level backend."""
        self._topology, self._backend, self._roce = topology, backend, roce
        self.servers = AlikeServers(topology)
        self._paths = PathFinder(topology)
        self._state = INTACT
        self._idle = create_backend(backend, topology, roce)

    def run(self, graph: FlowGraph, state: FabricState = INTACT) -> IdleRun | None:
        """What the graph takes in a state of the links; ``None`` if it does not come to an end."""
        if self._backend in PACKET_BACKENDS:
            self._idle = create_backend(self._backend, self._topology, self._roce)
            self._change(INTACT, state)
            if state.down:
                self._idle.advance((self._roce or RoceConfig()).reroute_delay)
        else:
            self._change(self._state, state)
        for link in sorted(self._state.down ^ state.down):
            self._paths.set_link_up(link, link not in state.down)
        self._state = state
        ways = self._paths.routes(graph.src, graph.dst, graph.flow_label)
        links = self._links(graph, ways[1])
        before, start_ps = self._idle.link_stats(links), self._idle.now_ps
        handle = self._idle.submit(graph, start_ps)
        completion = self._end_of(handle)
        if completion.is_failed:
            return None
        after, times = self._idle.link_stats(links), self._idle.flow_times(handle)
        self._idle.forget(handle)
        flow_ps = _on_links(links, ways, times.end_ps - times.start_ps)
        carried_bytes, busy_ps = after.carried_bytes - before.carried_bytes, after.busy_ps - before.busy_ps
        touched = carried_bytes > 0
        duration_ps = completion.at_ps - start_ps
        return IdleRun(duration_ps, links[touched], carried_bytes[touched], busy_ps[touched], flow_ps[touched])

    def _links(self, graph: FlowGraph, on_ways: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rising: links that the graph may touch. Packets may be spread over others than those of their flows."""
        if self._backend in PACKET_BACKENDS:
            return np.arange(self._topology.links)
        _, back = self._paths.routes(graph.src, graph.dst, graph.flow_label, is_reverse=True)
        return np.unique(np.concatenate((on_ways, back)))

    def _change(self, old: FabricState, new: FabricState) -> None:
        """Brings the links of the copy from one state to another."""
        network, shares = cast(FailsLinks, self._idle), dict(new.shares)
        for link in sorted(old.down ^ new.down):
            network.set_link_up(link, link not in new.down)
        for link in sorted({link for link, _ in old.shares ^ new.shares}):
            network.set_capacity_share(link, shares.get(link, 1.0))

    def _end_of(self, handle: GraphHandle) -> Completion:
        while True:
            assert self._idle.next_event_ps() is not None, f"graph {handle} never completes"
            for completion in self._idle.advance(FAR_PS):
                if completion.handle == handle and completion.flow is None:
                    return completion


def _on_links(
    links: NDArray[np.int64], ways: tuple[NDArray[np.int64], NDArray[np.int64]], of_flows: NDArray[np.int64]
) -> NDArray[np.float64]:
    """[links] sum over the flows on each; ``ways`` are those of `netsim.routing.Router.routes`."""
    offsets, on_ways = ways
    weights = np.repeat(of_flows, np.diff(offsets))
    return np.bincount(np.searchsorted(links, on_ways), weights, len(links)).astype(np.float64)
