"""Compute time of one iteration of a serving instance.

An instance runs ``dp`` ranks in lockstep; each prices its own batch and every layer waits for the slowest. The parts of
an iteration depend on few integers (tokens, rows) and are priced once; only attention depends on the lengths.

    iteration = max over ranks (token part + attention part) + routed experts + head + host

Assumes that all layers of one kind cost the same, so that a maximum per layer is the maximum of the sums; exact for
models with one kind of attention. Tensor-parallel ranks of one data-parallel rank do the same work. Collectives are
returned with their counts, not priced. No overlap: every kernel runs alone on its device.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aicb.batch import Batch
from aicb.errors import InputError
from aicb.estimators import DecodeTimes, make_estimator
from aicb.gpu import Gpu
from aicb.host import GraphMode, HostModel
from aicb.model import Model, stage_range
from aicb.operator_list import attention_operators, expert_operators, head_operators, token_operators
from aicb.operators import Communication, DecodeAttention, Elementwise, MlaDecode, Operator, Phase
from aicb.parallelism import MoeLayout, Partition
from aicb.precision import Precision

PHASES = tuple(Phase)
"""Order of ``IterationCost.phase_ps``."""

PS_PER_US = 1_000_000

FUSED_OPERATORS = frozenset({"k_norm", "rope"})
"""Run inside the kernel of the operator before them (q_norm): vLLM compiles head norms and RoPE into one kernel, so
they add their bytes but no launch."""


@dataclass(frozen=True, slots=True)
class IterationCost:
    """Time of one iteration without its communication."""

    compute_ps: int
    """All phases and the exposed host time."""
    host_ps: int
    phase_ps: tuple[int, ...]
    """By ``PHASES``, of the slowest rank; communication is 0."""
    communications: tuple[tuple[Communication, int], ...]
    """Collectives and how often each runs, with the sizes of the rank with the most tokens."""
    estimated_ps: int
    """Part of ``compute_ps`` that rests on flagged estimates."""
    estimated_operators: tuple[str, ...]
    """Their names, sorted."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Priced operators that depend on the same integers."""

    phase_ps: tuple[int, ...]
    total_ps: int
    estimated_ps: int
    estimated: frozenset[str]
    communications: tuple[tuple[Communication, int], ...]
    kernels: int

    def __add__(self, other: _Part) -> _Part:
        return _Part(
            tuple(a + b for a, b in zip(self.phase_ps, other.phase_ps, strict=True)),
            self.total_ps + other.total_ps,
            self.estimated_ps + other.estimated_ps,
            self.estimated | other.estimated,
            self.communications + other.communications,
            self.kernels + other.kernels,
        )


_NOTHING = _Part((0,) * len(PHASES), 0, 0, frozenset(), (), 0)


