"""Shortest paths and ECMP."""

from __future__ import annotations

from collections import Counter, deque
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsim import BackendError, LinkKind, NodeKind, NoPath, Topology, rail_optimized, single_switch
from netsim._core import Routing, ecmp_hash, murmur3_32
from netsim.routing import Router, core_network
from netsim.topology import DuplexLink
from tests.netsim.strategies import topologies

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


def test_acks_hash_with_addresses_and_ports_swapped() -> None:
    """Golden: the ACKs of 0 → 8 go from 8 to 0, from port 100 to port 10000."""
    found = ecmp_hash(0, 8, 0, 72, is_ack=True)
    assert (found, found % 8, found % 64) == (0x40469443, 3, 3)


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


def test_acks_return_over_the_spine_that_the_hash_of_the_other_leaf_selects() -> None:
    """Data of 0 → 9 choose at leaf 0.0 (node 72), their ACKs at leaf 0.1 (node 73), with the swapped tuple."""
    topology = rail_optimized(8, spines=8)
    router = Router(topology)
    for label in range(20):
        route = router.reverse_route(0, 9, label)
        names = [topology.node_name[node] for node in topology.link_dst[route]]
        assert names == ["leaf0.1", f"spine{ecmp_hash(0, 9, label, 73, is_ack=True) % 8}", "leaf0.0", "gpu0"]
    assert router.reverse_route(5, 5).tolist() == []


def test_another_ecmp_seed_chooses_anew_and_the_same_seed_the_same() -> None:
    """With 8 spines, one label in 8 keeps its spine by chance: of 512, 64 with a standard deviation of 7.5."""
    topology = rail_optimized(2, spines=8)
    plain, other, again = (Router(topology, ecmp_seed=seed) for seed in (0, 7, 7))
    routes = [[r.route(0, 9, label).tolist() for label in range(512)] for r in (plain, other, again)]
    assert routes[1] == routes[2]
    assert 64 - 45 < sum(a == b for a, b in zip(routes[0], routes[1], strict=True)) < 64 + 45


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_beyond_32_bits_is_refused(seed: int) -> None:
    with pytest.raises(BackendError, match="ecmp_seed: found"):
        Router(single_switch(2), ecmp_seed=seed)


def test_flows_avoid_a_failed_link_and_return_after_its_repair() -> None:
    """Two spines. With the uplink to one of them down in the direction of the flow, all labels take the other; the
    opposite direction still carries traffic down from it."""
    topology = rail_optimized(2, spines=2)
    router = Router(topology)
    before = [router.route(0, 9, label).tolist() for label in range(32)]
    assert len({route[1] for route in before}) == 2
    failed = before[0][1]
    router.set_link_up(failed, False)
    assert {router.route(0, 9, label)[1] for label in range(32)} == {route[1] for route in before} - {failed}
    back = [router.route(9, 0, label) for label in range(32)]
    assert {topology.link_src[route[2]] for route in back} == {topology.link_dst[route[1]] for route in before}
    router.set_link_up(failed, True)
    assert [router.route(0, 9, label).tolist() for label in range(32)] == before


def test_a_host_without_its_nic_uses_another_way_or_has_none() -> None:
    """Behind a single switch, servers have an NVSwitch each: GPUs 0 and 1 then meet there only, and 0 and 2 nowhere."""
    topology = single_switch(2, gpus_per_node=2)
    router = Router(topology)
    nic = int(router.route(0, 2)[0])
    router.set_link_up(nic, False)
    assert router.next_hops(0, 2).tolist() == []
    with pytest.raises(BackendError, match="no path: found none from node 0 to node 2"):
        router.route(0, 2)
    assert len(router.route(2, 0)) == 2
    nvlink = int(router.route(0, 1)[0])
    router.set_link_up(nic, True)
    router.set_link_up(nvlink, False)
    assert router.route(0, 1).tolist()[0] == nic


def test_paths_handed_out_stay_valid_when_links_fail_and_are_the_same_object_when_nothing_changed() -> None:
    topology = rail_optimized(2, spines=2)
    routing = Routing(core_network(topology))
    path, elsewhere = routing.path(0, 9, 0), routing.path(0, 8, 0)
    links = path.links.tolist()
    routing.set_link_up(links[1], False)
    assert path.links.tolist() == links
    assert routing.path(0, 9, 0) is not path
    assert routing.path(0, 8, 0) is elsewhere


def test_unknown_links_are_refused() -> None:
    router = Router(single_switch(2))
    for link in (-1, 4):
        with pytest.raises(BackendError, match=f"unknown link: found {link}, expected 0…3"):
            router.set_link_up(link, False)


def hops_to(topology: Topology, dst: int, up: set[int]) -> dict[int, int]:
    """Breadth-first search backwards from ``dst`` over links that are up; GPUs other than ``dst`` do not forward."""
    hops, queue = {dst: 0}, deque([dst])
    while queue:
        node = queue.popleft()
        if node != dst and topology.node_kind[node] == NodeKind.GPU:
            continue
        for link in sorted(up):
            before = int(topology.link_src[link])
            if topology.link_dst[link] == node and before not in hops:
                hops[before] = hops[node] + 1
                queue.append(before)
    return hops


