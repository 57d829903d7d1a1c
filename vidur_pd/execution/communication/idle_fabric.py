"""A copy of the fabric with nothing else on it, as it is and with links that have failed or are slow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from netsim import Completion, Fabric, FlowGraph, GraphHandle, NetworkBackend, Topology, capabilities_of, create_backend
from netsim.backends.calibration import MessageTimes
from netsim.fabric import INTACT, FabricState
from netsim.roce.config import RoceConfig
from vidur_pd.execution.communication.servers import IdenticalServers
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

    def __init__(
        self,
        topology: Topology,
        backend: str,
        roce: RoceConfig | None,
        calibration: MessageTimes | None = None,
    ) -> None:
        """``roce``: settings of a packet-level backend. ``calibration``: of the others, what messages take."""
        self._backend, self._roce, self._calibration = backend, roce, calibration
        self._is_renewed = capabilities_of(backend).simulates_packets
        self.servers = IdenticalServers(topology)
        self._fabric = Fabric(topology)
        self._idle = self._new_network()

    def run(self, graph: FlowGraph, state: FabricState = INTACT) -> IdleRun | None:
        """What the graph takes in a state of the links; ``None`` if it does not come to an end."""
        self._fabric.become(state)
        if self._is_renewed:
            self._idle = self._new_network()
            if state.down:
                self._idle.advance((self._roce or RoceConfig()).reroute_delay)
        ways = self._fabric.router.routes(graph.src, graph.dst, graph.flow_label)
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
        if self._is_renewed:
            return np.arange(self._fabric.topology.links)
        _, back = self._fabric.router.routes(graph.src, graph.dst, graph.flow_label, is_reverse=True)
        return np.unique(np.concatenate((on_ways, back)))

    def _new_network(self) -> NetworkBackend:
        """An idle one in the state that links have."""
        network = create_backend(self._backend, self._fabric.topology, self._roce, calibration=self._calibration)
        self._fabric.carry_with(network)
        return network

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
