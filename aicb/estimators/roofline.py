"""Roofline: the least time the device allows, and an estimator that divides it by one utilisation per kind of work.

The bound is ``max(FLOPs / peak, bytes / bandwidth)`` of the nominal device. Bytes count each operand once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import singledispatch

import numpy as np
from numpy.typing import NDArray

from aicb.estimators.estimate import DecodeTimes, Estimate, Estimator, ManyTimes, tokens_by_step
from aicb.measurements.gpu import Gpu
from aicb.model.precision import ELEMENT_BYTES, SCALE_BYTES, Precision
from aicb.operators.gqa import chosen_pairs
from aicb.operators.operator import (
    BatchedGemm,
    Communication,
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
from boundary.errors import InputError

CONTIGUOUS_ROWS = 128
"""Row alignment of each expert in DeepGEMM's contiguous layout (``get_mk_alignment_for_contiguous_layout``)."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What one execution asks of the device."""

    flops: float
    moved_bytes: float
    """All operands once."""
    cold_bytes: float
    """The part that other layers have evicted from L2: weights, KV cache, state."""
    dtype: GemmDtype


def roofline_us(demand: Demand, gpu: Gpu, *, is_resident: bool = False) -> float:
    """Least time [µs]. ``is_resident``: operands within L2 do not cross the memory bus."""
    compute = demand.flops / gpu.peak_flops[demand.dtype]
    if is_resident and demand.moved_bytes <= gpu.l2_bytes:
        return compute * 1e6
    return max(compute, demand.moved_bytes / gpu.hbm_bytes_per_s) * 1e6


@singledispatch
def demand(work: object, _precision: Precision) -> Demand:
    """FLOPs and bytes of one execution; the precision gives the element sizes of KV cache and state."""
    raise InputError(f"work: found {type(work).__name__}, expected a computing operator")


@demand.register
def _(work: Gemm, _precision: Precision) -> Demand:
    weight = float(work.n * work.k * ELEMENT_BYTES[work.dtype])
    moved = weight + work.m * work.k * ELEMENT_BYTES[work.dtype] + 2.0 * work.m * work.n
    return Demand(2.0 * work.m * work.n * work.k, moved, weight, work.dtype)


@demand.register
def _(work: BatchedGemm, _precision: Precision) -> Demand:
    weight = 2.0 * work.batch * work.n * work.k
    moved = weight + 2.0 * work.batch * work.m * (work.n + work.k)
    return Demand(2.0 * work.batch * work.m * work.n * work.k, moved, weight, "bf16")


@demand.register
def _(work: GroupedGemm, _precision: Precision) -> Demand:
    weight = float(work.active_groups * work.n * work.k * ELEMENT_BYTES[work.dtype])
    moved = weight + work.rows * (work.k * ELEMENT_BYTES[work.dtype] + 2.0 * work.n)
    return Demand(2.0 * work.rows * work.n * work.k, moved, weight, work.dtype)


def attention_pairs(
    new_tokens: NDArray[np.int64] | NDArray[np.float64], kv_tokens: NDArray[np.int64] | NDArray[np.float64]
) -> NDArray[np.float64]:
    """[requests] (query, key) pairs of causal attention: q·(S − q) + q(q + 1)/2."""
    new, kv = new_tokens.astype(np.float64), kv_tokens.astype(np.float64)
    return np.asarray(new * (kv - new) + new * (new + 1.0) / 2.0)


