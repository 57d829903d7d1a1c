"""GPU generations: files with typed fields; a new one is one file."""

from __future__ import annotations

from importlib import resources
from typing import Any

import pytest

from boundary.yaml_text import parse_yaml_mapping
from simccl import InputError, gpu_named
from simccl.communicator.generations import generation, generations
from simccl.communicator.gpus import gpus


def hopper() -> dict[str, Any]:
    text = (resources.files("simccl") / "data" / "sm90.yaml").read_text("utf-8")
    return parse_yaml_mapping(text, "sm90.yaml", "a GPU generation")


def test_generations_come_oldest_first_with_their_gpus() -> None:
    assert [found.compute_capability for found in generations()] == [80, 90, 100]
    assert list(gpus()) == ["a100", "a800", "h100", "h200", "h20", "h800", "b200"]
    assert gpu_named(" H800 ").nvlink_gbytes_per_s == pytest.approx(8 * 20.6)


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
