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

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from aicb.estimators.estimate import Estimate, Estimator
from aicb.model.precision import KvDtype
from aicb.operators.operator import (
    BatchedGemm,
    DecodeAttention,
    Elementwise,
    GatedDeltaDecode,
    GatedDeltaPrefill,
    Gemm,
    GemmDtype,
    GroupedGemm,
    MlaDecode,
    PrefillAttention,
    SparseKernel,
    SparseMlaDecode,
    SparseMlaPrefill,
    Work,
)
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

BYTES_PER_ELEMENT = {"rms_norm": 4.0, "quant": 3.03125, "silu_mul_quant": 5.03125, "topk": 4.0}
"""Read and written per element: bf16 or fp32 in, bf16 out, or fp8 with a 4-byte scale per 128."""

ELEMENTWISE = (
    *BYTES_PER_ELEMENT,
    *("add_rms_norm", "head_norm", "rope", "silu_mul", "permute", "unpermute", "kv_write", "embedding"),
    *("sampling", "conv", "gating", "add", "assemble_k", "state_copy", "grouped_topk", "kv_write_fp8", "merge_states"),
    *("latent_write", "latent_write_fp8", "latent_write_sparse_fp8", "index_write", "index_gather", "layer_norm"),
    *("latent_gather", "latent_gather_fp8", "latent_gather_sparse_fp8"),
)

_DTYPES: Mapping[str, GemmDtype] = {"bf16": "bf16", "fp8": "fp8", "fp8_1x128_128x128": "fp8"}


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


def parse(row: RowReader) -> Work:
    """The operator of one row.

    Raises:
        InputError: the operation is unknown or a column it needs is missing or malformed.
    """
    op = ALIASES.get(row.text("op"), row.text("op"))
    reader = _READERS.get(op)
    if reader is not None:
        return reader(row)
    if op in ELEMENTWISE:
        return _elementwise(row, op)
    raise row.fail("op", f"one of {', '.join((*_READERS, *ELEMENTWISE))}")


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


def _dtype(row: RowReader) -> GemmDtype:
    if row.text("dtype") not in _DTYPES:
        raise row.fail("dtype", "bf16 or fp8")
    return _DTYPES[row.text("dtype")]


def _kv_dtype(row: RowReader) -> KvDtype | None:
    """Format of the cache: fp8 or bf16 by name; that of the estimator where the cell says nothing of it."""
    match row.text("dtype"):
        case "fp8":
            return "fp8"
        case "bf16":
            return "bf16"
        case _:
            return None


def _gemm(row: RowReader) -> Work:
    return Gemm(row.integer("m"), row.integer("n"), row.integer("k"), _dtype(row))


def _bmm(row: RowReader) -> Work:
    return BatchedGemm(row.integer("heads"), row.integer("m"), row.integer("n"), row.integer("k"))


def _grouped(layout: Literal["masked", "contiguous"]) -> Callable[[RowReader], Work]:
    def read(row: RowReader) -> Work:
        groups = row.integer("groups")
        rows = row.number("rows") if row.text("rows") else row.number("m") * groups
        active = row.number("active_groups", min(float(groups), max(rows, 1.0)))
        if active > groups:
            raise row.fail("active_groups", f"at most groups = {groups}")
        return GroupedGemm(rows, groups, active, row.integer("n"), row.integer("k"), _dtype(row), layout)

    return read


def _prefill(row: RowReader) -> Work:
    batch = row.integer("batch", 1)
    new, kv = row.lengths("q_len", batch), row.lengths("kv_len", batch)
    if len(new) != len(kv) or (kv < new).any():
        raise row.fail("kv_len", "as many lengths as q_len, each at least q_len (past and new tokens)")
    d_qk, d_v = row.integer("d_qk"), row.integer("d_v")
    dtype = _kv_dtype(row) or "bf16"
    return PrefillAttention(new, kv, row.integer("heads"), row.integer("kv_heads"), d_qk, d_v, dtype)