@dataclass(frozen=True, slots=True)
class _DecodePart:
    """Attention part of a decode-only batch of one size: a fixed part and functions of the KV lengths."""

    fixed: _Part
    functions: tuple[tuple[str, int, DecodeTimes], ...]
    """(name, count, time)"""


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
        estimator: ``"interpolation"`` (measured tables) or ``"roofline"``.
        host: overheads of the engine's host side.

    Raises:
        InputError: no measurements of this GPU, or the model cannot be divided this way.
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
        estimator: str = "interpolation",
        host: HostModel | None = None,
    ):
        gpu.check(precision)
        self.model, self.partition, self.precision, self.gpu = model, partition, precision, gpu
        self.host = host or HostModel()
        self._sizes = capture_sizes(max_seqs) if cuda_graphs else []
        self._estimator = make_estimator(estimator, gpu, precision)
        self._elementwise_floor_us = self._estimator.price(Elementwise("add", 1, 1, 0)).time_us
        self._shares_experts = partition.moe_layout is MoeLayout.EXPERT_DATA
        self._tokens: dict[tuple[int, int], _Part] = {}
        self._experts: dict[tuple[int, int, int, bool], _Part] = {}
        self._heads: dict[tuple[int, int], _Part] = {}
        self._decodes: dict[tuple[int, int, int], _DecodePart] = {}

    def price(self, batches: Sequence[Batch], *, stage: int = 0) -> IterationCost:
        """One iteration of one pipeline stage.

        Args:
            batches: one per data-parallel rank; an empty batch is an idle rank, which runs a dummy batch.
            stage: pipeline stage.

        Raises:
            InputError: the number of batches is not dp, or all are empty.
        """
        tokens = [batch.tokens for batch in batches]
        self._check(tokens)
        is_decode = all(bool(batch.is_decode.all()) for batch in batches)
        mode, padded = self._pad(tokens, is_decode)
        if is_decode:
            attentions = [
                self._decode_attention(batch.kv_tokens, pad, stage) for batch, pad in zip(batches, padded, strict=True)
            ]
        else:
            attentions = [
                self._price(attention_operators(self.model, self.partition, self.precision, batch, stage=stage))
                for batch in batches
            ]
        ranks = [self._token_part(pad, stage) + part for pad, part in zip(padded, attentions, strict=True)]
        slowest = max(range(len(ranks)), key=lambda rank: ranks[rank].total_ps)
        common = self._common(padded, max(batch.logit_rows for batch in batches), is_decode, stage)
        whole = ranks[slowest] + common
        requests = max(len(batch.new_tokens) for batch in batches)
        launch_ps = self._launch_ps(mode, whole.kernels, attentions[slowest].kernels, stage)
        host_ps = self._exposed_ps(requests) + max(launch_ps - whole.total_ps, 0)
        return IterationCost(
            whole.total_ps + host_ps,
            host_ps,
            whole.phase_ps,
            self._token_part(max(padded), stage).communications + common.communications,
            whole.estimated_ps,
            tuple(sorted(whole.estimated)),
        )

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
        part_ps = np.zeros(steps, dtype=np.int64)
        kernels = 0
        for kv, pad in zip(ranks, padded, strict=True):
            token_part = self._token_part(pad, stage)
            rank_ps = np.full(steps, token_part.total_ps, dtype=np.int64)
            kernels = token_part.kernels
            if len(kv):
                attention = self._decode_part(len(kv), pad, stage)
                kernels += attention.fixed.kernels + sum(count for _, count, _ in attention.functions)
                rank_ps += attention.fixed.total_ps
                for _, count, function in attention.functions:
                    rank_ps += _to_ps(count * function(kv, steps)[0])
            np.maximum(part_ps, rank_ps, out=part_ps)
        common = self._common(padded, max(requests), True, stage)
        busy_ps = part_ps + common.total_ps
        launch_ps = self._launch_ps(mode, kernels + common.kernels, 0, stage)
        return busy_ps + self._exposed_ps(max(requests)) + np.maximum(launch_ps - busy_ps, 0)

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
        return GraphMode.EAGER, [max(count, 1) for count in tokens]

    def _launch_ps(self, mode: GraphMode, kernels: int, attention_kernels: int, stage: int) -> int:
        layers = len(stage_range(self.model, self.partition, stage))
        return round(self.host.launching_us(mode, kernels, attention_kernels, layers) * PS_PER_US)

    def _exposed_ps(self, requests: int) -> int:
        return round(self.host.exposed_us(requests) * PS_PER_US)

    def _token_part(self, tokens: int, stage: int) -> _Part:
        key = (tokens, stage)
        if key not in self._tokens:
            listed = token_operators(self.model, self.partition, self.precision, tokens=tokens, stage=stage)
            self._tokens[key] = self._price(listed)
        return self._tokens[key]

    def _common(self, padded: list[int], rows: int, is_decode: bool, stage: int) -> _Part:
        """Routed experts and head."""
        experts = (max(padded), sum(padded) if self._shares_experts else max(padded), stage, is_decode)
        if experts not in self._experts:
            listed = expert_operators(
                self.model,
                self.partition,
                self.precision,
                tokens=experts[0],
                group_tokens=experts[1],
                is_decode=is_decode,
                stage=stage,
            )
            self._experts[experts] = self._price(listed)
        if (rows, stage) not in self._heads:
            head = head_operators(self.model, self.partition, self.precision, rows=rows, stage=stage)
            self._heads[rows, stage] = self._price(head)
        return self._experts[experts] + self._heads[rows, stage]

    def _decode_part(self, requests: int, padded: int, stage: int) -> _DecodePart:
        """Attention of ``requests`` decodes; kernels that do not read the KV cache run on the padded batch."""
        key = (requests, padded, stage)
        if key not in self._decodes:
            batch = Batch.decode(np.full(padded, 2, dtype=np.int64))
            listed = attention_operators(self.model, self.partition, self.precision, batch, stage=stage)
            functions = tuple(
                (operator.name, operator.count, self._estimator.decode_times(operator.work, requests))
                for operator in listed
                if isinstance(operator.work, DecodeAttention | MlaDecode)
            )
            fixed = [operator for operator in listed if not isinstance(operator.work, DecodeAttention | MlaDecode)]
            self._decodes[key] = _DecodePart(self._price(fixed), functions)
        return self._decodes[key]

    def _decode_attention(self, kv_tokens: NDArray[np.int64], padded: int, stage: int) -> _Part:
        """Attention part of a decode-only batch; an idle rank's dummy batch has no KV to read."""
        if len(kv_tokens) == 0:
            return _NOTHING
        part = self._decode_part(len(kv_tokens), padded, stage)
        total_ps = estimated_ps = kernels = 0
        estimated = []
        for name, count, function in part.functions:
            time_us, is_estimate = function(kv_tokens, 1)
            time_ps = int(_to_ps(count * time_us)[0])
            total_ps, kernels = total_ps + time_ps, kernels + count
            if is_estimate:
                estimated_ps += time_ps
                estimated.append(name)
        phases = tuple(total_ps if phase is Phase.ATTENTION else 0 for phase in PHASES)
        return part.fixed + _Part(phases, total_ps, estimated_ps, frozenset(estimated), (), kernels)

    def _price(self, operators: Sequence[Operator]) -> _Part:
        phase_ps = dict.fromkeys(PHASES, 0)
        estimated_ps = kernels = 0
        estimated, communications = set(), []
        has_fused_norm = any(operator.name == "q_norm" for operator in operators)
        for operator in operators:
            if isinstance(operator.work, Communication):
                communications.append((operator.work, operator.count))
                continue
            time_us, is_estimate, _ = self._estimator.price(operator.work)
            if has_fused_norm and operator.name in FUSED_OPERATORS:
                time_us -= self._elementwise_floor_us
            else:
                kernels += operator.count
            time_ps = round(time_us * operator.count * PS_PER_US)
            phase_ps[operator.phase] += time_ps
            if is_estimate:
                estimated_ps += time_ps
                estimated.add(operator.name)
        total_ps = sum(phase_ps.values())
        phases = tuple(phase_ps[phase] for phase in PHASES)
        return _Part(phases, total_ps, estimated_ps, frozenset(estimated), tuple(communications), kernels)


def _to_ps(time_us: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.rint(time_us * PS_PER_US).astype(np.int64)
