"""KV flows on links now, and how long a further transfer would take among them."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from netsim import FlowGraph, Topology
from netsim.errors import BackendError
from netsim.fabric import Fabric

PATHS_KEPT: Final = 65_536

Links = NDArray[np.int64]


class LinkLoads:
    """Number of KV flows whose paths cross each link, as links are up now.

    A transfer is expected to share every link evenly with the flows that are there: what they will do meanwhile, and
    collectives, are left out.
    """

    def __init__(self, topology: Topology, fabric: Fabric) -> None:
        self._fabric = fabric
        self._flows = np.zeros(topology.links, dtype=np.int64)
        self._router = fabric.router
        self._path = lru_cache(PATHS_KEPT)(self._routed)

    def enter(self, graph: FlowGraph) -> Links:
        """The flows of a graph are on their paths; returns their links, for `leave`."""
        paths = [self._links(src, dst) for src, dst in zip(graph.src.tolist(), graph.dst.tolist(), strict=True)]
        links = np.concatenate([path for path in paths if path is not None] or [np.zeros(0, dtype=np.int64)])
        np.add.at(self._flows, links, 1)
        return links

    def leave(self, links: Links) -> None:
        """The flows are gone."""
        np.subtract.at(self._flows, links, 1)

    def expected_s(self, src: NDArray[np.int32], dst: NDArray[np.int32], size_bytes: NDArray[np.int64]) -> float:
        """Seconds of flows that begin now together, each as if the others were not there; infinite without a path."""
        flows = zip(src.tolist(), dst.tolist(), size_bytes.tolist(), strict=True)
        return max((self._flow_s(*flow) for flow in flows), default=0.0)

    def _flow_s(self, src: int, dst: int, size_bytes: int) -> float:
        links = self._links(src, dst)
        if links is None:
            return math.inf
        if not len(links):
            return 0.0
        shares_bps = [self._fabric.capacity_bps(link) / (1 + int(self._flows[link])) for link in links.tolist()]
        return 8.0 * size_bytes / min(shares_bps)

    def _links(self, src: int, dst: int) -> Links | None:
        """Links of the path, ``None`` without one; paths are sought anew when links have failed or come back."""
        if self._fabric.router is not self._router:
            self._router = self._fabric.router
            self._path.cache_clear()
        return self._path(src, dst)

    def _routed(self, src: int, dst: int) -> Links | None:
        try:
            return self._router.route(src, dst)
        except BackendError:
            return None
