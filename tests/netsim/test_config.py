"""Topology specs."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from netsim import InputError, to_simai
from netsim.config import FileSpec, RailOptimizedSpec, SingleSwitchSpec, TopologySpec, build, parse_spec
from netsim.topologies import rail_optimized


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


def test_a_spec_builds_what_its_builder_builds() -> None:
    spec = parse_spec({"kind": "rail_optimized", "nodes": 4, "spines": 3, "oversubscription": 2})
    assert to_simai(build(spec)) == to_simai(rail_optimized(4, spines=3, oversubscription=2))


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
        ({}, "C kind: found none, expected rail_optimized, single_switch, or file: PATH"),
        ({"kind": "torus"}, "C kind: found 'torus', expected rail_optimized"),
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
