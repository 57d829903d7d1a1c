"""Bounds and ways of fabrics, worked out by hand, and by networkx on the whole graph."""

from __future__ import annotations

import networkx
import pytest

from netsim import LinkKind, Topology
from netsim.topologies.build import build, parse_spec
from netsim.topologies.cuts import FabricGraph, Loss

GBPS = 10**9


def made(**fields: object) -> Topology:
    return build(parse_spec(fields))


def test_a_rail_fabric_carries_what_its_nics_do_and_less_where_it_is_oversubscribed() -> None:
    """Four servers of two GPUs, 400 Gbit/s each. Rails: GPU 0 of each server is on one leaf, GPU 1 on another."""
    tree = {"kind": "rail_optimized", "gpus_per_node": 2, "nic": "400Gbps", "nodes": 4}
    graph = FabricGraph(made(**tree))
    assert graph.most_bps(range(4), range(4, 8)) == 4 * 400 * GBPS == graph.halves_bps()
    assert graph.most_bps([0], [2]) == 400 * GBPS
    thin = FabricGraph(made(**tree, nodes_per_segment=1, oversubscription=4))
    assert thin.halves_bps() == 400 * GBPS  # a quarter of it


def test_ways_of_a_fat_tree_are_those_over_its_cores() -> None:
    """k = 4: between pods four cores, one shortest way over each; a GPU has one NIC, so that ways share its cable."""
    topology = made(kind="fat_tree", gpus_per_node=1, k=4, nic="100Gbps")
    graph = FabricGraph(topology)
    assert graph.shortest_ways(0, topology.gpus - 1) == 4
    assert graph.shortest_ways(0, 1) == 1
    assert graph.disjoint_ways(0, topology.gpus - 1) == 1
    whole = networkx.DiGraph(topology.to_networkx())
    assert graph.shortest_ways(0, 5) == len(list(networkx.all_shortest_paths(whole, 0, 5)))


def test_a_cable_without_another_beside_it_cuts_off_what_is_behind_it() -> None:
    """Every NIC is the only way of its GPU; behind the uplink of a leaf are the two GPUs on it."""
    tree = {"kind": "rail_optimized", "gpus_per_node": 2, "nic": "400Gbps", "nodes": 4}
    assert FabricGraph(made(**tree)).losses()[-1] == Loss("nic", 8, 1)
    single = FabricGraph(made(kind="single_switch", nodes=6, gpus_per_node=1, nic="100Gbps"))
    assert single.losses() == [Loss("nic", 6, 1)]
    assert single.halves_bps() == 300 * GBPS


@pytest.mark.parametrize("kind", ["rail_optimized", "fat_tree", "single_switch"])
def test_one_gpu_sends_to_all_others_as_much_as_its_nic_carries(kind: str) -> None:
    topology = made(kind=kind, **({"k": 4} if kind == "fat_tree" else {"nodes": 3}))
    is_nic = (topology.link_src == 0) & (topology.link_kind == LinkKind.NIC)
    others = range(topology.gpus_per_node, topology.gpus)
    assert FabricGraph(topology).most_bps([0], others) == topology.capacity_bps[is_nic].sum()
