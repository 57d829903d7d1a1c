"""Times of many operators at once, from columns instead of objects.

For sweeps and searches: kernels of one kind are a table of numbers, priced without a Python loop over its rows. The
times are those of ``price``, the roofline included.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from aicb.estimators.interpolation import InterpolationEstimator
from aicb.kernels.decode_attention import DecodeAttention
from aicb.kernels.fitting.estimate import ManyTimes, VolumeTimes
from aicb.kernels.fitting.kriging import Floats
from aicb.kernels.fitting.surface import Surface, distinct_shapes
from aicb.kernels.gemm import Gemm, dense_bytes
from aicb.kernels.kernel import KernelTimes, SurfaceTimes
from aicb.kernels.pairs import causal_pairs
from aicb.kernels.prefill_attention import PrefillAttention, PrefillTimes
from aicb.model.precision import GemmDtype
from boundary.errors import InputError

Kind = Literal["gemm_bf16", "gemm_fp8", "prefill_attention", "decode_attention"]

COLUMNS: Mapping[Kind, tuple[str, ...]] = {
    "gemm_bf16": ("n", "k", "m"),
    "gemm_fp8": ("n", "k", "m"),
    "prefill_attention": ("heads", "kv_heads", "d_qk", "d_v", "kv_len", "q_len"),
    "decode_attention": ("heads", "kv_heads", "d_qk", "batch", "kv_len"),
}
"""Columns of each kind, named as in the tables. One request per row, or ``batch`` equal ones in decode attention."""


def price_many(estimator: InterpolationEstimator, kind: Kind, columns: Mapping[str, ArrayLike]) -> ManyTimes:
    """Times of all rows.

    Args:
        estimator: its measurements, timing and precision are used.
        kind: what the rows are.
        columns: ``COLUMNS[kind]``, each [rows] or one number for all rows.

    Raises:
        InputError: the kind is unknown, a column is missing, or a value is below 1.
    """
    if kind not in COLUMNS:
        raise InputError(f"kind: found {kind!r}, expected one of {', '.join(COLUMNS)}")
    missing = [name for name in COLUMNS[kind] if name not in columns]
    if missing:
        raise InputError(f"columns: found no {missing[0]}, expected {', '.join(COLUMNS[kind])}")
    values = np.broadcast_arrays(*(np.asarray(columns[name], dtype=np.float64) for name in COLUMNS[kind]))
    shapes = np.column_stack([value.reshape(-1) for value in values])
    if not (shapes >= 1.0).all():
        raise InputError(f"columns: found {shapes.min():g}, expected values of at least 1")
    match kind:
        case "gemm_bf16" | "gemm_fp8":
            return _gemms(estimator, "bf16" if kind == "gemm_bf16" else "fp8", shapes)
        case "prefill_attention":
            return _prefills(estimator, shapes)
        case "decode_attention":
            return _decodes(estimator, shapes)


def _gemms(estimator: InterpolationEstimator, dtype: GemmDtype, shapes: Floats) -> ManyTimes:
    surface = _surface(estimator.fitted(Gemm, dtype))
    n, k, m = shapes.T
    moved = dense_bytes(m, n, k, dtype)
    is_resident = (estimator.timing == "graph") & (moved <= estimator.gpu.l2_bytes)
    compute_us = 2.0 * m * n * k / estimator.gpu.peak_flops[dtype] * 1e6
    memory_us = np.where(is_resident, 0.0, moved / estimator.gpu.hbm_bytes_per_s * 1e6)
    time_us, is_measured = surface.times_and_hits(shapes)
    bounded_us = np.maximum(time_us, np.maximum(compute_us, memory_us))
    return ManyTimes(np.where(is_measured, time_us, bounded_us), surface.are_estimates(shapes))


def _prefills(estimator: InterpolationEstimator, shapes: Floats) -> ManyTimes:
    kv, new = shapes.T[4:]
    shapes = np.column_stack([shapes[:, :4], np.ones(len(kv)), kv, new])
    if (new > kv).any():
        raise InputError("columns: found kv_len below q_len, expected past and new tokens")
    geometries, inverse = distinct_shapes(shapes[:, :4])
    nothing = np.ones(1, dtype=np.int64)
    kernels = [PrefillAttention(nothing, nothing, *geometry) for geometry in geometries.astype(np.int64).tolist()]
    rates = np.array([(each.flops_per_pair, each.bytes_per_kv_token, each.bytes_per_new_token) for each in kernels])
    per_pair, per_kv, per_new = rates[inverse].T
    flops, moved = per_pair * causal_pairs(new, kv), per_kv * kv + per_new * new
    is_resident = (estimator.timing == "graph") & (moved <= estimator.gpu.l2_bytes)
    memory_us = np.where(is_resident, 0.0, moved / estimator.gpu.hbm_bytes_per_s * 1e6)
    time_us, is_measured = np.empty(len(shapes)), np.empty(len(shapes), dtype=np.bool_)
    is_estimate = np.empty(len(shapes), dtype=np.bool_)
    variants = np.array([kernel.variant(estimator.precision)[1] for kernel in kernels])[inverse]
    for divides_tiles in np.unique(variants).tolist():
        times, here = estimator.fitted(PrefillAttention, ("bf16", divides_tiles)), variants == divides_tiles
        assert isinstance(times, PrefillTimes)
        time_us[here], is_measured[here] = times.surface.times_and_hits(shapes[here])
        is_estimate[here] = times.are_estimates(shapes[here])
    bounded_us = np.maximum(time_us, np.maximum(flops / estimator.gpu.peak_flops["bf16"] * 1e6, memory_us))
    return ManyTimes(np.where(is_measured, time_us, bounded_us), is_estimate)


def _decodes(estimator: InterpolationEstimator, shapes: Floats) -> ManyTimes:
    """One function per geometry and batch size, evaluated at all lengths."""
    sites, inverse = distinct_shapes(shapes[:, :4])
    order = np.argsort(inverse, kind="stable")
    parts = np.split(order, np.searchsorted(inverse[order], np.arange(1, len(sites))))
    time_us, is_estimate = np.empty(len(shapes)), np.empty(len(shapes), dtype=np.bool_)
    nothing = np.ones(1, dtype=np.int64)
    for site, part in zip(sites.astype(np.int64).tolist(), parts, strict=True):
        heads, kv_heads, dim, batch = site
        function = estimator.decode_times(DecodeAttention(nothing, heads, kv_heads, dim), batch)
        assert isinstance(function, VolumeTimes)
        time_us[part], is_estimate[part] = function.times.of_equal(shapes[part, 4].astype(np.int64), batch)
    return ManyTimes(time_us, is_estimate)


def _surface(times: KernelTimes[Gemm] | None) -> Surface:
    assert isinstance(times, SurfaceTimes)
    return times.surface
