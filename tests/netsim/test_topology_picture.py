"""Pictures of topologies: what is drawn, and that it stays readable."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings

from netsim import (
    DragonflyShape,
    InputError,
    NodeKind,
    Topology,
    alibaba_hpn,
    dragonfly,
    fat_tree,
    nvl72,
    rail_optimized,
    single_switch,
)
from netsim.topologies.layout import arranged
from netsim.topologies.outline import Group, outlines
from netsim.topologies.picture import draw, to_svg
from netsim.topology import CableTable
from tests.netsim.strategies import built_topologies

SVG = "{http://www.w3.org/2000/svg}"
WIDEST_PX = 1920

LARGE: list[Callable[[], Topology]] = [
    lambda: alibaba_hpn(1920, planes=2),
    lambda: rail_optimized(2048),
    lambda: fat_tree(16, gpus_per_node=8),
    lambda: dragonfly(DragonflyShape.balanced(6)),
    lambda: rail_optimized(16, 72, rails=4),
    lambda: nvl72(nvswitches=18),
    lambda: single_switch(5000),
]


def outline(topology: Topology, limit: int) -> Group:
    return next(outlines(topology, [limit]))


def segments(data: str) -> int:
    """Lines and arcs of a path."""
    return data.count("M")


@given(built_topologies())
@settings(max_examples=60)
def test_symbols_stand_apart_inside_the_picture(topology: Topology) -> None:
    """Neighbours of a row are at least a symbol apart: 12 px for GPUs, 34 px for the others."""
    layout = arranged(topology)
    rows: dict[float, list[tuple[float, int]]] = {}
    for node, (x, y) in layout.places.items():
        assert 0 < x < layout.width
        assert 0 < y <= layout.bottom
        rows.setdefault(y, []).append((x, node))
    for row in rows.values():
        row.sort()
        for (x, node), (after, _) in pairwise(row):
            assert after - x >= (12 if topology.node_kind[node] == NodeKind.GPU else 34)


@given(built_topologies())
@settings(max_examples=60)
def test_what_is_not_drawn_is_counted(topology: Topology) -> None:
    """Of every group: GPUs shown and hidden ones add up, where no child is hidden."""

    def gpus(group: Group) -> int:
        return group.gpus.hidden + len(group.gpus.shown) + sum(gpus(child) for child in group.children)

    assert gpus(outline(topology, 10**6)) == topology.gpus
    drawn = set(arranged(topology).places)
    assert drawn <= set(range(topology.nodes))
    if topology.nodes <= 24:
        assert len(drawn) == topology.nodes


@given(built_topologies())
@settings(max_examples=40)
def test_every_cable_between_drawn_nodes_is_a_line(topology: Topology) -> None:
    """Several cables of a pair are one line. The legend has a line per class of cables."""
    root = ElementTree.fromstring(to_svg(topology))
    drawn = arranged(topology).places
    cables = topology.cables()
    assert cables is not None
    rows = zip(*(x.tolist() for x in (cables.a, cables.b, cables.capacity_bps, cables.kind)), strict=True)
    pairs = {(min(a, b), max(a, b), bps, kind) for a, b, bps, kind in rows if a in drawn and b in drawn}
    paths = [path.attrib["d"] for path in root.iter(f"{SVG}path") if path.find(f"{SVG}title") is not None]
    assert sum(map(segments, paths)) == len(pairs)


@pytest.mark.parametrize("build", LARGE)
def test_pictures_of_thousands_stay_narrow_and_small(build: Callable[[], Topology]) -> None:
    svg = to_svg(build())
    root = ElementTree.fromstring(svg)
    assert float(root.attrib["width"]) <= WIDEST_PX
    assert len(svg) < 200_000
    assert "://" not in svg.replace('xmlns="http://www.w3.org/2000/svg"', "")  # nothing is fetched


def test_the_legend_gives_rates_latencies_and_numbers_of_cables() -> None:
    text = "".join(ElementTree.fromstring(to_svg(rail_optimized(4, oversubscription=2))).itertext())
    assert "32 GPUs · 4 NVSwitches · 8 leaves · 2 spines" in text
    assert "NVLink: 2,966.4 Gbit/s (370.8 GB/s) per direction, 25ns · 32 cables" in text
    assert "NIC: 400 Gbit/s per direction, 500ns · 32 cables" in text
    assert "between switches: 400 Gbit/s per direction, 500ns · 16 cables" in text


def test_links_of_one_kind_and_two_rates_differ_by_their_dashes() -> None:
    svg = to_svg(dragonfly(DragonflyShape.balanced(2), oversubscription=2))
    drawn = re.findall(r'<path class="fabric"( stroke-dasharray="[^"]+")? stroke-opacity', svg)
    assert len(drawn) == 2
    assert drawn[0] != drawn[1]


def groups_of(topology: Topology) -> list[str]:
    return [child.name for child in outline(topology, 100).children]


def test_groups_are_segments_pods_servers_or_groups_of_routers() -> None:
    assert groups_of(rail_optimized(4, nodes_per_segment=2)) == ["segment 0", "segment 1"]
    assert groups_of(fat_tree(4)) == ["pod 0", "pod 1", "pod 2", "pod 3"]
    assert groups_of(single_switch(3, 2)) == ["server 0", "server 1", "server 2"]
    assert groups_of(dragonfly(DragonflyShape.balanced(2))) == [f"group {group}" for group in range(9)]


def test_of_a_long_row_the_first_and_the_last_are_drawn_with_the_number_between() -> None:
    """40 leaves: 8, then 24, then 8."""
    row = outline(rail_optimized(1, 40), 4).children[0].switches
    assert row.shown == (*range(41, 49), *range(73, 81))
    assert row.hidden == 24


def test_servers_that_nothing_connects_are_drawn_side_by_side() -> None:
    cables = CableTable.between([0, 1, 2, 3], [4, 4, 5, 5], capacity_bps=10**9, latency_ps=0, kind=0)
    kinds = [NodeKind.GPU] * 4 + [NodeKind.NVSWITCH] * 2
    topology = Topology.from_table(kinds, [f"<{node}&" for node in range(6)], cables, gpus_per_node=2)
    assert groups_of(topology) == ["server 0", "server 1"]
    names = {title.text for title in ElementTree.fromstring(to_svg(topology)).iter(f"{SVG}title")}
    assert {f"<{node}&" for node in range(6)} <= names


def test_html_holds_the_same_picture() -> None:
    topology = fat_tree(4)
    assert to_svg(topology) in draw(topology, Path("T.html"))
    assert draw(topology, Path("T.svg")) == to_svg(topology)


@pytest.mark.parametrize("name", ["T.png", "T", "T.svg.gz"])
def test_other_formats_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"expected \.svg or \.html"):
        draw(fat_tree(4), Path(name))
