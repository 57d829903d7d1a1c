"""Attention of the ranks of an instance: kernels and groups of operators for C++, and times of those it does not know.

C++ knows attention over all keys and linear attention, where the estimator gives their times as functions
(``CoreEstimator``). Sparse attention and the other estimators are priced here, batch by batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

import aicb._core as _core
from aicb._core import OperatorGroup
from aicb.estimators.estimator import CoreEstimator
from aicb.iteration.pricing import PricedOperators, Pricing, price_operators
from aicb.kernels.core_times import kv_cost
from aicb.kernels.fitting.estimate import DecodeTimes, VolumeTimes
from aicb.kernels.kernel import CacheKernel, Kernel
from aicb.kernels.mixed_attention import mixed_call
from aicb.kernels.mla_chunks import MOST_TOKENS, REACH_TOKENS, Fa3MlaChunks
from aicb.kernels.prefill_attention import PrefillAttention
from aicb.measurements.clock import STREAMED_SHARE
from aicb.model.architecture import Attention, GatedDeltaNet, LatentAttention, Model, stage_range
from aicb.model.key_span import KeySpan
from aicb.model.partition import Partition
from aicb.model.precision import Precision
from aicb.operators.batch import Batch, one_by_one
from aicb.operators.gqa import GqaKernel
from aicb.operators.hybrid_kernels import HybridKernels
from aicb.operators.lists import attention_operators, expansion_operators
from aicb.operators.mla import MlaKernel
from aicb.operators.operator import Operator

EXPANSIONS: dict[OperatorGroup, Literal["chunk", "past", "merge"]] = {
    OperatorGroup.EXPANDED_CHUNK: "chunk",
    OperatorGroup.EXPANDED_PAST: "past",
    OperatorGroup.MERGED: "merge",
}


@dataclass(frozen=True, slots=True)
class DecodeKernel:
    """One kernel that reads the KV cache, per execution a function of the KV lengths."""

    name: str
    count: int
    time_us: DecodeTimes
    one_query_us: DecodeTimes | None
    """Several queries are not faster than one: two interpolations may cross by a fraction of a per cent."""
    cost: _core.KvCost
    """At the nominal peak of the tensor cores, as the power budget counts it, and the bandwidth of large streams."""
    span: KeySpan | None
    """Lengths of the kernel are those that its last query sees."""

    def timed(self, kv_tokens: NDArray[np.int64], steps: int, name: int) -> _core.TimedKernel:
        """Times over consecutive steps for C++; ``name`` is the bit of its name."""
        seen = kv_tokens + np.arange(steps, dtype=np.int64)[:, None]
        if self.span is None:
            time_us, is_estimate = self.time_us(kv_tokens, steps)
            one_query = None if self.one_query_us is None else self.one_query_us(kv_tokens, steps)[0]
        else:
            seen = self.span.seen(seen)
            time_us, is_estimate = self.time_us(seen, 1)
            time_us, is_estimate = time_us.reshape(steps), is_estimate[0]
            one_query = None if self.one_query_us is None else self.one_query_us(seen, 1)[0].reshape(steps)
        totals = seen.sum(axis=1).tolist()
        return _core.TimedKernel(
            time_us, one_query, totals, bool(is_estimate), name=name, count=self.count, cost=self.cost
        )

    def in_core(self, name: int) -> _core.DecodeKernel:
        """The kernel in C++; ``name`` is the bit of its name."""
        assert isinstance(self.time_us, VolumeTimes)
        one_query = self.one_query_us
        assert one_query is None or isinstance(one_query, VolumeTimes)
        return _core.DecodeKernel(
            self.time_us.times,
            one_query.times if one_query else None,
            name=name,
            count=self.count,
            cost=self.cost,
            span=self.span.in_core if self.span else None,
        )


class AttentionPricing:
    """Prices the attention of the data-parallel ranks of one instance."""

    def __init__(
        self,
        model: Model,
        partition: Partition,
        precision: Precision,
        pricing: Pricing,
        mla_kernel: MlaKernel,
        gqa_kernel: GqaKernel,
        hybrid_kernels: HybridKernels,
        as_run: Callable[[Iterable[Operator]], list[Operator]],
        captured_tokens: int,
    ):
        """``as_run``: operators as the engine's kernels run them; ``captured_tokens``: the largest size of graphs."""
        self._parallel, self._as_run = (model, partition, precision), as_run
        self._mla_kernel, self._gqa_kernel, self._hybrid_kernels = mla_kernel, gqa_kernel, hybrid_kernels
        self._pricing, self._captured_tokens = pricing, captured_tokens
        self._kernels: dict[tuple[int, int, int], list[DecodeKernel]] = {}

    @property
    def ranks(self) -> int:
        """Data-parallel ranks of the instance."""
        return self._parallel[1].dp

    def is_in_core(self, stage: int) -> bool:
        """Whether C++ knows all kernels of the stage that depend on the lengths of single requests."""
        kernels = [each.kernel for each in self._operators(_ONE_OF_EACH, stage) if isinstance(each.kernel, Kernel)]
        is_known = all(kernel.core_role is not None for kernel in kernels if kernel.depends_on_lengths())
        return is_known and isinstance(self._pricing.estimator, CoreEstimator)

    def prompt_kernels(self, stage: int, bit: Callable[[str], int]) -> _core.PromptKernels:
        """Kernels that run over prompts besides attention itself, and what is instead of it for short ones."""
        kinds = self._attentions(stage)
        short = (each for each in self._operators(Batch.prefill([1]), stage) if isinstance(each.kernel, Fa3MlaChunks))
        chunks = next(short, None)
        return _core.PromptKernels(
            expand_latents=any(isinstance(kind, LatentAttention) for kind in kinds),
            are_recurrent=any(isinstance(kind, GatedDeltaNet) for kind in kinds),
            chunks=None if chunks is None else self._short_chunks(chunks, bit(chunks.name)),
        )

    def _short_chunks(self, operator: Operator, name: int) -> _core.ShortChunks:
        """A line through three chunks, of which one has a past: times are linear in pairs and queries."""
        kernel, gpu = operator.kernel, self._pricing.gpu
        assert isinstance(kernel, Fa3MlaChunks)
        few, most, past = kernel, kernel.over(MOST_TOKENS, MOST_TOKENS), kernel.over(MOST_TOKENS, 2 * MOST_TOKENS)
        times = [self._pricing.estimator.price(each) for each in (few, most, past)]
        pair_us = (times[2].time_us - times[1].time_us) / (past.pairs - most.pairs)
        query_us = (times[1].time_us - times[0].time_us - pair_us * (most.pairs - few.pairs)) / (MOST_TOKENS - 1)
        costs = [each.cost(self._pricing.precision) for each in (few, most, past)]
        bytes_per_key = (costs[2].moved_bytes - costs[1].moved_bytes) / MOST_TOKENS
        return _core.ShortChunks(
            most_tokens=MOST_TOKENS,
            reach_tokens=REACH_TOKENS,
            is_estimate=times[1].is_estimate,
            start_us=times[0].time_us - pair_us - query_us,
            pair_us=pair_us,
            query_us=query_us,
            flops_per_pair=costs[0].flops / few.pairs,
            bytes_per_query=costs[0].moved_bytes - bytes_per_key,
            bytes_per_key=bytes_per_key,
            count=operator.count,
            name=name,
            stream_bytes_per_s=STREAMED_SHARE * gpu.hbm_bytes_per_s,
            peak_flops=gpu.peak_flops["bf16"],
        )

    def _attentions(self, stage: int) -> list[Attention]:
        model, partition, _ = self._parallel
        return [layer.attention for layer, _ in model.count_layers(stage_range(model, partition, stage))]

    def core_prefills(self, stage: int, bit: Callable[[str], int]) -> list[_core.PrefillKernel]:
        """Kernels over prompts for C++; ``bit`` numbers operator names."""
        estimator, gpu = self._pricing.estimator, self._pricing.gpu
        assert isinstance(estimator, CoreEstimator)
        return [
            _core.PrefillKernel(
                estimator.core_prefill(operator.kernel),
                count=operator.count,
                name=bit(operator.name),
                stream_bytes_per_s=STREAMED_SHARE * gpu.hbm_bytes_per_s,
                load_flops=gpu.peak_flops[operator.kernel.dtype] / operator.kernel.power_load.slope,
                span=operator.kernel.span.in_core if operator.kernel.span else None,
                mixed=self._mixed_call(operator.kernel),
            )
            for operator in self._operators(Batch.prefill([MOST_TOKENS + 1]), stage)
            if isinstance(operator.kernel, PrefillAttention)
        ]

    def _mixed_call(self, kernel: PrefillAttention) -> _core.MixedCall | None:
        """How decodes of the same batch run in the same call: as vLLM and SGLang have it, of whom the latter lets FA3
        choose the parts of requests in batches of any size. None of latents, and where that is not known."""
        if self._gqa_kernel == "fa3" or kernel.d_qk != kernel.d_v:
            return None
        split_tokens = self._captured_tokens if self._gqa_kernel == "fa3_captured" else 0
        return mixed_call(kernel, self._pricing.gpu, split_tokens)

    def group_operators(self, key: tuple[OperatorGroup, int, int], stage: int) -> list[Operator]:
        """Operators of attention that C++ asks for as a group."""
        kind, tokens, requests = key
        if kind in EXPANSIONS:
            listed = expansion_operators(*self._parallel, part=EXPANSIONS[kind], tokens=tokens, stage=stage)
            return self._as_run(listed)
        if kind == OperatorGroup.OTHER_DECODE_KERNELS:
            listed = self._operators(_decodes(tokens), stage)
        else:
            assert kind == OperatorGroup.RECURRENT_PROMPTS, kind
            listed = self._operators(Batch.prefill([max(tokens - requests + 1, 1)] + [1] * (requests - 1)), stage)
        of_lengths = CacheKernel | PrefillAttention | Fa3MlaChunks
        return [operator for operator in listed if not isinstance(operator.kernel, of_lengths)]

    def decode_kernels(self, requests: int, queries: int, stage: int) -> list[DecodeKernel]:
        """Kernels that read the cache of so many decodes with so many queries each.

        Several queries of a request read its KV once, as more query heads would (as FlashMLA and packed GQA
        do).
        """
        key = (requests, queries, stage)
        if key not in self._kernels:
            self._kernels[key] = [
                self._decode_kernel(operator, operator.kernel, requests, queries)
                for operator in self._operators(_decodes(1), stage)
                if isinstance(operator.kernel, CacheKernel)
            ]
        return self._kernels[key]

    def timed(
        self, batch: Batch, *, is_decode: bool, steps: int, queries: int, stage: int, bit: Callable[[str], int]
    ) -> tuple[PricedOperators, list[_core.TimedKernel]]:
        """Attention of one rank where C++ does not know it: what does not read the cache of decodes, and what does.

        Where the instance decodes (``is_decode``), the first is nothing; else decodes with several queries read their
        KV once for each. ``bit`` numbers operator names.
        """
        if len(batch.new_tokens) == 0 or is_decode:
            kernels = self.decode_kernels(len(batch.new_tokens), queries, stage) if len(batch.new_tokens) else []
            listed = [kernel.timed(batch.kv_tokens, steps, bit(kernel.name)) for kernel in kernels]
            return price_operators([], self._pricing), listed
        if queries > 1:
            batch = one_by_one(batch, np.full(len(batch.new_tokens), queries))
        return price_operators(self._operators(batch, stage), self._pricing), []

    def _operators(self, batch: Batch, stage: int) -> list[Operator]:
        listed = attention_operators(
            *self._parallel,
            batch,
            stage=stage,
            mla_kernel=self._mla_kernel,
            gqa_kernel=self._gqa_kernel,
            hybrid_kernels=self._hybrid_kernels,
        )
        return self._as_run(listed)

    def _decode_kernel(self, operator: Operator, one_query: CacheKernel, requests: int, queries: int) -> DecodeKernel:
        """FLOPs and bytes are taken in proportion to the KV tokens, also of kernels that score or choose among them."""
        pricing = self._pricing
        kernel = one_query.with_queries(queries)
        times = pricing.estimator.decode_times(kernel, requests)
        slower = pricing.estimator.decode_times(one_query, requests) if queries > 1 else None
        shares = (1.0, STREAMED_SHARE)
        cost = kv_cost(kernel, pricing.precision, requests, pricing.gpu, shares, kernel.power_load)
        return DecodeKernel(operator.name, operator.count, times, slower, cost, one_query.span)


_ONE_OF_EACH = Batch(np.array([MOST_TOKENS + 1, 2, 1]), np.array([MOST_TOKENS + 1, 2, 2]), logit_rows=3)
"""A prefill, one that is short, and a decode, whose lengths do not matter besides."""


def _decodes(requests: int) -> Batch:
    """So many decodes whose lengths do not matter."""
    return Batch.decode(np.full(requests, 2, dtype=np.int64))
