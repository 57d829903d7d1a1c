"""What holds for the topologies of all builders, and the shapes of trees, dragonflies and NVLink domains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsim import (
    DragonflyShape,
    InputError,
    LinkKind,
    NodeKind,
    Router,
    Topology,
    dragonfly,
    fat_tree,
    nvl72,
    nvswitch,
    rail_optimized,
)
from netsim.topologies.checks import MAX_CABLES
from netsim.topologies.defaults import NIC_BPS, NVLINK5_BPS, NVLINK_BPS, LinkRates
from tests.netsim.strategies import built_topologies, dragonfly_shapes

GBPS = 10**9


def kinds(topology: Topology) -> dict[NodeKind, int]:
    return {NodeKind(kind): count for kind, count in Counter(topology.node_kind.tolist()).items()}


def _ends(topology: Topology) -> list[tuple[int, int]]:
    return list(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True))


def rate_of_gpus(topology: Topology, kind: LinkKind) -> tuple[list[int], list[int]]:
    """Number and total rate of the links of a kind, GPU by GPU."""
    chosen = (topology.link_kind == kind) & (topology.link_src < topology.gpus)
    src = topology.link_src[chosen]
    rate = np.zeros(topology.gpus, dtype=np.int64)
    np.add.at(rate, src, topology.capacity_bps[chosen])
    return np.bincount(src, minlength=topology.gpus).tolist(), rate.tolist()


@given(built_topologies())
@settings(max_examples=150)
def test_all_nodes_hang_together_and_links_know_what_they_connect(topology: Topology) -> None:
    """Cables come in pairs of links, no node is linked to itself, no pair of GPUs is linked."""
    graph = topology.to_networkx()
    assert networkx.is_strongly_connected(graph)
    assert topology.cables() is not None
    assert (topology.link_src != topology.link_dst).all()
    src, dst = topology.node_kind[topology.link_src], topology.node_kind[topology.link_dst]
    has_gpu = (src == NodeKind.GPU) | (dst == NodeKind.GPU)
    has_nvswitch = (src == NodeKind.NVSWITCH) | (dst == NodeKind.NVSWITCH)
    assert np.array_equal(topology.link_kind == LinkKind.NVLINK, has_nvswitch)
    assert np.array_equal(topology.link_kind == LinkKind.NIC, has_gpu & ~has_nvswitch)
    assert np.array_equal(topology.link_kind == LinkKind.FABRIC, ~has_gpu)
    assert not ((src == NodeKind.GPU) & (dst == NodeKind.GPU)).any()


@given(built_topologies())
@settings(max_examples=100)
def test_every_gpu_has_the_same_links_and_the_whole_rate_of_its_kind(topology: Topology) -> None:
    """What does not divide over NVSwitches or ports is less than 1 bit/s for each of them."""
    for kind, whole in ((LinkKind.NIC, {NIC_BPS}), (LinkKind.NVLINK, {NVLINK_BPS, NVLINK5_BPS})):
        counts, rates = rate_of_gpus(topology, kind)
        assert len(set(counts)) == 1
        assert len(set(rates)) == 1
        if counts[0]:
            assert min(rate - rates[0] for rate in whole if rate >= rates[0]) < counts[0]


@given(st.data())
@settings(max_examples=60)
def test_every_pair_of_gpus_has_a_path_that_is_as_short_as_networkx_finds(data: st.DataObject) -> None:
    """GPUs do not forward, so others are taken out of networkx's graph."""
    topology = data.draw(built_topologies())
    if topology.gpus < 2:
        return
    gpu = st.integers(0, topology.gpus - 1)
    src, dst = data.draw(st.lists(gpu, min_size=2, max_size=2, unique=True))
    links = Router(topology).route(src, dst, data.draw(st.integers(0, 9)))
    graph = networkx.DiGraph(topology.to_networkx())
    graph.remove_nodes_from([other for other in range(topology.gpus) if other not in (src, dst)])
    assert len(links) == networkx.shortest_path_length(graph, src, dst)
    assert topology.link_src[links[0]] == src
    assert topology.link_dst[links[-1]] == dst
    assert np.array_equal(topology.link_dst[links[:-1]], topology.link_src[links[1:]])