def _decode(row: RowReader) -> Work:
    kv = row.lengths("kv_len", row.integer("batch", 1))
    heads, kv_heads, head_dim = row.integer("heads"), row.integer("kv_heads"), row.integer("d_qk")
    return DecodeAttention(kv, heads, kv_heads, head_dim, kv_dtype=_kv_dtype(row))


def _mla(row: RowReader) -> Work:
    """Query tokens of one request share its KV tiles: they count as more heads."""
    kv = row.lengths("kv_len", row.integer("batch", 1))
    heads = row.integer("heads") * row.integer("q_len", 1)
    d_qk, d_v = row.integer("d_qk", 576), row.integer("d_v", 512)
    return MlaDecode(kv, heads, d_qk, d_v, kv_dtype=_kv_dtype(row))


def _sparse_prefill(kernel: SparseKernel) -> Callable[[RowReader], Work]:
    def read(row: RowReader) -> Work:
        batch = row.integer("batch", 1)
        new, kv = row.lengths("q_len", batch), row.lengths("kv_len", batch)
        if len(new) != len(kv) or (kv < new).any():
            raise row.fail("kv_len", "as many lengths as q_len, each at least q_len (past and new tokens)")
        heads, latent, index = _sparse_shape(row, kernel)
        return SparseMlaPrefill(new, kv, kernel, heads, *latent, row.integer("k", 2048), *index)

    return read


def _sparse_decode(kernel: SparseKernel) -> Callable[[RowReader], Work]:
    def read(row: RowReader) -> Work:
        kv = row.lengths("kv_len", row.integer("batch", 1))
        heads, latent, index = _sparse_shape(row, kernel)
        all_heads, dtype = heads * row.integer("q_len", 1), _kv_dtype(row) if kernel == "attention" else None
        topk = row.integer("k", 2048)
        return SparseMlaDecode(kv, all_heads, *latent, kernel, heads, topk, *index, kv_dtype=dtype)

    return read


def _sparse_shape(row: RowReader, kernel: SparseKernel) -> tuple[int, tuple[int, int], tuple[int, int]]:
    """Query heads, latent (key and value) and indexer (heads, dimension); the columns name those of ``kernel``."""
    if kernel == "attention":
        return row.integer("heads"), (row.integer("d_qk", 576), row.integer("d_v", 512)), (64, 128)
    return 128, (576, 512), (row.integer("heads", 64), row.integer("d_qk", 128))


def _delta_prefill(row: RowReader) -> Work:
    new = row.lengths("q_len", row.integer("batch", 1))
    return GatedDeltaPrefill(new, row.integer("kv_heads"), row.integer("heads"), row.integer("d_qk"))


def _delta_decode(row: RowReader) -> Work:
    return GatedDeltaDecode(row.integer("batch"), row.integer("kv_heads"), row.integer("heads"), row.integer("d_qk"))


def _elementwise(row: RowReader, kernel: str) -> Work:
    if kernel in BYTES_PER_ELEMENT:
        rows, cols = row.integer("m"), row.integer("n")
        default: float | None = BYTES_PER_ELEMENT[kernel] * rows * cols
    else:
        rows, cols, default = row.integer("m", 1), row.integer("n", 1), None
    return Elementwise(kernel, rows, cols, round(row.number("bytes", default)))


_READERS: Mapping[str, Callable[[RowReader], Work]] = {
    "gemm": _gemm,
    "bmm": _bmm,
    "grouped_gemm_masked": _grouped("masked"),
    "grouped_gemm_contiguous": _grouped("contiguous"),
    "prefill_attention": _prefill,
    "decode_attention": _decode,
    "mla_decode": _mla,
    "mla_sparse_prefill": _sparse_prefill("attention"),
    "index_logits_prefill": _sparse_prefill("index_logits"),
    "index_topk_prefill": _sparse_prefill("index_topk"),
    "mla_sparse_decode": _sparse_decode("attention"),
    "index_logits_decode": _sparse_decode("index_logits"),
    "index_topk_decode": _sparse_decode("index_topk"),
    "gdn_prefill": _delta_prefill,
    "gdn_decode": _delta_decode,
}
