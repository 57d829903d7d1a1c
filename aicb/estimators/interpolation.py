"""The default estimator: measured kernel times, interpolated where the shape lies between them.

Each kind of work has its own small model in a module of this package, built when first needed; this one joins them
and holds every estimate to the roofline of the device. Measured points are returned as measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from aicb.estimators.decode_attention import GatedDeltaRecurrent, LatentDecode, PagedDecode, Priced
from aicb.estimators.elementwise import ElementwiseTimes
from aicb.estimators.estimate import DecodeTimes, Estimate, ManyTimes, Timing, tokens_by_step
from aicb.estimators.gemm import DenseGemm, ExpertsGemm, ProductsGemm
from aicb.estimators.measured import MeasuredTimes
from aicb.estimators.mla_schedule import BLOCK_TOKENS, OVERHEAD_BLOCKS
from aicb.estimators.prefill_attention import GatedDeltaChunks, PrefillTimes
from aicb.estimators.roofline import Demands, PrefillBatches, RooflineEstimator, check, demand, roofline_us
from aicb.estimators.sparse_attention import SparseDecode, SparseTimes
from aicb.estimators.works import interpolate_works
from aicb.gpu import Gpu
from aicb.operators import (
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
from aicb.precision import KvDtype, Precision
from aicb.table import KernelTable

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
                return Estimate(float(steps[0]), bool(is_far), function.source, function.error)
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

    def prefill_times(self, batches: PrefillBatches) -> ManyTimes:
        """Unmeasured fp8 takes the time of bf16, flagged."""
        is_fp8 = batches.work.dtype != "bf16"
        is_own = not is_fp8 or self.prefill_fp8 is not None
        measured = self.prefill_fp8 if is_fp8 and self.prefill_fp8 is not None else self.prefill
        found = measured.times(batches)
        is_resident = (self.timing == "graph") & (batches.moved_bytes <= self.gpu.l2_bytes)
        memory_s = np.where(is_resident, 0.0, batches.moved_bytes / self.gpu.hbm_bytes_per_s)
        bound_us = np.maximum(batches.flops / self.gpu.peak_flops[batches.work.dtype], memory_s) * 1e6
        bounded_us = np.maximum(found.time_us, bound_us)
        time_us = np.where(found.is_measured, found.time_us, bounded_us) if is_own else bounded_us
        return ManyTimes(time_us, found.is_estimate | (not is_own))

    def decode_times(self, work: DecodeAttention | MlaDecode, batch: int) -> DecodeTimes:
        """Time of this attention for ``batch`` sequences as a function of their KV lengths."""
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

    def dense_decode(self, work: DecodeAttention | MlaDecode, batch: int) -> MeasuredDecode:
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

    def _dense_decode(self, work: DecodeAttention | MlaDecode, batch: int) -> MeasuredDecode:
        if isinstance(work, MlaDecode):
            return MeasuredDecode(self, work, self.latent.function(work, batch))
        return MeasuredDecode(self, work, self.paged.function(work, batch))


class MeasuredDecode:
    """Decode attention of one geometry and batch size over k consecutive iterations (``DecodeTimes``)."""

    def __init__(self, estimator: InterpolationEstimator, work: DecodeAttention | MlaDecode, priced: Priced):
        self.priced, self.source, self.error = priced, priced.source, priced.error
        self._volumes: Callable[[NDArray[np.int64], NDArray[np.float64]], NDArray[np.float64]]
        self._is_latent = isinstance(work, MlaDecode)
        if isinstance(work, MlaDecode):
            heads, payload = work.heads, estimator.latent.payload
            self._volumes = lambda kv, totals: payload(_blocks(kv, totals.shape[-1]), heads)
            per_token = work.d_qk * (2 if estimator.precision.kv == "bf16" else 1)
            flops = 2.0 * work.heads * (work.d_qk + work.d_v)
        else:
            per_token = estimator.paged.bytes_per_token(work)
            self._volumes = lambda _, totals: totals * per_token
            flops = 4.0 * work.heads * work.head_dim
        self._per_token_bytes = per_token
        gpu = estimator.gpu
        memory = 0.0 if estimator.timing == "graph" else per_token / gpu.hbm_bytes_per_s
        self._bound_us_per_token = max(memory, flops / gpu.peak_flops["bf16"]) * 1e6

    def __call__(self, kv_tokens: NDArray[np.int64], steps: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """[…, steps] µs, and […] whether the lengths lie beyond the reach of the measurements; see ``DecodeTimes``."""
        totals = tokens_by_step(kv_tokens, steps)
        volumes = self._volumes(kv_tokens, totals)
        time_us = self.priced.time(volumes)
        if self._is_latent:
            count = kv_tokens.shape[-1]
            deviation = np.abs(kv_tokens * count - kv_tokens.sum(axis=-1, keepdims=True)).sum(axis=-1) / count
            if deviation.any():
                time_us = time_us + LatentDecode.unequal_us(deviation[..., None], totals, time_us)
        low, high = self.priced.volume_range
        is_estimate = self.priced.is_estimate | (volumes[..., 0] < low) | (volumes[..., -1] > high)
        return np.maximum(time_us, totals * self._bound_us_per_token), np.asarray(is_estimate)

    def of_totals(self, totals: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """[batches] µs of FA3 for so many KV tokens in all, and whether each is an estimate."""
        volumes = totals * self._per_token_bytes
        low, high = self.priced.volume_range
        is_estimate = self.priced.is_estimate | (volumes < low) | (volumes > high)
        return np.maximum(self.priced.time(volumes), totals * self._bound_us_per_token), is_estimate


def _blocks(kv_tokens: NDArray[np.int64], steps: int) -> NDArray[np.int64]:
    """[…, steps] Σ_i (⌈(S_i + j) / 64⌉ + 5), by the count of each residue instead of request by request."""
    start = (-(-kv_tokens // BLOCK_TOKENS)).sum(axis=-1, keepdims=True) + OVERHEAD_BLOCKS * kv_tokens.shape[-1]
    if steps == 1:
        return np.asarray(start)
    # A request opens a block in step j ≥ 1 when (S + j - 1) is a multiple of the block.
    batches = math.prod(kv_tokens.shape[:-1])
    own = BLOCK_TOKENS * np.arange(batches)[:, None]
    cells = (kv_tokens.reshape(batches, -1) % BLOCK_TOKENS + own).reshape(-1)
    residues = np.bincount(cells, minlength=batches * BLOCK_TOKENS).reshape(batches, BLOCK_TOKENS)
    opened = residues[:, -np.arange(steps - 1) % BLOCK_TOKENS].cumsum(axis=1)
    return np.asarray(np.concatenate([start, start + opened.reshape(*kv_tokens.shape[:-1], steps - 1)], axis=-1))
