"""Errors of estimated kernel times against measured ones (``vidur-pd validate --only compute``).

*Held out*: the shapes of a kernel are divided by group (whole (n, k) of a GEMM, one m of all sites, whole batch column
of an attention kernel) into five folds; each fold is predicted from the other four, so 20 % are held out at a time and
every point is predicted once. Interpolation, forest and roofline see the same folds.

*Beyond*: half of the octaves of one column are withheld, at either end, and points more than 1.5 octaves beyond the
rest are predicted.

*Repeated*: shapes that two measuring sessions share. An estimate cannot be nearer to a measurement than another
measurement is.

Comparisons with tables of others are in `aicb.estimators.accuracy.published`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from aicb.estimators.accuracy.sparse_cases import Case, fp8_and_sparse_cases, small_surface, surface_of
from aicb.estimators.forest import Forest
from aicb.estimators.interpolation import InterpolationEstimator
from aicb.estimators.roofline import RooflineEstimator
from aicb.kernels.batched_gemm import BatchedGemm
from aicb.kernels.decode_attention import (
    DecodeAttention,
    SglangDecodeAttention,
    SlidingDecodeAttention,
    UnscheduledDecodeAttention,
)
from aicb.kernels.elementwise import Elementwise
from aicb.kernels.fitting.kriging import Floats
from aicb.kernels.fitting.surface import BEYOND_OCTAVES, Surface
from aicb.kernels.gemm import Gemm
from aicb.kernels.grouped_gemm import SGLANG_TRAIT, GroupedGemm, Layout
from aicb.kernels.kernel import Kernel
from aicb.kernels.mla_decode import MlaDecode
from aicb.kernels.prefill_attention import PrefillAttention
from aicb.measurements.gpu import get_gpu
from aicb.measurements.table import EVEN_DISTRIBUTIONS, KernelRow, KernelTable
from aicb.measurements.timing import Timing
from aicb.model.precision import GemmDtype, Precision

FOLDS = 5
LEAST_OCTAVES = 5.0
"""Of a column's range, for `beyond`."""
LEAST_KNOWN = 30
"""Points that `beyond` predicts others from."""
GEMM_DTYPES: tuple[GemmDtype, ...] = ("fp8", "bf16")
GPU = get_gpu("h200")


@dataclass(frozen=True, slots=True)
class Errors:
    """Absolute relative errors of one kernel under one method."""

    kernel: str
    groups: str
    method: str
    points: int
    median: float
    p90: float
    within_claim: float | None
    """Share of points within the error that the estimate states; absent where none is stated."""


def errors_of(kernel: str, groups: str, method: str, relative: Floats, claimed: Floats | None = None) -> Errors:
    size = np.abs(relative)
    within = None if claimed is None else float((size <= claimed).mean())
    return Errors(kernel, groups, method, len(size), float(np.median(size)), float(np.quantile(size, 0.9)), within)


FA3_DECODES = {
    "FA3 decode": DecodeAttention,
    "FA3 decode, SGLang": SglangDecodeAttention,
    "FA3 decode, no schedule": UnscheduledDecodeAttention,
    "FA3 decode, sliding": SlidingDecodeAttention,
}


def cases(timing: Timing) -> list[Case]:
    """All kernels with enough shapes."""
    estimator = InterpolationEstimator(GPU, Precision(state="fp32"), timing)
    products = lambda s: BatchedGemm(*map(int, (s[0], s[3], s[1], s[2])))  # noqa: E731
    return [
        *_dense(estimator),
        *_grouped(estimator),
        Case("bmm", "m", surface_of(estimator, BatchedGemm), (3,), products),
        Case("FA3 prefill", "(q, S)", surface_of(estimator, PrefillAttention, ("bf16", True)), (5, 6), _prefill),
        Case(
            "FA3 prefill, other groups",
            "(q, S)",
            surface_of(estimator, PrefillAttention, ("bf16", False)),
            (5, 6),
            _prefill,
        ),
        *(
            Case(name, "batch column", surface_of(estimator, decode, "bf16"), (0, 1, 2, 3), _decode)
            for name, decode in FA3_DECODES.items()
        ),
        Case("FlashMLA decode", "batch column", surface_of(estimator, MlaDecode, "bf16"), (0, 1), _mla),
        *fp8_and_sparse_cases(GPU, timing),
        Case("RMSNorm + add", "columns", small_surface(estimator, "add_rms_norm"), (0,), _norm),
    ]


def _dense(estimator: InterpolationEstimator) -> Iterator[Case]:
    held: tuple[tuple[str, tuple[int, ...]], ...] = (("(n, k)", (0, 1)), ("m", (2,)))
    for dtype in GEMM_DTYPES:
        for groups, columns in held:
            kernel_of = partial(_gemm, dtype=dtype)
            yield Case(f"{dtype} GEMM", groups, surface_of(estimator, Gemm, dtype), columns, kernel_of)


def _grouped(estimator: InterpolationEstimator) -> Iterator[Case]:
    """bf16 once: both layouts take the gathered kernel's times."""
    held: tuple[tuple[str, tuple[int, ...]], ...] = (("(n, k)", (2, 3)), ("experts, (n, k)", (0, 1, 2, 3)))
    layouts: tuple[tuple[Layout, GemmDtype, str, tuple[str, ...]], ...] = (
        ("masked", "bf16", "gathered", ()),
        ("masked", "fp8", "masked", ()),
        ("contiguous", "fp8", "contiguous", ()),
        ("gathered", "fp8", "gathered", ()),
        ("masked", "bf16", "SGLang", (SGLANG_TRAIT,)),
        ("gathered", "fp8", "SGLang", (SGLANG_TRAIT,)),
    )
    for layout, dtype, name, traits in layouts:
        surface = surface_of(estimator, GroupedGemm, (layout, dtype, *traits))
        for groups, columns in held:
            kernel_of = partial(_experts, dtype=dtype, layout=layout)
            yield Case(f"{dtype} grouped GEMM, {name}", groups, surface, columns, kernel_of)


