"""Tables of ``aicb profile``: one kernel per shape, as `aicb.profiling.convert` chooses it."""

from __future__ import annotations

from pathlib import Path

from aicb.formats.imports.rows import positive_us
from aicb.profiling.convert import csv_cells, split_kernels
from aicb.profiling.store import PROVENANCE_FILE, Row
from boundary.errors import InputError
from boundary.json_text import parse_json
from boundary.text_files import read_text


def read(rows: list[dict[str, str]], path: Path) -> tuple[list[dict[str, str]], list[str]]:
    """Rows of ``kernels.csv`` and cautions; ``path`` is the table, whose provenance may lie in the same folder.

    Raises:
        InputError: no such table, or a time that is not positive.
    """
    name = path.name
    for column in ("op", "kernel", "dtype", "run", "cold_us"):
        if column not in rows[0]:
            raise InputError(f"{name}: columns: found no {column}, expected a profile.parquet of aicb profile")
    present: list[Row] = []
    for number, row in enumerate(rows, start=1):
        positive_us(row, "cold_us", f"{name}: row {number}")
        present.append({column: value for column, value in row.items() if value})
    chosen, others = split_kernels(present)
    cautions = [f"{name}: {len(others)} rows of other kernels of the same shapes left out"] if others else []
    device = _device(path.with_name(PROVENANCE_FILE))
    cautions.append(f"{name}: measured on {device}")
    return [csv_cells(row) for row in chosen], cautions


def _device(provenance: Path) -> str:
    """The device that the profiler ran on."""
    try:
        facts = parse_json(read_text(provenance, "provenance"), str(provenance), "provenance")
        return str(facts["environment"]["device"])
    except (InputError, KeyError, TypeError):
        return f"an unknown device ({provenance.name} does not say)"
