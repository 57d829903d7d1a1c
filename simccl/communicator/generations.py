"""GPU generations: constants of NCCL and of engines that depend on them, read from ``data/sm*.yaml``.

A generation is one file with the fields of `Generation` and the GPU types that belong to it; the files are read when
the first GPU is asked for. Rates are in GB/s = 10⁹ B/s and per direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from types import MappingProxyType
from typing import Any

from boundary.errors import InputError
from boundary.quoting import quoted

PerNodes = tuple[float, float, float]
"""One number each for 1, 2, 3 and more nodes."""
_MOST = 1e6
_GPU_FIELDS = ("nvlinks", "pcie_gbytes_per_s", "nic_gbytes_per_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Constants of one GPU generation. Fields of a file that are not here are refused."""

    compute_capability: int
    """NVIDIA SM version, two digits and more: 80, 90, 100."""
    gbytes_per_s_per_nvlink: float
    intra_node_speeds: tuple[float, ...]
    """Speeds of a channel that NCCL's search tries inside a node, the fastest first."""
    inter_node_speeds: tuple[float, ...]
    """The same between nodes."""
    ll_one_node: float
    """Limit of LL on one node."""
    ring_ll128_per_channel: PerNodes
    tree_ll128_per_channel: PerNodes
    tree_per_channel: PerNodes
    """Limit of Simple."""
    nvls_tree_per_channel: PerNodes
    nvls_efficiency: float
    all_to_all_bus: float
    """Bus bandwidth that nccl-tests all-to-all reaches over NVLink."""
    all_to_all_nvlinks: float
    """Rate of all NVLinks of the GPU on which it was measured."""
    vllm_custom_up_to_mib: Mapping[int, float]
    """Ranks → largest all_reduce of vLLM's custom kernels when it has symmetric memory; empty: it has none here."""
    vllm_multimem_up_to_mib: Mapping[int, float]
    """Ranks → largest all_reduce of its symmetric-memory kernels."""
    has_measured_deepep: bool
    """Whether DeepEP's kernels were measured on this generation."""
    gpus: Mapping[str, Mapping[str, float]]
    """GPU type → NVLinks, and rates of PCIe and NIC; see `simccl.communicator.gpus.Gpu`."""

    @property
    def nvlink_efficiency(self) -> float:
        """User bytes over NVLink's nominal rate that all-to-all reaches."""
        return self.all_to_all_bus / self.all_to_all_nvlinks


@cache
def generations() -> tuple[Generation, ...]:
    """All generations that come with the package, the oldest first."""
    return read_generations(resources.files("simccl") / "data")


def read_generations(folder: Traversable) -> tuple[Generation, ...]:
    """The generations that a folder has files of, the oldest first.

    Raises:
        InputError: naming the file and the field.
    """
    from boundary.yaml_text import parse_yaml_mapping

    found = []
    for file in folder.iterdir():
        if file.name.startswith("sm") and file.name.endswith(".yaml"):
            where = f"data/{file.name}"
            found.append(generation(parse_yaml_mapping(file.read_text("utf-8"), where, "a GPU generation"), where))
    return tuple(sorted(found, key=lambda one: one.compute_capability))


def generation(document: Mapping[str, Any], where: str) -> Generation:
    """The generation that a document describes.

    Raises:
        InputError: naming ``where`` and the field that is missing, unknown or of a wrong type.
    """
    fields = _Fields(document, where)
    found = Generation(
        compute_capability=int(fields.number("compute_capability")),
        gbytes_per_s_per_nvlink=fields.number("gbytes_per_s_per_nvlink"),
        intra_node_speeds=fields.numbers("intra_node_speeds"),
        inter_node_speeds=fields.numbers("inter_node_speeds"),
        ll_one_node=fields.number("ll_one_node"),
        ring_ll128_per_channel=fields.per_nodes("ring_ll128_per_channel"),
        tree_ll128_per_channel=fields.per_nodes("tree_ll128_per_channel"),
        tree_per_channel=fields.per_nodes("tree_per_channel"),
        nvls_tree_per_channel=fields.per_nodes("nvls_tree_per_channel"),
        nvls_efficiency=fields.number("nvls_efficiency"),
        all_to_all_bus=fields.number("all_to_all_bus"),
        all_to_all_nvlinks=fields.number("all_to_all_nvlinks"),
        vllm_custom_up_to_mib=fields.by_ranks("vllm_custom_up_to_mib"),
        vllm_multimem_up_to_mib=fields.by_ranks("vllm_multimem_up_to_mib"),
        has_measured_deepep=fields.truth("has_measured_deepep"),
        gpus=fields.gpus(),
    )
    fields.refuse_others()
    return found


class _Fields:
    """Fields of a document, each taken once and by its type."""

    def __init__(self, document: Mapping[str, Any], where: str) -> None:
        self._left = dict(document)
        self._where = where

    def number(self, name: str) -> float:
        return self._as_number(self._taken(name), name)

    def numbers(self, name: str) -> tuple[float, ...]:
        values = self._taken(name)
        if not isinstance(values, list) or not values:
            raise self._wrong(name, values, "a list of numbers")
        return tuple(self._as_number(value, name) for value in values)

    def per_nodes(self, name: str) -> PerNodes:
        values = self.numbers(name)
        if len(values) != 3:
            raise self._wrong(name, list(values), "three numbers: for 1, 2, 3 and more nodes")
        return values[0], values[1], values[2]

    def by_ranks(self, name: str) -> Mapping[int, float]:
        """Numbers by number of ranks; a field that is missing has none."""
        values = self._left.pop(name, {})
        if not isinstance(values, dict) or not all(ranks.isdecimal() for ranks in values):
            raise self._wrong(name, values, "a number for each of some numbers of ranks")
        return MappingProxyType({int(ranks): self._as_number(value, name) for ranks, value in values.items()})

    def truth(self, name: str) -> bool:
        value = self._taken(name)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def gpus(self) -> Mapping[str, Mapping[str, float]]:
        values = self._taken("gpus")
        if not isinstance(values, dict) or not values:
            raise self._wrong("gpus", values, "GPU types by name")
        found = {}
        for name, links in values.items():
            if not isinstance(links, dict) or sorted(links) != sorted(_GPU_FIELDS):
                raise self._wrong(f"gpus.{name}", links, ", ".join(_GPU_FIELDS))
            rates = {field: self._as_number(value, f"gpus.{name}.{field}") for field, value in links.items()}
            found[name] = MappingProxyType(rates)
        return MappingProxyType(found)

    def refuse_others(self) -> None:
        for name, value in self._left.items():
            raise self._wrong(name, value, "no such field")

    def _taken(self, name: str) -> Any:
        if name not in self._left:
            raise InputError(f"{self._where}: {name}: found nothing, expected this field of a GPU generation")
        return self._left.pop(name)

    def _as_number(self, value: Any, name: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST:
            raise self._wrong(name, value, f"a number, 0 to {_MOST:g}")
        return float(value)

    def _wrong(self, name: str, value: object, expected: str) -> InputError:
        return InputError(f"{self._where}: {name}: found {quoted(value)}, expected {expected}")
