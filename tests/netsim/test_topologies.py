"""Builders, text formats, and what a topology checks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import hypothesis
import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boundary.yaml_text import parse_yaml
from netsim import (
    InputError,
    LinkKind,
    NodeKind,
    Topology,
    fat_tree,
    from_simai,
    from_yaml,
    rail_optimized,
    read_topology,
    single_switch,
    to_simai,
    to_yaml,
)
from netsim.topologies.yaml_rows import is_plain, plain_document
from netsim.topology import DuplexLink
from tests.netsim.strategies import built_topologies, topologies


def kinds(topology: Topology) -> dict[NodeKind, int]:
    return {NodeKind(kind): count for kind, count in Counter(topology.node_kind.tolist()).items()}


def assert_equal(one: Topology, other: Topology) -> None:
    assert one.node_name == other.node_name
    assert one.gpus_per_node == other.gpus_per_node
    for name in ("node_kind", "link_src", "link_dst", "capacity_bps", "latency_ps", "link_kind"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name


def has_gpus_everywhere(topology: Topology) -> bool:
    lowest = np.isin(topology.node_kind, [NodeKind.LEAF, NodeKind.SWITCH])
    access = np.unique(topology.link_dst[topology.link_kind == LinkKind.NIC])
    return bool(np.isin(np.flatnonzero(lowest), access).all())


def uplinks_bps(topology: Topology) -> set[int]:
    return set(topology.capacity_bps[topology.link_kind == LinkKind.FABRIC].tolist())


def test_simai_text_lists_gpus_nvswitches_leaves_and_spines_in_that_order() -> None:
    """One server of two GPUs: nodes 0–1 GPUs, 2 NVSwitch, 3–4 leaves, 5 spine."""
    assert to_simai(rail_optimized(1, 2), "H800").splitlines() == [
        "6 2 1 3 6 H800",
        "2 3 4 5",
        "0 2 2966400Mbps 0.000025ms 0",
        "0 3 400Gbps 0.0005ms 0",
        "1 2 2966400Mbps 0.000025ms 0",
        "1 4 400Gbps 0.0005ms 0",
        "3 5 400Gbps 0.0005ms 0",
        "4 5 400Gbps 0.0005ms 0",
    ]


def test_a_rail_optimised_fabric_has_a_leaf_per_rail_and_segment_and_no_oversubscription() -> None:
    topology = rail_optimized(6, nodes_per_segment=4)
    assert kinds(topology) == {NodeKind.GPU: 48, NodeKind.NVSWITCH: 6, NodeKind.LEAF: 16, NodeKind.SPINE: 4}
    assert topology.links == 2 * (48 + 48 + 16 * 4)
    assert uplinks_bps(topology) == {400 * 10**9}


@pytest.mark.parametrize(
    ("spines", "oversubscription", "expected_spines", "uplink_bps"),
    [(None, 2, 4, 400 * 10**9), (None, 3, 3, 8 * 400 * 10**9 // 9), (2, 1, 2, 1600 * 10**9), (16, 1, 16, 200 * 10**9)],
)
def test_uplinks_carry_the_ports_of_a_leaf_over_the_oversubscription(
    spines: int | None, oversubscription: float, expected_spines: int, uplink_bps: int
) -> None:
    """A leaf of 8 ports of 400 Gbit/s: 3200/oversubscription Gbit/s over the spines."""
    topology = rail_optimized(8, spines=spines, oversubscription=oversubscription)
    assert kinds(topology)[NodeKind.SPINE] == expected_spines
    assert uplinks_bps(topology) == {uplink_bps}


def test_ranks_fill_servers_and_rails_in_order() -> None:
    topology = rail_optimized(4)
    assert [topology.node_of(gpu) for gpu in (0, 7, 8, 31)] == [0, 0, 1, 3]
    assert [topology.rail_of(gpu) for gpu in (0, 7, 8, 31)] == [0, 7, 0, 7]
    with pytest.raises(InputError, match="found 32, expected 0…31"):
        topology.node_of(32)


def test_hosts_behind_one_switch_have_no_nvlink() -> None:
    assert kinds(single_switch(5)) == {NodeKind.GPU: 5, NodeKind.SWITCH: 1}
    assert single_switch(5).links == 10


def test_servers_behind_one_switch_have_an_nvswitch_each() -> None:
    topology = single_switch(2, gpus_per_node=4)
    assert kinds(topology) == {NodeKind.GPU: 8, NodeKind.NVSWITCH: 2, NodeKind.SWITCH: 1}
    assert Counter(topology.link_kind.tolist()) == {LinkKind.NVLINK: 16, LinkKind.NIC: 16}


def test_topologies_are_immutable() -> None:
    with pytest.raises(ValueError, match="read-only"):
        single_switch(2).capacity_bps[0] = 1


@given(topologies() | built_topologies())
@settings(max_examples=80)
def test_yaml_is_read_back_into_an_equal_topology(topology: Topology) -> None:
    assert_equal(from_yaml(to_yaml(topology)), topology)


@given(topologies() | built_topologies())
@settings(max_examples=80)
def test_simai_text_is_read_back_into_the_same_network(topology: Topology) -> None:
    """The format has no names, and tells tiers only by their distance from GPUs; in the builders' fabrics that is
    enough, as long as no leaf is without a GPU."""
    hypothesis.assume(has_gpus_everywhere(topology))
    found = from_simai(to_simai(topology))
    for name in ("node_kind", "link_src", "link_dst", "capacity_bps", "latency_ps", "link_kind"):
        assert np.array_equal(getattr(found, name), getattr(topology, name)), name


@pytest.mark.parametrize(
    "name", ["no", "Null", "y", "1e3", "0x10", "a: b", "- x", "é", "#", "", "a,b", "[", "12:30", "5ns", "~"]
)
def test_names_that_yaml_could_take_for_something_else_survive(name: str) -> None:
    topology = Topology.from_cables(
        [(NodeKind.GPU, name), (NodeKind.GPU, "plain"), (NodeKind.SWITCH, "on")],
        [DuplexLink(0, 2, 10**9, 0, LinkKind.NIC), DuplexLink(1, 2, 10**9, 0, LinkKind.NIC)],
        gpus_per_node=1,
    )
    assert from_yaml(to_yaml(topology)).node_name == topology.node_name


WORDS = st.sampled_from(
    [
        "a",
        "gpu0",
        "no",
        "NO",
        "nobody",
        "on",
        "true",
        "null",
        "y",
        "yes-",
        "n.",
        "5ns",
        "0ps",
        "400Gbps",
        "1e3",
        "1.5us",
        "7",
        "~",
        "0x1f",
        "1_0s",
        "'a'",
        "",
        "a b",
        "é",
    ]
)
LINES = st.one_of(
    st.builds("{}: {}".format, WORDS, st.sampled_from(["0", "8", "010", "[]", "-1", "1.0", "no", "[", "a"])),
    st.builds("{}:".format, WORDS),
    st.builds(lambda words: f"- [{', '.join(words)}]", st.lists(WORDS, max_size=4)),
    st.sampled_from(["", "# note", "  - [a, b]", "- a", "---"]),
)


@given(st.lists(LINES, max_size=6).map("\n".join))
@settings(max_examples=400)
def test_what_is_read_without_a_yaml_parser_means_the_same_to_one(text: str) -> None:
    document = plain_document(text)
    if document:
        assert parse_yaml(text, "T.yaml") == document


@given(WORDS | st.text(max_size=6))
@settings(max_examples=300)
def test_plain_words_are_text_to_a_yaml_parser(text: str) -> None:
    if is_plain(text):
        assert parse_yaml(f"[{text}]", "T.yaml") == [text]


@given(topologies() | built_topologies())
@settings(max_examples=20)
def test_what_we_write_needs_no_yaml_parser_and_means_the_same_to_one(topology: Topology) -> None:
    text = to_yaml(topology)
    assert plain_document(text) == parse_yaml(text, "T.yaml")


def test_tiers_are_told_by_the_distance_from_gpus() -> None:
    found = from_simai(to_simai(fat_tree(4)))
    assert kinds(found) == {NodeKind.GPU: 16, NodeKind.LEAF: 8, NodeKind.SPINE: 8, NodeKind.CORE: 4}


def test_links_that_differ_by_direction_survive_yaml_but_not_simai() -> None:
    base = single_switch(2)
    capacity = base.capacity_bps.copy()
    capacity[1] = 100 * 10**9
    uneven = Topology(
        node_kind=base.node_kind,
        node_name=base.node_name,
        link_src=base.link_src,
        link_dst=base.link_dst,
        capacity_bps=capacity,
        latency_ps=base.latency_ps,
        link_kind=base.link_kind,
        gpus_per_node=1,
    )
    assert_equal(from_yaml(to_yaml(uneven)), uneven)
    with pytest.raises(InputError, match="opposite"):
        to_simai(uneven)


def test_networkx_gets_every_link_with_its_properties() -> None:
    topology = rail_optimized(2)
    graph = topology.to_networkx()
    assert (graph.number_of_nodes(), graph.number_of_edges()) == (topology.nodes, topology.links)
    assert networkx.shortest_path_length(graph, 0, 9) == 4
    assert graph.nodes[16] == {"name": "nvswitch0", "kind": "nvswitch"}
    assert graph.edges[0, 16, 0] == {"capacity_bps": 2_966_400_000_000, "latency_ps": 25_000, "kind": "nvlink"}


SIMAI = "3 1 0 1 2 H100\n2\n0 2 400Gbps 0.0005ms 0\n1 2 400Gbps 0.0005ms 0\n"


def test_the_only_switch_of_a_simai_text_is_a_plain_switch() -> None:
    assert_equal(from_simai(SIMAI), single_switch(2))


@pytest.mark.parametrize(
    ("wrong", "right", "message"),
    [
        ("3 1 0 1 2 H100", "3 1 0 1 2", "line 1: expected `node_num gpus_per_server"),
        ("3 1 0 1 2 H100", "3 x 0 1 2 H100", "line 1 gpus_per_server: found 'x', expected a number, 0 to"),
        ("3 1 0 1 2 H100", "3 1 0 1 3 H100", r"found 2 link lines, expected 3 \(line 1, link_num\)"),
        ("3 1 0 1 2 H100", "3 1 0 2 2 H100", "line 2: found 1 ids, expected 0 different ids of NVSwitches and 2"),
        ("\n2\n", "\n7\n", "line 2: found '7', expected a node, 0 to 2"),
        ("1 2 400Gbps 0.0005ms 0", "1 5 400Gbps 0.0005ms 0", "line 4 dst: found '5', expected a node, 0 to 2"),
        ("1 2 400Gbps 0.0005ms 0", "1 2 400G 0.0005ms 0", "line 4 rate: found '400G', expected a positive rate"),
        ("1 2 400Gbps 0.0005ms 0", "1 2 400Gbps 5 0", "line 4 delay: found '5', expected a time"),
        ("1 2 400Gbps 0.0005ms 0", "1 2 400Gbps 0.0005ms 0.1", "line 4 error_rate: found '0.1', expected 0"),
        ("1 2 400Gbps 0.0005ms 0", "1 2 400Gbps 0.0005ms", "line 4: found 4 fields, expected `src dst rate"),
        ("2\n0 2", "0\n0 2", "expected GPUs first"),
    ],
)
def test_wrong_simai_text_is_refused_with_line_and_field(wrong: str, right: str, message: str) -> None:
    assert wrong in SIMAI
    with pytest.raises(InputError, match=message):
        from_simai(SIMAI.replace(wrong, right), "T.txt")


YAML = """
gpus_per_node: 1
nodes: [[gpu, a], [gpu, b], [switch, s]]
links: [[a, s, 400Gbps, 500ns, nic], [b, s, 400Gbps, 500ns, nic]]
"""


@pytest.mark.parametrize(
    ("wrong", "right", "message"),
    [
        ("gpus_per_node: 1", "gpus_per_node: one", "T.yaml gpus_per_node: found 'one', expected a whole number"),
        ("gpus_per_node: 1", "gpus_per_node: 3", "T.yaml: Topology.gpus_per_node: found 3 with 2 GPUs"),
        ("gpus_per_node: 1", "gpus: 1", "T.yaml gpus: unknown field, expected one of gpus_per_node"),
        ("[gpu, b]", "[cpu, b]", r"T.yaml nodes: found \['cpu', 'b'\], expected \[gpu|nvswitch"),
        ("[gpu, b]", "[gpu, a]", "T.yaml nodes: found 'a' 2 times, expected unique names"),
        ("[b, s,", "[c, s,", r"T.yaml links\[1\]: found unknown node 'c'"),
        ("[b, s,", "[[b], s,", r"T.yaml links\[1\]: found .* expected \[src, dst, rate, latency"),
        ("[b, s, 400Gbps,", "[b, s, 4e2Gpbs,", r"T.yaml links\[1\] rate: found '4e2Gpbs'"),
        ("gpus_per_node: 1", "gpus_per_node: [", "T.yaml line 4: not YAML"),
        (YAML, "just text", "T.yaml: found 'just text', expected a topology: a mapping"),
    ],
)
def test_wrong_yaml_is_refused_with_its_field(wrong: str, right: str, message: str) -> None:
    assert wrong in YAML
    with pytest.raises(InputError, match=message) as caught:
        from_yaml(YAML.replace(wrong, right), "T.yaml")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", [YAML, SIMAI, "kind: single_switch\nnodes: 2\n"])
def test_files_are_read_in_whatever_format_they_are(tmp_path: Path, text: str) -> None:
    path = tmp_path / "topology"
    path.write_text(text)
    found = read_topology(path)
    assert (found.gpus, found.links, set(found.capacity_bps.tolist())) == (2, 4, {400 * 10**9})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.yaml: found no such file"):
        read_topology(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize("change", [{"nodes": 0}, {"gpus_per_node": 0}, {"spines": 0}, {"oversubscription": 0}])
def test_fabrics_of_nothing_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(InputError, match=f"{next(iter(change))}: found 0, expected"):
        rail_optimized(**({"nodes": 2} | change))  # type: ignore[arg-type]
