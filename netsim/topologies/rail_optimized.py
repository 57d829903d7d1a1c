"""Servers with NVSwitch on a rail-optimised two-tier Clos fabric."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor

from netsim.errors import InputError
from netsim.topologies.defaults import MAX_NODES_PER_SEGMENT, LinkRates
from netsim.topology import DuplexLink, LinkKind, NodeKind, Topology


def rail_optimized(
    nodes: int,
    gpus_per_node: int = 8,
    *,
    nodes_per_segment: int | None = None,
    spines: int | None = None,
    oversubscription: float = 1,
    rates: LinkRates | None = None,
) -> Topology:
    """NVSwitch servers on rails, the layout of Spectrum-X and of Alibaba HPN with a single ToR.

    GPU ``i`` of every server of a segment has its NIC on leaf ``i`` of that segment (its rail), and every leaf has one
    uplink to every spine. Traffic between different rails of different servers crosses a spine; within a server it
    crosses the NVSwitch (one per server, standing for all of its planes).

    A leaf has ``nodes_per_segment`` NIC ports (default: the servers, at most 64), whether or not all are in use. Its
    uplinks together carry what the ports carry, divided by
    ``oversubscription``; by default there are so many spines that an uplink is at most as fast as a NIC.

    Nodes are numbered GPUs, NVSwitches, leaves (by segment, then rail), spines; cables per GPU NVLink then NIC, then
    leaf to spine: the order of SimAI's generator.
    """
    rates = rates or LinkRates()
    ports = min(nodes, MAX_NODES_PER_SEGMENT) if nodes_per_segment is None else nodes_per_segment
    for name, value in (("nodes", nodes), ("gpus_per_node", gpus_per_node), ("nodes_per_segment", ports)):
        if value < 1:
            raise InputError(f"rail_optimized {name}: found {value}, expected at least 1")
    if not oversubscription > 0:
        raise InputError(f"rail_optimized oversubscription: found {oversubscription}, expected more than 0")
    full_uplinks = ports / Fraction(oversubscription)
    spine_count = ceil(full_uplinks) if spines is None else spines
    if spine_count < 1:
        raise InputError(f"rail_optimized spines: found {spine_count}, expected at least 1")
    uplink_bps = floor(full_uplinks * rates.nic_bps / spine_count)

    gpus = nodes * gpus_per_node
    first_leaf = gpus + nodes
    leaves = -(-nodes // ports) * gpus_per_node
    first_spine = first_leaf + leaves
    cables = []
    for gpu in range(gpus):
        node, rail = divmod(gpu, gpus_per_node)
        leaf = first_leaf + node // ports * gpus_per_node + rail
        cables.append(DuplexLink(gpu, gpus + node, rates.nvlink_bps, rates.nvlink_latency_ps, LinkKind.NVLINK))
        cables.append(DuplexLink(gpu, leaf, rates.nic_bps, rates.nic_latency_ps, LinkKind.NIC))
    cables += [
        DuplexLink(first_leaf + leaf, first_spine + spine, uplink_bps, rates.nic_latency_ps, LinkKind.FABRIC)
        for leaf in range(leaves)
        for spine in range(spine_count)
    ]
    names = [(NodeKind.GPU, f"gpu{gpu}") for gpu in range(gpus)]
    names += [(NodeKind.NVSWITCH, f"nvswitch{node}") for node in range(nodes)]
    names += [(NodeKind.LEAF, "leaf{}.{}".format(*divmod(leaf, gpus_per_node))) for leaf in range(leaves)]
    names += [(NodeKind.SPINE, f"spine{spine}") for spine in range(spine_count)]
    return Topology.from_cables(names, cables, gpus_per_node=gpus_per_node)