@given(topologies(), st.data())
@settings(max_examples=60)
def test_next_hops_are_all_first_links_of_shortest_paths_whatever_has_failed(
    topology: Topology, data: st.DataObject
) -> None:
    """Against a search per destination, after each of several failures and repairs, with routes that are asked for in
    between and so are cached; NVSwitches win among equal next hops."""
    router = Router(topology)
    up = set(range(topology.links))
    flips = data.draw(st.lists(st.integers(0, topology.links - 1), max_size=4))
    dst = data.draw(st.integers(0, topology.nodes - 1))
    for flip in [None, *flips]:
        if flip is not None:
            up ^= {flip}
            router.set_link_up(flip, flip in up)
        hops = hops_to(topology, dst, up)
        forwards = {dst} | {n for n in hops if topology.node_kind[n] != NodeKind.GPU}
        for at in range(topology.nodes):
            ends = {link: int(topology.link_dst[link]) for link in sorted(up) if topology.link_src[link] == at}
            nearest = [link for link, end in ends.items() if end in forwards and hops[end] + 1 == hops.get(at)]
            switches = [link for link in nearest if topology.node_kind[ends[link]] == NodeKind.NVSWITCH]
            assert router.next_hops(at, dst).tolist() == (switches or nearest if at != dst else [])
            if nearest and at != dst:
                route = router.route(at, dst)
                assert len(route) == hops[at]
                assert topology.link_dst[route[:-1]].tolist() == topology.link_src[route[1:]].tolist()
                assert route[0] in (switches or nearest)


@given(topologies(), st.data())
@settings(max_examples=40)
def test_links_between_nodes_are_those_of_all_shortest_paths_between_any_two(
    topology: Topology, data: st.DataObject
) -> None:
    """Against a walk along all next hops for each pair, after each of several failures and repairs."""
    router = Router(topology)
    up = set(range(topology.links))
    nodes = data.draw(st.lists(st.integers(0, topology.nodes - 1), min_size=1, max_size=4, unique=True))
    for flip in [None, *data.draw(st.lists(st.integers(0, topology.links - 1), max_size=4))]:
        if flip is not None:
            up ^= {flip}
            router.set_link_up(flip, flip in up)
        links, hops = set(), 0
        for src, dst in permutations(nodes, 2):
            walk = [src]
            for at in walk:
                leaving = router.next_hops(at, dst).tolist()
                links |= set(leaving)
                walk += [end for end in topology.link_dst[leaving].tolist() if end not in walk]
            hops += hops_to(topology, dst, up).get(src, 1000)
        assert router.links_between(nodes).tolist() == sorted(links)
        assert router.total_hops(nodes) == (hops if hops < 1000 else None)


def test_a_cable_at_a_gpu_leaves_the_distances_between_switches_as_they_are() -> None:
    """4 servers of 2 GPUs: routes from GPU 0 to all others search once for each leaf and the NVSwitch; a NIC that fails
    adds no search, a cable between a leaf and a spine those for the leaves."""
    topology = rail_optimized(nodes=4, gpus_per_node=2, nodes_per_segment=2, spines=2)
    router = Router(topology)

    def searches() -> int:
        before = router.tables_built
        for dst in range(1, topology.gpus):
            router.route(0, dst)
        return router.tables_built - before

    whole = searches()
    assert whole > 0
    is_fabric = topology.link_kind == LinkKind.FABRIC
    nics = np.flatnonzero((topology.link_kind == LinkKind.NIC) & ((topology.link_src == 6) | (topology.link_dst == 6)))
    for is_up in (False, True):
        for link in nics.tolist():
            router.set_link_up(link, is_up)
        assert not is_up or searches() == 0
    router.set_link_up(int(np.flatnonzero(is_fabric)[0]), False)
    assert 0 < searches() < whole


@given(topologies(), st.data())
@settings(max_examples=40)
def test_routes_of_many_flows_are_those_of_each(topology: Topology, data: st.DataObject) -> None:
    """With failed links, so that some flows have none; ACKs take theirs."""
    router = Router(topology)
    for link in data.draw(st.lists(st.integers(0, topology.links - 1), max_size=4, unique=True)):
        router.set_link_up(link, False)
    gpu, label = st.integers(0, topology.gpus - 1), st.integers(0, 2**32 - 1)
    flows = data.draw(st.lists(st.tuples(gpu, gpu, label), max_size=8))
    src, dst = (np.array([flow[end] for flow in flows], dtype=np.int32) for end in range(2))
    labels = np.array([flow[2] for flow in flows], dtype=np.uint32)
    for is_reverse, one in ((False, router.route), (True, router.reverse_route)):
        offsets, links = router.routes(src, dst, labels, is_reverse=is_reverse)
        assert len(offsets) == len(flows) + 1
        for place, flow in enumerate(flows):
            found = links[offsets[place] : offsets[place + 1]].tolist()
            try:
                expected = one(*flow).tolist()
            except NoPath:
                expected = []
            assert found == expected
