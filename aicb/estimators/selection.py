"""Selection of an estimator, by its name and by the kernels that the GPU's table holds.

A table of another origin may hold only some kinds of kernels (``aicb import`` of GEMM times, a profile without
FlashMLA). These are priced from it; times of the others are transferred from the H200 (`transfer.py`) and flagged.
"""

from __future__ import annotations

import numpy as np

import aicb._core as _core
from aicb.estimators.estimator import CostTable, Estimator
from aicb.estimators.forest import ForestEstimator
from aicb.estimators.interpolation import InterpolationEstimator
from aicb.estimators.roofline import RooflineEstimator
from aicb.estimators.transfer import TransferEstimator
from aicb.kernels.fitting.estimate import DecodeTimes, Estimate, ManyTimes
from aicb.kernels.kernel import CacheKernel, Kernel
from aicb.kernels.prefill_attention import PrefillAttention
from aicb.measurements.gpu import MEASURED_GPU, Gpu
from aicb.measurements.table import KernelTable
from aicb.measurements.timing import Timing
from aicb.model.precision import Precision
from boundary.errors import InputError

LEAST_ROWS = 8
"""Least number of measured shapes for a kind of kernel to be interpolated."""


def select_estimator(name: str, gpu: Gpu, precision: Precision, timing: Timing = "engine") -> Estimator:
    """The estimator of this name: interpolation, forest, transfer, roofline, or auto.

    ``auto`` takes the GPU's table where it has one, else ``transfer``. ``interpolation`` of a table that lacks kinds of
    kernels transfers those.

    Raises:
        InputError: unknown name, no measurements of this GPU, or no fp8 on it.
    """
    if name == "auto":
        name = "transfer" if gpu.table is None else "interpolation"
    if name == "transfer":
        return TransferEstimator(gpu, precision, timing)
    if name == "interpolation" and gpu.table is not None and gpu.name != MEASURED_GPU:
        return PartialTableEstimator(gpu, precision, timing)
    return make_estimator(name, gpu, precision, timing)


class PartialTableEstimator:
    """Interpolates the kinds of kernels that the GPU's table holds and transfers the others.

    Raises:
        InputError: the GPU has no table, or a table that does not follow the schema; fp8 weights without fp8.
    """

    def __init__(self, gpu: Gpu, precision: Precision | None = None, timing: Timing = "engine"):
        assert gpu.table is not None, f"{gpu.name} has no table"
        self._table = KernelTable.read(gpu.table, gpu.name)
        self._own = InterpolationEstimator(gpu, precision, timing)
        self._transferred = TransferEstimator(gpu, precision, timing)
        self._is_measured: dict[tuple[str, str | None], bool] = {}

    def price(self, kernel: Kernel) -> Estimate:
        return self._estimator_of(kernel).price(kernel)

    def times(self, costs: CostTable) -> ManyTimes:
        is_own = np.array([self._estimator_of(kernel) is self._own for kernel in costs.kernels])
        time_us, is_estimate = np.zeros(len(is_own)), np.ones(len(is_own), dtype=np.bool_)
        for estimator, here in ((self._own, is_own), (self._transferred, ~is_own)):
            found = estimator.times(costs.take(np.flatnonzero(here)))
            time_us[here], is_estimate[here] = found.time_us, found.is_estimate
        return ManyTimes(time_us, is_estimate)

    def decode_times(self, kernel: CacheKernel, batch: int) -> DecodeTimes:
        return self._estimator_of(kernel).decode_times(kernel, batch)

    def core_prefill(self, kernel: PrefillAttention) -> _core.PrefillTimes:
        return self._estimator_of(kernel).core_prefill(kernel)

    def _estimator_of(self, kernel: Kernel) -> InterpolationEstimator | TransferEstimator:
        key = kernel.measured_as
        if key not in self._is_measured:
            self._is_measured[key] = bool(key[0]) and len(self._table.select(*key)) >= LEAST_ROWS
        return self._own if self._is_measured[key] else self._transferred


def make_estimator(name: str, gpu: Gpu, precision: Precision, timing: Timing = "engine") -> Estimator:
    """The estimator of this name: interpolation, forest or roofline; ``timing`` does not matter to the last.

    Raises:
        InputError: unknown name, or no measurements are shipped for this GPU.
    """
    match name:
        case "interpolation":
            return InterpolationEstimator(gpu, precision, timing)
        case "forest":
            return ForestEstimator(gpu, precision, timing)
        case "roofline":
            return RooflineEstimator(gpu, precision)
    raise InputError(f"estimator: found {name!r}, expected interpolation, forest or roofline")
