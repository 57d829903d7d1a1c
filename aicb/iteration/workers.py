"""Cost of an iteration of attention workers and FFN workers: compute of each micro-batch in a layer, and exchanges.

The batches of all data-parallel ranks are cut into equally many micro-batches, each of which passes the layers in
lockstep, as whole batches do elsewhere (`aicb.iteration.model`): in every layer attention workers wait for the slowest
of them. Micro-batches of decodes are replayed from CUDA graphs, padded to captured sizes on every rank, and FFN workers
compute the padded rows as well.

Assumes, in addition to what `aicb.iteration.model` assumes: all attention layers take equally long, and embeddings
are looked up before the first one. Logits are computed once, after the last layer of all micro-batches. Each kind of
worker runs at the clock of its own load while it computes. FFN workers have hosts of their own, which work ahead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aicb.estimators.estimator import Estimator
from aicb.experts.load import ExpertLoad
from aicb.experts.profile import LoadProfile, load_profile
from aicb.iteration.launches import Launches, count_launches
from aicb.iteration.model import COUNTED_TOKENS, IterationModel
from aicb.iteration.overlap import cut_batch
from aicb.iteration.pricing import PHASES, PS_PER_US, IterationCost, PricedOperators, Pricing, price_operators
from aicb.measurements.gpu import Gpu
from aicb.model.architecture import Model, MoeFfn
from aicb.model.precision import Precision
from aicb.model.worker_split import WorkerSplit
from aicb.operators.batch import Batch, RankBatches, are_divided
from aicb.operators.dense_kernel import as_run
from aicb.operators.experts_kernel import check_experts_kernel
from aicb.operators.lists import attention_operators, ffn_counts, head_operators
from aicb.operators.operator import Communication, Operator, Phase
from aicb.operators.workers import attention_token_operators, exchange_operators, ffn_operators

LAYERS_KEPT = 65536
"""Prices of layers of FFN workers that are kept, the last made ones: batches with prompts have sizes of their own."""
HEAD = PHASES.index(Phase.HEAD)


class AttentionWorkerModel(IterationModel):
    """Iterations of attention workers, which compute all of a model but its feed-forward networks."""

    def __init__(self, split: WorkerSplit, model: Model, precision: Precision, gpu: Gpu, **options: Any) -> None:
        """The arguments of `IterationModel`; the partition is that of attention workers."""
        self._split = split
        super().__init__(model, split.attention, precision, gpu, **options)

    def _has_shared_expert_apart(self) -> bool:
        return True  # where the split has it

    def _is_in_lockstep(self) -> bool:
        return True  # all of them wait for the same FFN workers

    @property
    def estimator(self) -> Estimator:
        """Estimator of kernel times."""
        return self._estimator

    def launches(self, stage: int) -> Launches:
        """Launches of a prompt on an attention worker."""
        prompt = Batch.prefill([COUNTED_TOKENS])
        attention = attention_operators(
            self.model, self.partition, self.precision, prompt, stage=stage, hybrid_kernels=self.hybrid_kernels
        )
        others = [each for each in self._token_operators(COUNTED_TOKENS, stage) if each.name != "embedding"]
        return count_launches(len(self.model.layers), attention, others)

    def _token_operators(self, tokens: int, stage: int) -> list[Operator]:  # noqa: ARG002
        listed = attention_token_operators(
            self.model,
            self._split,
            self.precision,
            tokens=tokens,
            rope_kernel=self.rope_kernel,
            hybrid_kernels=self.hybrid_kernels,
        )
        return self._as_run(listed)

    def _expert_operators(self, *_: object, **__: object) -> list[Operator]:
        return []


@dataclass(frozen=True, slots=True)
class FfnLayer:
    """Cost of one layer of a micro-batch on FFN workers, with the exchanges before and after it."""

    compute_ps: int
    operators: PricedOperators
    """Operators with their times at the reference clock, without gaps between kernels."""
    there: Communication
    """Rows from attention workers to FFN workers."""
    back: Communication
    """Results from FFN workers to attention workers."""


@dataclass(frozen=True, slots=True)
class MicroBatchCost:
    """Cost of one micro-batch in all layers."""

    attention_ps: int
    """Compute of attention workers, all layers together."""
    embedding_ps: int
    """Compute before the first layer."""
    attention: IterationCost
    """Both of these, with operators and collectives."""
    layers: tuple[FfnLayer, ...]
    """[kinds of layers] cost of one layer on FFN workers."""


@dataclass(frozen=True, slots=True)
class SplitIterationCost:
    """Cost of an iteration on both kinds of workers; `aicb.iteration.ping_pong` makes a schedule of it."""

    micro_batches: tuple[MicroBatchCost, ...]
    head: PricedOperators
    """Operators behind the last layer, for the requests of all micro-batches."""
    head_ps: int
    host_ps: int
    """Kernels on attention workers that prepare inputs, before the first micro-batch."""
    prepare_ps: int
    """Host of an attention worker, as in `IterationCost`; so are ``launch_ps`` and ``hand_over_ps``."""
    launch_ps: int
    hand_over_ps: int

    @property
    def host_period_ps(self) -> int:
        """From one iteration to the next where the host takes longer than the device."""
        return self.prepare_ps + self.launch_ps - self.hand_over_ps

    @property
    def estimated_operators(self) -> tuple[str, ...]:
        """Names of operators priced by flagged estimates, sorted."""
        names = set(self.head.estimated)
        for each in self.micro_batches:
            names.update(each.attention.estimated_operators)
            names.update(*(layer.operators.estimated for layer in each.layers))
        return tuple(sorted(names))


class WorkersModel:
    """Prices the iterations of an instance of attention workers and FFN workers.

    Args:
        split: the division.
        attention: the attention workers' part, with the model, number formats and kernels.
        ffn_gpu, ffn_estimator: GPU of the FFN workers, and the times of its kernels.
        expert_load, seed: how tokens choose experts; the slowest FFN worker of each layer is priced.

    Raises:
        InputError: the model cannot be divided this way.
    """

    def __init__(
        self,
        split: WorkerSplit,
        attention: AttentionWorkerModel,
        ffn_gpu: Gpu,
        ffn_estimator: Estimator,
        expert_load: ExpertLoad,
        seed: int = 0,
    ) -> None:
        split.check(attention.model)
        ffn_gpu.check(attention.precision)
        check_experts_kernel(attention.experts_kernel, split.ffn, attention.precision)
        self.split, self.attention, self.ffn_gpu = split, attention, ffn_gpu
        self._host = attention.host_of_workers
        self._load, self._seed = expert_load, seed
        self._pricing = Pricing(attention.estimator, attention.gpu, attention.precision)
        self._ffn_pricing = Pricing(ffn_estimator, ffn_gpu, attention.precision)
        self.networks = tuple(network for network, _ in ffn_counts(attention.model, split.attention))
        """[kinds of layers] feed-forward network of each."""
        self.kind_of_layer = tuple(self.networks.index(layer.ffn) for layer in attention.model.layers)
        self._layers: dict[tuple[int, int, int, bool], FfnLayer] = {}
        self._heads: dict[int, PricedOperators] = {}

    def price(self, batches: Sequence[Batch] | RankBatches) -> SplitIterationCost:
        """Cost of one iteration on the device.

        Args:
            batches: one per data-parallel rank of attention workers; an empty batch is an idle rank.

        Raises:
            InputError: the number of batches is not dp, or all are empty.
        """
        ranks = batches.split() if isinstance(batches, RankBatches) else list(batches)
        made = tuple(self._micro_batch(each) for each in self._cut(ranks))
        head = self._head(max(batch.logit_rows for batch in ranks))
        prepare_ps, _, hand_over_ps = self.attention.host_work(RankBatches.of(ranks))
        sampled_again_us = self._host.sample_us * (len(made) - 1)
        return SplitIterationCost(
            micro_batches=made,
            head=head,
            head_ps=at_clock_ps(head, self.attention.gpu, is_decode=RankBatches.of(ranks).is_decode),
            host_ps=_picoseconds(self._host.step_us),
            prepare_ps=prepare_ps,
            launch_ps=sum(each.attention.launch_ps for each in made) - _picoseconds(sampled_again_us),
            hand_over_ps=hand_over_ps,
        )

    def _cut(self, ranks: Sequence[Batch]) -> list[list[Batch]]:
        """[micro-batches][ranks] parts of the batches; none is empty on all ranks."""
        divided = [cut_batch(batch, self.split.micro_batches) for batch in ranks]
        cut = [[parts[place] for parts in divided] for place in range(self.split.micro_batches)]
        return [batches for batches in cut if any(batch.tokens for batch in batches)] or [list(ranks)]

    def _micro_batch(self, ranks: Sequence[Batch]) -> MicroBatchCost:
        cost = self.attention.price_device(ranks)
        embedding_ps = cost.phase_ps[HEAD]
        is_decode = all(bool(batch.is_decode.all()) for batch in ranks)
        most, is_divided = max(batch.tokens for batch in ranks), are_divided(ranks)
        sizes = self.attention.graph_sizes
        sent = sizes.padded(most, has_prompts=not is_decode, is_divided=is_divided)
        group = sent * len(ranks)
        if not sizes.covers(most, has_prompts=not is_decode, is_divided=is_divided):  # idle ranks run one token
            group = sum(max(batch.tokens, 1) for batch in ranks)
        return MicroBatchCost(
            attention_ps=cost.compute_ps - embedding_ps - _picoseconds(self._host.step_us),
            embedding_ps=embedding_ps,
            attention=cost,
            layers=tuple(self._layer(kind, sent, group, is_decode) for kind in range(len(self.networks))),
        )

    def _layer(self, kind: int, sent: int, group: int, is_decode: bool) -> FfnLayer:
        """Cost of a layer of a kind; ``sent``: tokens of the rank with the most, ``group``: of all ranks."""
        key = (kind, sent, group, is_decode)
        if key not in self._layers:
            if len(self._layers) >= LAYERS_KEPT:
                del self._layers[next(iter(self._layers))]
            self._layers[key] = self._priced_layer(*key)
        return self._layers[key]

    def _priced_layer(self, kind: int, sent: int, group: int, is_decode: bool) -> FfnLayer:
        network = self.networks[kind]
        parallel = (network, self.attention.model, self.split, self.attention.precision)
        profile = self._profile(network) if isinstance(network, MoeFfn) else None
        distinct = group if self.split.ffn.ep > 1 else self.split.ffn_tokens(group)
        listed = ffn_operators(
            *parallel,
            group_tokens=group,
            is_decode=is_decode,
            load=None if profile is None else profile(distinct),
            experts_kernel=self.attention.experts_kernel,
            moe_kernels=self.attention.moe_kernels,
        )
        own = [each for each in listed if each.phase is not Phase.EXPERTS]
        routed = [each for each in listed if each.phase is Phase.EXPERTS]
        own = as_run(own, self.attention.quant_kernel, self.attention.dense_kernel, self.attention.moe_kernels)
        listed = [*own, *routed]
        priced = price_operators(listed, self._ffn_pricing)
        gaps_us = self._host.gap_us * count_launches(0, [], listed).eager
        popularity = None if profile is None else profile.popularity(distinct)
        there, back = exchange_operators(
            *parallel,
            tokens=sent,
            is_decode=is_decode,
            popularity=popularity,
            mean_share=round(group / (sent * self.split.attention.dp), 3),
        )
        compute_ps = at_clock_ps(priced, self.ffn_gpu, is_decode=is_decode) + _picoseconds(gaps_us)
        return FfnLayer(compute_ps, priced, there, back)

    def _profile(self, network: MoeFfn) -> LoadProfile:
        return load_profile(self._load, (network.experts, network.experts_per_token), self.split.ffn, self._seed)

    def _head(self, rows: int) -> PricedOperators:
        if rows not in self._heads:
            of = self.attention
            self._heads[rows] = price_operators(
                head_operators(of.model, of.partition, of.precision, rows=rows), self._pricing
            )
        return self._heads[rows]


def at_clock_ps(priced: PricedOperators, gpu: Gpu, *, is_decode: bool) -> int:
    """Time of operators that run back to back, at the clock of their load."""
    if gpu.clock is None or not priced.total_ps:
        return priced.total_ps
    slowdown = float(gpu.clock.of(is_decode=is_decode).slowdown(np.array(priced.tensor_ps / priced.total_ps)))
    return priced.total_ps + round(priced.clocked_ps * (slowdown - 1.0))


def _picoseconds(time_us: float) -> int:
    return round(time_us * PS_PER_US)
