"""The default estimator: measured kernel times, interpolated where the shape lies between them.

Each kind of work has its own small model in a module of this package, built when first needed; this one joins them
and holds every estimate to the roofline of the device. Measured points are returned as measured.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Literal

import numpy as np

from aicb import _core
from aicb.estimators.decode_attention import GatedDeltaRecurrent, LatentDecode, PagedDecode
from aicb.estimators.elementwise import ElementwiseTimes
from aicb.estimators.estimate import DecodeTimes, Estimate, ManyTimes, Timing, VolumeTimes
from aicb.estimators.gemm import DenseGemm, ExpertsGemm, ProductsGemm
from aicb.estimators.prefill_attention import GatedDeltaChunks, PrefillTimes
from aicb.estimators.roofline import Demands, RooflineEstimator, check, demand, roofline_us
from aicb.estimators.sparse_attention import SparseDecode, SparseTimes
from aicb.estimators.works import interpolate_works
from aicb.measurements.gpu import Gpu
from aicb.measurements.table import KernelTable
from aicb.measurements.timing import MeasuredTimes
from aicb.model.precision import KvDtype, Precision
from aicb.operators.operator import (
    BatchedGemm,
    DecodeAttention,
    Elementwise,
    GatedDeltaDecode,
    GatedDeltaPrefill,
    Gemm,
    GemmDtype,
    GroupedGemm,
    MlaDecode,
    PrefillAttention,
    SparseMlaDecode,
    SparseMlaPrefill,
    Work,
)

LAYOUTS: tuple[Literal["masked", "contiguous"], ...] = ("masked", "contiguous")
RECURRENT_ERROR = 0.05
"""Relative error (68 %) of the recurrent gated delta rule: its five points lie on a line within 5 %."""


class InterpolationEstimator:
    """Prices work from the measurements of one GPU.

    Args:
        gpu: device whose table is used.
        precision: element types of KV cache and recurrent state; bf16 if absent.
        timing: ``engine`` for iterations, ``graph`` or ``cold`` to compare with kernel measurements.

    Raises:
        InputError: no measurements are shipped for this GPU.
    """

    def __init__(self, gpu: Gpu, precision: Precision | None = None, timing: Timing = "engine"):
        precision = precision or Precision()
        self.gpu, self.precision, self.timing = gpu, precision, timing
        table = KernelTable.load(gpu.name) if gpu.table is None else KernelTable.read(gpu.table, gpu.name)
        self._measured = MeasuredTimes.of(table, timing, gpu)
        self._roofline = RooflineEstimator(gpu, precision)
        self._other_format: InterpolationEstimator | None = None

    @cached_property
    def gemm(self) -> dict[GemmDtype, DenseGemm]:
        measured = [dtype for dtype in self.gpu.peak_flops if self._measured.table.select("gemm", dtype)]
        return {dtype: DenseGemm(self._measured, self.gpu, dtype) for dtype in measured}

    @cached_property
    def batched(self) -> ProductsGemm:
        return ProductsGemm(self._measured, self.gpu)

    @cached_property
    def grouped(self) -> dict[str, ExpertsGemm]:
        return {layout: ExpertsGemm(self._measured, self.gpu, layout) for layout in LAYOUTS}

    @cached_property
    def prefill(self) -> PrefillTimes:
        return PrefillTimes(self._measured, self.gpu)

    @cached_property
    def prefill_fp8(self) -> PrefillTimes | None:
        """``None`` where the table has no fp8 prefills."""
        is_measured = bool(self._measured.table.select("prefill_attention", "fp8", "even"))
        return PrefillTimes(self._measured, self.gpu, "fp8") if is_measured else None

    @cached_property
    def sparse(self) -> SparseTimes | None:
        """``None`` where the table has no sparse attention."""
        is_measured = SparseTimes.is_measured(self._measured)
        return SparseTimes(self._measured, self.gpu, self.precision) if is_measured else None

    @cached_property
    def chunks(self) -> GatedDeltaChunks:
        return GatedDeltaChunks(self._measured)

    @cached_property
    def elementwise(self) -> ElementwiseTimes:
        return ElementwiseTimes(self._measured, self.gpu)

    @cached_property
    def paged(self) -> PagedDecode:
        return PagedDecode(self._measured, self.gpu, self.precision)

    @cached_property
    def latent(self) -> LatentDecode:
        return LatentDecode(self._measured, self.gpu, self.precision)

    @cached_property
    def recurrent(self) -> GatedDeltaRecurrent:
        return GatedDeltaRecurrent(self._measured, self.gpu, self.precision)

    def price(self, work: Work) -> Estimate:
        check(work)
        match work:
            case Gemm():
                found = self.gemm[work.dtype].price(work)
            case BatchedGemm():
                found = self.batched.price(work)
            case GroupedGemm():
                found = self.grouped[work.layout].price(work)
            case PrefillAttention():
                found = self._prefill(work)
            case SparseMlaPrefill():
                found = self.sparse.price(work) if self.sparse else self._roofline.price(work)
            case GatedDeltaPrefill():
                found = self.chunks.price(work)
            case Elementwise():
                found = self.elementwise.price(work)
            case _:
                return self._decode(work)
        if found.source.startswith("measured"):
            return found
        # Activations within L2 and weights replayed in a graph need not cross the memory bus; evicted weights must.
        is_resident = self.timing == "graph" or isinstance(work, Elementwise)
        bound = roofline_us(demand(work, self.precision), self.gpu, is_resident=is_resident)
        if found.time_us >= bound:
            return found
        return replace(found, time_us=bound, source=f"roofline, above {found.source}")

    def times(self, demands: Demands) -> ManyTimes:
        return interpolate_works(self, demands)

    def _prefill(self, work: PrefillAttention) -> Estimate:
        """Unmeasured fp8 takes the time of bf16, flagged."""
        if work.dtype == "bf16":
            return self.prefill.price(work)
        if self.prefill_fp8 is not None:
            return self.prefill_fp8.price(work)
        found = self.prefill.price(work)
        return replace(found, is_estimate=True, source=f"estimate: bf16 {found.source}")

    def _decode(self, work: Work) -> Estimate:
        match work:
            case DecodeAttention() | MlaDecode():
                function = self.decode_times(work, len(work.kv_tokens))
                steps, is_far = function(work.kv_tokens, 1)
                return Estimate(float(steps[0]), bool(is_far), function.source, lambda: function.error)
            case GatedDeltaDecode():
                exact = self.recurrent.measured_us(work)
                if exact is not None:
                    return Estimate(exact, False, "measured recurrent gated delta rule", RECURRENT_ERROR)
                volume = self.recurrent.volume(work)
                low, high = self.recurrent.volume_range
                is_estimate = not low <= volume <= high
                bound = volume / self.gpu.hbm_bytes_per_s * 1e6
                time_us = max(float(self.recurrent.time(np.array([volume]))[0]), bound)
                kind = "estimate:" if is_estimate else "interpolated"
                return Estimate(time_us, is_estimate, f"{kind} recurrent gated delta rule", RECURRENT_ERROR)
        raise AssertionError(work)

    def compiled_prefill(
        self, work: PrefillAttention, transfer: _core.PrefillTransfer | None = None
    ) -> _core.PrefillTimes:
        """Prefills of the geometry of ``work`` in C++, on this GPU or transferred.

        Unmeasured fp8 takes the time of bf16, flagged.
        """
        is_fp8 = work.dtype != "bf16"
        is_own = not is_fp8 or self.prefill_fp8 is not None
        measured = self.prefill_fp8 if is_fp8 and self.prefill_fp8 is not None else self.prefill
        bound = _core.PrefillBound(
            peak_flops=self.gpu.peak_flops[work.dtype],
            bytes_per_s=self.gpu.hbm_bytes_per_s,
            resident_bytes=self.gpu.l2_bytes if self.timing == "graph" else 0.0,
        )
        return measured.compiled(work, bound, is_own=is_own, transfer=transfer)

    def decode_times(self, work: DecodeAttention | MlaDecode, batch: int) -> DecodeTimes:
        if isinstance(work, SparseMlaDecode):
            return self._sparse_decode(work, batch) if self.sparse else self._roofline.decode_times(work, batch)
        return self.dense_decode(work, batch)

    def _sparse_decode(self, work: SparseMlaDecode, batch: int) -> SparseDecode:
        assert self.sparse is not None
        is_attention = work.kernel == "attention"
        one = demand(replace(work, kv_tokens=np.array([work.topk])), self.precision)
        memory_us = 0.0 if self.timing == "graph" else one.cold_bytes / self.gpu.hbm_bytes_per_s * 1e6
        bound_us = max(memory_us, one.flops / self.gpu.peak_flops[one.dtype] * 1e6) / work.topk
        most = work.topk if is_attention else None
        return SparseDecode(self.sparse.function(work, batch), most, bound_us)

    def dense_decode(self, work: DecodeAttention | MlaDecode, batch: int) -> VolumeTimes:
        """Decode attention over the whole cache."""
        priced = self._in_format(work.kv_dtype or self.precision.kv)
        return priced._dense_decode(work, batch)

    def _in_format(self, kv: KvDtype) -> InterpolationEstimator:
        """This estimator, for a cache of another format."""
        if kv == self.precision.kv:
            return self
        if self._other_format is None:
            self._other_format = copy(self)
            for name in ("paged", "latent", "sparse"):
                self._other_format.__dict__.pop(name, None)
            self._other_format.precision = replace(self.precision, kv=kv)
        return self._other_format

    def _dense_decode(self, work: DecodeAttention | MlaDecode, batch: int) -> VolumeTimes:
        volume_of: float | _core.SplitKv
        if isinstance(work, MlaDecode):
            priced, volume_of = self.latent.function(work, batch), self.latent.split_kv(work.heads)
            per_token = work.d_qk * (2 if self.precision.kv == "bf16" else 1)
            flops = 2.0 * work.heads * (work.d_qk + work.d_v)
        else:
            priced, per_token = self.paged.function(work, batch), self.paged.bytes_per_token(work)
            volume_of, flops = float(per_token), 4.0 * work.heads * work.head_dim
        memory_s = 0.0 if self.timing == "graph" else per_token / self.gpu.hbm_bytes_per_s
        times = _core.DecodeTimes(
            priced.time.volume,
            priced.time.time_us,
            priced.time.slope,
            volume_of=volume_of,
            bound_us=max(memory_s, flops / self.gpu.peak_flops["bf16"]) * 1e6,
            volume_range=priced.volume_range,
            is_estimate=priced.is_estimate,
        )
        return VolumeTimes(times, priced.source, priced.error_of)
