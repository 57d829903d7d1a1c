"""Servers with NVSwitch on a rail-optimised two-tier Clos fabric."""

from __future__ import annotations

from math import ceil

from netsim.topologies.checks import check_counts, exact_ratio, uplink_rate_bps
from netsim.topologies.defaults import NICS_PER_LEAF, LinkRates
from netsim.topologies.servers import Servers
from netsim.topologies.two_tier import TwoTierFabric
from netsim.topology import Topology


def rail_optimized(
    nodes: int,
    gpus_per_node: int = 8,
    *,
    rails: int | None = None,
    nvswitches_per_node: int = 1,
    nodes_per_segment: int | None = None,
    spines: int | None = None,
    oversubscription: float = 1,
    rates: LinkRates | None = None,
) -> Topology:
    """NVSwitch servers on rails, the layout of Spectrum-X and of Alibaba HPN with a single ToR.

    GPU ``i`` of every server of a segment has its NIC on leaf ``i mod rails`` of that segment (its rail; by default a
    rail per GPU of a server), and every leaf has one uplink to every spine. Traffic between different rails of
    different servers crosses a spine; within a server it crosses an NVSwitch (by default one per server, standing for
    all of its planes; see `nvswitch`).

    A leaf has ports for the NICs of ``nodes_per_segment`` servers (default: the servers, at most 64 NICs), whether or
    not all are in use. Its uplinks together carry what the ports carry, divided by ``oversubscription``; by default
    there are so many spines that an uplink is at most as fast as a NIC.

    Numbering of nodes and cables: `TwoTierFabric`.

    Raises:
        InputError: naming the field that is out of range.
    """
    rates = rates or LinkRates()
    rail_count = gpus_per_node if rails is None else rails
    check_counts("rail_optimized", nodes=nodes, gpus_per_node=gpus_per_node, rails=rail_count)
    nics_of_node = -(-gpus_per_node // rail_count)  # on a rail; the fabric refuses rails that do not divide
    fitting = max(1, NICS_PER_LEAF // nics_of_node)
    segment = min(nodes, fitting) if nodes_per_segment is None else nodes_per_segment
    check_counts("rail_optimized", nodes_per_segment=segment)
    ports = segment * nics_of_node
    uplinks = ceil(ports / exact_ratio("rail_optimized", oversubscription)) if spines is None else spines
    check_counts("rail_optimized", spines=uplinks)
    return TwoTierFabric(
        builder="rail_optimized",
        servers=Servers(nodes, gpus_per_node, nvswitches_per_node),
        rails=rail_count,
        nics_per_leaf=ports,
        spines=uplinks,
        uplink_bps=uplink_rate_bps("rail_optimized", ports * rates.nic_bps, uplinks, oversubscription),
        rates=rates,
    ).build()
