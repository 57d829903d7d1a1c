"""Identical servers: what runs within one of them runs in the same way within another."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from netsim import Topology
from netsim.topology import LinkKind

if TYPE_CHECKING:
    from netsim.fabric import Gpus
    from vidur_pd.execution.communication.pricer import CollectiveCost


class IdenticalServers:
    """Moves collectives within one server to the first that is like it.

    A server is like the first if all its GPUs have one NVLink in each direction, to one NVSwitch, as fast and as long
    as that of the same GPU there: flows then have no choice of paths, as they prefer NVLink. Others stay where they
    are.
    """

    def __init__(self, topology: Topology) -> None:
        self._width = topology.gpus_per_node
        self._src, self._dst, self._gpus = topology.link_src, topology.link_dst, topology.gpus
        self._up = _only_links(topology, topology.link_src)
        self._down = _only_links(topology, topology.link_dst)
        self._is_identical = np.ones(topology.gpus // self._width, dtype=np.bool_)
        for links, peers in ((self._up, topology.link_dst), (self._down, topology.link_src)):
            for column in (topology.capacity_bps, topology.latency_ps):
                of_gpus = self._by_server(links, column)
                self._is_identical &= ((of_gpus == of_gpus[0]) & (of_gpus >= 0)).all(axis=1)
            switches = self._by_server(links, peers)
            self._is_identical &= (switches == switches[:, :1]).all(axis=1)

    def _by_server(self, links: NDArray[np.int64], column: NDArray[np.integer]) -> NDArray[np.int64]:
        """[servers, GPUs of a server] what ``column`` [links] says of each GPU's link; −1 where it has none."""
        return (
            np.where(links < 0, -1, column[links]).reshape(-1, self._width)
            if len(column)
            else links.reshape(-1, self._width)
        )

    def canonical(self, gpus: Gpus) -> Gpus:
        """The same GPUs of the first server; ``gpus`` themselves, where they are not of one that is like it."""
        server = gpus[0] // self._width
        if not self._is_identical[server] or any(gpu // self._width != server for gpu in gpus):
            return gpus
        return tuple(gpu - server * self._width for gpu in gpus)

    def relocated(self, cost: CollectiveCost, gpus: Gpus) -> CollectiveCost:
        """A cost at ``home(gpus)``, on the links of ``gpus``."""
        is_up = self._src[cost.links] < self._gpus
        gpu = np.where(is_up, self._src[cost.links], self._dst[cost.links]) + gpus[0] // self._width * self._width
        links = np.where(is_up, self._up[gpu], self._down[gpu])
        order = np.argsort(links)
        return replace(
            cost,
            links=links[order],
            link_bytes=cost.link_bytes[order],
            link_flows=cost.link_flows[order],
            link_busy_ps=cost.link_busy_ps[order],
        )


def _only_links(topology: Topology, ends: NDArray[np.int32]) -> NDArray[np.int64]:
    """[gpus] the NVLink that has the GPU at this end; −1 where there is none or several."""
    links = np.flatnonzero((topology.link_kind == LinkKind.NVLINK) & (ends < topology.gpus))
    gpus = ends[links]
    only = np.full(topology.gpus, -1, dtype=np.int64)
    only[gpus] = links
    only[np.bincount(gpus, minlength=topology.gpus) > 1] = -1
    return only
