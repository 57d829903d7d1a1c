"""Columns of one row that describes a kernel: of a table of operators, or of a point of a profile."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from aicb.model.precision import GemmDtype, KvDtype, WeightDtype
from boundary.errors import InputError


class Columns(Protocol):
    """Cells by the names of `aicb.measurements.table.COLUMNS`; `fail` names the row in errors."""

    def text(self, field: str) -> str:
        """The cell; empty where there is none."""
        ...

    def fail(self, field: str, expected: str) -> InputError:
        """The error of a cell that is not what was expected."""
        ...

    def integer(self, field: str, default: int | None = None) -> int:
        """A positive integer."""
        ...

    def number(self, field: str, default: float | None = None) -> float:
        """A positive number."""
        ...

    def lengths(self, field: str, batch: int) -> NDArray[np.int64]:
        """[sequences] tokens (``q_len``, ``kv_len``)."""
        ...


_DTYPES: dict[str, GemmDtype] = {"bf16": "bf16", "fp8": "fp8", "fp8_1x128_128x128": "fp8"}


def gemm_dtype(row: Columns) -> GemmDtype:
    """Format of a matrix product."""
    if row.text("dtype") not in _DTYPES:
        raise row.fail("dtype", "bf16 or fp8")
    return _DTYPES[row.text("dtype")]


def expert_dtype(row: Columns) -> WeightDtype:
    """Format of the weights of experts."""
    return "mxfp4" if row.text("dtype") == "mxfp4" else gemm_dtype(row)


def kv_dtype(row: Columns) -> KvDtype | None:
    """Format of the cache: fp8 or bf16 by name; that of the estimator where the cell says nothing of it."""
    match row.text("dtype"):
        case "fp8":
            return "fp8"
        case "bf16":
            return "bf16"
        case _:
            return None


def chunks(row: Columns) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """[sequences] new tokens, and past and new ones, of prefills."""
    batch = row.integer("batch", 1)
    new, kv = row.lengths("q_len", batch), row.lengths("kv_len", batch)
    if len(new) != len(kv) or (kv < new).any():
        raise row.fail("kv_len", "as many lengths as q_len, each at least q_len (past and new tokens)")
    return new, kv