def _gemm(shape: list[float], dtype: GemmDtype) -> Kernel:
    n, k, m = map(int, shape)
    return Gemm(m, n, k, dtype)


def _experts(shape: list[float], dtype: GemmDtype, layout: Layout) -> Kernel:
    groups, active, n, k, *tokens, rows = shape
    size = rows * active, int(groups), active, int(n), int(k)
    return GroupedGemm(*size, dtype, layout, tokens=tokens[0] if tokens else None)


def _prefill(shape: list[float]) -> Kernel:
    heads, kv_heads, d_qk, d_v, _, kv, new = map(int, shape)
    return PrefillAttention(np.array([new]), np.array([kv]), heads, kv_heads, d_qk, d_v)


def _decode(shape: list[float]) -> Kernel:
    heads, kv_heads, dim, batch, kv = map(int, shape)
    return DecodeAttention(np.full(batch, kv), heads, kv_heads, dim)


def _mla(shape: list[float]) -> Kernel:
    heads, batch, kv = map(int, shape)
    return MlaDecode(np.full(batch, kv), heads, 576, 512)


def _norm(shape: list[float]) -> Kernel:
    columns, rows = map(int, shape)
    return Elementwise("add_rms_norm", rows, columns, 8 * rows * columns)


def held_out(case: Case) -> Iterator[Errors]:
    """One kernel under the three methods."""
    surface = case.surface
    groups = [tuple(shape) for shape in surface.shapes[:, case.columns].tolist()]
    order = np.random.default_rng(0).permutation(len(distinct := sorted(set(groups))))
    fold_of = {group: int(position) % FOLDS for group, position in zip(distinct, order, strict=True)}
    folds = [fold_of[group] for group in groups]
    kriged = surface.hold_out(folds)
    yield errors_of(case.kernel, case.groups, "interpolation", kriged.relative, kriged.claimed)
    predicted = np.empty(len(folds))
    for fold in range(FOLDS):
        out = np.array(folds) == fold
        if out.any():
            predicted[out] = Forest(surface.shapes[~out], surface.times_us[~out]).times(surface.shapes[out])
    yield errors_of(case.kernel, case.groups, "forest", predicted / surface.times_us - 1.0)
    roofline = RooflineEstimator(GPU)
    bound = np.array([roofline.price(case.kernel_of(shape)).time_us for shape in surface.shapes.tolist()])
    yield errors_of(case.kernel, case.groups, "roofline", bound / surface.times_us - 1.0)


def beyond(case: Case) -> Iterator[Errors]:
    """One kernel, by interpolation from the lower and from the upper half of the octaves of each column in turn."""
    surface, relative, claimed = case.surface, [], []
    for column in surface.shapes.T:
        for is_known, octaves in _halves(column):
            far = octaves > BEYOND_OCTAVES[1]
            if is_known.sum() >= LEAST_KNOWN and far.any():
                known = Surface(surface.reference, surface.shapes[is_known], surface.times_us[is_known])
                relative.append(known.times(surface.shapes[far]) / surface.times_us[far] - 1.0)
                claimed.append(known.errors(surface.shapes[far]))
    if relative:
        yield errors_of(case.kernel, "half a range", "interpolation", np.hstack(relative), np.hstack(claimed))


def _halves(column: Floats) -> Iterator[tuple[NDArray[np.bool_], Floats]]:
    """[points] whether a value is in the lower, and in the upper half of the range, and its octaves beyond that half.

    None of ranges below `LEAST_OCTAVES`."""
    if column.min() <= 0.0 or column.max() < column.min() * 2.0**LEAST_OCTAVES:
        return
    octaves = np.log2(column)
    middle = (octaves.min() + octaves.max()) / 2.0
    for from_middle in (octaves - middle, middle - octaves):
        is_known = from_middle <= 0.0
        yield is_known, from_middle - from_middle[is_known].max()


def repeats(timing: Timing) -> list[Errors]:
    """Shapes that two measuring sessions share: the later time against the earlier, event floors included."""
    table = KernelTable.load("h200")
    probe = KernelTable("h200", table.rows, {})
    found = []
    for op in ("gemm", "grouped_gemm_masked", "grouped_gemm_contiguous", *ATTENTION):
        earlier = {_key(row): row for row in probe.select(op, distribution="even")}
        pairs = [(earlier[key], row) for part in table.parts for row in part.rows(op) if (key := _key(row)) in earlier]
        times = [(_time(old, timing), _time(new, timing)) for old, new in pairs]
        both = np.array([pair for pair in times if None not in pair], dtype=np.float64)
        if len(both):
            found.append(errors_of(op, "sessions", "repeat", both[:, 1] / both[:, 0] - 1.0))
    return found


ATTENTION = ("prefill_attention", "decode_attention", "mla_decode")


def _key(row: KernelRow) -> tuple[object, ...]:
    kind = "even" if row.distribution in EVEN_DISTRIBUTIONS else row.distribution + row.lengths
    return (row.dtype, kind, *sorted(row.shape.items()))


def _time(row: KernelRow, timing: Timing) -> float | None:
    return row.graph_us if timing == "graph" else row.cold_us
