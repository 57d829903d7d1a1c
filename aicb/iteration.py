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
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from aicb.attention_pricing import AttentionPricing, priced_together, priced_tokens
from aicb.batch import Batch, RankBatches
from aicb.errors import InputError
from aicb.estimators import Estimator
from aicb.expert_load import ExpertLoad, UniformLoad
from aicb.gpu import Gpu
from aicb.host import GraphMode, HostModel
from aicb.layers.build import RankShape
from aicb.layers.mtp import draft_model, joining_operators
from aicb.load_profile import RankLoad, load_profile
from aicb.model import Model, MoeFfn, stage_range
from aicb.operator_list import expert_operators, head_operators, token_operators
from aicb.operators import Communication, Operator
from aicb.overlap import SHARED_EXPERT_OPERATORS, Overlap, bound_ps, side_by_side_ps
from aicb.parallelism import MoeLayout, Partition
from aicb.precision import Precision
from aicb.pricing import PHASES, PS_PER_US, IterationCost, Part, Pricing, price_lists, price_operators
from aicb.selection import select_estimator
from aicb.speculative import Drafting, SpeculativeCost, later

__all__ = ["PHASES", "IterationCost", "IterationModel", "capture_sizes", "select_estimator"]


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
        self._commons: dict[tuple[tuple[int, int, int, bool], int], Part] = {}
        self._launches: dict[tuple[GraphMode, int], int] = {}
        self._attention = AttentionPricing(model, partition, precision, self._pricing)

    def price(self, batches: Sequence[Batch] | RankBatches, *, stage: int = 0, queries: int = 1) -> IterationCost:
        """One iteration of one pipeline stage.

        Args:
            batches: one per data-parallel rank; an empty batch is an idle rank, which runs a dummy batch.
            stage: pipeline stage.
            queries: tokens of each decode, more than 1 where drafts are verified; KV lengths include them all.

        Raises:
            InputError: the number of batches is not dp, all are empty, or drafts are verified beside prefills.
        """
        ranks = batches if isinstance(batches, RankBatches) else RankBatches.of(batches)
        return self._iteration(ranks, stage, queries, max(ranks.logit_rows, default=0) * queries)

    def _iteration(self, ranks: RankBatches, stage: int, queries: int, rows: int) -> IterationCost:
        """An iteration that computes logits of ``rows`` rows."""
        if ranks.is_decode:
            return self._decodes(ranks, stage, queries, rows, 1)[0]
        if queries > 1:
            raise InputError(f"queries: found {queries} in a batch with prefills, expected decodes only")
        return self._mixed(ranks, stage, rows)

    def price_run(
        self, batches: Sequence[Batch] | RankBatches, steps: int, *, stage: int = 0
    ) -> tuple[IterationCost, NDArray[np.int64]]:
        """The first of consecutive decode iterations of unchanged batches, and [steps] ``compute_ps`` of each.

        In step j every request attends to j more tokens. Equal to one ``price`` per step.

        Args:
            batches: decodes, one batch per data-parallel rank; KV lengths of the first step, the new token included.
            steps: iterations.
            stage: pipeline stage.

        Raises:
            InputError: the number of ranks is not dp, or all are empty.
        """
        ranks = batches if isinstance(batches, RankBatches) else RankBatches.of(batches)
        return self._decodes(ranks, stage, 1, max(ranks.logit_rows, default=0), steps)

    def _decodes(
        self, ranks: RankBatches, stage: int, queries: int, rows: int, steps: int
    ) -> tuple[IterationCost, NDArray[np.int64]]:
        tokens = [requests * queries for requests in ranks.requests]
        self._check(tokens)
        mode, padded = self._pad(tokens, True)
        attention = self._attention.decodes(
            ranks.kv_tokens, ranks.requests, padded, queries=queries, steps=steps, stage=stage
        )
        own = {pad: self._token_part(pad, stage) for pad in set(padded)}
        token_ps = {pad: (part.total_ps, part.clocked_ps, part.tensor_ps) for pad, part in own.items()}
        loads_ps = attention.ps + np.array([token_ps[pad] for pad in padded]).T[:, :, None]
        slowest = loads_ps[0].argmax(axis=0)
        first, common = int(slowest[0]), self._common(padded, rows, True, stage)
        common_ps = np.array([[common.total_ps], [common.clocked_ps], [common.tensor_ps]])
        busy_ps, clocked_ps, tensor_ps = loads_ps[:, slowest, np.arange(steps)] + common_ps
        host = (self._exposed_ps(max(ranks.requests)), self._launch_ps(mode, stage))
        busy_ps = self._at_clock(busy_ps, clocked_ps, tensor_ps, host)
        whole = (own[padded[first]] + attention.part(first) + common).scaled_to(int(busy_ps[0]))
        cost = self._cost(whole, host, self._token_part(max(padded), stage).communications + common.communications)
        return cost, np.asarray(busy_ps + host[0] + np.maximum(host[1] - busy_ps, 0))

    def _mixed(self, ranks: RankBatches, stage: int, rows: int) -> IterationCost:
        """An iteration with prefills."""
        ends = np.concatenate([[0], np.cumsum(ranks.new_tokens)])[np.cumsum([0, *ranks.requests])]
        tokens = np.diff(ends).tolist()
        self._check(tokens)
        mode, padded = self._pad(tokens, False)
        own = [self._token_part(pad, stage) for pad in padded]
        attention_ps, attention_of = self._mixed_attention(ranks, stage)
        totals = [part.total_ps + more_ps for part, more_ps in zip(own, attention_ps, strict=True)]
        slowest, common = totals.index(max(totals)), self._common(padded, rows, False, stage)
        whole = own[slowest] + attention_of(slowest) + common
        host = (self._exposed_ps(max(ranks.requests)), self._launch_ps(mode, stage))
        whole = whole.scaled_to(int(self._at_clock(whole.total_ps, whole.clocked_ps, whole.tensor_ps, host)))
        return self._cost(whole, host, self._token_part(max(padded), stage).communications + common.communications)

    def _mixed_attention(self, ranks: RankBatches, stage: int) -> tuple[list[int], Callable[[int], Part]]:
        """[ranks] time [ps] of attention, and its part by rank."""
        if not self._attention.prices_together(stage):
            parts = [self._attention.whole(batch, stage) for batch in ranks.split()]
            return [part.total_ps for part in parts], parts.__getitem__
        is_decode = (ranks.new_tokens == 1) & (ranks.kv_tokens > 1)
        owner = np.repeat(np.arange(len(ranks.requests)), ranks.requests)
        counts = np.bincount(owner[is_decode], minlength=len(ranks.requests))
        decodes = self._attention.decodes(ranks.kv_tokens[is_decode], counts.tolist(), counts.tolist(), stage=stage)
        prefills = self._attention.prefills(
            ranks.new_tokens[~is_decode], ranks.kv_tokens[~is_decode], np.array(ranks.requests) - counts, stage
        )
        totals = (prefills.total_ps + decodes.ps[0, :, 0]).tolist()
        return totals, lambda rank: prefills.part(rank) + decodes.part(rank)

    def _cost(
        self, whole: Part, host: tuple[int, int], communications: tuple[tuple[Communication, int], ...]
    ) -> IterationCost:
        """``host`` is exposed and launching time [ps]."""
        host_ps = host[0] + max(host[1] - whole.total_ps, 0)
        return IterationCost(
            whole.total_ps + host_ps,
            host_ps,
            whole.phase_ps,
            communications,
            whole.estimated_ps,
            tuple(sorted(whole.estimated)),
        )

    def decode_steps(
        self, kv_tokens: NDArray[np.int64] | Sequence[NDArray[np.int64]], steps: int, *, stage: int = 0
    ) -> NDArray[np.int64]:
        """[steps] ``compute_ps`` of ``price_run`` from ``kv_tokens`` [requests], for dp > 1 one array per rank."""
        ranks = [kv_tokens] if isinstance(kv_tokens, np.ndarray) else kv_tokens
        return self.price_run([Batch.decode(kv) for kv in ranks], steps, stage=stage)[1]

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
            passes.append(layer._iteration(RankBatches.of(batches), 0, drafting.queries, rows))
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
        return GraphMode.EAGER, [priced_tokens(max(count, 1)) for count in tokens]

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

    def _exposed_ps(self, requests: int) -> int:
        return round(self.host.exposed_us(requests) * PS_PER_US)

    def _token_operators(self, tokens: int, stage: int) -> list[Operator]:
        return token_operators(self.model, self.partition, self.precision, tokens=tokens, stage=stage)

    def _token_part(self, tokens: int, stage: int) -> Part:
        """What depends on a rank's tokens alone; the shared expert only where it runs by itself."""
        key = (tokens, stage)
        if key not in self._tokens:
            counts = priced_together(tokens, self._sizes)
            hidden = SHARED_EXPERT_OPERATORS if self.overlap.shared_expert_stream else frozenset[str]()
            lists = [
                [operator for operator in self._token_operators(count, stage) if operator.name not in hidden]
                for count in counts
            ]
            keys = [(count, stage) for count in counts]
            self._tokens.update(zip(keys, price_lists(lists, self._pricing), strict=True))
        return self._tokens[key]

    def _common(self, padded: list[int], rows: int, is_decode: bool, stage: int) -> Part:
        """Routed experts and head."""
        experts = (max(padded), sum(padded) if self._shares_experts else max(padded), stage, is_decode)
        if (experts, rows) not in self._commons:
            if experts not in self._experts:
                self._experts[experts] = self._expert_part(*experts)
            if (rows, stage) not in self._heads:
                head = head_operators(self.model, self.partition, self.precision, rows=rows, stage=stage)
                self._heads[rows, stage] = self._price(head)
            self._commons[experts, rows] = self._experts[experts] + self._heads[rows, stage]
        return self._commons[experts, rows]

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

    def _price(self, operators: Sequence[Operator]) -> Part:
        return price_operators(operators, self._pricing)


class _DraftLayer(IterationModel):
    """A pass of the multi-token-prediction layer: a model of one layer that first joins two inputs."""

    def _token_operators(self, tokens: int, stage: int) -> list[Operator]:
        shape = RankShape(self.model.hidden, self.partition, self.precision, 1)
        joined = joining_operators(shape, tokens) if tokens else []
        return [*super()._token_operators(tokens, stage), *joined]
