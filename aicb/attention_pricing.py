"""Attention of the ranks of an instance, priced together: decodes over consecutive steps, and prefills.

Ranks in lockstep have similar batches. Decodes of as many requests are one evaluation over [ranks, steps]; the prefills
of all ranks are one evaluation over requests. What does not depend on the KV lengths is priced once per size.

Sums of tokens that expansions of latents depend on are rounded as ``priced_tokens`` says: at most 0.4 % of kernels that
take a tenth of a prefill.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from aicb.batch import Batch
from aicb.clock import STREAMED_SHARE
from aicb.estimators import DecodeTimes, ManyTimes
from aicb.estimators.roofline import PrefillBatches, demand
from aicb.model import Attention, GroupedQueryAttention, LatentAttention, Model, stage_range
from aicb.operator_list import attention_operators, expansion_operators
from aicb.operators import DecodeAttention, MlaDecode, Operator, Phase, PrefillAttention
from aicb.parallelism import Partition
from aicb.precision import Precision
from aicb.pricing import NOTHING, PHASES, PS_PER_US, Part, Pricing, price_lists, price_operators

Expansion = Literal["chunk", "past", "merge"]


@dataclass(frozen=True, slots=True)
class DecodeKernel:
    """One kernel that reads the KV cache, per execution a function of the KV lengths."""

    name: str
    count: int
    time_us: DecodeTimes
    memory_us: float
    """Per KV token: reading it at the bandwidth of large streams."""
    tensor_us: float
    """Per KV token: its FLOPs at the nominal peak of the tensor cores."""

    def loads(self, kv_tokens: NDArray[np.int64], steps: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """[3, ranks, steps] total, clocked and tensor time [ps] of all executions with ``kv_tokens`` [ranks, requests],
        and [ranks] whether they are estimates."""
        time_us, is_estimate = self.time_us(kv_tokens, steps)
        tokens = kv_tokens.sum(axis=1)[:, None] + kv_tokens.shape[1] * np.arange(steps)
        by_memory = np.minimum(tokens * self.memory_us / time_us, 1.0)
        loads_us = np.array((time_us, time_us * (1.0 - by_memory * by_memory), tokens * self.tensor_us))
        return to_ps(self.count * loads_us), is_estimate


@dataclass(frozen=True, slots=True)
class _DecodeSize:
    """Decodes of one number of requests: a fixed part, and kernels that depend on the KV lengths."""

    fixed: Part
    fixed_ps: NDArray[np.int64]
    """[3] total, clocked and tensor time."""
    kernels: tuple[DecodeKernel, ...]


@dataclass(frozen=True, slots=True)
class _Slower:
    """The slower of one query and of several per request: two interpolations may cross by a fraction of a per cent,
    while more queries never cost less."""

    one: DecodeTimes
    several: DecodeTimes

    @property
    def source(self) -> str:
        return self.several.source

    @property
    def error(self) -> float:
        return self.several.error

    def __call__(self, kv_tokens: NDArray[np.int64], steps: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        time_us, is_estimate = self.several(kv_tokens, steps)
        return np.maximum(time_us, self.one(kv_tokens, steps)[0]), is_estimate


@dataclass(frozen=True, slots=True, eq=False)
class _EqualSizes:
    """Ranks with as many decodes."""

    ranks: NDArray[np.intp]
    size: _DecodeSize
    loads: list[tuple[NDArray[np.int64], NDArray[np.bool_]]]
    """By kernel."""


@dataclass(frozen=True, slots=True, eq=False)
class DecodeLoads:
    """Attention of the decodes of all ranks over consecutive steps."""

    ps: NDArray[np.int64]
    """[3, ranks, steps] total, clocked and tensor time."""
    sizes: list[_EqualSizes]

    def part(self, rank: int) -> Part:
        """Of one rank in the first step; nothing for one without decodes."""
        for equal in self.sizes:
            place = int(np.searchsorted(equal.ranks, rank))
            if place < len(equal.ranks) and equal.ranks[place] == rank:
                kernels = zip(equal.size.kernels, equal.loads, strict=True)
                parts = (_kernel_part(k.name, loads[:, place, 0].tolist(), est[place]) for k, (loads, est) in kernels)
                return sum(parts, equal.size.fixed)
        return NOTHING


@dataclass(frozen=True, slots=True, eq=False)
class PrefillLoads:
    """Attention of the prefills of all ranks in one iteration."""

    total_ps: NDArray[np.int64]
    """[ranks]"""
    pricing: Pricing
    busy: NDArray[np.intp]
    """Ranks that have prefills."""
    kernels: list[tuple[Operator, PrefillBatches, ManyTimes]]
    """Each with the batches of the busy ranks."""
    expansions: list[tuple[Part, ...]]
    """[busy]"""

    def part(self, rank: int) -> Part:
        """Of one rank; nothing for one without prefills."""
        place = int(np.searchsorted(self.busy, rank))
        if place == len(self.busy) or self.busy[place] != rank:
            return NOTHING
        part = sum(self.expansions[place], NOTHING)
        for operator, batches, times in self.kernels:
            time_us = float(times.time_us[place])
            loads_us = (time_us, *self.pricing.load(batches.demand(place), time_us))
            ps = [round(load * operator.count * PS_PER_US) for load in loads_us]
            part += _kernel_part(operator.name, ps, times.is_estimate[place])
        return part


class AttentionPricing:
    """Prices the attention of the data-parallel ranks of one instance."""

    def __init__(self, model: Model, partition: Partition, precision: Precision, pricing: Pricing):
        self._parallel = (model, partition, precision)
        self._pricing = pricing
        self._sizes: dict[tuple[int, int, int, int], _DecodeSize] = {}
        self._prefills: dict[int, list[Operator]] = {}
        self._is_dense: dict[int, bool] = {}
        self._has_latents: dict[int, bool] = {}
        self._expansions: dict[tuple[Expansion, int, int], Part] = {}

    def prices_together(self, stage: int) -> bool:
        """Whether ``prefills`` knows the attention of the stage: dense, over all keys."""
        if stage not in self._is_dense:
            self._is_dense[stage] = all(
                isinstance(attention, GroupedQueryAttention)
                or (isinstance(attention, LatentAttention) and attention.indexer is None)
                for attention in self._attentions(stage)
            )
        return self._is_dense[stage]

    def _expands(self, stage: int) -> bool:
        """Whether prefills expand latents."""
        if stage not in self._has_latents:
            self._has_latents[stage] = any(isinstance(kind, LatentAttention) for kind in self._attentions(stage))
        return self._has_latents[stage]

    def _attentions(self, stage: int) -> list[Attention]:
        model, partition, _ = self._parallel
        return [layer.attention for layer, _ in model.count_layers(stage_range(model, partition, stage))]

    def whole(self, batch: Batch, stage: int) -> Part:
        """Of one rank with any kind of attention and of requests."""
        return price_operators(attention_operators(*self._parallel, batch, stage=stage), self._pricing)

    def decodes(
        self,
        kv_tokens: NDArray[np.int64],
        requests: Sequence[int],
        padded: Sequence[int],
        *,
        queries: int = 1,
        steps: int = 1,
        stage: int = 0,
    ) -> DecodeLoads:
        """Decodes of so many ``requests`` [ranks], one rank after another in ``kv_tokens``, over consecutive steps.

        Kernels that do not read the KV cache run on batches of ``padded`` [ranks] tokens, equal for equal ``requests``.
        Several queries of a request read its KV once, as more query heads would (FlashMLA and packed GQA treat them
        alike). An idle rank's dummy batch has no KV to read.
        """
        if len(requests) == 1 and requests[0]:
            size = self._size(requests[0], (padded[0], queries), stage)
            loads = [kernel.loads(kv_tokens[None, :], steps) for kernel in size.kernels]
            ps = sum((load for load, _ in loads), size.fixed_ps[:, None, None])
            return DecodeLoads(ps, [_EqualSizes(_FIRST_RANK, size, loads)])
        counts = np.array(requests, dtype=np.int64)
        starts = np.cumsum(counts) - counts
        ps = np.zeros((3, len(counts), steps), dtype=np.int64)
        sizes = []
        for count in sorted(set(requests) - {0}):
            ranks = np.flatnonzero(counts == count)
            size = self._size(count, (padded[int(ranks[0])], queries), stage)
            kv = kv_tokens[starts[ranks][:, None] + np.arange(count)]
            loads = [kernel.loads(kv, steps) for kernel in size.kernels]
            ps[:, ranks] = sum((load for load, _ in loads), size.fixed_ps[:, None, None])
            sizes.append(_EqualSizes(ranks, size, loads))
        return DecodeLoads(ps, sizes)

    def prefills(
        self, new_tokens: NDArray[np.int64], kv_tokens: NDArray[np.int64], requests: NDArray[np.int64], stage: int
    ) -> PrefillLoads:
        """Chunks of so many ``requests`` [ranks], one rank after another in the other two."""
        busy = np.flatnonzero(requests)
        counts = requests[busy]
        total_ps, kernels = np.zeros(len(requests), dtype=np.int64), []
        for operator in self._prefill_kernels(stage):
            assert isinstance(operator.work, PrefillAttention)
            batches = PrefillBatches(replace(operator.work, new_tokens=new_tokens, kv_tokens=kv_tokens), counts)
            times = self._pricing.estimator.prefill_times(batches)
            total_ps[busy] += to_ps(times.time_us * operator.count)
            kernels.append((operator, batches, times))
        starts = np.cumsum(counts) - counts
        expansions: list[tuple[Part, ...]] = [()] * len(busy)
        if self._expands(stage):
            past_tokens = kv_tokens - new_tokens
            sums = (
                np.add.reduceat(tokens, starts).tolist()
                for tokens in (new_tokens, past_tokens, np.where(past_tokens > 0, new_tokens, 0))
            )
            expansions = [
                (
                    self._expansion("chunk", chunk, stage),
                    self._expansion("past", past, stage),
                    self._expansion("merge", merge, stage),
                )
                for chunk, past, merge in zip(*sums, strict=True)
            ]
            total_ps[busy] += [sum(part.total_ps for part in parts) for parts in expansions]
        return PrefillLoads(total_ps, self._pricing, busy, kernels, expansions)

    def _prefill_kernels(self, stage: int) -> list[Operator]:
        """Attention kernels over a prompt; its lengths do not matter."""
        if stage not in self._prefills:
            listed = attention_operators(*self._parallel, Batch.prefill([1]), stage=stage)
            self._prefills[stage] = [operator for operator in listed if isinstance(operator.work, PrefillAttention)]
        return self._prefills[stage]

    def _expansion(self, part: Expansion, tokens: int, stage: int) -> Part:
        if not tokens:
            return NOTHING
        key = (part, priced_tokens(tokens), stage)
        if key not in self._expansions:
            counts = priced_together(key[1])
            lists = [expansion_operators(*self._parallel, part=part, tokens=count, stage=stage) for count in counts]
            keys = [(part, count, stage) for count in counts]
            self._expansions.update(zip(keys, price_lists(lists, self._pricing), strict=True))
        return self._expansions[key]

    def _size(self, requests: int, padded: tuple[int, int], stage: int) -> _DecodeSize:
        """``padded`` is the tokens of the padded batch and the queries per request."""
        key = (requests, *padded, stage)
        if key not in self._sizes:
            tokens, queries = padded
            batch = Batch.decode(np.full(tokens, 2, dtype=np.int64))
            kernels, fixed = [], []
            for operator in attention_operators(*self._parallel, batch, stage=stage):
                if isinstance(operator.work, DecodeAttention | MlaDecode):
                    kernels.append(self._decode_kernel(operator, operator.work, requests, queries))
                else:
                    fixed.append(operator)
            part = price_operators(fixed, self._pricing)
            fixed_ps = np.array((part.total_ps, part.clocked_ps, part.tensor_ps))
            self._sizes[key] = _DecodeSize(part, fixed_ps, tuple(kernels))
        return self._sizes[key]

    def _decode_kernel(
        self, operator: Operator, one_query: DecodeAttention | MlaDecode, requests: int, queries: int
    ) -> DecodeKernel:
        """FLOPs and bytes are taken in proportion to the KV tokens, also of kernels that score or choose among them."""
        pricing, gpu = self._pricing, self._pricing.gpu
        work = replace(one_query, heads=one_query.heads * queries)
        times = pricing.estimator.decode_times(work, requests)
        if queries > 1:
            times = _Slower(pricing.estimator.decode_times(one_query, requests), times)
        one = demand(replace(work, kv_tokens=np.array([_SAMPLE_TOKENS])), pricing.precision)
        memory_us = one.moved_bytes / (STREAMED_SHARE * gpu.hbm_bytes_per_s) * 1e6 / _SAMPLE_TOKENS
        tensor_us = one.flops / gpu.peak_flops[one.dtype] * 1e6 / _SAMPLE_TOKENS
        return DecodeKernel(operator.name, operator.count, times, memory_us, tensor_us)


_FIRST_RANK = np.zeros(1, dtype=np.intp)
_SAMPLE_TOKENS = 1024
"""KV length at which the FLOPs and bytes per KV token of a decode kernel are taken."""


def to_ps(time_us: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.rint(time_us * PS_PER_US).astype(np.int64)


def priced_tokens(tokens: int) -> int:
    """The nearest of 128 counts per octave, at most 0.4 % away: chunks of prompts have thousands of different lengths,
    and each would be priced anew."""
    step = 1 << max(0, tokens.bit_length() - 8)
    return (tokens + step // 2) // step * step


def priced_together(tokens: int, sizes: Sequence[int] = ()) -> list[int]:
    """Token counts that are priced with this one, itself among them: a dozen together take the time of two alone.

    Of ``sizes`` where it is one of them, else of the counts of ``priced_tokens``.
    """
    if tokens in sizes:
        first = bisect_left(sizes, tokens) // _TOGETHER * _TOGETHER
        return list(sizes[first : first + _TOGETHER])
    step = 1 << max(0, tokens.bit_length() - 8)
    if tokens % step:
        return [tokens]
    first = tokens // (_TOGETHER * step) * _TOGETHER * step
    return [count for count in range(first, first + _TOGETHER * step, step) if count]


_TOGETHER = 16
"""Counts in a run of those priced together."""


def _kernel_part(name: str, loads_ps: Sequence[int], is_estimate: bool) -> Part:
    """One attention kernel with its total, clocked and tensor time."""
    total_ps, clocked_ps, tensor_ps = loads_ps
    phases = tuple(total_ps if phase is Phase.ATTENTION else 0 for phase in PHASES)
    estimated = frozenset((name,)) if is_estimate else frozenset()
    return Part(phases, total_ps, total_ps if is_estimate else 0, estimated, (), clocked_ps, tensor_ps)
