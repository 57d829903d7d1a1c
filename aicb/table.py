"""Measured kernel times of one GPU, with their provenance.

A table is a directory ``aicb/data/<gpu>`` of two files: ``kernels.csv`` (one row per measured shape, columns below)
and ``provenance.json`` (schema version, device, driver, library versions, clocks, timing method, cautions).
Times are microseconds. An empty cell means "does not apply" or "not measured"; it is never a zero.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from statistics import fmean
from types import MappingProxyType

from aicb.errors import InputError

SCHEMA_VERSION = 1

COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "op": "operation: gemm, bmm, grouped_gemm_masked, grouped_gemm_contiguous, prefill_attention, …",
        "kernel": "library and function that ran",
        "dtype": "bf16, fp8 (1x128 activation and 128x128 weight scales), or a conversion",
        "tag": "model and layer the shape was taken from",
        "m": "rows of the activation (GEMM) or of the tensor (elementwise)",
        "n": "columns of the output (GEMM) or of the tensor (elementwise)",
        "k": "inner dimension",
        "groups": "local experts",
        "active_groups": "local experts with at least one row",
        "rows": "rows of all local experts together",
        "max_rows": "rows of the largest local expert",
        "experts_per_token": "k of the top-k",
        "batch": "sequences (attention); tokens per rank (grouped GEMM)",
        "q_len": "new tokens per sequence",
        "kv_len": "KV length per sequence, the mean where lengths differ",
        "heads": "query heads (attention), value heads (gated delta rule), products (bmm)",
        "kv_heads": "KV heads (attention), key heads (gated delta rule)",
        "d_qk": "dimension of queries and keys",
        "d_v": "dimension of values",
        "distribution": "of KV lengths or of rows among experts",
        "cold_us": "time with a flushed L2, event floor included",
        "cold_p10_us": "10th percentile of the samples",
        "cold_p90_us": "90th percentile of the samples",
        "graph_us": "time per call inside a replayed CUDA graph, L2 warm",
        "samples": "samples behind cold_us",
        "run": "probe run the row belongs to",
    }
)
TEXT_COLUMNS = frozenset({"op", "kernel", "dtype", "tag", "distribution", "run"})


@dataclass(frozen=True, slots=True)
class KernelRow:
    """One measured shape. ``shape`` holds the numeric shape columns that apply to the operation."""

    op: str
    dtype: str
    kernel: str
    distribution: str
    shape: Mapping[str, int]
    run: str
    cold_us: float
    graph_us: float | None

    def __getitem__(self, column: str) -> int:
        return self.shape[column]


@dataclass(frozen=True, slots=True)
class LaunchCosts:
    """Constants of the device's launch path [µs]."""

    event_floor_us: Mapping[str, float]
    """By probe run: a null kernel between two CUDA events, which every ``cold_us`` of the run contains."""
    graph_node_us: float
    """Mean of the runs: one node of a large CUDA graph of null kernels: the least time any kernel takes in a graph."""
    eager_launch_us: float
    """Mean of the runs: host time of one eager kernel launch."""


@dataclass(frozen=True, slots=True)
class KernelTable:
    """All measured kernels of one GPU."""

    gpu: str
    rows: tuple[KernelRow, ...]
    provenance: Mapping[str, object] = field(repr=False)

    @classmethod
    def load(cls, gpu: str) -> KernelTable:
        """The table shipped for ``gpu`` (such as ``"h200"``).

        Raises:
            InputError: no measurements are shipped for this GPU, or its files do not follow the schema.
        """
        data = files("aicb") / "data"
        directory = data / gpu
        if not gpu.isidentifier() or not (directory / "kernels.csv").is_file():
            raise InputError(f"gpu: found {gpu!r}, expected one with measurements: {', '.join(measured_gpus())}")
        provenance = json.loads((directory / "provenance.json").read_text(encoding="utf-8"))
        if provenance["schema_version"] != SCHEMA_VERSION:
            found = provenance["schema_version"]
            raise InputError(f"{gpu}/provenance.json: schema_version: found {found}, expected {SCHEMA_VERSION}")
        text = (directory / "kernels.csv").read_text(encoding="utf-8")
        return cls(gpu, tuple(read_rows(text.splitlines(), f"{gpu}/kernels.csv")), MappingProxyType(provenance))

    def select(self, op: str, dtype: str | None = None, distribution: str | None = None) -> list[KernelRow]:
        """Rows of one operation, repeated measurements of a shape merged into their mean."""
        groups: dict[object, list[KernelRow]] = {}
        for row in self.rows:
            if row.op != op or dtype not in (None, row.dtype) or distribution not in (None, row.distribution):
                continue
            groups.setdefault((row.dtype, row.distribution, *row.shape.items()), []).append(row)
        return [_merged(same) for same in groups.values()]

    @property
    def launch(self) -> LaunchCosts:
        floors = {row.run: row.cold_us for row in self.rows if row.op == "null_kernel"}
        (node,) = self.select("graph_node")
        (eager,) = self.select("eager_launch_host")
        return LaunchCosts(MappingProxyType(floors), node.cold_us, eager.cold_us)


def measured_gpus() -> list[str]:
    """Names of the GPUs whose measurements are shipped."""
    return sorted(entry.name for entry in (files("aicb") / "data").iterdir() if (entry / "kernels.csv").is_file())


def read_rows(lines: Iterable[str], name: str) -> list[KernelRow]:
    """Parses ``kernels.csv``; ``name`` is what errors call the file."""
    reader = csv.DictReader(lines)
    if tuple(reader.fieldnames or ()) != tuple(COLUMNS):
        raise InputError(f"{name}: header: found {reader.fieldnames}, expected {list(COLUMNS)}")
    return [_row(cells, f"{name}:{line}") for line, cells in enumerate(reader, start=2)]


def _row(cells: dict[str, str], place: str) -> KernelRow:
    try:
        times = {name: float(cells[name]) for name in ("cold_us", "graph_us") if cells[name]}
        shape = {
            name: int(cells[name])
            for name in COLUMNS
            if cells[name] and name not in TEXT_COLUMNS and not name.endswith("_us") and name != "samples"
        }
    except ValueError as error:
        raise InputError(f"{place}: number: {error}") from None
    if not times.get("cold_us", 0.0) > 0.0:
        raise InputError(f"{place}: cold_us: found {cells['cold_us']!r}, expected a positive time in microseconds")
    return KernelRow(
        cells["op"],
        cells["dtype"],
        cells["kernel"],
        cells["distribution"],
        MappingProxyType(shape),
        cells["run"],
        times["cold_us"],
        times.get("graph_us"),
    )


def _merged(same: list[KernelRow]) -> KernelRow:
    first = same[0]
    if len(same) == 1:
        return first
    graph = [row.graph_us for row in same if row.graph_us is not None]
    return KernelRow(
        first.op,
        first.dtype,
        first.kernel,
        first.distribution,
        first.shape,
        first.run,
        fmean(row.cold_us for row in same),
        fmean(graph) if graph else None,
    )
