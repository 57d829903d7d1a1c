"""Tables of operators in, tables with times out.

One row is one operator; the columns are those of the measured tables (``measurements/table.py``), so rows of a
measured table are valid input. Which columns an operation reads:

    gemm                      m n k dtype
    bmm                       m n k heads (products)
    grouped_gemm_masked,
    grouped_gemm_contiguous   n k groups dtype, rows (all experts) or m (mean per expert), [active_groups]
    prefill_attention         q_len kv_len heads kv_heads d_qk d_v [batch dtype]
    decode_attention          kv_len heads kv_heads d_qk [batch dtype]
    mla_decode                kv_len heads [d_qk d_v batch q_len dtype]
    mla_sparse_prefill        q_len kv_len heads k [d_qk d_v batch]
    index_logits_prefill      q_len kv_len [heads d_qk batch]
    index_topk_prefill        q_len kv_len k [batch]
    mla_sparse_decode         kv_len heads k [d_qk d_v batch q_len dtype]
    index_logits_decode       kv_len [heads d_qk batch q_len]
    index_topk_decode         kv_len k [batch]
    gdn_prefill               q_len heads kv_heads d_qk [batch]
    gdn_decode                batch heads kv_heads d_qk
    rms_norm, quant,
    silu_mul_quant, topk      m n
    any other elementwise     bytes [m n]

``kv_len`` and ``q_len`` are one number for ``batch`` equal sequences, or one number per sequence joined by ``;``.
Other columns are carried through. Names of the probe's functions (``fp8_gemm_nt``, ``paged_decode``, …) are understood.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from aicb.estimators.estimator import Estimator
from aicb.kernels.fitting.estimate import Estimate
from aicb.kernels.kernel import Kernel
from aicb.kernels.registry import classes_by_operation
from boundary.csv_text import check_width, column_places, csv_rows
from boundary.errors import InputError
from boundary.numbers import real_number

ADDED_COLUMNS = ("time_us", "is_estimate", "source", "relative_error")

ALIASES: Mapping[str, str] = {
    "linear": "gemm",
    "fp8_gemm_nt": "gemm",
    "m_grouped_fp8_gemm_nt_masked": "grouped_gemm_masked",
    "m_grouped_fp8_gemm_nt_contig": "grouped_gemm_contiguous",
    "varlen_prefill": "prefill_attention",
    "paged_decode": "decode_attention",
    "dense_decode_fwd": "mla_decode",
    "chunk_prefill": "gdn_prefill",
    "fused_recurrent_decode": "gdn_decode",
    "quant128": "quant",
    "silu_mul_quant128": "silu_mul_quant",
}
"""Function names of the kernel probe."""

MOST = 2**31 - 1
"""Of any number of a row: products of three stay finite, and exact enough."""
MOST_SEQUENCES = 2**20
"""Of one operator."""


class RowReader:
    """Cells of one input row with errors that name file, line and field."""

    def __init__(self, cells: Mapping[str, str], place: str):
        self._cells, self._place = cells, place

    def text(self, field: str) -> str:
        return self._cells.get(field, "").strip()

    def fail(self, field: str, expected: str) -> InputError:
        return InputError(f"{self._place}: {field}: found {self.text(field)!r}, expected {expected}")

    def integer(self, field: str, default: int | None = None) -> int:
        """A positive integer, with or without exponent."""
        if not self.text(field) and default is not None:
            return default
        return self._integer(field, self.text(field))

    def number(self, field: str, default: float | None = None) -> float:
        """A positive number."""
        if not self.text(field) and default is not None:
            return default
        return real_number(self.text(field), f"{self._place}: {field}", "a positive number", 1e-9, MOST)

    def lengths(self, field: str, batch: int) -> NDArray[np.int64]:
        """[sequences] tokens: one number for all, or one per sequence."""
        parts = self.text(field).split(";")
        values = [self._integer(field, part) for part in parts]
        if max(batch, len(values)) > MOST_SEQUENCES:
            raise self.fail("batch", f"at most {MOST_SEQUENCES} sequences")
        if len(values) == 1:
            return np.full(batch, values[0], dtype=np.int64)
        if self.text("batch") and len(values) != batch:
            raise self.fail(field, f"{batch} lengths (batch)")
        return np.array(values, dtype=np.int64)

    def _integer(self, field: str, text: str) -> int:
        value = real_number(text, f"{self._place}: {field}", "a positive integer", 1, MOST)
        if not value.is_integer():
            raise self.fail(field, "a positive integer")
        return int(value)


def parse(row: RowReader) -> Kernel:
    """The kernel of one row.

    Raises:
        InputError: the operation is unknown or a column it needs is missing or malformed.
    """
    op = ALIASES.get(row.text("op"), row.text("op"))
    kind = classes_by_operation().get(op)
    if kind is None or op in UNREAD:
        raise row.fail("op", f"one of {', '.join(name for name in classes_by_operation() if name not in UNREAD)}")
    return kind.read(op, row)


UNREAD = frozenset({"grouped_gemm_gathered"})
"""A layout that only tables have: bf16 products of both other layouts take its times."""


def predict(
    lines: Sequence[str], estimator: Estimator, name: str
) -> tuple[list[str], list[dict[str, str]], list[Estimate]]:
    """Prices a CSV table: its columns, its rows, and one estimate per row. Equal rows are priced once.

    Args:
        lines: the table, header first.
        estimator: prices the rows.
        name: what errors call the table.

    Raises:
        InputError: the table has no ``op`` column, has a column that prediction adds, or a row is malformed.
    """
    table = csv_rows(lines, name)
    _, columns = next(table, (1, []))
    column_places(columns, f"{name}:1: header", ["op"])
    clash = [column for column in ADDED_COLUMNS if column in columns]
    if clash:
        raise InputError(f"{name}:1: header: found {clash[0]}, expected no column that prediction adds")
    rows, estimates = [], []
    known: dict[tuple[str, ...], Estimate] = {}
    for line, cells in table:
        place = f"{name}:{line}"
        check_width(cells, columns, place)
        row = dict(zip(columns, cells, strict=True))
        if tuple(cells) not in known:
            known[tuple(cells)] = estimator.price(parse(RowReader(row, place)))
        rows.append(row)
        estimates.append(known[tuple(cells)])
    return columns, rows, estimates
