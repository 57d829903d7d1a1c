"""Times on a GPU without measurements, from the utilisation that another GPU was measured at.

The part of a measured time that memory explains follows the bandwidth, the rest what the SMs take, latency apart
(`aicb.estimators.transfer_reference`): large products keep the utilisation measured for the same shape, weights are
read at the share of the bandwidth that was measured, and small kernels keep their latency. No time is below the
target's roofline. A kernel whose time its FLOPs and bytes do not tell has a ratio of its own (`Kernel.time_ratio`).

Assumes the same kernels with the same efficiency on both GPUs. Times are at the reference clock; iterations are slowed
by the law of the target, which is that of the measured GPU on its peaks and power (`aicb.measurements.gpu`). Every time
is flagged as an estimate and says what bounds it, or that its kernel has a ratio. How far H100 times that are
transferred so lie from published and measured ones: docs/accuracy/kernels.md, "Other GPUs"; large GEMMs of other
targets are not faster than the best that is published of them (``tests/aicb/measurements/test_clock.py``).
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

import aicb._core as _core
from aicb.estimators.estimator import CostTable, times_one_by_one
from aicb.estimators.interpolation import InterpolationEstimator
from aicb.estimators.roofline import SAMPLE_TOKENS, EachStep, roofline_us
from aicb.estimators.transfer_reference import (
    BANDWIDTH_SHARE,
    PEAK_SHARE,
    Parts,
    Shares,
    latency_us,
    parts,
    parts_of,
    reached_share,
    shares,
    transfer_error,
    transferred_us,
)
from aicb.kernels.batched_gemm import BatchedGemm
from aicb.kernels.core_times import kv_cost
from aicb.kernels.fitting.estimate import DecodeTimes, Estimate, ManyTimes, VolumeTimes
from aicb.kernels.gemm import Gemm
from aicb.kernels.kernel import CacheKernel, Kernel
from aicb.kernels.prefill_attention import PrefillAttention
from aicb.measurements.gpu import MEASURED_GPU, Gpu, get_gpu
from aicb.measurements.timing import Timing
from aicb.model.precision import Precision
from boundary.errors import InputError


class TransferEstimator:
    """Times of kernels on ``gpu`` by the utilisation of the same shape on ``origin``, the H200 if absent.

    Raises:
        InputError: no measurements of ``origin`` are shipped, or fp8 weights on a GPU without fp8.
    """

    def __init__(
        self,
        gpu: Gpu,
        precision: Precision | None = None,
        timing: Timing = "engine",
        origin: Gpu | None = None,
    ):
        self.gpu, self.precision, self.timing = gpu, precision or Precision(), timing
        gpu.check(self.precision)
        self._origin = origin or get_gpu(MEASURED_GPU)
        self._measured = InterpolationEstimator(self._origin, self.precision, timing)

    def price(self, kernel: Kernel) -> Estimate:
        if isinstance(kernel, PrefillAttention):
            kernel = self._computable(kernel)
        dtype = kernel.cost(self.precision).dtype
        if dtype not in self.gpu.peak_flops:
            name = type(kernel).__name__
            raise InputError(f"{name}.dtype: found {dtype}, expected bf16 ({self.gpu.name} has no fp8)")
        found = self._measured.price(kernel)
        here, there = self._parts(kernel)
        bound_us = roofline_us(kernel.cost(self.precision), self.gpu, is_resident=self._is_resident(kernel))
        ratio = kernel.time_ratio(self._origin, self.gpu)
        by_cost_us = float(transferred_us(found.time_us, here, there))
        bound_by = shares(found.time_us, here, there).largest if ratio is None else "its kernel's own ratio"
        return Estimate(
            max(by_cost_us if ratio is None else ratio * found.time_us, bound_us),
            True,
            self._source(found.source, bound_by),
            lambda: self._error(kernel, found, shares(found.time_us, here, there)),
        )

    def times(self, costs: CostTable) -> ManyTimes:
        if bool(costs.is_fp8.any()) and "fp8" not in self.gpu.peak_flops:
            return times_one_by_one(self, costs.kernels)
        is_resident = np.array([self._is_resident(kernel) for kernel in costs.kernels], dtype=np.bool_)
        here, there = (
            parts(costs.flops, costs.moved_bytes, costs.peak_flops(gpu), is_resident, gpu, self._origin)
            for gpu in (self._origin, self.gpu)
        )
        found_us = self._measured.times(costs).time_us
        ratios = [kernel.time_ratio(self._origin, self.gpu) for kernel in costs.kernels]
        known = np.array([math.nan if ratio is None else ratio for ratio in ratios])
        time_us = np.where(np.isnan(known), transferred_us(found_us, here, there), known * found_us)
        bound_us = costs.roofline_us(self.gpu, is_resident)
        return ManyTimes(np.maximum(time_us, bound_us), np.ones(len(time_us), dtype=np.bool_))

    def _is_resident(self, kernel: Kernel) -> bool:
        """Whether operands that fit are read from L2: those written just before, and all in replays of a graph."""
        return kernel.stays_in_cache or self.timing == "graph"

    def _parts(self, kernel: Kernel) -> tuple[Parts, Parts]:
        """Parts on the measured GPU and on the target."""
        cost, is_resident = kernel.cost(self.precision), self._is_resident(kernel)
        here, there = (parts_of(cost, is_resident, gpu, self._origin) for gpu in (self._origin, self.gpu))
        return here, there

    def _source(self, source: str, bound_by: str) -> str:
        return f"estimate: transferred from {self._origin.name} by {bound_by}: {source}"

    def _error(self, kernel: Kernel, found: Estimate | DecodeTimes, bound_by: Shares) -> float:
        is_product = isinstance(kernel, Gemm | BatchedGemm)
        return math.hypot(found.error, transfer_error(bound_by, self.gpu, self._origin, is_product=is_product))

    def _computable(self, kernel: PrefillAttention) -> PrefillAttention:
        """An fp8 cache is expanded on a GPU without fp8."""
        return kernel if kernel.dtype in self.gpu.peak_flops else replace(kernel, dtype="bf16")

    def core_prefill(self, kernel: PrefillAttention) -> _core.PrefillTimes:
        kernel = self._computable(kernel)
        origin, target = self._origin, self.gpu
        transfer = _core.PrefillTransfer(
            origin_latency_us=latency_us(origin, origin),
            target_latency_us=latency_us(target, origin),
            origin_flops=PEAK_SHARE * origin.peak_flops[kernel.dtype],
            origin_bytes_per_s=BANDWIDTH_SHARE * origin.hbm_bytes_per_s,
            target_flops=reached_share(target) * target.peak_flops[kernel.dtype],
            target_bytes_per_s=BANDWIDTH_SHARE * target.hbm_bytes_per_s,
            peak_flops=target.peak_flops[kernel.dtype],
            bytes_per_s=target.hbm_bytes_per_s,
        )
        return self._measured.core_prefill(kernel, transfer)

    def decode_times(self, kernel: CacheKernel, batch: int) -> DecodeTimes:
        """FLOPs and bytes of attention to all keys are lines in them."""
        measured = self._measured.decode_times(kernel, batch)
        if not isinstance(measured, VolumeTimes) or self.timing == "graph":
            return EachStep(self, kernel, batch)
        origin, target = (
            kv_cost(kernel, self.precision, batch, gpu, (reached_share(gpu), BANDWIDTH_SHARE))
            for gpu in (self._origin, self.gpu)
        )
        transfer = _core.DecodeTransfer(
            origin_latency_us=latency_us(self._origin, self._origin),
            target_latency_us=latency_us(self.gpu, self._origin),
            origin=origin,
            target=target,
            bound=kv_cost(kernel, self.precision, batch, self.gpu, (1.0, 1.0)),
        )
        lengths = np.full(batch, SAMPLE_TOKENS, dtype=np.int64)
        found_us, (here, there) = float(measured(lengths, 1)[0][0]), self._parts(kernel.over(lengths))
        return VolumeTimes(
            measured.times.transferred(transfer),
            self._source(measured.source, shares(found_us, here, there).largest),
            lambda: self._error(kernel, measured, shares(found_us, here, there)),
        )
