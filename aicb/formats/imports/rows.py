"""Products of importers: rows of ``kernels.csv`` and the cautions that go with them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aicb.measurements.gpu import MIB, TABLE_FILE, Gpu
from aicb.measurements.table import COLUMNS, SCHEMA_VERSION, KernelTable
from boundary.errors import InputError
from boundary.numbers import real_number
from boundary.output_files import write_atomically
from boundary.quoting import quoted

RUN = "imported"
MOST = 1e15
"""Of any number in a table: a time in µs or a count."""
MOST_COUNT = 2**40
"""Of rows, tokens, heads or elements of one dimension."""
LAUNCH_GPU = "h200"
"""Whose launch constants stand in for those that foreign tables lack."""
_LAUNCH_OPS = ("null_kernel", "graph_node", "eager_launch_host")


@dataclass(frozen=True, slots=True)
class Imported:
    """Rows by column name (only those that apply) and cautions in the order they came up."""

    rows: tuple[Mapping[str, str], ...]
    cautions: tuple[str, ...]
    sources: tuple[str, ...]
    """Files the rows come from."""


def kernel_row(op: str, kernel: str, dtype: str, time_us: float, shape: Mapping[str, int]) -> dict[str, str]:
    """One row. Foreign times are those of kernels in graphs or by profiler, without an event floor, so that ``cold_us``
    and ``graph_us`` are the same."""
    cells = {column: str(value) for column, value in shape.items()}
    return {"op": op, "kernel": kernel, "dtype": dtype, **cells, **_times(time_us), "run": RUN}


def write_table(imported: Imported, gpu: Gpu, directory: Path) -> None:
    """Writes ``kernels.csv`` and ``provenance.json``; launch constants it lacks are those of ``LAUNCH_GPU``."""
    own = {row["op"] for row in imported.rows}
    lacking = [op for op in _LAUNCH_OPS if op not in own]
    rows = [*_launch_rows(lacking), *imported.rows]
    table = io.StringIO()
    writer = csv.DictWriter(table, list(COLUMNS), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    launch = [f"launch constants ({', '.join(lacking)}) are those of the {LAUNCH_GPU}"] if lacking else []
    provenance = {
        "schema_version": SCHEMA_VERSION,
        "gpu": gpu.name,
        "rows": len(rows),
        "environment": {"gpu": gpu.name, "sm_count": gpu.sms, "memory_total_mib": gpu.hbm_bytes // MIB},
        "timing": {"cold_us, graph_us": "as in the source; equal where it has one time only; see its cautions"},
        "sources": list(imported.sources),
        "cautions": [*imported.cautions, *launch],
    }
    facts = json.dumps(provenance, indent=1, ensure_ascii=False) + "\n"
    for path, content in zip(table_paths(directory), (table.getvalue(), facts), strict=True):
        write_atomically(path, content)


def table_paths(directory: Path) -> list[Path]:
    """Files that `write_table` writes."""
    return [directory / TABLE_FILE, directory / "provenance.json"]


def text(cells: Mapping[str, str], column: str, place: str) -> str:
    """A cell of a row, without blanks around it.

    Raises:
        InputError: no such column.
    """
    if column not in cells:
        raise InputError(f"{place}: {column}: found no such column, expected one")
    return cells[column].strip()


def number(cells: Mapping[str, str], column: str, place: str) -> float:
    """A number of a row; exponents are fine.

    Raises:
        InputError: missing, no number, or beyond `MOST`.
    """
    return real_number(text(cells, column, place), f"{place}: {column}", "a number", -MOST, MOST)


def count(cells: Mapping[str, str], column: str, place: str, *, at_least: int = 0) -> int:
    """A whole number of a row.

    Raises:
        InputError: missing, fractional, below ``at_least`` or above `MOST_COUNT`.
    """
    value = number(cells, column, place)
    if not at_least <= value <= MOST_COUNT or value != int(value):
        found = quoted(cells[column])
        raise InputError(f"{place}: {column}: found {found}, expected a whole number, {at_least} to {MOST_COUNT}")
    return int(value)


def positive_us(cells: Mapping[str, str], column: str, place: str, *, us_per_unit: float = 1.0) -> float:
    """A time in µs; ``us_per_unit`` is 1000 for columns in ms.

    Raises:
        InputError: not above 0.
    """
    value = number(cells, column, place)
    if value <= 0:
        raise InputError(f"{place}: {column}: found {value}, expected a positive time")
    return value * us_per_unit


def _times(time_us: float) -> dict[str, str]:
    text = f"{time_us:.6g}"
    return {"cold_us": text, "graph_us": text}


def _launch_rows(lacking: list[str]) -> list[dict[str, str]]:
    table = KernelTable.load(LAUNCH_GPU)
    return [
        {"op": op, "kernel": f"{LAUNCH_GPU}/{op}", "run": RUN, "cold_us": f"{table.select(op)[0].cold_us:.6g}"}
        for op in lacking
    ]
