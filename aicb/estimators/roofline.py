"""Roofline: the least time the device allows, and an estimator that divides it by one utilisation per kind of bound.

The bound is ``max(FLOPs / peak, bytes / bandwidth)`` of the nominal device. Bytes count each operand once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import aicb._core as _core
from aicb.estimators.estimator import CostTable, Estimator, times_one_by_one
from aicb.kernels.core_times import kv_cost
from aicb.kernels.fitting.estimate import DecodeTimes, Estimate, ManyTimes, tokens_by_step
from aicb.kernels.kernel import CacheKernel, Kernel, KernelCost
from aicb.measurements.gpu import Gpu
from aicb.model.precision import Precision


def roofline_us(cost: KernelCost, gpu: Gpu, *, is_resident: bool = False) -> float:
    """Least time [µs]. ``is_resident``: operands within L2 do not cross the memory bus."""
    compute = cost.flops / gpu.peak_flops[cost.dtype]
    if is_resident and cost.moved_bytes <= gpu.l2_bytes:
        return compute * 1e6
    return max(compute, cost.moved_bytes / gpu.hbm_bytes_per_s) * 1e6


COMPUTE_SHARE, BANDWIDTH_SHARE = 0.70, 0.80
"""Reached share of the nominal peak in large kernels. H200, shipped table: FP8 GEMM 0.70, BF16 0.70-0.80, FA3 0.71
of compute; 0.80 is 3.8 of 4.8 TB/s (FlashMLA, cold GEMM weights), between 0.72 (fp8 GEMM) and 0.91 (FA3 decode)."""

SAMPLE_TOKENS = 2048
"""KV tokens per request at which a decode without a closed form states where its times come from."""
LAUNCH_US = 2.0
"""Least time of a small kernel in a CUDA graph: the shipped ``rms_norm`` rows of 512 columns take 2.1 µs."""

ROOFLINE_ERROR = 0.4
"""Relative error (68 %) over all rows of the shipped H200 table, see docs/accuracy/kernels.md."""


class RooflineEstimator:
    """Every operator at fixed shares of the device's peaks plus a launch floor; always flagged as an estimate.

    Ignores tile quantisation, wave tails and latency, so small kernels come out too fast.
    """

    def __init__(self, gpu: Gpu, precision: Precision | None = None):
        self.gpu, self.precision = gpu, precision or Precision()

    def price(self, kernel: Kernel) -> Estimate:
        kernel.check()
        time_us = LAUNCH_US + self._busy_us(kernel.cost(self.precision))
        return Estimate(time_us, True, "estimate: roofline", ROOFLINE_ERROR)

    def decode_times(self, kernel: CacheKernel, batch: int) -> DecodeTimes:
        """FLOPs and bytes of attention to all keys are linear in them, or constant, so two lengths give the line."""
        if kernel.core_role is None:
            return EachStep(self, kernel, batch)
        shares = COMPUTE_SHARE, BANDWIDTH_SHARE
        return LinearDecode(kv_cost(kernel, self.precision, batch, self.gpu, shares))

    def times(self, costs: CostTable) -> ManyTimes:
        return times_one_by_one(self, costs.kernels)

    def _busy_us(self, cost: KernelCost) -> float:
        compute = cost.flops / (COMPUTE_SHARE * self.gpu.peak_flops[cost.dtype])
        memory = cost.moved_bytes / (BANDWIDTH_SHARE * self.gpu.hbm_bytes_per_s)
        return max(compute, memory) * 1e6


class EachStep:
    """Decode attention without a closed form over steps: one ``price`` per step (``DecodeTimes``)."""

    def __init__(self, estimator: Estimator, kernel: CacheKernel, batch: int):
        self._estimator, self._kernel = estimator, kernel
        first = estimator.price(kernel.over(np.full(batch, SAMPLE_TOKENS, dtype=np.int64)))
        self.source, self.error = first.source, first.error

    def __call__(self, kv_tokens: NDArray[np.int64], steps: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        time_us, is_estimate = [], []
        for kv in kv_tokens.reshape(-1, kv_tokens.shape[-1]):
            found = [self._estimator.price(self._kernel.over(kv + step)) for step in range(steps)]
            time_us.append([each.time_us for each in found])
            is_estimate.append(any(each.is_estimate for each in found))
        batches = kv_tokens.shape[:-1]
        return np.array(time_us).reshape(*batches, steps), np.array(is_estimate).reshape(batches)


@dataclass(frozen=True, slots=True)
class LinearDecode:
    """Launch floor plus the longer of two lines in the KV tokens."""

    cost: _core.KvCost
    source: str = "estimate: roofline"
    error: float = ROOFLINE_ERROR

    def __call__(self, kv_tokens: NDArray[np.int64], steps: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        time_us = LAUNCH_US + self.cost.least_us(tokens_by_step(kv_tokens, steps))
        return np.asarray(time_us), np.ones(kv_tokens.shape[:-1], dtype=np.bool_)
