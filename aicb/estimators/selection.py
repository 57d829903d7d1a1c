"""Selection of an estimator, by its name and by the kernels that the GPU's table holds.

A table of another origin may hold only some kinds of kernels (``aicb import`` of GEMM times, a profile without
FlashMLA). These are priced from it; times of the others are transferred from the H200 (`transfer.py`) and flagged.
On an H100 vLLM's products of experts were measured: they are taken from there at the sites that were, and those of
mxfp4 experts (by their kernel's law to GPUs of the same architecture) and of FlashInfer, and scores of experts in fp32,
are transferred to all other GPUs, but for scores of sizes that the GPU's own table has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

import aicb._core as _core
from aicb.data import FOLDER
from aicb.estimators.estimator import CoreEstimator, CostTable, Estimator
from aicb.estimators.forest import ForestEstimator
from aicb.estimators.interpolation import InterpolationEstimator
from aicb.estimators.roofline import RooflineEstimator
from aicb.estimators.transfer import TransferEstimator
from aicb.kernels.expert_times import ExpertSite, engine_sites
from aicb.kernels.fitting.estimate import DecodeTimes, Estimate, ManyTimes
from aicb.kernels.fused_experts import FusedExperts
from aicb.kernels.grouped_gemm import GroupedGemm
from aicb.kernels.kernel import CacheKernel, Kernel
from aicb.kernels.prefill_attention import PrefillAttention
from aicb.kernels.router import FewTokensRouter, Fp32Router, RouterSite, router_sites
from aicb.measurements.gpu import MEASURED_GPU, Gpu, get_gpu
from aicb.measurements.table import KernelTable
from aicb.measurements.timing import Timing
from aicb.model.precision import Precision, WeightDtype
from boundary.errors import InputError

LEAST_ROWS = 8
"""Least number of measured shapes for a kind of kernel to be interpolated."""


EXPERTS_GPU = "h100"
"""The GPU other than the H200 on which engines' products of experts were measured, mxfp4's and FlashInfer's there
alone."""


CARRIED_OPERATORS: Mapping[WeightDtype, frozenset[str]] = {
    "bf16": frozenset(),
    "fp8": frozenset({"moe_experts"}),
    "mxfp4": frozenset({"moe_gate_up", "moe_down"}),
}
"""By the format of weights, operators that take much time and were measured on `EXPERTS_GPU` alone. Elsewhere their
times are flagged, and are no formulas."""
CARRYING_ESTIMATORS = ("auto", "interpolation", "transfer")
"""Names of the estimators that take them from there."""


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
        return _transferred(gpu, precision, timing)
    if name == "interpolation" and gpu.table is not None and gpu.name != MEASURED_GPU:
        return PartialTableEstimator(gpu, precision, timing)
    made = make_estimator(name, gpu, precision, timing)
    return _with_experts(made, gpu, precision, timing) if isinstance(made, InterpolationEstimator) else made


def _transferred(gpu: Gpu, precision: Precision, timing: Timing) -> CoreEstimator:
    """Times that are not this GPU's, but for experts where these were measured."""
    return _with_experts(TransferEstimator(gpu, precision, timing), gpu, precision, timing)


def _with_experts(main: CoreEstimator, gpu: Gpu, precision: Precision, timing: Timing) -> CoreEstimator:
    """``main``, but for products of experts that another table has."""
    origin = replace(get_gpu(EXPERTS_GPU), table=FOLDER / EXPERTS_GPU / "experts")
    if gpu.name == EXPERTS_GPU:
        sites = engine_sites(KernelTable.read(FOLDER / EXPERTS_GPU / "experts", EXPERTS_GPU))
        return ExpertsEstimator(main, InterpolationEstimator(origin, precision, timing), sites)
    own = router_sites(main.table) if isinstance(main, InterpolationEstimator) else frozenset()
    return ExpertsEstimator(main, TransferEstimator(gpu, precision, timing, origin), own_routers=own)


class DividedEstimator(ABC):
    """Prices some kernels with one estimator and some with another; attention with ``main``."""

    main: CoreEstimator

    @abstractmethod
    def estimator_of(self, kernel: Kernel) -> CoreEstimator:
        """What prices a kernel."""

    def price(self, kernel: Kernel) -> Estimate:
        return self.estimator_of(kernel).price(kernel)

    def times(self, costs: CostTable) -> ManyTimes:
        places: defaultdict[CoreEstimator, list[int]] = defaultdict(list)
        for place, kernel in enumerate(costs.kernels):
            places[self.estimator_of(kernel)].append(place)
        time_us, is_estimate = np.zeros(len(costs.kernels)), np.ones(len(costs.kernels), dtype=np.bool_)
        for estimator, listed in places.items():
            here = np.array(listed)
            found = estimator.times(costs.take(here))
            time_us[here], is_estimate[here] = found.time_us, found.is_estimate
        return ManyTimes(time_us, is_estimate)

    def decode_times(self, kernel: CacheKernel, batch: int) -> DecodeTimes:
        return self.estimator_of(kernel).decode_times(kernel, batch)

    def core_prefill(self, kernel: PrefillAttention) -> _core.PrefillTimes:
        return self.estimator_of(kernel).core_prefill(kernel)


class ExpertsEstimator(DividedEstimator):
    """Products of mxfp4 experts, FlashInfer's, those at some sites, and kernels of routers by one estimator, all other
    kernels by another, and so are ``own_routers``."""

    def __init__(
        self,
        main: CoreEstimator,
        experts: CoreEstimator,
        sites: Collection[ExpertSite] = (),
        own_routers: Collection[RouterSite] = (),
    ):
        self.main, self._experts, self._sites, self._own_routers = main, experts, sites, own_routers

    def estimator_of(self, kernel: Kernel) -> CoreEstimator:
        if isinstance(kernel, Fp32Router | FewTokensRouter):
            return self.main if kernel.site in self._own_routers else self._experts
        if not isinstance(kernel, GroupedGemm):
            return self._experts if isinstance(kernel, FusedExperts) else self.main
        is_carried = kernel.dtype == "mxfp4" and kernel.gathering != "marlin"
        return self._experts if is_carried or kernel.engine_site in self._sites else self.main


class PartialTableEstimator(DividedEstimator):
    """Interpolates the kinds of kernels that the GPU's table holds and transfers the others.

    Raises:
        InputError: the GPU has no table, or a table that does not follow the schema; fp8 weights without fp8.
    """

    def __init__(self, gpu: Gpu, precision: Precision | None = None, timing: Timing = "engine"):
        assert gpu.table is not None, f"{gpu.name} has no table"
        self._table = KernelTable.read(gpu.table, gpu.name)
        self._own = InterpolationEstimator(gpu, precision, timing)
        self.main = _transferred(gpu, precision or Precision(), timing)
        self._is_measured: dict[tuple[str, str | None], bool] = {}

    def estimator_of(self, kernel: Kernel) -> CoreEstimator:
        key = kernel.measured_as
        if key not in self._is_measured:
            self._is_measured[key] = bool(key[0]) and len(self._table.select(*key)) >= LEAST_ROWS
        return self._own if self._is_measured[key] else self.main


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
