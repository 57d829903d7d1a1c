"""Router: the links that a flow takes, by shortest paths with static ECMP.

Paths are shortest in hops; GPUs do not forward. Where several next hops are equally near, NVSwitches are preferred,
and among what remains the node takes the one that murmur3-32 of (source address, destination address, ports), seeded
with its own number, selects modulo their count. Addresses and ports are those of the ns-3 models of HPCC and SimAI:
node ``i`` is ``11.(i div 256).(i mod 256).1``, queue pair ``flow_label`` of a pair goes from port
``10000 + flow_label`` to port 100 (the upper 16 bits of the label enter the latter). Links may fail and be repaired:
paths are then the shortest among links that are up.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

import netsim._core as _core
from netsim.errors import BackendError
from netsim.topology import Topology


def core_network(topology: Topology) -> _core.Network:
    """Topology in the form of the C++ core."""
    return _core.Network(
        topology.node_kind, topology.link_src, topology.link_dst, topology.capacity_bps, topology.latency_ps
    )


class Router:
    """Paths through a topology; distance tables and paths are built when first asked for and kept.

    ``ecmp_seed`` (32 bits) 0 gives the hash as above; with any other, every node chooses anew.

    Raises:
        BackendError: an ``ecmp_seed`` outside 0 … 2³² − 1.
    """

    def __init__(self, topology: Topology, *, ecmp_seed: int = 0) -> None:
        if not 0 <= ecmp_seed < 2**32:
            raise BackendError(f"ecmp_seed: found {ecmp_seed}, expected 0…2³² − 1")
        self._links = topology.links
        self._routing = _core.Routing(core_network(topology), ecmp_seed)

    def route(self, src: int, dst: int, flow_label: int = 0) -> NDArray[np.int64]:
        """[hops] link ids from ``src`` to ``dst``, empty where they are the same.

        Raises:
            BackendError: unknown node, or no path.
        """
        return self._path(src, dst, flow_label).links.astype(np.int64)

    def reverse_route(self, src: int, dst: int, flow_label: int = 0) -> NDArray[np.int64]:
        """[hops] link ids from ``dst`` back to ``src``, the path of the flow's ACKs. Addresses and ports are swapped in
        the hash, so ACKs often cross other switches than the flow. Raises as `route` does."""
        return self._routing.reverse_path(src, dst, flow_label).links.astype(np.int64)

    def routes(
        self,
        src: NDArray[np.integer],
        dst: NDArray[np.integer],
        flow_label: NDArray[np.uint32],
        *,
        is_reverse: bool = False,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Paths of many flows: ([flows + 1] offsets, [hops of all flows] link ids); a flow without a path has no hops.

        ``is_reverse``: the paths of their ACKs.

        Raises:
            BackendError: unknown node.
        """
        ends = (src.astype(np.uint32), dst.astype(np.uint32))
        offsets, links = self._routing.routes(*ends, flow_label, is_reverse)
        return offsets, links.astype(np.int64)

    def next_hops(self, at: int, dst: int) -> NDArray[np.int64]:
        """[choices] links out of ``at`` on shortest paths to ``dst``, in link order, among which the hash chooses.

        Raises:
            BackendError: unknown node.
        """
        return self._routing.next_hops(at, dst).astype(np.int64)

    def links_between(self, nodes: Sequence[int]) -> NDArray[np.int64]:
        """Link ids, rising, on any shortest path between two of the nodes; none where there is no path.

        As long as none of these links changes, no flow between the nodes takes another path.

        Raises:
            BackendError: unknown node.
        """
        return self._routing.links_between(nodes).astype(np.int64)

    def total_hops(self, nodes: Sequence[int]) -> int | None:
        """Hops of the shortest paths between all ordered pairs of the nodes; ``None`` where a pair has no path.

        Raises:
            BackendError: unknown node.
        """
        return self._routing.total_hops(nodes)

    @property
    def tables_built(self) -> int:
        """Number of breadth-first searches so far, each from one set of switches (for tests and benchmarks)."""
        return self._routing.tables_built

    def set_link_up(self, link: int, is_up: bool) -> None:
        """Fails or repairs one direction of a cable; later answers respect it.

        Raises:
            BackendError: unknown link.
        """
        if not 0 <= link < self._links:
            raise BackendError(f"unknown link: found {link}, expected 0…{self._links - 1}")
        self._routing.set_link_up(link, is_up)

    def path_latency_ps(self, src: int, dst: int, flow_label: int = 0) -> int:
        """Sum of the latencies along `route`. Raises as `route` does."""
        return self._path(src, dst, flow_label).latency_ps

    def bottleneck_bps(self, src: int, dst: int, flow_label: int = 0) -> int:
        """Smallest capacity along `route`; 2⁶³ − 1 for the empty path. Raises as `route` does."""
        return self._path(src, dst, flow_label).bottleneck_bps

    def _path(self, src: int, dst: int, flow_label: int) -> _core.Path:
        return self._routing.path(src, dst, flow_label)
