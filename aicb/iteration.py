"""Compute time of one iteration of a serving instance.

An instance runs ``dp`` ranks in lockstep; each prices its own batch and every layer waits for the slowest. The parts of
an iteration depend on few integers (tokens, rows) and are priced once; only attention depends on the lengths.

    iteration = [max over ranks (token part + attention part) + routed experts + head] at the clock of the load + host

Assumes that all layers of one kind cost the same, so that a maximum per layer is the maximum of the sums; exact for
models with one kind of attention. Tensor-parallel ranks of one data-parallel rank do the same work. Routed experts are
priced for the slowest rank of the EP group (``aicb.load_profile``). Collectives are returned with their counts, not
priced. Every kernel runs alone on its device unless ``Overlap`` asks for the shared expert's second stream.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from aicb.batch import Batch, RankBatches
from aicb.clock import STREAMED_SHARE
from aicb.errors import InputError
from aicb.estimators import DecodeTimes, Estimator
from aicb.estimators.roofline import demand
from aicb.expert_load import ExpertLoad, UniformLoad
from aicb.gpu import Gpu
from aicb.host import GraphMode, HostModel
from aicb.layers.build import RankShape
from aicb.layers.mtp import draft_model, joining_operators
from aicb.load_profile import RankLoad, load_profile
from aicb.model import Model, MoeFfn, stage_range
from aicb.operator_list import attention_operators, expert_operators, head_operators, token_operators
from aicb.operators import DecodeAttention, MlaDecode, Operator, Phase
from aicb.overlap import SHARED_EXPERT_OPERATORS, Overlap, bound_ps, side_by_side_ps
from aicb.parallelism import MoeLayout, Partition
from aicb.precision import Precision
from aicb.pricing import NOTHING, PHASES, PS_PER_US, IterationCost, Part, Pricing, price_operators
from aicb.selection import select_estimator
from aicb.speculative import Drafting, SpeculativeCost, later

__all__ = ["PHASES", "IterationCost", "IterationModel", "capture_sizes", "select_estimator"]


@dataclass(frozen=True, slots=True)
class _DecodePart:
    """Attention part of a decode-only batch of one size: a fixed part and what depends on the KV lengths."""

    fixed: Part
    kernels: tuple[_DecodeKernel, ...]


@dataclass(frozen=True, slots=True)
class _DecodeKernel:
    """One kernel that reads the KV cache, per execution a function of the KV lengths."""

    name: str
    count: int
    time_us: DecodeTimes
    memory_us: float
    """Per KV token: reading it at the bandwidth of large streams."""
    tensor_us: float
    """Per KV token: its FLOPs at the nominal peak of the tensor cores."""

    def load(self, kv_tokens: NDArray[np.int64]) -> tuple[int, int, int, bool]:
        """(total, clocked and tensor time [ps] of all executions, whether it is an estimate) of one step.

        The same numbers as ``loads`` of one step without its arrays: ranks are priced one by one, often.
        """
        times_us, is_estimate = self.time_us(kv_tokens, 1)
        time_us, tokens = float(times_us[0]), int(kv_tokens.sum())
        by_memory = min(tokens * self.memory_us / time_us, 1.0)
        loads_us = (time_us, time_us * (1.0 - by_memory * by_memory), tokens * self.tensor_us)
        total, clocked, tensor = (round(self.count * load * PS_PER_US) for load in loads_us)
        return total, clocked, tensor, is_estimate

    def loads(self, kv_tokens: NDArray[np.int64], steps: int) -> NDArray[np.int64]:
        """[3, steps] total, clocked and tensor time [ps] of all executions."""
        time_us, _ = self.time_us(kv_tokens, steps)
        tokens = kv_tokens.sum() + len(kv_tokens) * np.arange(steps)
        by_memory = np.minimum(tokens * self.memory_us / time_us, 1.0)
        loads_us = np.array((time_us, time_us * (1.0 - by_memory * by_memory), tokens * self.tensor_us))
        return _to_ps(self.count * loads_us)


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

    def __call__(self, kv_tokens: NDArray[np.int64], steps: int) -> tuple[NDArray[np.float64], bool]:
        time_us, is_estimate = self.several(kv_tokens, steps)
        return np.maximum(time_us, self.one(kv_tokens, steps)[0]), is_estimate


def capture_sizes(max_seqs: int, max_batched_tokens: int = 8192) -> list[int]:
    """Token counts for which vLLM 0.24 captures CUDA graphs: 1, 2, 4, 8…248 by 8, 256…min(512, 2·max_seqs) by 16."""
    largest = min(512, 2 * max_seqs, max_batched_tokens)
    return [size for size in (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)) if size <= largest]


class IterationModel:
    """Prices the iterations of one instance.

    Args:
        model, partition, precision, gpu: what runs where.
        cuda_graphs: replay graphs and pad to captured sizes where vLLM does.
        max_seqs: requests per rank; bounds the captured sizes.
        estimator: one, or its name, see ``aicb.selection.select_estimator``.
        host: overheads of the engine's host side.
        expert_load: how tokens choose experts; the slowest rank of each layer is priced.
        seed: of the samples of ``expert_load``.
        overlap: what runs beside other work; by default nothing.

    Raises:
        InputError: no measurements of this GPU, no fp8 on it, or the model cannot be divided this way.
    """

    def __init__(
        self,
        model: Model,
        partition: Partition,
        precision: Precision,
        gpu: Gpu,
        *,
        cuda_graphs: bool = True,
        max_seqs: int = 256,
        estimator: str | Estimator = "auto",
        host: HostModel | None = None,
        expert_load: ExpertLoad | None = None,
        seed: int = 0,
        overlap: Overlap | None = None,
    ):
        gpu.check(precision)
        self.model, self.partition, self.precision, self.gpu = model, partition, precision, gpu
        self.host, self.overlap = host or HostModel(), overlap or Overlap()
        self.expert_load, self._seed = expert_load or UniformLoad(), seed
        self._sizes = capture_sizes(max_seqs) if cuda_graphs else []
        self._max_seqs = max_seqs
        self._estimator = select_estimator(estimator, gpu, precision) if isinstance(estimator, str) else estimator
        self._pricing = Pricing(self._estimator, gpu, precision)
        self._shares_experts = partition.moe_layout is MoeLayout.EXPERT_DATA
        self._tokens: dict[tuple[int, int], Part] = {}
        self._experts: dict[tuple[int, int, int, bool], Part] = {}
        self._heads: dict[tuple[int, int], Part] = {}
        self._launches: dict[tuple[GraphMode, int], int] = {}
        self._decodes: dict[tuple[int, int, int, int], _DecodePart] = {}

    def price(self, batches: Sequence[Batch] | RankBatches, *, stage: int = 0, queries: int = 1) -> IterationCost:
        """One iteration of one pipeline stage.

        Args:
            batches: one per data-parallel rank; an empty batch is an idle rank, which runs a dummy batch.
            stage: pipeline stage.
            queries: tokens of each decode, more than 1 where drafts are verified; KV lengths include them all.

        Raises:
            InputError: the number of batches is not dp, all are empty, or drafts are verified beside prefills.
        """
        if isinstance(batches, RankBatches):
            batches = batches.split()
        rows = max(batch.logit_rows for batch in batches) * queries if batches else 0
        return self._iteration(batches, stage, queries, rows)

    def _iteration(self, batches: Sequence[Batch], stage: int, queries: int, rows: int) -> IterationCost:
        """An iteration that computes logits of ``rows`` rows."""
        is_decode = all(bool(batch.is_decode.all()) for batch in batches)
        if queries > 1 and not is_decode:
            raise InputError(f"queries: found {queries} in a batch with prefills, expected decodes only")
        tokens = [batch.tokens * queries for batch in batches]
        self._check(tokens)
        mode, padded = self._pad(tokens, is_decode)
        if is_decode:
            attentions = [
                self._decode_attention(batch.kv_tokens, (pad, queries), stage)
                for batch, pad in zip(batches, padded, strict=True)
            ]
        else:
            attentions = [
                self._price(attention_operators(self.model, self.partition, self.precision, batch, stage=stage))
                for batch in batches
            ]
        token_parts = [self._token_part(pad, stage) for pad in padded]
        totals = [own.total_ps + part.total_ps for own, part in zip(token_parts, attentions, strict=True)]
        slowest = totals.index(max(totals))
        common = self._common(padded, rows, is_decode, stage)
        whole = token_parts[slowest] + attentions[slowest] + common
        host = (self._exposed_ps(max(len(batch.new_tokens) for batch in batches)), self._launch_ps(mode, stage))
        whole = whole.scaled_to(int(self._at_clock(whole.total_ps, whole.clocked_ps, whole.tensor_ps, host)))
        host_ps = host[0] + max(host[1] - whole.total_ps, 0)
        return IterationCost(
            whole.total_ps + host_ps,
            host_ps,
            whole.phase_ps,
            self._token_part(max(padded), stage).communications + common.communications,
            whole.estimated_ps,
            tuple(sorted(whole.estimated)),
        )

    def price_run(self, batches: RankBatches, steps: int, *, stage: int = 0) -> tuple[IterationCost, NDArray[np.int64]]:
        split = batches.split()
        return self.price(split, stage=stage), self.decode_steps([b.kv_tokens for b in split], steps, stage=stage)

    def decode_steps(
        self, kv_tokens: NDArray[np.int64] | Sequence[NDArray[np.int64]], steps: int, *, stage: int = 0
    ) -> NDArray[np.int64]:
        """[steps] ``compute_ps`` of consecutive decode iterations of unchanged batches.

        In step j every request attends to j more tokens. Equal to one ``price`` per step.

        Args:
            kv_tokens: [requests] KV lengths of the first step, the new token included; for dp > 1 one array per rank.
            steps: iterations.
            stage: pipeline stage.

        Raises:
            InputError: the number of ranks is not dp, or all are empty.
        """
        ranks = [kv_tokens] if isinstance(kv_tokens, np.ndarray) else list(kv_tokens)
        requests = [len(kv) for kv in ranks]
        self._check(requests)
        mode, padded = self._pad(requests, True)
        slowest = np.zeros((3, steps), dtype=np.int64)
        for kv, pad in zip(ranks, padded, strict=True):
            rank = np.repeat(_loads(self._token_part(pad, stage)), steps, axis=1)
            if len(kv):
                attention = self._decode_part(len(kv), (pad, 1), stage)
                rank += _loads(attention.fixed)
                for kernel in attention.kernels:
                    rank += kernel.loads(kv, steps)
            slowest = np.where(rank[0] > slowest[0], rank, slowest)
        busy_ps, clocked_ps, tensor_ps = slowest + _loads(self._common(padded, max(requests), True, stage))
        host = (self._exposed_ps(max(requests)), self._launch_ps(mode, stage))
        busy_ps = self._at_clock(busy_ps, clocked_ps, tensor_ps, host)
        return np.asarray(busy_ps + host[0] + np.maximum(host[1] - busy_ps, 0))

    def speculative(self, batches: Sequence[Batch], drafting: Drafting, *, stage: int = 0) -> SpeculativeCost:
        """One step of speculative decoding: verification, and on the last stage the passes of the draft layer.

        Args:
            batches: decodes, one batch per data-parallel rank; KV lengths include the tokens to verify.
            drafting: drafts per step and their acceptance.
            stage: pipeline stage.

        Raises:
            InputError: as ``price``; a batch with prefills.
        """
        verification = self.price(batches, stage=stage, queries=drafting.queries)
        passes: list[IterationCost] = []
        if stage == self.partition.pp - 1:
            rows, layer = max(batch.logit_rows for batch in batches), self._draft_layer
            passes.append(layer._iteration(batches, 0, drafting.queries, rows))
            passes += [layer.price(later(batches, draft)) for draft in range(1, drafting.drafts)]
        return SpeculativeCost(verification, tuple(passes), drafting.expected_tokens)

    @cached_property
    def _draft_layer(self) -> _DraftLayer:
        return _DraftLayer(
            draft_model(self.model),
            replace(self.partition, pp=1),
            self.precision,
            self.gpu,
            cuda_graphs=bool(self._sizes),
            max_seqs=self._max_seqs,
            estimator=self._estimator,
            host=replace(self.host, step_us=0.0, request_us=0.0),
            expert_load=self.expert_load,
            seed=self._seed,
            overlap=self.overlap,
        )

    def _check(self, tokens: Sequence[int]) -> None:
        if len(tokens) != self.partition.dp:
            raise InputError(
                f"batches: found {len(tokens)}, expected one per data-parallel rank (dp {self.partition.dp})"
            )
        if not any(tokens):
            raise InputError("batches: all are empty, expected work on at least one rank")

    def _pad(self, tokens: Sequence[int], is_decode: bool) -> tuple[GraphMode, list[int]]:
        """Graph mode of the group and the tokens each rank computes."""
        largest = max(tokens)
        if self._sizes and largest <= self._sizes[-1]:
            size = self._sizes[bisect_left(self._sizes, largest)]
            return (GraphMode.FULL if is_decode else GraphMode.PIECEWISE), [size] * len(tokens)
        return GraphMode.EAGER, [_priced_tokens(max(count, 1)) for count in tokens]

    def _launch_ps(self, mode: GraphMode, stage: int) -> int:
        if (mode, stage) not in self._launches:
            layers = self.model.count_layers(stage_range(self.model, self.partition, stage))
            experts = sum(count for layer, count in layers if isinstance(layer.ffn, MoeFfn))
            launching_us = self.host.launching_us(mode, sum(count for _, count in layers), experts)
            self._launches[mode, stage] = round(launching_us * PS_PER_US)
        return self._launches[mode, stage]

    def _at_clock(
        self,
        busy_ps: NDArray[np.int64] | int,
        clocked_ps: NDArray[np.int64] | int,
        tensor_ps: NDArray[np.int64] | int,
        host: tuple[int, int],
    ) -> NDArray[np.int64]:
        """[iterations] busy time at the clock that the load allows; ``host`` is exposed and launching time [ps]."""
        if self.gpu.clock is None:
            return np.asarray(busy_ps)
        step_ps = host[0] + np.maximum(busy_ps, host[1])
        stretch = self.gpu.clock.stretch(np.asarray(tensor_ps / step_ps))
        return np.asarray(busy_ps + np.rint(clocked_ps * (stretch - 1.0)).astype(np.int64))

    def _decode_kernel(
        self, operator: Operator, work: DecodeAttention | MlaDecode, times: DecodeTimes
    ) -> _DecodeKernel:
        """FLOPs and bytes are taken in proportion to the KV tokens, also of kernels that score or choose among them."""
        one = demand(replace(work, kv_tokens=np.array([_SAMPLE_TOKENS])), self.precision)
        memory_us = one.moved_bytes / (STREAMED_SHARE * self.gpu.hbm_bytes_per_s) * 1e6 / _SAMPLE_TOKENS
        tensor_us = one.flops / self.gpu.peak_flops[one.dtype] * 1e6 / _SAMPLE_TOKENS
        return _DecodeKernel(operator.name, operator.count, times, memory_us, tensor_us)

    def _exposed_ps(self, requests: int) -> int:
        return round(self.host.exposed_us(requests) * PS_PER_US)

    def _token_operators(self, tokens: int, stage: int) -> list[Operator]:
        return token_operators(self.model, self.partition, self.precision, tokens=tokens, stage=stage)

    def _token_part(self, tokens: int, stage: int) -> Part:
        """What depends on a rank's tokens alone; the shared expert only where it runs by itself."""
        key = (tokens, stage)
        if key not in self._tokens:
            listed = self._token_operators(tokens, stage)
            if self.overlap.shared_expert_stream:
                listed = [operator for operator in listed if operator.name not in SHARED_EXPERT_OPERATORS]
            self._tokens[key] = self._price(listed)
        return self._tokens[key]

    def _common(self, padded: list[int], rows: int, is_decode: bool, stage: int) -> Part:
        """Routed experts and head."""
        experts = (max(padded), sum(padded) if self._shares_experts else max(padded), stage, is_decode)
        if experts not in self._experts:
            self._experts[experts] = self._expert_part(*experts)
        if (rows, stage) not in self._heads:
            head = head_operators(self.model, self.partition, self.precision, rows=rows, stage=stage)
            self._heads[rows, stage] = self._price(head)
        return self._experts[experts] + self._heads[rows, stage]

    def _expert_part(self, tokens: int, group_tokens: int, stage: int, is_decode: bool) -> Part:
        """Routed experts of the slowest rank, and the shared expert where it runs beside them."""
        listed = expert_operators(
            self.model,
            self.partition,
            self.precision,
            tokens=tokens,
            group_tokens=group_tokens,
            is_decode=is_decode,
            stage=stage,
            load=self._rank_load,
        )
        routed = self._price(listed)
        if not self.overlap.shared_expert_stream:
            return routed
        second = [
            operator for operator in self._token_operators(tokens, stage) if operator.name in SHARED_EXPERT_OPERATORS
        ]
        shared = self._price(second)
        both_ps = side_by_side_ps(
            routed.total_ps,
            shared.total_ps,
            self.overlap.shared_expert_sm_share,
            bound_ps([*listed, *second], self.gpu),
        )
        return routed + shared.scaled_to(both_ps - routed.total_ps)

    def _rank_load(self, moe: MoeFfn, tokens: int) -> RankLoad:
        profile = load_profile(self.expert_load, (moe.experts, moe.experts_per_token), self.partition, self._seed)
        return profile(tokens)

    def _decode_part(self, requests: int, padded: tuple[int, int], stage: int) -> _DecodePart:
        """Attention of ``requests`` decodes; kernels that do not read the KV cache run on the padded batch.

        ``padded`` is the tokens of the padded batch and the queries per request. Several queries of a request read
        its KV once, as more query heads would (FlashMLA and packed GQA treat them alike).
        """
        key = (requests, *padded, stage)
        if key not in self._decodes:
            tokens, queries = padded
            batch = Batch.decode(np.full(tokens, 2, dtype=np.int64))
            listed = attention_operators(self.model, self.partition, self.precision, batch, stage=stage)
            kernels, fixed = [], []
            for operator in listed:
                if isinstance(operator.work, DecodeAttention | MlaDecode):
                    work = replace(operator.work, heads=operator.work.heads * queries)
                    times = self._estimator.decode_times(work, requests)
                    if queries > 1:
                        times = _Slower(self._estimator.decode_times(operator.work, requests), times)
                    kernels.append(self._decode_kernel(operator, work, times))
                else:
                    fixed.append(operator)
            self._decodes[key] = _DecodePart(self._price(fixed), tuple(kernels))
        return self._decodes[key]

    def _decode_attention(self, kv_tokens: NDArray[np.int64], padded: tuple[int, int], stage: int) -> Part:
        """Attention part of a decode-only batch; an idle rank's dummy batch has no KV to read."""
        if len(kv_tokens) == 0:
            return NOTHING
        part = self._decode_part(len(kv_tokens), padded, stage)
        total_ps = clocked_ps = tensor_ps = estimated_ps = 0
        estimated = []
        for kernel in part.kernels:
            time_ps, clocked, tensor, is_estimate = kernel.load(kv_tokens)
            total_ps, clocked_ps, tensor_ps = total_ps + time_ps, clocked_ps + clocked, tensor_ps + tensor
            if is_estimate:
                estimated_ps += time_ps
                estimated.append(kernel.name)
        phases = tuple(total_ps if phase is Phase.ATTENTION else 0 for phase in PHASES)
        return part.fixed + Part(phases, total_ps, estimated_ps, frozenset(estimated), (), clocked_ps, tensor_ps)

    def _price(self, operators: Sequence[Operator]) -> Part:
        return price_operators(operators, self._pricing)


class _DraftLayer(IterationModel):
    """A pass of the multi-token-prediction layer: a model of one layer that first joins two inputs."""

    def _token_operators(self, tokens: int, stage: int) -> list[Operator]:
        shape = RankShape(self.model.hidden, self.partition, self.precision, 1)
        joined = joining_operators(shape, tokens) if tokens else []
        return [*super()._token_operators(tokens, stage), *joined]


_SAMPLE_TOKENS = 1024
"""KV length at which the FLOPs and bytes per KV token of a decode kernel are taken."""


def _loads(part: Part) -> NDArray[np.int64]:
    """[3, 1] total, clocked and tensor time [ps]."""
    return np.array([[part.total_ps], [part.clocked_ps], [part.tensor_ps]])


def _to_ps(time_us: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.rint(time_us * PS_PER_US).astype(np.int64)


def _priced_tokens(tokens: int) -> int:
    """The nearest of 128 counts per octave, at most 0.4 % away: chunks of prompts have thousands of different lengths,
    and each would be priced anew."""
    step = 1 << max(0, tokens.bit_length() - 8)
    return (tokens + step // 2) // step * step
