"""Shortest paths and ECMP."""

from __future__ import annotations

from collections import Counter

import pytest

from netsim import BackendError, LinkKind, NodeKind, Topology, rail_optimized, single_switch
from netsim._core import ecmp_hash, murmur3_32
from netsim.routing import Router
from netsim.topology import DuplexLink

GBPS400 = 400 * 10**9


@pytest.mark.parametrize(
    ("data", "seed", "expected"),
    [
        (b"", 0, 0),
        (b"", 1, 0x514E28B7),
        (b"test", 0, 0xBA6BD213),
        (b"Hello, world!", 0, 0xC0363E43),
        (bytes([0x21, 0x43, 0x65, 0x87]), 0, 0xF55B516B),
    ],
)
def test_murmur3_gives_the_published_values(data: bytes, seed: int, expected: int) -> None:
    assert murmur3_32(data, seed) == expected


@pytest.mark.parametrize(
    ("src", "dst", "flow_label", "seed", "expected", "mod_8", "mod_64"),
    [
        (0, 8, 0, 72, 0xB02F0435, 5, 53),
        (1, 9, 0, 73, 0xF43415F2, 2, 50),
        (0, 8, 1, 72, 0xBB6B8CA7, 7, 39),
        (5, 300, 0, 130, 0x800FD3B2, 2, 50),
    ],
)
def test_ecmp_hashes_addresses_and_ports_as_the_ns3_models_do(
    src: int, dst: int, flow_label: int, seed: int, expected: int, mod_8: int, mod_64: int
) -> None:
    """Source port 10000 + label, destination port 100, seeded with the number of the deciding node."""
    found = ecmp_hash(src, dst, flow_label, seed)
    assert (found, found % 8, found % 64) == (expected, mod_8, mod_64)


def test_all_32_bits_of_a_flow_label_are_entropy() -> None:
    assert len({ecmp_hash(0, 8, 1 << bit, 72) for bit in range(32)}) == 32


def names_on(topology: Topology, src: int, dst: int, label: int = 0) -> list[str]:
    links = Router(topology).route(src, dst, label)
    return [topology.node_name[node] for node in topology.link_dst[links]]


def test_gpus_of_one_server_meet_at_the_nvswitch() -> None:
    assert names_on(rail_optimized(2), 8, 11) == ["nvswitch1", "gpu11"]


def test_one_rail_of_a_segment_meets_at_the_leaf() -> None:
    assert names_on(rail_optimized(2), 3, 11) == ["leaf0.3", "gpu11"]


def test_other_rails_and_segments_are_reached_over_a_spine() -> None:
    assert names_on(rail_optimized(2, spines=1), 3, 8) == ["leaf0.3", "spine0", "leaf0.0", "gpu8"]
    two_segments = rail_optimized(2, nodes_per_segment=1)
    assert names_on(two_segments, 3, 11) == ["leaf0.3", "spine0", "leaf1.3", "gpu11"]


def test_nvswitches_are_preferred_among_equal_next_hops() -> None:
    """Behind a single switch, GPUs of one server are two hops apart both ways."""
    topology = single_switch(2, gpus_per_node=2)
    assert {names_on(topology, 0, 1, label)[0] for label in range(64)} == {"nvswitch0"}
    assert names_on(topology, 0, 2)[0] == "switch0"


def test_the_spine_is_the_one_that_the_hash_of_the_leaf_selects() -> None:
    """The golden vector: node 72 of 64 GPUs in 8 servers is leaf 0.0 (after 64 GPUs and 8 NVSwitches). From GPU 0
    to GPU 9, which is on another rail, leaf 72 takes spine hash mod 8."""
    topology = rail_optimized(8, spines=8)
    assert topology.node_name[72] == "leaf0.0"
    for label in range(20):
        assert names_on(topology, 0, 9, label)[1] == f"spine{ecmp_hash(0, 9, label, 72) % 8}"


def test_flow_labels_spread_over_all_spines_evenly() -> None:
    """2048 labels over 8 spines: 256 each, standard deviation 15; 100 off would be beyond six of them."""
    topology = rail_optimized(2, spines=8)
    router = Router(topology)
    counts = Counter(int(topology.link_dst[router.route(0, 9, label)[1]]) for label in range(2048))
    assert len(counts) == 8
    assert max(abs(count - 256) for count in counts.values()) < 100


def test_path_latency_is_the_sum_over_the_links() -> None:
    router = Router(rail_optimized(2))
    assert router.path_latency_ps(0, 1) == 2 * 25_000
    assert router.path_latency_ps(0, 8) == 2 * 500_000
    assert router.path_latency_ps(0, 9) == 4 * 500_000
    assert (router.path_latency_ps(5, 5), router.route(5, 5).tolist()) == (0, [])


def test_the_narrowest_link_is_the_bottleneck() -> None:
    router = Router(rail_optimized(4, oversubscription=4, spines=2))
    assert router.bottleneck_bps(0, 9) == 200 * 10**9
    assert router.bottleneck_bps(0, 8) == 400 * 10**9


def test_switches_may_send_and_receive() -> None:
    topology = rail_optimized(1)
    assert names_on(topology, 8, 3) == ["gpu3"]
    assert names_on(topology, 3, 8) == ["nvswitch0"]


def test_gpus_do_not_forward() -> None:
    """a - s - b - t - c: b is on the only way from a to c."""
    nodes = [(NodeKind.GPU, n) for n in "abc"] + [(NodeKind.SWITCH, n) for n in "st"]
    cables = [DuplexLink(x, y, GBPS400, 0, LinkKind.NIC) for x, y in ((0, 3), (1, 3), (1, 4), (2, 4))]
    router = Router(Topology.from_cables(nodes, cables, gpus_per_node=1))
    assert len(router.route(0, 1)) == 2
    with pytest.raises(BackendError, match="no path: found none from node 0 to node 2"):
        router.route(0, 2)
    with pytest.raises(BackendError, match="no path"):
        router.route(0, 2)


@pytest.mark.parametrize(("src", "dst"), [(0, 99), (99, 0)])
def test_unknown_nodes_are_refused(src: int, dst: int) -> None:
    with pytest.raises(BackendError, match=r"unknown node: found 99, expected 0 to 16"):
        Router(single_switch(16)).route(src, dst)
