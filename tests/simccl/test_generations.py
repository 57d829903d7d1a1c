"""GPU generations: files with typed fields; a new one is one file."""

from __future__ import annotations

import shutil
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from boundary.yaml_text import dump_yaml, parse_yaml_mapping
from simccl import Algorithm, Collective, InputError, Stack, gpu_named
from simccl.communicator.generations import generation, generations, read_generations
from simccl.communicator.gpus import gpus, gpus_of
from simccl.communicator.shape import CommunicatorShape
from simccl.engines.all_reduce import engine_kernel
from simccl.nccl.point_to_point import message_port_rates
from simccl.planning.cost_model import algorithm_costs


def hopper() -> dict[str, Any]:
    text = (resources.files("simccl") / "data" / "sm90.yaml").read_text("utf-8")
    return parse_yaml_mapping(text, "sm90.yaml", "a GPU generation")


def test_generations_come_oldest_first_with_their_gpus() -> None:
    assert [found.compute_capability for found in generations()] == [80, 89, 90, 100]
    assert list(gpus()) == ["a100", "a800", "l40s", "h100", "h200", "h20", "h800", "b200", "gb200"]
    assert gpu_named(" H800 ").nvlink_gbytes_per_s == pytest.approx(8 * 20.6)


def test_a_new_generation_is_one_file(tmp_path: Path) -> None:
    """Twice Hopper's rates: rings of one node carry twice as much, and engines' limits and messages are its own."""
    document = hopper()
    twice = document | {
        "compute_capability": 120,
        "gbytes_per_s_per_nvlink": 41.2,
        "gpus": {"x1": {"nvlinks": 18, "pcie_gbytes_per_s": 96.0, "nic_gbytes_per_s": 100.0}},
        "intra_node_speeds": [2 * speed for speed in document["intra_node_speeds"]],
        "vllm_custom_up_to_mib": {8: 1},
        "all_to_all_bus": 278.1,
        "all_to_all_nvlinks": 370.8,
    }
    data = Path(str(resources.files("simccl") / "data"))
    for file in data.glob("sm*.yaml"):
        shutil.copy(file, tmp_path)
    (tmp_path / "sm120.yaml").write_text(dump_yaml(twice))
    types = gpus_of(read_generations(tmp_path))
    assert list(types) == [*gpus(), "x1"]
    x1, h100 = (CommunicatorShape(types[name], 8, 1, 8, 50.0) for name in ("x1", "h100"))
    rings = [algorithm_costs(Collective.ALL_GATHER, at, Algorithm.RING) for at in (x1, h100)]
    bandwidths = [costs.bus_gbytes_per_s[2] for costs in rings if costs is not None]
    assert bandwidths[0] == 2 * bandwidths[1]
    assert message_port_rates(x1).nvlink_bytes_per_s == pytest.approx(18 * 41.2e9 * 0.75)
    assert engine_kernel(Stack.VLLM, 1 << 20, x1) == "two_shot"
    assert engine_kernel(Stack.VLLM, 2 << 20, x1) == "multimem"


def test_a_file_without_vllms_limits_has_none() -> None:
    document = {name: value for name, value in hopper().items() if not name.startswith("vllm")}
    assert not generation(document, "sm90.yaml").vllm_custom_up_to_mib


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("ll_one_node", "fast", "ll_one_node: found 'fast', expected a number"),
        ("ll_one_node", True, "ll_one_node: found True, expected a number"),
        ("nvls_efficiency", -1, "nvls_efficiency: found -1, expected a number"),
        ("intra_node_speeds", [], r"intra_node_speeds: found \[\], expected a list of numbers"),
        ("tree_per_channel", [1, 2], "tree_per_channel: found .*, expected three numbers"),
        ("vllm_custom_up_to_mib", {"two": 1}, "vllm_custom_up_to_mib: found .*, expected a number for each"),
        ("has_measured_deepep", 1, "has_measured_deepep: found 1, expected true or false"),
        ("gpus", {}, "gpus: found .*, expected GPU types by name"),
        ("gpus", {"h1": {"nvlinks": 2}}, "gpus.h1: found .*, expected nvlinks, pcie_gbytes_per_s"),
        ("colour", "green", "colour: found 'green', expected no such field"),
    ],
)
def test_a_wrong_field_is_named(name: str, value: object, message: str) -> None:
    with pytest.raises(InputError, match=rf"^sm90.yaml: {message}"):
        generation(hopper() | {name: value}, "sm90.yaml")


def test_a_missing_field_is_named() -> None:
    document = hopper()
    del document["ring_ll128_per_channel"]
    with pytest.raises(InputError, match=r"^sm90.yaml: ring_ll128_per_channel: found nothing, expected this field"):
        generation(document, "sm90.yaml")
