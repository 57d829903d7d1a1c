"""Times on a GPU without measurements, from the utilisation that another GPU was measured at.

    time = reference on the target · (measured time / reference on the measured GPU)
    reference = latency + √((FLOPs / 0.75 peak)² + (bytes / 0.80 bandwidth)²)

For large shapes this is the target's roofline divided by the utilisation measured for the same shape; the latency keeps
small kernels from scaling with a bandwidth that does not bound them. No time is below the target's roofline.

Assumes the same kernels with the same efficiency on both GPUs: number of SMs (waves), L2 size and the kernels of
another architecture are ignored. Times are at the reference clock; iterations are slowed by the law of the target, or
else by that of the measured GPU (`aicb.measurements.gpu`). Every time is flagged as an estimate. Applied to published
H200 times of GEMMs, it meets those of the H100 with a median error of 2 to 13 %
(``tests/aicb/estimators/test_transfer.py``); large GEMMs of other targets are not faster than the best that is
published of them (``tests/aicb/measurements/test_clock.py``).
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

import aicb._core as _core
from aicb.estimators.estimator import CostTable, times_one_by_one
from aicb.estimators.interpolation import InterpolationEstimator
from aicb.estimators.roofline import EachStep, roofline_us
from aicb.kernels.core_times import kv_cost
from aicb.kernels.fitting.estimate import DecodeTimes, Estimate, ManyTimes, VolumeTimes
from aicb.kernels.kernel import CacheKernel, Kernel, KernelCost
from aicb.kernels.prefill_attention import PrefillAttention
from aicb.measurements.gpu import MEASURED_GPU, Gpu, get_gpu
from aicb.measurements.timing import Timing
from aicb.model.precision import Precision
from boundary.errors import InputError

LATENCY_US = 4.0
"""Part of a kernel that neither peak nor bandwidth shortens: launch, ramp, tail. Without it small GEMMs (weights in L2)
came out a third too slow on the H100 (published tables of both, aiconfigurator 095f58a); flat between 4 and 8 µs."""
PEAK_SHARE, BANDWIDTH_SHARE = 0.75, 0.80
"""Shares of nominal peaks that large kernels reach (H200: 0.70–0.80 and 0.72–0.91); they set where the corner lies."""


def transfer_ratio(kernel: Kernel, precision: Precision, origin: Gpu, target: Gpu) -> float:
    """Time of this kernel on ``target`` over that on ``origin``."""
    cost = kernel.cost(precision)
    return (LATENCY_US + _busy_us(cost, target)) / (LATENCY_US + _busy_us(cost, origin))


def _busy_us(cost: KernelCost, gpu: Gpu) -> float:
    return float(_many_busy_us(cost.flops, cost.moved_bytes, gpu.peak_flops[cost.dtype], gpu))


def _many_busy_us(flops: ArrayLike, moved_bytes: ArrayLike, peak_flops: ArrayLike, gpu: Gpu) -> NDArray[np.float64]:
    compute_s = np.asarray(flops) / (PEAK_SHARE * np.asarray(peak_flops))
    return np.hypot(compute_s, np.asarray(moved_bytes) / (BANDWIDTH_SHARE * gpu.hbm_bytes_per_s)) * 1e6


TRANSFER_ERROR = 0.13
"""Relative error (68 %) that a transfer adds: the largest median error met on the H100."""


def _error(found: Estimate | DecodeTimes) -> float:
    return math.hypot(found.error, TRANSFER_ERROR)


class TransferEstimator:
    """Times of kernels on ``gpu`` by the utilisation of the same shape on ``measured_gpu``.

    Raises:
        InputError: no measurements of ``measured_gpu`` are shipped, or fp8 weights on a GPU without fp8.
    """

    def __init__(
        self,
        gpu: Gpu,
        precision: Precision | None = None,
        timing: Timing = "engine",
        measured_gpu: str = MEASURED_GPU,
    ):
        self.gpu, self.precision = gpu, precision or Precision()
        gpu.check(self.precision)
        self._origin = get_gpu(measured_gpu)
        self._measured = InterpolationEstimator(self._origin, self.precision, timing)

    def price(self, kernel: Kernel) -> Estimate:
        if isinstance(kernel, PrefillAttention):
            kernel = self._computable(kernel)
        dtype = getattr(kernel, "dtype", "bf16")
        if dtype not in self.gpu.peak_flops:
            name = type(kernel).__name__
            raise InputError(f"{name}.dtype: found {dtype}, expected bf16 ({self.gpu.name} has no fp8)")
        found = self._measured.price(kernel)
        time_us = found.time_us * transfer_ratio(kernel, self.precision, self._origin, self.gpu)
        if not kernel.stays_in_cache:
            time_us = max(time_us, roofline_us(kernel.cost(self.precision), self.gpu))
        return Estimate(
            time_us, True, f"estimate: transferred from {self._origin.name}: {found.source}", lambda: _error(found)
        )

    def times(self, costs: CostTable) -> ManyTimes:
        if bool(costs.is_fp8.any()) and "fp8" not in self.gpu.peak_flops:
            return times_one_by_one(self, costs.kernels)
        found_us = self._measured.times(costs).time_us
        origin_us, target_us = (
            LATENCY_US + _many_busy_us(costs.flops, costs.moved_bytes, costs.peak_flops(gpu), gpu)
            for gpu in (self._origin, self.gpu)
        )
        time_us = found_us * (target_us / origin_us)
        in_cache = np.array([kernel.stays_in_cache for kernel in costs.kernels])
        bound_us = np.where(in_cache, 0.0, costs.roofline_us(self.gpu, np.zeros_like(in_cache)))
        return ManyTimes(np.maximum(time_us, bound_us), np.ones(len(time_us), dtype=np.bool_))

    def _computable(self, kernel: PrefillAttention) -> PrefillAttention:
        """An fp8 cache is expanded on a GPU without fp8."""
        return kernel if kernel.dtype in self.gpu.peak_flops else replace(kernel, dtype="bf16")

    def core_prefill(self, kernel: PrefillAttention) -> _core.PrefillTimes:
        kernel = self._computable(kernel)
        origin, target = self._origin, self.gpu
        transfer = _core.PrefillTransfer(
            latency_us=LATENCY_US,
            origin_flops=PEAK_SHARE * origin.peak_flops[kernel.dtype],
            origin_bytes_per_s=BANDWIDTH_SHARE * origin.hbm_bytes_per_s,
            target_flops=PEAK_SHARE * target.peak_flops[kernel.dtype],
            target_bytes_per_s=BANDWIDTH_SHARE * target.hbm_bytes_per_s,
            peak_flops=target.peak_flops[kernel.dtype],
            bytes_per_s=target.hbm_bytes_per_s,
        )
        return self._measured.core_prefill(kernel, transfer)

    def decode_times(self, kernel: CacheKernel, batch: int) -> DecodeTimes:
        """FLOPs and bytes of attention to all keys are lines in them."""
        measured = self._measured.decode_times(kernel, batch)
        if not isinstance(measured, VolumeTimes):
            return EachStep(self, kernel, batch)
        reached, nominal = (PEAK_SHARE, BANDWIDTH_SHARE), (1.0, 1.0)
        origin, target = (kv_cost(kernel, self.precision, batch, gpu, reached) for gpu in (self._origin, self.gpu))
        bound = kv_cost(kernel, self.precision, batch, self.gpu, nominal)
        transfer = _core.DecodeTransfer(latency_us=LATENCY_US, origin=origin, target=target, bound=bound)
        source = f"estimate: transferred from {self._origin.name}: {measured.source}"
        return VolumeTimes(measured.times.transferred(transfer), source, lambda: _error(measured))