@demand.register
def _(work: PrefillAttention, _precision: Precision) -> Demand:
    width, element_bytes = work.d_qk + work.d_v, ELEMENT_BYTES[work.dtype]
    flops = 2.0 * work.heads * width * float(attention_pairs(work.new_tokens, work.kv_tokens).sum())
    kv_bytes = float(work.kv_tokens.sum()) * work.kv_heads * width * element_bytes
    moved = kv_bytes + float(work.new_tokens.sum()) * work.heads * (work.d_qk * element_bytes + work.d_v * 2.0)
    return Demand(flops, moved, kv_bytes, work.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Demands:
    """What each of several works asks of the device."""

    works: Sequence[Work]
    flops: NDArray[np.float64]
    """[works]"""
    moved_bytes: NDArray[np.float64]
    """[works] as in ``Demand``."""
    is_fp8: NDArray[np.bool_]
    """[works] whether the FLOPs run in fp8."""

    @classmethod
    def of(cls, works: Sequence[Work], precision: Precision) -> Demands:
        needs = [demand(work, precision) for work in works]
        columns = np.array([(need.flops, need.moved_bytes, need.dtype == "fp8") for need in needs]).reshape(-1, 3)
        return cls(works, columns[:, 0], columns[:, 1], columns[:, 2] > 0)

    def take(self, places: NDArray[np.intp]) -> Demands:
        """Those at these places."""
        works = [self.works[place] for place in places.tolist()]
        return Demands(works, self.flops[places], self.moved_bytes[places], self.is_fp8[places])

    def peak_flops(self, gpu: Gpu) -> NDArray[np.float64]:
        """[works] nominal peak of the tensor cores in the format of each."""
        fp8 = gpu.peak_flops["fp8"] if self.is_fp8.any() else np.nan
        return np.where(self.is_fp8, fp8, gpu.peak_flops["bf16"])

    def roofline_us(self, gpu: Gpu, is_resident: NDArray[np.bool_]) -> NDArray[np.float64]:
        """[works] as ``roofline_us``."""
        is_cached = is_resident & (self.moved_bytes <= gpu.l2_bytes)
        memory_us = np.where(is_cached, 0.0, self.moved_bytes / gpu.hbm_bytes_per_s * 1e6)
        return np.maximum(self.flops / self.peak_flops(gpu) * 1e6, memory_us)


def works_one_by_one(estimator: Estimator, works: Sequence[Work]) -> ManyTimes:
    """``Estimator.times`` without a faster way."""
    found = [estimator.price(work) for work in works]
    return ManyTimes(np.array([each.time_us for each in found]), np.array([each.is_estimate for each in found]))


@demand.register
def _(work: SparseMlaPrefill, precision: Precision) -> Demand:
    return _sparse_demand(work, work.new_tokens, precision)


@demand.register
def _(work: SparseMlaDecode, precision: Precision) -> Demand:
    return _sparse_demand(work, np.full_like(work.kv_tokens, work.queries), precision)


def _sparse_demand(work: SparseMlaPrefill | SparseMlaDecode, new: NDArray[np.int64], precision: Precision) -> Demand:
    """One kernel of sparse attention. Scores stay in L2 where they fit, so only their keys count as cold."""
    queries, keys = float(new.sum()), float(work.kv_tokens.sum())
    pairs = float(attention_pairs(new, np.maximum(work.kv_tokens, new)).sum())
    match work.kernel:
        case "index_logits":
            key_bytes = keys * (work.index_dim + SCALE_BYTES)
            moved = key_bytes + queries * work.index_heads * (work.index_dim + 4.0) + 4.0 * pairs
            return Demand(2.0 * work.index_heads * work.index_dim * pairs, moved, key_bytes, "fp8")
        case "index_topk":
            return Demand(0.0, 4.0 * pairs, 0.0, "bf16")
        case "attention":
            heads = work.query_heads if isinstance(work, SparseMlaDecode) else work.heads
            chosen = float(chosen_pairs(new, np.maximum(work.kv_tokens, new), work.topk).sum())
            is_fp8 = isinstance(work, SparseMlaDecode) and (work.kv_dtype or precision.kv) == "fp8"
            key_bytes = min(chosen, keys) * (SPARSE_FP8_KEY_BYTES if is_fp8 else 2.0 * work.d_qk)
            width = work.d_qk + work.d_v
            return Demand(2.0 * heads * width * chosen, key_bytes + 2.0 * queries * heads * width, key_bytes, "bf16")


SPARSE_FP8_KEY_BYTES = 656.0
"""A latent in the fp8 cache of sparse FlashMLA: 512 e4m3, 4 fp32 scales, 64 bf16."""


@demand.register
def _(work: DecodeAttention, precision: Precision) -> Demand:
    tokens = float(work.kv_tokens.sum())
    kv_bytes = tokens * 2.0 * work.kv_heads * work.head_dim * ELEMENT_BYTES[work.kv_dtype or precision.kv]
    return Demand(4.0 * work.heads * work.head_dim * tokens, kv_bytes, kv_bytes, "bf16")


@demand.register
def _(work: MlaDecode, precision: Precision) -> Demand:
    tokens = float(work.kv_tokens.sum())
    kv_bytes = tokens * work.d_qk * ELEMENT_BYTES[work.kv_dtype or precision.kv]
    return Demand(2.0 * work.heads * (work.d_qk + work.d_v) * tokens, kv_bytes, kv_bytes, "bf16")


@demand.register
def _(work: GatedDeltaPrefill, precision: Precision) -> Demand:
    """Recurrent form: 3 multiply-adds of a ``head_dim²`` state per token and value head (decay, write, read)."""
    tokens = float(work.new_tokens.sum())
    state = 2.0 * len(work.new_tokens) * work.value_heads * work.head_dim**2 * ELEMENT_BYTES[precision.state]
    moved = tokens * work.head_dim * 2.0 * (2 * work.key_heads + 2 * work.value_heads) + state
    return Demand(6.0 * tokens * work.value_heads * work.head_dim**2, moved, state, "bf16")


@demand.register
def _(work: GatedDeltaDecode, precision: Precision) -> Demand:
    elements = float(work.sequences * work.value_heads * work.head_dim**2)
    state = 2.0 * elements * ELEMENT_BYTES[precision.state]
    return Demand(6.0 * elements, state, state, "bf16")


@demand.register
def _(work: Elementwise, _precision: Precision) -> Demand:
    return Demand(0.0, float(work.moved_bytes), 0.0, "bf16")


_DIMENSIONS = (
    "m",
    "n",
    "k",
    "batch",
    "groups",
    "heads",
    "kv_heads",
    "d_qk",
    "d_v",
    "head_dim",
    "key_heads",
    "value_heads",
    "sequences",
    "cols",
    "topk",
    "index_heads",
    "index_dim",
    "query_heads",
)


def check(work: Work) -> None:
    """Raises ``InputError`` where a dimension is not positive or lengths contradict each other."""
    if isinstance(work, Communication):
        raise InputError("work: found Communication, expected a computing operator")
    for name in _DIMENSIONS:
        value = getattr(work, name, 1)
        if value < 1:
            raise InputError(f"{type(work).__name__}.{name}: found {value}, expected at least 1")
    if isinstance(work, GroupedGemm) and not 0 < work.active_groups <= work.groups:
        raise InputError(
            f"GroupedGemm.active_groups: found {work.active_groups}, expected above 0, up to {work.groups}"
        )
    if isinstance(work, PrefillAttention | SparseMlaPrefill) and (work.new_tokens > work.kv_tokens).any():
        raise InputError(f"{type(work).__name__}.kv_tokens: found fewer than new_tokens, expected past and new tokens")


UTILISATION = {
    "compute": 0.70,
    "memory": 0.80,
}
"""Reached share of the nominal peak in large kernels. H200, shipped table: FP8 GEMM 0.70, BF16 0.70-0.80, FA3 0.71
of compute; 0.80 is 3.8 of 4.8 TB/s (FlashMLA, cold GEMM weights), between 0.72 (fp8 GEMM) and 0.91 (FA3 decode)."""

LAUNCH_US = 2.0
"""Least time of a small kernel in a CUDA graph: the shipped ``rms_norm`` rows of 512 columns take 2.1 µs."""

ROOFLINE_ERROR = 0.4
"""Relative error (68 %) over all rows of the shipped H200 table, see docs/accuracy.md."""


class RooflineEstimator:
    """Every operator at fixed shares of the device's peaks plus a launch floor; always flagged as an estimate.

    Ignores tile quantisation, wave tails and latency, so small kernels come out too fast.
    """

    def __init__(self, gpu: Gpu, precision: Precision | None = None):
        self.gpu, self.precision = gpu, precision or Precision()

    def price(self, work: Work) -> Estimate:
        check(work)
        time_us = LAUNCH_US + self._busy_us(demand(work, self.precision))
        return Estimate(time_us, True, "estimate: roofline", ROOFLINE_ERROR)

    def decode_times(self, work: DecodeAttention | MlaDecode, batch: int) -> DecodeTimes:
        """Demand is linear in the KV tokens, so one token gives the slope; sparse attention is priced step by step."""
        if isinstance(work, SparseMlaDecode):
            return EachStep(self, work, batch)
        one = demand(replace(work, kv_tokens=np.ones(1, dtype=np.int64)), self.precision)
        return LinearDecode(self._busy_us(one))

    def times(self, demands: Demands) -> ManyTimes:
        return works_one_by_one(self, demands.works)

    def _busy_us(self, need: Demand) -> float:
        compute = need.flops / (UTILISATION["compute"] * self.gpu.peak_flops[need.dtype])
        memory = need.moved_bytes / (UTILISATION["memory"] * self.gpu.hbm_bytes_per_s)
        return max(compute, memory) * 1e6


class EachStep:
    """Decode attention without a closed form over steps: one ``price`` per step (``DecodeTimes``)."""

    def __init__(self, estimator: Estimator, work: SparseMlaDecode, batch: int):
        self._estimator, self._work = estimator, work
        first = estimator.price(replace(work, kv_tokens=np.full(batch, work.topk, dtype=np.int64)))
        self.source, self.error = first.source, first.error

    def __call__(self, kv_tokens: NDArray[np.int64], steps: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        time_us, is_estimate = [], []
        for kv in kv_tokens.reshape(-1, kv_tokens.shape[-1]):
            found = [self._estimator.price(replace(self._work, kv_tokens=kv + step)) for step in range(steps)]
            time_us.append([each.time_us for each in found])
            is_estimate.append(any(each.is_estimate for each in found))
        batches = kv_tokens.shape[:-1]
        return np.array(time_us).reshape(*batches, steps), np.array(is_estimate).reshape(batches)


@dataclass(frozen=True, slots=True)
class LinearDecode:
    """Launch floor plus a constant per KV token."""

    per_token_us: float
    source: str = "estimate: roofline"
    error: float = ROOFLINE_ERROR

    def __call__(self, kv_tokens: NDArray[np.int64], steps: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        time_us = LAUNCH_US + self.per_token_us * tokens_by_step(kv_tokens, steps)
        return np.asarray(time_us), np.ones(kv_tokens.shape[:-1], dtype=np.bool_)
