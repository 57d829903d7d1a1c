"""Which estimator prices a GPU: by its name, and by what the GPU's table holds.

A table of another origin may hold some kinds of work only (``aicb import`` of GEMM times, a profile without
FlashMLA). What it holds is priced from it; the rest is transferred from the H200 (`transfer.py`) and flagged.
"""

from __future__ import annotations

import numpy as np

from aicb import _core
from aicb.estimators import (
    DecodeTimes,
    Estimate,
    Estimator,
    InterpolationEstimator,
    ManyTimes,
    Timing,
    make_estimator,
)
from aicb.estimators.roofline import Demands
from aicb.estimators.transfer import TransferEstimator
from aicb.measurements.gpu import MEASURED_GPU, Gpu
from aicb.measurements.table import KernelTable
from aicb.model.precision import Precision
from aicb.operators.operator import (
    BatchedGemm,
    DecodeAttention,
    Elementwise,
    GatedDeltaDecode,
    GatedDeltaPrefill,
    Gemm,
    GroupedGemm,
    MlaDecode,
    PrefillAttention,
    Work,
)

LEAST_ROWS = 8
"""Measured shapes from which on a kind of work is interpolated; fewer say too little about it."""


def select_estimator(name: str, gpu: Gpu, precision: Precision, timing: Timing = "engine") -> Estimator:
    """The estimator of this name: interpolation, forest, transfer, roofline, or auto.

    ``auto`` takes the GPU's table where it has one, else ``transfer``. ``interpolation`` of a table that lacks kinds of
    work transfers those.

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
    """Interpolates the kinds of work that the GPU's table holds and transfers the others.

    Raises:
        InputError: the GPU has no table, or a table that does not follow the schema; fp8 weights without fp8.
    """

    def __init__(self, gpu: Gpu, precision: Precision | None = None, timing: Timing = "engine"):
        assert gpu.table is not None, f"{gpu.name} has no table"
        self._table = KernelTable.read(gpu.table, gpu.name)
        self._own = InterpolationEstimator(gpu, precision, timing)
        self._transferred = TransferEstimator(gpu, precision, timing)
        self._is_measured: dict[tuple[str, str | None], bool] = {}

    def price(self, work: Work) -> Estimate:
        return self._estimator_of(work).price(work)

    def times(self, demands: Demands) -> ManyTimes:
        is_own = np.array([self._estimator_of(work) is self._own for work in demands.works])
        time_us, is_estimate = np.zeros(len(is_own)), np.ones(len(is_own), dtype=np.bool_)
        for estimator, here in ((self._own, is_own), (self._transferred, ~is_own)):
            found = estimator.times(demands.take(np.flatnonzero(here)))
            time_us[here], is_estimate[here] = found.time_us, found.is_estimate
        return ManyTimes(time_us, is_estimate)

    def decode_times(self, work: DecodeAttention | MlaDecode, batch: int) -> DecodeTimes:
        return self._estimator_of(work).decode_times(work, batch)

    def compiled_prefill(self, work: PrefillAttention) -> _core.PrefillTimes:
        return self._estimator_of(work).compiled_prefill(work)

    def _estimator_of(self, work: Work) -> InterpolationEstimator | TransferEstimator:
        key = _operation(work)
        if key not in self._is_measured:
            self._is_measured[key] = bool(key[0]) and len(self._table.select(*key)) >= LEAST_ROWS
        return self._own if self._is_measured[key] else self._transferred


def _operation(work: Work) -> tuple[str, str | None]:
    """(operation of the table, number format) whose rows price this work; no operation where none are known."""
    match work:
        case Gemm(dtype=dtype):
            return "gemm", dtype
        case BatchedGemm():
            return "bmm", None
        case GroupedGemm(dtype="bf16"):
            return "grouped_gemm_gathered", "bf16"
        case GroupedGemm(layout=layout):
            return f"grouped_gemm_{layout}", "fp8"
        case PrefillAttention():
            return "prefill_attention", "bf16"
        case DecodeAttention():
            return "decode_attention", "bf16"
        case MlaDecode():
            return "mla_decode", "bf16"
        case GatedDeltaPrefill():
            return "gdn_prefill", None
        case GatedDeltaDecode():
            return "gdn_decode", None
        case Elementwise():
            return "rms_norm", None
    return "", None