@given(st.sampled_from([2, 4, 8]), st.integers(1, 6), st.fractions(Fraction(1, 4), 8, max_denominator=20).filter(bool))
@settings(max_examples=60)
def test_fat_tree_uplinks_carry_the_hosts_over_the_oversubscription(k: int, hosts: int, ratio: Fraction) -> None:
    """To the last bit/s per uplink, whether or not the ratio has a finite decimal or binary form."""
    topology = fat_tree(k, hosts_per_edge=hosts, oversubscription=float(ratio))
    written = Fraction(str(float(ratio)))
    rates = set(topology.capacity_bps[topology.link_kind == LinkKind.FABRIC].tolist())
    exact = hosts * NIC_BPS / (written * (k // 2))
    assert rates == {int(exact)}
    assert exact - int(exact) < 1


@pytest.mark.parametrize("k", [2, 4, 6, 8, 16])
def test_a_fat_tree_has_the_counts_of_its_formula(k: int) -> None:
    """k³/4 hosts, k²/2 edge and as many aggregation switches, k²/4 cores, three times k³/4 cables, k ports each."""
    topology = fat_tree(k)
    half = k // 2
    assert kinds(topology) == {
        NodeKind.GPU: k**3 // 4,
        NodeKind.LEAF: k * half,
        NodeKind.SPINE: k * half,
        NodeKind.CORE: half * half,
    }
    assert topology.links == 2 * 3 * k**3 // 4
    ports = np.bincount(topology.link_src, minlength=topology.nodes)
    assert set(ports[topology.gpus :].tolist()) == {k}
    assert set(topology.capacity_bps.tolist()) == {NIC_BPS}


def test_distances_and_paths_in_a_fat_tree_of_four_ports() -> None:
    """Host 0 has host 1 on its edge switch, 2 and 3 in its pod, and the rest 6 hops away over k²/4 = 4 cores."""
    graph = fat_tree(4).to_networkx()
    distance = networkx.single_source_shortest_path_length(graph, 0)
    assert [distance[host] for host in range(16)] == [0, 2, 4, 4] + [6] * 12
    assert len(list(networkx.all_shortest_paths(graph, 0, 1))) == 1
    assert len(list(networkx.all_shortest_paths(graph, 0, 2))) == 2
    assert len(list(networkx.all_shortest_paths(graph, 0, 15))) == 4


@pytest.mark.parametrize(("oversubscription", "hosts_out_of"), [(1, 1), (2, 2), (4, 4)])
def test_half_of_the_hosts_of_a_fat_tree_reach_the_other_half_at_full_rate_over_the_oversubscription(
    oversubscription: float, hosts_out_of: int
) -> None:
    """Largest flow from pods 0 and 1 to pods 2 and 3 of a tree with k = 4: 8 hosts of 400 Gbit/s."""
    graph = networkx.DiGraph(fat_tree(4, oversubscription=oversubscription).to_networkx())
    for host in range(16):
        ends = ("from", host) if host < 8 else (host, "to")
        graph.add_edge(*ends, capacity_bps=NIC_BPS)
    assert networkx.maximum_flow_value(graph, "from", "to", capacity="capacity_bps") == 8 * NIC_BPS // hosts_out_of


def test_servers_of_a_fat_tree_have_nvswitches_and_fill_edge_switches_in_order() -> None:
    topology = fat_tree(4, nodes=3, gpus_per_node=4)
    assert kinds(topology)[NodeKind.GPU] == 12
    assert kinds(topology)[NodeKind.NVSWITCH] == 3
    assert kinds(topology)[NodeKind.LEAF] == 8  # the tree is complete
    nic = (topology.link_kind == LinkKind.NIC) & (topology.link_src < 12)
    names = [topology.node_name[node] for node in topology.link_dst[nic]]
    assert names == [f"edge{pod}.{edge}" for pod in range(3) for edge in range(2) for _ in range(2)]


@given(dragonfly_shapes())
@settings(max_examples=80)
def test_every_two_groups_of_a_dragonfly_have_equally_many_cables_and_no_router_too_many(shape: DragonflyShape) -> None:
    """Within groups all pairs are connected; a router has at most h global cables, and exactly h where all are lit."""
    topology = dragonfly(shape)
    fabric = topology.link_kind == LinkKind.FABRIC
    src, dst = topology.link_src[fabric] - topology.gpus, topology.link_dst[fabric] - topology.gpus
    groups = src // shape.routers_per_group, dst // shape.routers_per_group
    is_local = groups[0] == groups[1]
    locals_ = Counter(zip(src[is_local].tolist(), dst[is_local].tolist(), strict=True))
    a, g = shape.routers_per_group, shape.groups
    assert set(locals_.values()) <= {1}
    assert len(locals_) == g * a * (a - 1)
    pairs = Counter(zip(groups[0][~is_local].tolist(), groups[1][~is_local].tolist(), strict=True))
    assert len(pairs) == g * (g - 1)
    assert set(pairs.values()) <= {a * shape.global_ports // max(1, g - 1)}
    ports = np.bincount(src[~is_local], minlength=shape.routers)
    assert ports.max() <= shape.global_ports
    if g > 1 and a * shape.global_ports % (g - 1) == 0:
        assert ports.min() == shape.global_ports


def test_the_balanced_dragonfly_of_the_paper() -> None:
    """p = h = 2, a = 4, g = 9: 72 hosts, 36 routers of 7 ports, at most three links between routers. Port 0 of group 0
    leads one group back, to the last port of group 8; port 7, the last, to the first of group 1."""
    topology = dragonfly(DragonflyShape.balanced(2))
    assert kinds(topology) == {NodeKind.GPU: 72, NodeKind.SWITCH: 36}
    assert set(np.bincount(topology.link_src)[72:].tolist()) == {2 + 3 + 2}
    routers = topology.to_networkx().subgraph(range(72, 108))
    assert networkx.diameter(routers) == 3
    names = {(topology.node_name[a], topology.node_name[b]) for a, b in _ends(topology)}
    assert ("router0.0", "router8.3") in names
    assert ("router0.3", "router1.0") in names
    assert set(topology.capacity_bps.tolist()) == {NIC_BPS}


def test_routes_between_routers_of_a_dragonfly_have_three_links_at_most_and_seldom_more_than_one_global_one() -> None:
    """72 hosts, one per router asked: 1,260 pairs. Paths within a group have no global link, others one to three."""
    topology = dragonfly(DragonflyShape.balanced(2))
    router = Router(topology)
    group = (np.arange(topology.nodes) - topology.gpus) // 4
    globals_: Counter[int] = Counter()
    for src in range(0, 72, 2):
        for dst in set(range(0, 72, 2)) - {src}:
            links = router.route(src, dst)[1:-1]
            assert 1 <= len(links) <= 3
            crossed = int((group[topology.link_src[links]] != group[topology.link_dst[links]]).sum())
            assert (crossed == 0) == (src // 8 == dst // 8)
            globals_[crossed] += 1
    assert round((globals_[2] + globals_[3]) / (36 * 35), 2) == 0.22  # as documented


def test_global_links_of_a_dragonfly_may_be_slower_and_longer() -> None:
    topology = dragonfly(DragonflyShape.balanced(1), oversubscription=4, global_latency_ps=5_000_000)
    fabric = topology.link_kind == LinkKind.FABRIC
    found = Counter(zip(topology.capacity_bps[fabric].tolist(), topology.latency_ps[fabric].tolist(), strict=True))
    assert found == {(NIC_BPS, 500_000): 6, (NIC_BPS // 4, 5_000_000): 6}


@pytest.mark.parametrize(("hosts", "hosts_per_router"), [(1, 1), (6, 1), (7, 2), (72, 2), (73, 3), (16384, 8)])
def test_the_smallest_dragonfly_that_suffices_is_found(hosts: int, hosts_per_router: int) -> None:
    """2p·p·(2p² + 1) hosts: 6, 72, 342, …, 16,512 for p = 8, so 16,384 need p = 8."""
    assert DragonflyShape.smallest_for(hosts) == DragonflyShape.balanced(hosts_per_router)


def test_the_smallest_dragonfly_reaches_all_its_groups() -> None:
    """One host per router suffices for 10 hosts in 9 groups but has global ports for 3 groups only."""
    shape = DragonflyShape.smallest_for(10, groups=9)
    assert (shape.hosts_per_router, shape.groups) == (2, 9)


def test_nvl72_is_one_domain_of_nvlink_5() -> None:
    """72 · 18 links of 40.1 GB/s; as one node, a link of 721.8 GB/s per GPU."""
    one, planes = nvl72(), nvl72(nvswitches=18)
    assert kinds(one) == {NodeKind.GPU: 72, NodeKind.NVSWITCH: 1}
    assert kinds(planes) == {NodeKind.GPU: 72, NodeKind.NVSWITCH: 18}
    assert planes.links == 2 * 72 * 18
    assert set(one.capacity_bps.tolist()) == {721_800_000_000 * 8}
    assert set(planes.capacity_bps.tolist()) == {40_100_000_000 * 8}
    assert one.gpus_per_node == planes.gpus_per_node == 72


def test_racks_on_four_rails_have_18_nics_on_every_leaf() -> None:
    """Two NVL72 racks: GPU i on rail i mod 4, 2 · 18 NIC ports to a leaf, hence 36 spines."""
    topology = rail_optimized(2, 72, rails=4, rates=LinkRates(nvlink_bps=NVLINK5_BPS))
    assert kinds(topology) == {NodeKind.GPU: 144, NodeKind.NVSWITCH: 2, NodeKind.LEAF: 4, NodeKind.SPINE: 36}
    nic = (topology.link_kind == LinkKind.NIC) & (topology.link_src < 144)
    names = [topology.node_name[node] for node in topology.link_dst[nic]]
    assert names == [f"leaf0.{gpu % 4}" for gpu in range(144)]


def test_planes_of_nvswitches_share_the_rate_of_a_gpu_and_the_flows() -> None:
    """Nine ECMP labels of one pair do not all meet on one of four planes."""
    topology = nvswitch(8, nvswitches=4)
    assert set(topology.capacity_bps.tolist()) == {NVLINK_BPS // 4}
    router = Router(topology)
    assert len({int(router.route(0, 7, label)[0]) for label in range(9)}) > 1


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: fat_tree(3), "fat_tree k: found 3, expected an even number of at least 2"),
        (lambda: fat_tree(4, nodes=17), "fat_tree nodes: found 17, expected 1 to 16: 4 pods of 2 edge switches with 2"),
        (lambda: fat_tree(2, gpus_per_node=3), "fat_tree nodes: found 0, expected 1 to 0"),
        (lambda: fat_tree(4, hosts_per_edge=0), "fat_tree hosts_per_edge: found 0, expected at least 1"),
        (lambda: fat_tree(4, oversubscription=float("inf")), "oversubscription: found inf, expected a number above 0"),
        (lambda: fat_tree(4, oversubscription=float("nan")), "oversubscription: found nan, expected a number above 0"),
        (lambda: dragonfly(DragonflyShape(1, 2, 1, 4)), "dragonfly groups: found 4, expected at most 3"),
        (lambda: dragonfly(DragonflyShape(1, 0, 1, 1)), "dragonfly routers_per_group: found 0, expected at least 1"),
        (
            lambda: dragonfly(DragonflyShape.balanced(1), nodes=7),
            "dragonfly nodes: found 7, expected 1 to 6: 6 routers",
        ),
        (lambda: nvswitch(0), "nvswitch gpus_per_node: found 0, expected at least 1"),
        (lambda: rail_optimized(2, 8, rails=3), "rail_optimized rails: found 3, expected a divisor of 8 GPUs per node"),
        (lambda: rail_optimized(10**9), f"rail_optimized: found .* expected at most {MAX_CABLES}"),
        (lambda: fat_tree(10**6), f"fat_tree: found .* expected at most {MAX_CABLES}"),
        (lambda: dragonfly(DragonflyShape.balanced(1000)), f"dragonfly: found .* expected at most {MAX_CABLES}"),
    ],
)
def test_what_cannot_be_built_is_refused_with_the_field(build: Callable[[], Topology], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()


def test_networkx_carries_units_and_tiers() -> None:
    graph = fat_tree(4, gpus_per_node=2).to_networkx()
    tiers = Counter(data["kind"] for _, data in graph.nodes(data=True))
    assert tiers == {"gpu": 16, "nvswitch": 8, "leaf": 8, "spine": 8, "core": 4}
    assert graph.graph == {"gpus_per_node": 2}
    assert {tuple(data) for *_, data in graph.edges(data=True)} == {("capacity_bps", "latency_ps", "kind")}
