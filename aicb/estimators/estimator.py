"""Contract of estimators, which price kernels on one GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

import aicb._core as _core
from aicb.kernels.fitting.estimate import DecodeTimes, Estimate, ManyTimes
from aicb.kernels.kernel import CacheKernel, Kernel, KernelCost
from aicb.kernels.prefill_attention import PrefillAttention
from aicb.measurements.clock import clocked_shares, streaming_us
from aicb.measurements.gpu import Gpu
from aicb.model.precision import Precision


@dataclass(frozen=True, slots=True, eq=False)
class CostTable:
    """Costs of several kernels as columns."""

    kernels: Sequence[Kernel]
    flops: NDArray[np.float64]
    """[kernels]"""
    moved_bytes: NDArray[np.float64]
    """[kernels] as in ``KernelCost``."""
    is_fp8: NDArray[np.bool_]
    """[kernels] whether the FLOPs run in fp8."""

    @classmethod
    def of(cls, kernels: Sequence[Kernel], precision: Precision) -> CostTable:
        """Costs of kernels with KV cache and recurrent state in the formats of ``precision``."""
        return cls.from_costs(kernels, [kernel.cost(precision) for kernel in kernels])

    @classmethod
    def from_costs(cls, kernels: Sequence[Kernel], costs: Sequence[KernelCost]) -> CostTable:
        """Table of the given costs, one per kernel."""
        flops = np.array([cost.flops for cost in costs], dtype=np.float64)
        moved_bytes = np.array([cost.moved_bytes for cost in costs], dtype=np.float64)
        return cls(kernels, flops, moved_bytes, np.array([cost.dtype == "fp8" for cost in costs], dtype=np.bool_))

    def take(self, places: NDArray[np.intp]) -> CostTable:
        """Table of the kernels at these indices."""
        kernels = [self.kernels[place] for place in places.tolist()]
        return CostTable(kernels, self.flops[places], self.moved_bytes[places], self.is_fp8[places])

    def peak_flops(self, gpu: Gpu) -> NDArray[np.float64]:
        """[kernels] nominal peak FLOP/s of the tensor cores in the format of each."""
        fp8 = gpu.peak_flops["fp8"] if self.is_fp8.any() else np.nan
        return np.where(self.is_fp8, fp8, gpu.peak_flops["bf16"])

    def roofline_us(self, gpu: Gpu, is_resident: NDArray[np.bool_]) -> NDArray[np.float64]:
        """[kernels] roofline time in µs, as ``roofline.roofline_us``."""
        is_cached = is_resident & (self.moved_bytes <= gpu.l2_bytes)
        memory_us = np.where(is_cached, 0.0, self.moved_bytes / gpu.hbm_bytes_per_s * 1e6)
        return np.maximum(self.flops / self.peak_flops(gpu) * 1e6, memory_us)

    def loads_us(self, gpu: Gpu, time_us: NDArray[np.float64]) -> NDArray[np.float64]:
        """[3, kernels] time, the part of it that follows the clock, and the time at the tensor cores' nominal peak that
        would load the power budget as much."""
        shares = clocked_shares(time_us, self.moved_bytes, gpu.hbm_bytes_per_s)
        power = [each.power_load for each in self.kernels]
        slopes, memory = np.array([(load.slope, load.memory) for load in power]).reshape(-1, 2).T
        loads_us = slopes * self.flops / self.peak_flops(gpu) * 1e6
        if memory.any():
            loads_us += memory * streaming_us(self.moved_bytes, gpu.hbm_bytes_per_s)
        return np.array([time_us, shares * time_us, loads_us])


class Estimator(Protocol):
    """Estimator: prices the kernels of `aicb.kernels` on one GPU.

    The same kernel always gets the same estimate, and no estimate is below the roofline of the device, unless it is a
    measurement.
    """

    def price(self, kernel: Kernel) -> Estimate:
        """Time of one execution.

        Raises:
            InputError: a dimension is not positive.
        """
        ...

    def times(self, costs: CostTable) -> ManyTimes:
        """[kernels] times as ``price`` gives them, computed together; equal to 1e-12 of the time.

        Raises:
            InputError: as ``price``.
        """
        ...

    def decode_times(self, kernel: CacheKernel, batch: int) -> DecodeTimes:
        """Times of decode attention for ``batch`` sequences; the lengths in ``kernel`` do not matter."""
        ...


@runtime_checkable
class CoreEstimator(Estimator, Protocol):
    """An estimator whose attention over all keys is evaluated in C++: ``decode_times`` are ``VolumeTimes``."""

    def core_prefill(self, kernel: PrefillAttention) -> _core.PrefillTimes:
        """Times of prefill attention with the geometry of ``kernel``; its lengths do not matter."""
        ...


def times_one_by_one(estimator: Estimator, kernels: Sequence[Kernel]) -> ManyTimes:
    """``Estimator.times`` for estimators that can only price one kernel after another."""
    found = [estimator.price(kernel) for kernel in kernels]
    return ManyTimes(np.array([each.time_us for each in found]), np.array([each.is_estimate for each in found]))
