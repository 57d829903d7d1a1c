"""Times of dense, batched and grouped GEMMs from measured curves."""

from __future__ import annotations

import math

from aicb.estimators.curves import CurveSet, Point
from aicb.estimators.estimate import Estimate
from aicb.estimators.measured import MeasuredTimes, gemm_weight_bytes
from aicb.estimators.roofline import CONTIGUOUS_ROWS
from aicb.gpu import Gpu
from aicb.operators import BatchedGemm, Gemm, GemmDtype, GroupedGemm
from aicb.precision import ELEMENT_BYTES
from aicb.table import KernelRow

MASKED_ROWS = 64
"""Smallest row tile of DeepGEMM's masked layout on SM90."""

_PEAK_SHARE = 0.75
_BANDWIDTH_SHARE = 0.80
_FLOOR_US = 2.0
"""Of the smooth reference below. They shape interpolation between measured points only; chosen by leave-one-out error
on the shipped table, within the range of measured peaks (0.70-0.80 of FLOPs, 0.72-0.91 of bandwidth)."""


def reference_us(flops: float, moved_bytes: float, peak_flops: float, bandwidth: float) -> float:
    """Smooth roofline: quadrature of compute and memory time, which rounds the corner as overlapped kernels do."""
    compute = flops / (_PEAK_SHARE * peak_flops)
    memory = moved_bytes / (_BANDWIDTH_SHARE * bandwidth)
    return _FLOOR_US + math.hypot(compute, memory) * 1e6


class GemmCurves:
    """Dense GEMM: sites (n, k), axis m."""

    def __init__(self, measured: MeasuredTimes, gpu: Gpu, dtype: GemmDtype):
        size = ELEMENT_BYTES[dtype]
        peak, bandwidth = gpu.peak_flops[dtype], gpu.hbm_bytes_per_s

        def reference(site: tuple[float, ...], m: float) -> float:
            n, k = site
            return reference_us(2.0 * m * n * k, size * k * (m + n) + 2.0 * m * n, peak, bandwidth)

        self.curves = CurveSet(f"{dtype} gemm (n, k)", _dense_points(measured, dtype), reference)

    def price(self, work: Gemm) -> Estimate:
        return self.curves.price((float(work.n), float(work.k)), float(work.m))


def _dense_points(measured: MeasuredTimes, dtype: GemmDtype) -> list[Point]:
    return [
        Point((float(row["n"]), float(row["k"])), float(row["m"]), measured.time_us(row, gemm_weight_bytes(row)))
        for row in measured.table.select("gemm", dtype)
    ]


class BatchedGemmCurves:
    """bf16 batched GEMM (MLA absorb): sites (products, n, k), axis m."""

    def __init__(self, measured: MeasuredTimes, gpu: Gpu):
        peak, bandwidth = gpu.peak_flops["bf16"], gpu.hbm_bytes_per_s

        def reference(site: tuple[float, ...], m: float) -> float:
            batch, n, k = site
            moved = 2.0 * batch * (n * k + m * (n + k))
            return reference_us(2.0 * batch * m * n * k, moved, peak, bandwidth)

        points = [
            Point(
                (float(row["heads"]), float(row["n"]), float(row["k"])),
                float(row["m"]),
                measured.time_us(row, row["heads"] * gemm_weight_bytes(row)),
            )
            for row in measured.table.select("bmm")
        ]
        self.curves = CurveSet("bmm (products, n, k)", points, reference)

    def price(self, work: BatchedGemm) -> Estimate:
        return self.curves.price((float(work.batch), float(work.n), float(work.k)), float(work.m))


class GroupedGemmCurves:
    """Grouped FP8 GEMM of one layout: sites (experts, active experts, n, k), axis rows per active expert.

    Only rows measured with equal experts are used: the work states total rows, so skew among the experts of one rank
    (measured +0 to +37 % masked, −3 to +11 % contiguous at the tile edge) is not modelled.
    """

    def __init__(self, measured: MeasuredTimes, gpu: Gpu, layout: str):
        peak, bandwidth = gpu.peak_flops["fp8"], gpu.hbm_bytes_per_s
        tile = MASKED_ROWS if layout == "masked" else CONTIGUOUS_ROWS

        def reference(site: tuple[float, ...], rows: float) -> float:
            _, active, n, k = site
            padded = active * max(float(tile), rows if layout == "masked" else math.ceil(rows / tile) * tile)
            moved = active * (n * k + rows * (k + 2.0 * n))
            return reference_us(2.0 * padded * n * k, moved, peak, bandwidth)

        rows = measured.table.select(f"grouped_gemm_{layout}", "fp8", "balanced")
        points = [_grouped_point(row, measured) for row in rows]
        self.curves = CurveSet(f"{layout} grouped fp8 gemm (experts, active, n, k)", points, reference)

    def price(self, work: GroupedGemm) -> Estimate:
        """fp8 as measured; bf16 (another kernel, not measured) at fp8's share of its own roofline, flagged."""
        groups, active = float(work.groups), max(float(work.active_groups), 1.0)
        rows = max(work.rows / active, 1.0)
        if work.dtype == "fp8":
            return self.curves.price((groups, active, float(work.n), float(work.k)), rows)
        twice = self.curves.price((groups, active, 2.0 * work.n, float(work.k)), rows)
        return Estimate(twice.time_us, True, f"estimate: bf16 as fp8 of twice the columns; {twice.source}")


def _grouped_point(row: KernelRow, measured: MeasuredTimes) -> Point:
    active = row["active_groups"]
    site = (float(row["groups"]), float(active), float(row["n"]), float(row["k"]))
    return Point(site, max(row["rows"] / active, 1.0), measured.time_us(row, gemm_weight_bytes(row)))
