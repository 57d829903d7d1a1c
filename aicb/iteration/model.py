"""Iteration model: compute time of one iteration of a serving instance.

An instance runs ``dp`` ranks in lockstep; each prices its own batch and every layer waits for the slowest. Groups of
operators depend on few integers (tokens, rows) and are priced once; only attention depends on the lengths.

    iteration = [max over ranks (token part + attention part) + routed experts + head] at the clock of the load + gaps

The sum is taken in C++ (``aicb.iteration.stage``); this module prices the groups that are not attention.

Assumes that all layers of one kind cost the same, so that a maximum per layer is the maximum of the sums; exact for
models with one kind of attention. Tensor-parallel ranks of one data-parallel rank do the same work. Routed experts are
priced for the slowest rank of the EP group (``aicb.experts.profile``). Collectives are returned with their counts, not
priced. Every kernel runs alone on its device unless ``Overlap`` asks for the shared expert's second stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

import aicb._core as _core
from aicb._core import OperatorGroup
from aicb.estimators.estimator import Estimator
from aicb.estimators.selection import select_estimator
from aicb.experts.load import ExpertLoad, UniformLoad
from aicb.experts.popularity import RankPopularity
from aicb.experts.profile import RankLoad, load_profile
from aicb.iteration.attention import AttentionPricing
from aicb.iteration.drafting_host import AGREED_PASSES, UNMEASURED, DraftingHost
from aicb.iteration.graph_sizes import GraphSizes, capture_sizes, most_captured
from aicb.iteration.host import GraphMode, HostModel
from aicb.iteration.launches import Launches, count_calls, count_launches
from aicb.iteration.layer_schedule import LayerParts, Piece, PricedPieces, divide, piece_of
from aicb.iteration.overlap import SHARED_EXPERT_OPERATORS, Overlap, StreamWork, bound_ps, side_by_side_ps
from aicb.iteration.pricing import PHASES, PS_PER_US, IterationCost, Pricing, price_lists
from aicb.iteration.sglang_host import HostEngine, host_of, launches_of
from aicb.iteration.speculative import Drafting, SpeculativeCost, first_inputs, later
from aicb.iteration.stage import EXPERTS, GroupKey, NameTable, StagePricer, stage_rules
from aicb.measurements.gpu import Gpu
from aicb.model.architecture import Model, MoeFfn, stage_range
from aicb.model.partition import MoeLayout, Partition
from aicb.model.precision import Precision
from aicb.operators.around_attention import rotated_by, writes_with_rotary
from aicb.operators.batch import Batch, RankBatches, are_divided
from aicb.operators.dense_kernel import DenseKernel, as_run, check_dense_kernel
from aicb.operators.dispatch import DEEPEP, ExpertDispatch
from aicb.operators.drafter import Drafter
from aicb.operators.experts_kernel import ExpertsKernel, check_experts_kernel, experts_kernel_of
from aicb.operators.gqa import GqaKernel, check_gqa_kernel
from aicb.operators.hybrid_kernels import HybridKernels, check_hybrid_kernels
from aicb.operators.lists import attention_operators, expert_operators, ffn_counts, head_operators, token_operators
from aicb.operators.mla import MlaKernel, RopeKernel, check_mla_kernel, check_rope_kernel
from aicb.operators.moe_kernels import MoeKernels, check_moe_kernels, moe_kernels_of
from aicb.operators.norm_kernel import NormKernel, check_norm_kernel, normalised_by
from aicb.operators.operator import Communication, Operator
from aicb.operators.quantisation import QuantKernel, check_quant_kernel
from boundary.errors import InputError

COUNTED_TOKENS = 1024
"""Of the prompt whose launches are counted; their number hardly follows its length."""

__all__ = ["PHASES", "IterationCost", "IterationModel", "capture_sizes", "select_estimator"]


class ExpertsInTime(Protocol):
    """Load of experts by tokens of the group, as it is at an instant (`LoadProfile`, `PlacedExperts`)."""

    def __call__(self, tokens: int, /) -> RankLoad:
        """Of the slowest rank."""
        ...

    def popularity(self, tokens: int, /) -> tuple[RankPopularity, ...] | None:
        """[ranks] ``None``: even."""
        ...


class IterationModel:
    """Prices the iterations of one instance.

    Args:
        model, partition, precision, gpu: the model, its division, its number formats, and the GPU it runs on.
        cuda_graphs: replay graphs and pad to captured sizes where vLLM does.
        graph_sizes: decodes in a batch for which there are graphs, ascending; by default those of vLLM.
        prompt_graph_sizes: tokens of a batch with prompts for which what lies between attentions is replayed; by
            default those of decodes.
        max_seqs, max_batched_tokens: requests and tokens per rank; they bound the captured sizes.
        queries: tokens of a decode in a step; more than one with speculative decoding (`Drafting.queries`).
        estimator: an estimator, or the name of one, see ``aicb.estimators.selection.select_estimator``.
        host: overheads of the engine's host side, as vLLM has them.
        host_engine: whose host it is (`aicb.iteration.sglang_host`).
        broadcast_us: what workers that schedule for themselves tell each other of requests (`HostModel.of_workers`);
            by default one scheduler hands over to all.
        expert_load: how tokens choose experts; the slowest rank of each layer is priced.
        seed: random seed of the samples of ``expert_load``.
        overlap: kernels that run at the same time as others; by default none.
        drafter: what drafts where a step is speculative; by default a multi-token-prediction layer.
        experts_kernel: what the engine runs for fp8 experts.
        moe_kernels: what it runs around the products of experts.
        mla_kernel: what it runs for decodes of latent attention over a bf16 cache.
        gqa_kernel: what it runs for decodes of grouped-query attention over a bf16 cache.
        quant_kernel: what quantises the inputs of its fp8 products.
        dense_kernel: what it runs for fp8 products outside experts.
        rope_kernel: what it runs for the rotary embedding of latent attention.
        hybrid_kernels: what it runs in models with gated delta rules besides products, attention and experts.
        norm_kernel: what it runs for norms after all-reduces of tensor-parallel ranks.
        drafting_host: what drafts take on its host besides launching their passes.
        dispatch: how it brings tokens of data-parallel ranks to experts that these share.

    Raises:
        InputError: no measurements of this GPU, no fp8 on it, the model cannot be divided this way, or the experts'
            kernel was not measured so.
    """

    def __init__(
        self,
        model: Model,
        partition: Partition,
        precision: Precision,
        gpu: Gpu,
        *,
        cuda_graphs: bool = True,
        graph_sizes: Sequence[int] | None = None,
        prompt_graph_sizes: Sequence[int] | None = None,
        max_seqs: int = 256,
        max_batched_tokens: int = 8192,
        queries: int = 1,
        estimator: str | Estimator = "auto",
        host: HostModel | None = None,
        host_engine: HostEngine = "vllm",
        broadcast_us: float | None = None,
        expert_load: ExpertLoad | None = None,
        seed: int = 0,
        overlap: Overlap | None = None,
        drafter: Drafter | None = None,
        experts_kernel: ExpertsKernel = "deep_gemm",
        moe_kernels: MoeKernels = "generic",
        mla_kernel: MlaKernel = "flash_mla",
        gqa_kernel: GqaKernel = "fa3",
        quant_kernel: QuantKernel = "triton",
        dense_kernel: DenseKernel = "deep_gemm",
        rope_kernel: RopeKernel = "in_place",
        hybrid_kernels: HybridKernels = "fused",
        norm_kernel: NormKernel = "apart",
        drafting_host: DraftingHost = UNMEASURED,
        dispatch: ExpertDispatch = DEEPEP,
    ):
        gpu.check(precision)
        model.check(precision)
        check_experts_kernel(experts_kernel, partition, precision)
        self.model, self.partition, self.precision, self.gpu = model, partition, precision, gpu
        check_mla_kernel(mla_kernel)
        check_gqa_kernel(gqa_kernel)
        check_quant_kernel(quant_kernel)
        check_dense_kernel(dense_kernel)
        check_rope_kernel(rope_kernel)
        check_hybrid_kernels(hybrid_kernels)
        check_norm_kernel(norm_kernel)
        check_moe_kernels(moe_kernels)
        self.experts_kernel = experts_kernel_of(experts_kernel, moe_kernels, precision.weights)
        self.rope_kernel, self.hybrid_kernels, self.norm_kernel = rope_kernel, hybrid_kernels, norm_kernel
        self.mla_kernel, self.gqa_kernel = mla_kernel, gqa_kernel
        self.quant_kernel, self.dense_kernel, self.dispatch = quant_kernel, dense_kernel, dispatch
        self.host, self.overlap = host_of(host_engine, host or HostModel()), overlap or Overlap()
        self._host_engine = host_engine
        apart = self._has_shared_expert_apart()
        self._moe_kernels = moe_kernels
        self.moe_kernels = moe_kernels_of(moe_kernels, model, partition, precision, is_apart=apart)
        self.expert_load, self._seed = expert_load or UniformLoad(), seed
        listed = capture_sizes(max_seqs, max_batched_tokens, queries, most_captured(model))
        if graph_sizes is not None:
            listed = [size * queries for size in graph_sizes]
        of_prompts = listed if prompt_graph_sizes is None else prompt_graph_sizes
        self._sizes = (
            GraphSizes(tuple(listed), tuple(of_prompts), host_engine != "sglang") if cuda_graphs else GraphSizes((), ())
        )
        self._graph_sizes, self._prompt_graph_sizes = graph_sizes, prompt_graph_sizes
        self._max_seqs, self._max_batched_tokens, self._queries = max_seqs, max_batched_tokens, queries
        self._drafter = drafter or Drafter.mtp(model, partition, precision)
        self._drafting_host = drafting_host
        self._estimator = select_estimator(estimator, gpu, precision) if isinstance(estimator, str) else estimator
        self._pricing = Pricing(self._estimator, gpu, precision)
        self._broadcast_us = broadcast_us
        self._shares_experts = partition.moe_layout is MoeLayout.EXPERT_DATA
        self._has_shared_expert = any(
            isinstance(kind.ffn, MoeFfn) and kind.ffn.shared_intermediate for kind in model.kinds
        )
        self._names = NameTable()
        self._stages: dict[int, StagePricer] = {}
        self._priced_pieces: dict[tuple[int, int], PricedPieces] = {}
        self._attention = AttentionPricing(
            model,
            partition,
            precision,
            self._pricing,
            mla_kernel,
            gqa_kernel,
            hybrid_kernels,
            self._as_run,
            max(self._sizes.decodes, default=0),
        )
        self._experts: ExpertsInTime | None = None

    def _has_shared_expert_apart(self) -> bool:
        return self.overlap.shared_expert_stream

    def with_experts(self, experts: ExpertsInTime) -> IterationModel:
        """The same model with a load of experts of its own, by tokens of the group, until `forget_experts`."""
        other = copy(self)
        other.__dict__.pop("_drafting_model", None)
        other._names, other._stages, other._experts = NameTable(), {}, experts
        return other

    def forget_experts(self) -> None:
        """The load of experts has changed: they are priced again when they are next met."""
        for stage in self._stages.values():
            stage.forget_experts()
        if "_drafting_model" in self.__dict__:
            self._drafting_model.forget_experts()

    def core_pricing(self, stage: int = 0) -> _core.IterationPricing | None:
        """Pricing of a stage for an event loop in C++; ``None`` where C++ cannot price its attention."""
        found = self._stage(stage)
        return found.pricing if found.knows_attention else None

    def price_missing(self, stage: int = 0) -> None:
        """Prices the groups that ``core_pricing(stage)`` lacked when it was last asked."""
        self._stage(stage).price_missing()

    def communications_of(self, number: int) -> tuple[tuple[Communication, int], ...]:
        """``IterationCost.communications`` for a number from C++."""
        return self._names.communications(number)

    def estimated_of(self, number: int) -> tuple[str, ...]:
        """``IterationCost.estimated_operators`` for a number from C++."""
        return self._names.estimated(number)

    @property
    def graph_sizes(self) -> GraphSizes:
        """Token counts for which CUDA graphs are replayed."""
        return self._sizes

    def _stage(self, stage: int) -> StagePricer:
        if stage not in self._stages:
            host = self._host_times(stage)
            rules = stage_rules(self._sizes, self._shares_experts, host, self.gpu)
            self._stages[stage] = StagePricer(
                rules, self._attention, lambda keys: self._groups(keys, stage), self._names, stage
            )
        return self._stages[stage]

    def _groups(self, keys: Sequence[GroupKey], stage: int) -> list[_core.PricedOperators]:
        """Groups of operators for C++, priced together."""
        lists = [self._group_operators(key, stage) for key in keys]
        priced = [self._names.in_core(each) for each in price_lists(lists, self._pricing)]
        places = [place for place, (kind, own, _) in enumerate(keys) if kind in EXPERTS and self._is_apart(own)]
        if not places:
            return priced
        seconds = [self._shared_expert_operators(keys[place][1], stage) for place in places]
        for place, second, found in zip(places, seconds, price_lists(seconds, self._pricing), strict=True):
            routed, shared = priced[place], self._names.in_core(found)
            both_ps = side_by_side_ps(
                StreamWork(routed.total_ps, bound_ps(lists[place], self.gpu)),
                StreamWork(shared.total_ps, bound_ps(second, self.gpu)),
                self.overlap.shared_expert_sm_share,
            )
            priced[place] = routed + shared.scaled_to(both_ps - routed.total_ps)
        return priced

    def _is_apart(self, tokens: int) -> bool:
        """Whether the shared expert of so many tokens of a rank runs on a stream of its own."""
        return self._has_shared_expert and self.overlap.has_second_stream(tokens)

    def _group_operators(self, key: GroupKey, stage: int) -> list[Operator]:
        """Operators of a group; without the shared expert where that runs on a stream of its own."""
        kind, first, second = key
        match kind:
            case OperatorGroup.TOKENS:
                hidden = SHARED_EXPERT_OPERATORS if self._is_apart(first) else frozenset[str]()
                return [each for each in self._token_operators(first, stage) if each.name not in hidden]
            case OperatorGroup.HEAD:
                return head_operators(self.model, self.partition, self.precision, rows=first, stage=stage)
            case OperatorGroup.MASKED_EXPERTS | OperatorGroup.CONTIGUOUS_EXPERTS:
                return self._expert_operators(first, second, stage, kind == OperatorGroup.MASKED_EXPERTS)
            case _:
                return self._attention.group_operators(key, stage)

    def price(self, batches: Sequence[Batch] | RankBatches, *, stage: int = 0, queries: int = 1) -> IterationCost:
        """Cost of one iteration of one pipeline stage among others like it (`IterationCost.in_sequence`).

        Args:
            batches: one per data-parallel rank; an empty batch is an idle rank, which runs a dummy batch.
            stage: pipeline stage.
            queries: tokens of each decode, more than 1 where drafts are verified; KV lengths include them all.

        Raises:
            InputError: the number of batches is not dp, or all are empty.
        """
        return self.price_device(batches, stage=stage, queries=queries).in_sequence()

    def price_device(
        self, batches: Sequence[Batch] | RankBatches, *, stage: int = 0, queries: int = 1
    ) -> IterationCost:
        """The same of the device alone; when the host had time for its part is up to who asks."""
        ranks = batches if isinstance(batches, RankBatches) else RankBatches.of(batches)
        return self._iteration(ranks, stage, queries, ranks.rows_with(queries))

    def _iteration(self, ranks: RankBatches, stage: int, queries: int, rows: int) -> IterationCost:
        """Cost of an iteration that computes logits of ``rows`` rows."""
        self._check(ranks)
        return self._stage(stage).price(ranks, rows=rows, queries=queries)[0]

    def price_run(
        self, batches: Sequence[Batch] | RankBatches, steps: int, *, stage: int = 0
    ) -> tuple[IterationCost, NDArray[np.int64]]:
        """Cost of the first of ``steps`` decode iterations with unchanged batches, and [steps] ``compute_ps`` of each.

        In step j every request attends to j more tokens. Equal to one ``price`` per step.

        Args:
            batches: decodes, one batch per data-parallel rank; KV lengths of the first step, the new token included.
            steps: iterations.
            stage: pipeline stage.

        Raises:
            InputError: the number of ranks is not dp, all are empty, or there are prefills.
        """
        cost, compute_ps = self.price_device_run(batches, steps, stage=stage)
        return cost.in_sequence(), np.maximum(compute_ps, cost.host_period_ps)

    def price_device_run(
        self, batches: Sequence[Batch] | RankBatches, steps: int, *, stage: int = 0
    ) -> tuple[IterationCost, NDArray[np.int64]]:
        """``price_run`` of the device alone."""
        ranks = batches if isinstance(batches, RankBatches) else RankBatches.of(batches)
        self._check(ranks)
        if not ranks.is_decode:
            raise InputError("batches: found prefills, expected decodes only")
        return self._stage(stage).price(ranks, rows=max(ranks.logit_rows, default=0), steps=steps)

    def decode_steps(
        self, kv_tokens: NDArray[np.int64] | Sequence[NDArray[np.int64]], steps: int, *, stage: int = 0
    ) -> NDArray[np.int64]:
        """[steps] ``compute_ps`` of ``price_run`` from ``kv_tokens`` [requests], for dp > 1 one array per rank."""
        ranks = [kv_tokens] if isinstance(kv_tokens, np.ndarray) else kv_tokens
        return self.price_run([Batch.decode(kv) for kv in ranks], steps, stage=stage)[1]

    def speculative(self, batches: Sequence[Batch], drafting: Drafting, *, stage: int = 0) -> SpeculativeCost:
        """Cost of one step of speculative decoding: verification, and on the last stage the passes that draft.

        Args:
            batches: decodes, one batch per data-parallel rank; KV lengths include the tokens to verify.
            drafting: drafts per step and their acceptance.
            stage: pipeline stage.

        Raises:
            InputError: as ``price``; a batch with prefills.
        """
        verification = self.price_device(batches, stage=stage, queries=drafting.queries)
        return SpeculativeCost(
            self.prepared_with_drafts(verification, batches),
            self.draft_passes(batches, drafting, stage=stage),
            drafting.expected_tokens,
        )

    def prepared_with_drafts(self, cost: IterationCost, batches: Sequence[Batch]) -> IterationCost:
        """An iteration whose decodes verify drafts, with what the host does for these before it."""
        most = max(int(batch.is_decode.sum()) for batch in batches)
        launches = self._drafting_host.preparing + self._drafting_host.request * most if most else 0.0
        return replace(cost, prepare_ps=cost.prepare_ps + self._launches_ps(launches))

    def _launches_ps(self, launches: float) -> int:
        """Outside graphs."""
        return round(launches * self.host_of_workers.eager_launch_us * PS_PER_US)

    def draft_passes(
        self, batches: Sequence[Batch], drafting: Drafting, *, stage: int = 0
    ) -> tuple[IterationCost, ...]:
        """Cost of each pass that drafts for the next step, on the device; none before the last stage, or of n-grams.

        What the host launches for a pass is hidden behind the passes before it, as far as those take longer.

        Args:
            batches: those of the step, one per data-parallel rank; KV lengths of decodes include the tokens to verify.
            drafting: drafts per step.
            stage: pipeline stage.
        """
        if stage != self.partition.pp - 1 or drafting.method == "ngram":
            return ()
        layer, extra = self._drafting_model, drafting.extra_inputs
        rows = max(len(batch.new_tokens) for batch in batches)
        inputs, queries = [first_inputs(batch, extra) for batch in batches], drafting.queries + extra
        passes = [layer._iteration(RankBatches.of(inputs), 0, queries, rows)]
        launches = [self._drafting_host.besides(layer._graph_mode(inputs, queries))]
        newest = [Batch.decode(batch.kv_tokens + extra + 1) for batch in batches] if drafting.drafts > 1 else []
        for draft in range(drafting.drafts - 1):
            passes.append(layer.price_device(later(newest, draft)))
            launches.append(self._drafting_host.further)
        besides_ps = [self._launches_ps(count) for count in launches]
        if self.partition.dp > 1 and self._is_in_lockstep():
            agreeing_ps = round(self.host.agreeing_us * PS_PER_US)
            agreed = besides_ps[:AGREED_PASSES]
            besides_ps[: len(agreed)] = [time_ps + agreeing_ps for time_ps in agreed]
        return tuple(
            replace(cost, launch_ps=cost.launch_ps + time_ps) for cost, time_ps in zip(passes, besides_ps, strict=True)
        )

    def _graph_mode(self, batches: Sequence[Batch], queries: int) -> GraphMode:
        """What is replayed of an iteration; ``batches``: one per rank."""
        has_prompts = not all(batch.is_decode.all() for batch in batches)
        most = max(batch.tokens_with(queries) for batch in batches)
        if not self._sizes.covers(most, has_prompts=has_prompts, is_divided=are_divided(batches)):
            return GraphMode.EAGER
        return GraphMode.PIECEWISE if has_prompts else GraphMode.FULL

    def layer_parts(self, cost: IterationCost, tokens: int, *, stage: int = 0) -> LayerParts:
        """Compute of an iteration, by its place between the collectives of layers with experts.

        Args:
            cost: what ``price_device`` gives.
            tokens: of the rank with the most, padded, drafts included.
            stage: pipeline stage.
        """
        layers = self.layers_with_experts(stage), len(stage_range(self.model, self.partition, stage))
        return divide(cost, self._pieces(tokens, stage), layers)

    def layers_with_experts(self, stage: int = 0) -> int:
        """Of a pipeline stage."""
        networks = ffn_counts(self.model, self.partition, stage)
        return sum(count for network, count in networks if isinstance(network, MoeFfn))

    def _pieces(self, tokens: int, stage: int) -> PricedPieces:
        """[pieces][phases] time of the operators that depend on tokens alone, at the reference clock."""
        if (tokens, stage) not in self._priced_pieces:
            listed = self._group_operators((OperatorGroup.TOKENS, tokens, 0), stage)
            pieces = [[each for each in listed if piece_of(each) is piece] for piece in Piece]
            priced = price_lists(pieces, self._pricing)
            by_phase = [dict(zip(PHASES, each.phase_ps, strict=True)) for each in priced]
            self._priced_pieces[tokens, stage] = dict(zip(Piece, by_phase, strict=True))
        return self._priced_pieces[tokens, stage]

    @cached_property
    def _drafting_model(self) -> _DraftingModel:
        """Its captured sizes are the model's."""
        made = _DraftingModel(
            self._drafter.model,
            self._drafter.partition,
            self._drafter.precision,
            self.gpu,
            cuda_graphs=bool(self._sizes.decodes),
            graph_sizes=self._graph_sizes,
            prompt_graph_sizes=self._prompt_graph_sizes,
            max_seqs=self._max_seqs,
            max_batched_tokens=self._max_batched_tokens,
            queries=self._queries,
            estimator=self._estimator,
            host=self.host.of_drafts(),
            broadcast_us=self._broadcast_us,
            expert_load=self.expert_load,
            seed=self._seed,
            overlap=self.overlap if self._drafter.is_layer else None,
            drafter=self._drafter,
            experts_kernel=self.experts_kernel,
            moe_kernels=self._moe_kernels,
            mla_kernel=self.mla_kernel,
            gqa_kernel=self.gqa_kernel,
            quant_kernel=self.quant_kernel,
            dense_kernel=self.dense_kernel,
            rope_kernel=self.rope_kernel,
            hybrid_kernels=self.hybrid_kernels,
            norm_kernel=self.norm_kernel,
            drafting_host=self._drafting_host,
            dispatch=self.dispatch,
        )
        made._sizes = replace(made._sizes, replays_divided=self._sizes.replays_divided)
        if self._drafter.is_layer:
            made._experts = self._experts
        return made

    def _check(self, ranks: RankBatches) -> None:
        if len(ranks.requests) != self.partition.dp:
            raise InputError(
                f"batches: found {len(ranks.requests)}, expected one per data-parallel rank (dp {self.partition.dp})"
            )
        if not any(ranks.requests):
            raise InputError("batches: all are empty, expected work on at least one rank")

    @cached_property
    def host_of_workers(self) -> HostModel:
        """The host where as many workers wait for one another as there are."""
        ranks = self.partition.dp if self._is_in_lockstep() else 1
        return self.host.of_workers(self.partition.tp, ranks, self._broadcast_us)

    def _is_in_lockstep(self) -> bool:
        """Whether data-parallel ranks wait for one another."""
        return self._shares_experts

    def host_work(self, batches: RankBatches, *, stage: int = 0) -> tuple[int, int, int]:
        """``prepare_ps``, ``launch_ps`` and ``hand_over_ps`` of an iteration (`IterationCost`)."""
        counts = np.array(batches.requests, dtype=np.int64)
        return self._stage(stage).pricing.host_work(batches.new_tokens, batches.kv_tokens, counts)

    def _host_times(self, stage: int) -> _core.HostTimes:
        """For C++."""
        host, launches = self.host_of_workers, self.launches(stage)

        def picoseconds(time_us: float) -> int:
            return round(time_us * PS_PER_US)

        return _core.HostTimes(
            step_ps=picoseconds(host.step_us),
            gaps_ps=picoseconds(host.gap_us * launches.eager),
            prepare_ps=picoseconds(host.prepare_us + host.eager_launch_us * launches.preparing),
            prompt_ps=picoseconds(host.prompt_us + host.eager_launch_us * launches.prompt_preparing),
            token_ps=picoseconds(host.prompt_token_us),
            request_ps=picoseconds(host.request_us),
            hand_over_ps=picoseconds(host.hand_over_us or 0.0),
            full_ps=picoseconds(self._launching_us(host, GraphMode.FULL, launches)),
            piecewise_ps=picoseconds(self._launching_us(host, GraphMode.PIECEWISE, launches)),
            eager_ps=picoseconds(self._launching_us(host, GraphMode.EAGER, launches)),
        )

    def _launching_us(self, host: HostModel, mode: GraphMode, launches: Launches) -> float:
        return host.launching_us(mode, launches)

    def launches(self, stage: int) -> Launches:
        """Of a prompt; a batch of decodes launches as much, but for latent attention."""
        layers = self.model.count_layers(stage_range(self.model, self.partition, stage))
        prompt = Batch.prefill([COUNTED_TOKENS])
        attention = attention_operators(
            self.model, self.partition, self.precision, prompt, stage=stage, hybrid_kernels=self.hybrid_kernels
        )
        experts = expert_operators(
            self.model,
            self.partition,
            self.precision,
            tokens=COUNTED_TOKENS,
            group_tokens=COUNTED_TOKENS * self.partition.dp,
            is_decode=False,
            stage=stage,
            experts_kernel=self.experts_kernel,
            moe_kernels=self.moe_kernels,
            dispatch=self.dispatch,
        )
        of_tokens = [each for each in self._token_operators(COUNTED_TOKENS, stage) if each.name != "embedding"]
        others = [*of_tokens, *experts]
        found = count_launches(sum(count for _, count in layers), attention, others)
        calls = count_calls(attention, others)
        return launches_of(self._host_engine, found, calls, writes_apart=not writes_with_rotary(self.model))

    def _token_operators(self, tokens: int, stage: int) -> list[Operator]:
        parallel = (self.model, self.partition, self.precision)
        listed = token_operators(
            *parallel, tokens=tokens, stage=stage, rope_kernel=self.rope_kernel, hybrid_kernels=self.hybrid_kernels
        )
        listed = rotated_by(self.rope_kernel, listed, self.model)
        return normalised_by(self.norm_kernel, self._as_run(listed), self.partition.tp)

    def _as_run(self, listed: Iterable[Operator]) -> list[Operator]:
        """Operators outside experts as the engine's kernels run them."""
        return as_run(listed, self.quant_kernel, self.dense_kernel, self.moe_kernels)

    def _shared_expert_operators(self, tokens: int, stage: int) -> list[Operator]:
        return [each for each in self._token_operators(tokens, stage) if each.name in SHARED_EXPERT_OPERATORS]

    def _expert_operators(self, tokens: int, group_tokens: int, stage: int, is_decode: bool) -> list[Operator]:
        """Routed experts of the slowest rank."""
        return expert_operators(
            self.model,
            self.partition,
            self.precision,
            tokens=tokens,
            group_tokens=group_tokens,
            is_decode=is_decode,
            stage=stage,
            load=self._rank_load,
            experts_kernel=self.experts_kernel,
            moe_kernels=self.moe_kernels,
            dispatch=self.dispatch,
            popularity=self._popularity,
        )

    def _rank_load(self, moe: MoeFfn, tokens: int) -> RankLoad:
        return self._experts_of(moe)(tokens)

    def _popularity(self, moe: MoeFfn, tokens: int) -> tuple[RankPopularity, ...] | None:
        return self._experts_of(moe).popularity(tokens)

    def _experts_of(self, moe: MoeFfn) -> ExpertsInTime:
        if self._experts is not None:
            return self._experts
        return load_profile(self.expert_load, (moe.experts, moe.experts_per_token), self.partition, self._seed)


class _DraftingModel(IterationModel):
    """The model of a drafter, whose iterations are the passes that draft."""

    def _token_operators(self, tokens: int, stage: int) -> list[Operator]:  # noqa: ARG002
        return normalised_by(self.norm_kernel, self._as_run(self._drafter.token_operators(tokens)), self.partition.tp)

    def _launching_us(self, host: HostModel, mode: GraphMode, launches: Launches) -> float:
        return super()._launching_us(host, self._drafting_host.mode(mode), launches.within_iteration())
