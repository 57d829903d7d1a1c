"""Choice, among measured kernels, of those of a shipped table: one per operation and shape.

A profile holds every kernel that ran (vLLM's, our Triton one); `KernelTable` averages rows of equal shape, so a table
must not hold two kernels of one shape. Rows that differ only in what a table has no column for are sorted out here: of
masked GEMMs with several capacities the tightest is kept.
"""

from __future__ import annotations

from collections.abc import Iterable

from aicb.kernels.registry import classes_by_operation
from aicb.measurements.table import COLUMNS, TEXT_COLUMNS
from aicb.profiling.store import Row

DEFAULT_PREFERENCE = ("triton_own/", "vllm/", "torch/", "cublas/")
"""Our fused Triton kernels stand for the ones vLLM's compiler generates in place of its own small kernels."""

_SHAPE = tuple(name for name in COLUMNS if name not in TEXT_COLUMNS and not name.endswith("_us") and name != "samples")
_KEY = ("op", "dtype", "distribution", *_SHAPE)
_DECIMALS = 3


def split_kernels(rows: Iterable[Row]) -> tuple[list[Row], list[Row]]:
    """(rows of the table, all others), each in its order. Repeated measurements of one kernel stay together."""
    known = list(rows)
    best: dict[tuple[object, ...], tuple[int, int]] = {}
    for row in known:
        best[_key(row)] = min(best.get(_key(row), _rank(row)), _rank(row))
    chosen = [row for row in known if _rank(row) == best[_key(row)]]
    others = [row for row in known if _rank(row) != best[_key(row)]]
    return chosen, others


def csv_cells(row: Row) -> dict[str, str]:
    """A row in the columns of ``kernels.csv``."""
    return {name: _text(row.get(name)) for name in COLUMNS}


def _key(row: Row) -> tuple[object, ...]:
    return tuple(row.get(name) for name in _KEY)


def _rank(row: Row) -> tuple[int, int]:
    """Place of the kernel in its preference, then capacity of the masked layout."""
    kind = classes_by_operation().get(str(row["op"]))
    preferred = kind.preferred_libraries if kind is not None else {}
    prefixes = preferred.get(str(row["op"]), DEFAULT_PREFERENCE)
    kernel = str(row["kernel"])
    place = next((i for i, prefix in enumerate(prefixes) if kernel.startswith(prefix)), len(prefixes))
    return place, int(row.get("max_m", 0))


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.{_DECIMALS}f}" if isinstance(value, float) else str(value)
