"""Hosts: the CPU memory of each server, which its GPUs reach over PCIe."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError
from netsim.topologies.checks import check_counts, check_size
from netsim.topologies.defaults import PCIE_LATENCY_PS
from netsim.topology import CableTable, LinkKind, NodeKind, Topology


def with_hosts(
    topology: Topology, pcie_bps: int, *, pcie_latency_ps: int = PCIE_LATENCY_PS, gpus_per_pcie_switch: int = 1
) -> Topology:
    """The topology with a host in every server, its nodes and cables behind all others.

    Each PCIe switch has so many GPUs of a server and one link to its host, which these GPUs share; all PCIe links have
    ``pcie_bps`` per direction. The host stands for the memory of all sockets, whose own bandwidth is no limit: DDR5 of
    two sockets has more than 600 GB/s, eight links of PCIe 5.0 x16 have 504 GB/s. Reads and writes of DRAM by CPUs and
    links between sockets are ignored.

    Raises:
        InputError: a count out of range, or GPUs of a server that do not divide among PCIe switches.
    """
    width = topology.gpus_per_node
    check_counts("hosts", gpus_per_pcie_switch=gpus_per_pcie_switch)
    if width % gpus_per_pcie_switch:
        raise InputError(
            f"hosts gpus_per_switch: found {gpus_per_pcie_switch}, expected a divisor of {width} (GPUs of a server)"
        )
    servers, switches = topology.gpus // width, topology.gpus // gpus_per_pcie_switch
    links = topology.directed_links()
    check_size("hosts", topology.nodes + servers + switches, len(links) // 2 + topology.gpus + switches)
    gpu, switch = np.arange(topology.gpus), np.arange(switches)
    first_switch, first_host = topology.nodes, topology.nodes + switches
    below = np.concatenate((gpu, first_switch + switch))
    above = np.concatenate(
        (first_switch + gpu // gpus_per_pcie_switch, first_host + switch * gpus_per_pcie_switch // width)
    )
    pcie = CableTable.between(
        np.stack((below, above), axis=1).ravel(),
        np.stack((above, below), axis=1).ravel(),
        capacity_bps=pcie_bps,
        latency_ps=pcie_latency_ps,
        kind=LinkKind.PCIE,
    )
    names = [*(f"pcie{number}" for number in range(switches)), *(f"host{number}" for number in range(servers))]
    kinds = np.repeat([NodeKind.PCIE_SWITCH, NodeKind.HOST], [switches, servers])
    return _of(
        np.concatenate((topology.node_kind, kinds)),
        (*topology.node_name, *names),
        CableTable.joined([links, pcie]),
        width,
    )


def without_hosts(topology: Topology) -> Topology:
    """The topology without hosts and PCIe, its other nodes and links in their order."""
    is_kept = ~np.isin(topology.node_kind, (NodeKind.HOST, NodeKind.PCIE_SWITCH))
    if is_kept.all():
        return topology
    links = topology.directed_links().take(topology.link_kind != LinkKind.PCIE)
    number = np.cumsum(is_kept) - 1
    moved = CableTable.between(
        number[links.a], number[links.b], capacity_bps=links.capacity_bps, latency_ps=links.latency_ps, kind=links.kind
    )
    names = [name for name, kept in zip(topology.node_name, is_kept.tolist(), strict=True) if kept]
    return _of(topology.node_kind[is_kept], names, moved, topology.gpus_per_node)


def _of(kinds: NDArray[np.integer], names: Sequence[str], links: CableTable, gpus_per_node: int) -> Topology:
    return Topology(
        node_kind=kinds.astype(np.int8),
        node_name=tuple(names),
        link_src=links.a,
        link_dst=links.b,
        capacity_bps=links.capacity_bps,
        latency_ps=links.latency_ps,
        link_kind=links.kind,
        gpus_per_node=gpus_per_node,
    )
