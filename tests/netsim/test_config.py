"""Topology specs."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from netsim import (
    DragonflyShape,
    InputError,
    Topology,
    Uplinks,
    alibaba_hpn,
    dcn_plus,
    dragonfly,
    fat_tree,
    nvl72,
    nvswitch,
    rail_optimized,
    single_switch,
    spectrum_x,
    to_simai,
)
from netsim.topologies.build import (
    KINDS,
    FatTreeSpec,
    FileSpec,
    Nvl72Spec,
    RailOptimizedSpec,
    SingleSwitchSpec,
    TopologySpec,
    build,
    parse_spec,
)
from netsim.topologies.defaults import NVLINK5_BPS, LinkRates


def test_specs_are_told_apart_by_kind_and_files_by_their_field() -> None:
    assert isinstance(parse_spec({"kind": "rail_optimized"}), RailOptimizedSpec)
    assert isinstance(parse_spec({"kind": "single_switch"}), SingleSwitchSpec)
    assert parse_spec({"file": "T.yaml"}) == FileSpec(file=Path("T.yaml"))


def test_quantities_are_parsed_and_written_as_text() -> None:
    spec = parse_spec({"kind": "rail_optimized", "nic": "200Gbps", "link_latency": "1us"})
    assert isinstance(spec, RailOptimizedSpec)
    assert (spec.nic, spec.link_latency) == (200 * 10**9, 10**6)
    dumped = spec.model_dump(mode="json")
    assert (dumped["nic"], dumped["nvlink"], dumped["link_latency"]) == ("200Gbps", "2966400Mbps", "1us")
    assert parse_spec(dumped) == spec


def test_specs_compose_into_larger_models() -> None:
    adapter: TypeAdapter[list[TopologySpec]] = TypeAdapter(list[TopologySpec])
    assert adapter.validate_python([{"file": "a"}, SingleSwitchSpec(nodes=2)])[1] == SingleSwitchSpec(nodes=2)
    with pytest.raises(ValidationError):
        adapter.validate_python([{"kind": "torus"}])


@pytest.mark.parametrize(("needed", "nodes"), [(1, 1), (8, 1), (9, 2), (64, 8)])
def test_nodes_follow_from_the_gpus_needed(needed: int, nodes: int) -> None:
    assert build(RailOptimizedSpec(), needed).gpus == 8 * nodes


GBPS = 10**9
BUILT: list[tuple[dict[str, object], Topology]] = [
    ({"kind": "nvswitch"}, nvswitch(8)),
    (
        {"kind": "nvswitch", "gpus_per_node": 16, "nvswitches": 4, "nvlink": "4Gbps"},
        nvswitch(16, nvswitches=4, rates=LinkRates(nvlink_bps=4 * GBPS)),
    ),
    ({"kind": "nvl72", "nvswitches": 18}, nvl72(nvswitches=18)),
    ({"kind": "single_switch", "nodes": 3, "gpus_per_node": 2}, single_switch(3, 2)),
    ({"kind": "fat_tree", "nodes": 17}, fat_tree(6, nodes=17)),
    ({"kind": "fat_tree", "nodes": 20, "hosts_per_edge": 3}, fat_tree(4, nodes=20, hosts_per_edge=3)),
    (
        {"kind": "fat_tree", "k": 4, "gpus_per_node": 2, "hosts_per_edge": 4, "oversubscription": 2},
        fat_tree(4, gpus_per_node=2, hosts_per_edge=4, oversubscription=2),
    ),
    (
        {"kind": "rail_optimized", "nodes": 4, "spines": 3, "oversubscription": 2},
        rail_optimized(4, spines=3, oversubscription=2),
    ),
    (
        {
            "kind": "rail_optimized",
            "nodes": 2,
            "gpus_per_node": 72,
            "rails": 4,
            "nvswitches_per_node": 18,
            "nvlink": "721.8GB/s",
        },
        rail_optimized(2, 72, rails=4, nvswitches_per_node=18, rates=LinkRates(nvlink_bps=NVLINK5_BPS)),
    ),
    ({"kind": "spectrum_x", "nodes": 70, "uplink": "800Gbps"}, spectrum_x(70, uplinks=Uplinks(rate_bps=800 * GBPS))),
    (
        {"kind": "alibaba_hpn", "nodes": 8, "planes": 2, "spines": 60, "oversubscription": 1.5},
        alibaba_hpn(8, planes=2, uplinks=Uplinks(60, oversubscription=1.5)),
    ),
    ({"kind": "alibaba_hpn", "nodes": 8, "tors": 1, "spine_ports": 8}, alibaba_hpn(8, tors=1, spine_ports=8)),
    ({"kind": "dcn_plus", "nodes": 70, "tors": 2, "spine_ports": 16}, dcn_plus(70, tors=2, spine_ports=16)),
    ({"kind": "dragonfly", "nodes": 7}, dragonfly(DragonflyShape.balanced(2), nodes=7)),
    (
        {
            "kind": "dragonfly",
            "hosts_per_router": 1,
            "routers_per_group": 3,
            "global_ports": 2,
            "groups": 4,
            "gpus_per_node": 2,
            "global_latency": "2us",
            "oversubscription": 2,
        },
        dragonfly(DragonflyShape(1, 3, 2, 4), gpus_per_node=2, global_latency_ps=2 * 10**6, oversubscription=2),
    ),
]


@pytest.mark.parametrize(
    ("document", "expected"), BUILT, ids=lambda value: str(value["kind"]) if isinstance(value, dict) else ""
)
def test_a_spec_builds_what_its_builder_builds(document: dict[str, object], expected: Topology) -> None:
    """Also after it was written out and read again."""
    spec = parse_spec(document)
    assert to_simai(build(spec)) == to_simai(expected)
    assert parse_spec(spec.model_dump(mode="json", exclude_none=True)) == spec


def test_every_kind_is_built_somewhere_above() -> None:
    assert {document["kind"] for document, _ in BUILT} == set(KINDS)


def test_a_tree_or_dragonfly_of_given_numbers_is_full_unless_nodes_are_given() -> None:
    assert build(FatTreeSpec(k=4)).gpus == build(FatTreeSpec(k=4), 9).gpus == 16
    assert build(FatTreeSpec(k=4, nodes=9), 9).gpus == 9
    assert build(parse_spec({"kind": "dragonfly", "hosts_per_router": 2})).gpus == 72
    with pytest.raises(InputError, match="topology fat_tree gpus: found 16, expected at least 17"):
        build(FatTreeSpec(k=4), 17)


def test_a_domain_has_the_gpus_it_has() -> None:
    assert (build(Nvl72Spec(), 72).gpus, Nvl72Spec().gpus_per_node) == (72, 72)
    with pytest.raises(InputError, match="topology nvl72 gpus: found 72, expected at least 73"):
        build(Nvl72Spec(), 73)


def test_too_few_gpus_are_refused_with_both_numbers(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nodes: found 2 with 16 GPUs, expected at least 17 GPUs"):
        build(RailOptimizedSpec(nodes=2), 17)
    path = tmp_path / "T.txt"
    path.write_text(to_simai(rail_optimized(2)))
    assert build(FileSpec(file=path), 16).gpus == 16
    with pytest.raises(InputError, match=r"T\.txt gpus: found 16, expected at least 17"):
        build(FileSpec(file=path), 17)


def test_without_nodes_the_gpus_needed_must_be_known() -> None:
    with pytest.raises(InputError, match="nodes: found none"):
        build(SingleSwitchSpec())


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "C kind: found none, expected nvswitch, nvl72, single_switch, fat_tree, .*, dragonfly, or file: PATH"),
        ({"kind": "torus"}, "C kind: found 'torus', expected nvswitch"),
        ({"kind": "fat_tree", "k": 5}, "C k: found 5, expected: .*multiple of 2"),
        ({"kind": "alibaba_hpn", "tors": 3}, "C tors: found 3, expected: .*less than or equal to 2"),
        ({"kind": "nvl72", "nodes": 2}, "C nodes: unknown field, expected one of nvlink"),
        ({"kind": "rail_optimized", "oversubscription": float("inf")}, "C oversubscription: found inf, expected"),
        ({"kind": "dragonfly", "groups": 0}, "C groups: found 0, expected: .*greater than or equal to 1"),
        ({"kind": "rail_optimized", "nodez": 2}, "C nodez: unknown field, expected one of .*; nearest: nodes"),
        ({"kind": "single_switch", "spines": 2}, "C spines: unknown field"),
        ({"kind": "rail_optimized", "nodes": 0}, "C nodes: found 0, expected: .*greater than or equal to 1"),
        ({"kind": "rail_optimized", "nic": "fast"}, "C nic: found 'fast', expected a positive rate such as 400Gbps"),
        ({"kind": "rail_optimized", "nic": 4.5}, "C nic: found 4.5, expected a rate with a unit such as 400Gbps"),
        ({"kind": "rail_optimized", "nic": 400}, "C nic: found 400, expected a rate with a unit such as 400Gbps"),
        ({"kind": "rail_optimized", "nvlink": "400"}, "C nvlink: found '400', expected a rate with a unit"),
        ({"kind": "single_switch", "link_latency": 0}, "C link_latency: found 0, expected a time with a unit such as"),
        ({"file": 7}, "C file: found 7, expected"),
        ({"file": "T.yaml", "nodes": 2}, "C nodes: unknown field, expected one of kind, file"),
    ],
)
def test_wrong_specs_are_refused_with_the_field(document: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}") as caught:
        parse_spec(document, "C")
    assert "\n" not in str(caught.value)
