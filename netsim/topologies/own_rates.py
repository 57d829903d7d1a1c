"""Servers whose links inside have rates of their own, as servers with other GPUs do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from boundary.errors import InputError
from netsim.topology import LinkKind, Topology

INSIDE = (LinkKind.NVLINK, LinkKind.PCIE)


def with_server_rates(topology: Topology, kind: LinkKind, shares: ArrayLike) -> Topology:
    """The topology with links of a kind inside servers at a share of their rates.

    Args:
        topology: with servers of one kind.
        kind: NVLink or PCIe.
        shares: [servers] of the rates that links have, above 0; rates are rounded to bit/s.

    Raises: InputError, for other kinds and other numbers of shares.
    """
    found = np.asarray(shares, dtype=np.float64)
    servers = topology.gpus // topology.gpus_per_node
    if kind not in INSIDE:
        raise InputError(f"kind: found {kind.name.lower()}, expected a link inside servers")
    if found.shape != (servers,) or not (found > 0).all():
        raise InputError(f"shares: found {found.tolist()}, expected {servers} above 0")
    rows = np.flatnonzero(topology.link_kind == kind)
    server = _servers(topology)
    capacity_bps = topology.capacity_bps.copy()
    capacity_bps[rows] = np.rint(capacity_bps[rows] * found[server[topology.link_src[rows]]]).astype(np.int64)
    return replace(topology, capacity_bps=capacity_bps)


def _servers(topology: Topology) -> NDArray[np.int64]:
    """[nodes] the server of a node; -1 outside servers."""
    server = np.full(topology.nodes, -1, dtype=np.int64)
    server[: topology.gpus] = np.arange(topology.gpus) // topology.gpus_per_node
    is_inside = np.isin(topology.link_kind, INSIDE)
    src, dst = topology.link_src[is_inside], topology.link_dst[is_inside]
    for _ in range(2):  # from GPUs to switches, and from PCIe switches to hosts
        is_next = (server[src] >= 0) & (server[dst] < 0)
        server[dst[is_next]] = server[src[is_next]]
    return server
