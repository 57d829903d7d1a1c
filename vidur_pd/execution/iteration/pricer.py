"""Price of one instance's iterations: compute from aicb, collectives from the fabric."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aicb import (
    Batch,
    Communication,
    Exchange,
    HalfBatch,
    IterationCost,
    IterationModel,
    RankBatches,
    in_turn,
    layered_overlap,
)
from aicb._core import IterationPricing
from netsim.fabric import FabricState, Gpus
from vidur_pd._core import GroupBatch, Instance, Loop, RunningIteration, Stage
from vidur_pd.execution.communication.pricer import NO_COST, CollectiveCost, CommunicationPricer
from vidur_pd.execution.instances.placement import Placement
from vidur_pd.execution.iteration.passes import Drafting, Halves, price_with_drafts, verify_equally_many

BeforePricing = Callable[[int, int], None]
"""Called with the instant at which an iteration begins, and its tokens."""
Collectives = tuple[Communication, tuple[Gpus, ...], int]
"""What, among which groups of GPUs at the same time, how often."""


Among = tuple[Communication, tuple[Gpus, ...]]
"""What, among which groups of GPUs at the same time."""


@dataclass(frozen=True, slots=True)
class LayerCommunication:
    """Communication of one micro-batch in one layer, in the order in which it runs."""

    attention: tuple[Among, ...]
    """After attention workers have computed."""
    there: Among
    ffn: tuple[Among, ...]
    """After FFN workers have computed."""
    back: Among


@dataclass(frozen=True, slots=True)
class WorkerSchedule:
    """What an iteration of attention workers and FFN workers communicates, piece by piece (`aicb.iteration.ping_pong`).

    Equal where graphs of flows are.
    """

    kind_of_layer: tuple[int, ...]
    first: tuple[tuple[Among, ...], ...]
    """[micro-batches] before the first layer."""
    layers: tuple[tuple[LayerCommunication, ...], ...]
    """[kinds of layers][micro-batches]"""
    last: tuple[Among, ...]
    """After the last layer of all micro-batches."""


@dataclass(frozen=True, slots=True, eq=False)
class LinkLoad:
    """What the collectives of one iteration put on the links they touch."""

    links: NDArray[np.int64]
    """[touched links] rising."""
    link_bytes: NDArray[np.float64]
    """[touched links]"""
    link_flows: NDArray[np.float64]
    """[touched links] mean number of flows on each while there is one."""
    link_busy_ps: NDArray[np.float64]
    """[touched links] time for which there is one, on an idle fabric."""


@dataclass(frozen=True, slots=True, eq=False)
class StageCommunication:
    """The communication of one pipeline stage of an iteration."""

    communication_ps: int
    """All collectives one after another on an idle fabric."""
    load: LinkLoad
    collectives: tuple[Collectives, ...]
    schedule: WorkerSchedule | None = None
    """``None``: collectives run one after another."""


class StageCommunications:
    """The communication of stages by number; the core books their bytes on links."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._known: list[StageCommunication] = []

    def remember(self, stage_communication: StageCommunication) -> int:
        load = stage_communication.load
        number = self._loop.remember(load.links, load.link_bytes, load.link_flows, load.link_busy_ps)
        assert number == len(self._known), "loads are remembered here alone"
        self._known.append(stage_communication)
        return number

    def __getitem__(self, number: int) -> StageCommunication:
        return self._known[number]


class IterationPricer:
    """Prices the iterations of one instance: compute by ``aicb``, collectives by the fabric.

    What ``aicb`` can compile is priced in the core, which asks for what it lacks; the rest (drafts, two-batch overlap,
    kinds of attention that only Python knows) iteration by iteration here.
    """

    def __init__(
        self,
        placement: Placement,
        model: IterationModel,
        pricer: CommunicationPricer,
        *,
        drafting: Drafting | None = None,
        drafts_per_step: int = 0,
        halves: Halves | None = None,
        fast_forward: bool = True,
    ) -> None:
        """``drafting``: passes that draft follow. ``drafts_per_step``: of decodes that verify; 0: there are none, and
        the passes are those of a layer over prompts, for instances that get its KV. ``halves``: batches are halved
        where they are large enough.
        ``fast_forward``: runs of decode iterations are priced at once where that is exact.
        """
        self._placement = placement
        self._model = model
        self._pricer = pricer
        self._drafting = drafting
        self._drafts_per_step = drafts_per_step
        self._halves = halves
        self._fast_forward = fast_forward
        self._numbers: dict[tuple[FabricState, int, tuple[tuple[Communication, int], ...]], int] = {}
        self._estimated: set[str] = set()
        self._before_pricing: BeforePricing | None = None

    def join(
        self,
        loop: Loop,
        instance: Instance,
        stage_communications: StageCommunications,
        before_pricing: BeforePricing | None = None,
    ) -> None:
        """Takes part in a simulation as the pricer of an instance; ``before_pricing`` may change the model's prices."""
        self._before_pricing = before_pricing
        self._loop = loop
        self._instance = instance
        self._stage_communications = stage_communications

    @property
    def replayed_tokens(self) -> int:
        """Most tokens of a rank for which decodes are replayed from a CUDA graph."""
        return max(self._model.graph_sizes.decodes, default=0)

    @property
    def prices_runs(self) -> bool:
        """Halves hide less or more as attention grows, drafts change the batch, and prices may change: step by step."""
        return self._fast_forward and self._is_priced_by_core

    @property
    def _is_priced_by_core(self) -> bool:
        return self._drafting is None and self._halves is None and self._before_pricing is None

    def pricing(self) -> list[IterationPricing]:
        """[stages] what the core prices iterations with; empty where it cannot."""
        if not self._is_priced_by_core:
            return []
        stages = [self._model.core_pricing(stage) for stage in range(self._placement.partition.pp)]
        known = [pricing for pricing in stages if pricing is not None]
        return known if len(known) == len(stages) else []

    def price_missing(self) -> None:
        """Prices the operators that the core has asked for."""
        for stage in range(self._placement.partition.pp):
            self._model.price_missing(stage)

    def communicate(self, stage: int, number: int) -> None:
        """Sets what the list ``number`` of collectives takes."""
        load = self._number_of(stage, self._model.communications_of(number))
        communication_ps = self._stage_communications[load].communication_ps
        self._instance.set_communication(stage, number, communication_ps, load)

    def price(self, iteration: RunningIteration) -> None:
        """Prices the iteration that the loop has formed: a run of decodes, or one iteration."""
        batches = self._batches(iteration.batch)
        if self._before_pricing is not None:
            self._before_pricing(iteration.start_ps, int(batches.new_tokens.sum()))
        if iteration.is_run:
            cost, compute_ps = self._model.price_device_run(batches, iteration.steps)
            iteration.set_stages([self._priced(cost, 0)], compute_ps)
            return
        stages = [self._stage(iteration.batch, batches, stage) for stage in range(self._placement.partition.pp)]
        iteration.set_stages(stages, np.array([sum(stage.compute_ps for stage in stages)], dtype=np.int64))

    def price_next_host(self, batch: GroupBatch | None) -> None:
        """Gives the loop what the host does for the batch that is next; without one all running requests decode."""
        self._loop.set_next_host(self._stage(batch, self._batches(batch), 0))

    def _batches(self, batch: GroupBatch | None) -> RankBatches:
        """Without their drafts."""
        new_tokens, kv_tokens, requests, logit_rows = self._loop.batches()
        if batch is not None and batch.most_drafts:
            new_tokens = new_tokens - batch.drafts()
        return RankBatches(new_tokens, kv_tokens, requests, logit_rows)

    def _stage(self, batch: GroupBatch | None, batches: RankBatches, stage: int) -> Stage:
        """Price of one iteration on a pipeline stage; ``batches``: those of ``batch`` without drafts."""
        queries = self._queries(batch, batches)
        if self._halves is not None and queries:
            halved = self._halves.of(batches.split(), self._model.graph_sizes, queries)
            if halved is not None:
                return self._two_batches(halved, batches.split(), queries, stage)
        drafting = self._drafting
        if batch is not None and drafting is not None and (batch.most_drafts or drafting.covers_prompts):
            drafts = batch.drafts() if self._drafts_per_step else None
            cost = price_with_drafts(self._model, drafting, batches.split(), drafts, stage)
            return self._priced(cost, stage)
        return self._priced(self._model.price_device(batches, stage=stage), stage)

    def alone_ps(self, batch: Batch) -> int:
        """What an iteration takes on an idle fabric in which only one data-parallel rank has something to do."""
        return self.idle_ps([batch, *[Batch.empty()] * (self._placement.partition.dp - 1)])

    def idle_ps(self, batches: Sequence[Batch]) -> int:
        """What an iteration takes on an idle fabric, one like it before and after; ``batches``: one per rank."""
        total_ps = 0
        for stage in range(self._placement.partition.pp):
            cost = self._model.price(batches, stage=stage)
            total_ps += cost.compute_ps + self._communicate(stage, cost.communications)[0]
        return total_ps

    def estimated_operators(self) -> set[str]:
        """Operators priced by flagged estimates at least once."""
        met = (self._model.estimated_of(number) for number in self._instance.estimates_met())
        return self._estimated.union(*met)

    def _priced(
        self,
        cost: IterationCost,
        stage: int,
        not_overlapped_ps: float = 0.0,
        overlapped: Sequence[tuple[float, float, float]] = (),
    ) -> Stage:
        """``not_overlapped_ps``, ``overlapped``: of two batches (`TwoBatchOverlap`), the former less all compute."""
        self._estimated.update(cost.estimated_operators)
        number = self._number_of(stage, cost.communications)
        return Stage(
            compute_ps=cost.compute_ps,
            communication_ps=self._stage_communications[number].communication_ps,
            load=number,
            host_ps=cost.host_ps,
            phase_ps=cost.phase_ps,
            estimated_ps=cost.estimated_ps,
            not_overlapped_ps=not_overlapped_ps,
            overlapped=list(overlapped),
            prepare_ps=cost.prepare_ps,
            launch_ps=cost.launch_ps,
            hand_over_ps=cost.hand_over_ps,
        )

    def _queries(self, batch: GroupBatch | None, batches: RankBatches) -> int:
        """Tokens of each decode of an iteration; 0 where they differ, as not all verify drafts."""
        if batch is None or not batch.most_drafts:
            return 1
        assert self._drafting is not None, "drafts come from a drafter"
        is_equal = verify_equally_many(self._drafting, batches.split(), batch.drafts())
        return self._drafting.queries if is_equal else 0

    def _two_batches(
        self, halved: tuple[Sequence[Batch], Sequence[Batch]], whole: list[Batch], queries: int, stage: int
    ) -> Stage:
        """Two half batches that hide communication behind each other's compute; what drafts runs over the whole."""
        assert self._halves is not None
        first, second = (self._model.price_device(half, stage=stage, queries=queries) for half in halved)
        is_decode = all(batch.is_decode.all() for batch in whole)
        overlap = layered_overlap(
            (self._half(first, halved[0], queries, stage), self._half(second, halved[1], queries, stage)),
            self._model.layers_with_experts(stage),
            self._halves.decode_schedule if is_decode else "whole",
            host_ps=max(first.host_ps, second.host_ps),
            communication_sm_share=self._halves.communication_sm_share,
            communication_busy_share=self._halves.communication_busy_share if is_decode else 0.0,
        )
        both = in_turn((first, second), host_ps=max(first.host_ps, second.host_ps))
        others_ps = sum(self._exchanges(stage, cost)[1] for cost in (first, second))
        not_overlapped_ps = overlap.not_overlapped_ps - both.compute_ps
        overlapped = [*overlap.overlapped, *([(0.0, float(others_ps), 1.0)] if others_ps else [])]
        if self._drafting is None:
            return self._priced(both, stage, not_overlapped_ps, overlapped)
        if queries > 1:
            both = self._model.prepared_with_drafts(both, whole)
        passes = self._model.draft_passes(whole, self._drafting, stage=stage)
        exposed = [(0.0, float(self._communication(stage, cost).communication_ps), 1.0) for cost in passes]
        whole_step = in_turn((both, *passes), host_ps=sum(cost.host_ps for cost in (both, *passes)))
        return self._priced(whole_step, stage, not_overlapped_ps, [*overlapped, *exposed])

    def _half(self, cost: IterationCost, half: Sequence[Batch], queries: int, stage: int) -> HalfBatch:
        has_prompts = not all(batch.is_decode.all() for batch in half)
        tokens = self._model.graph_sizes.padded(max(batch.tokens for batch in half) * queries, has_prompts=has_prompts)
        return HalfBatch(self._model.layer_parts(cost, tokens, stage=stage), self._exchanges(stage, cost)[0])

    def _exchanges(self, stage: int, cost: IterationCost) -> tuple[Exchange, int]:
        """Dispatch and combine, which take turns among the collectives of the group of experts, and all other ones."""
        of_experts = [each for each in cost.communications if each[0].group == "ep"]
        others = tuple(each for each in cost.communications if each[0].group != "ep")
        times_ps = [self._communication_ps(stage, part) for part in (tuple(of_experts[::2]), tuple(of_experts[1::2]))]
        return Exchange(*map(float, times_ps)), self._communication_ps(stage, others)

    def _communication_ps(self, stage: int, communications: tuple[tuple[Communication, int], ...]) -> int:
        return self._stage_communications[self._number_of(stage, communications)].communication_ps

    def _communication(self, stage: int, cost: IterationCost) -> StageCommunication:
        return self._stage_communications[self._number_of(stage, cost.communications)]

    def _number_of(self, stage: int, communications: tuple[tuple[Communication, int], ...]) -> int:
        """Number of the communication of a stage on the fabric as it is."""
        key = (self._pricer.state_among(self._placement.all_gpus), stage, communications)
        if key not in self._numbers:
            groups = tuple((what, self._groups(what.group, stage), count) for what, count in communications)
            stage_communication = StageCommunication(*self._communicate(stage, communications), groups)
            self._numbers[key] = self._stage_communications.remember(stage_communication)
        return self._numbers[key]

    def _communicate(self, stage: int, communications: tuple[tuple[Communication, int], ...]) -> tuple[int, LinkLoad]:
        """Time of all collectives of a stage one after another, and the bytes they leave on links."""
        total_ps = 0
        parts: list[tuple[int, int, CollectiveCost]] = [(0, 0, NO_COST)]
        for turn, (what, count) in enumerate(communications):
            costs = [self._cost(what, gpus) for gpus in self._groups(what.group, stage)]
            total_ps += count * max(cost.duration_ps for cost in costs)
            parts += [(turn, count, cost) for cost in costs]
        links, place = np.unique(np.concatenate([cost.links for *_, cost in parts]), return_inverse=True)
        part_bytes = np.concatenate([count * cost.link_bytes for _, count, cost in parts])
        link_bytes = np.bincount(place, weights=part_bytes, minlength=len(links)).astype(np.float64)
        flow_bytes = part_bytes * np.concatenate([cost.link_flows for *_, cost in parts])
        link_flows = np.bincount(place, weights=flow_bytes, minlength=len(links)).astype(np.float64) / link_bytes
        turns = np.concatenate([np.full(len(cost.links), turn) for turn, _, cost in parts])
        busy_ps = np.zeros((len(communications) + 1, len(links)))  # groups of one turn are there at the same time
        np.maximum.at(busy_ps, (turns, place), np.concatenate([count * cost.link_busy_ps for _, count, cost in parts]))
        return total_ps, LinkLoad(links, link_bytes, link_flows, busy_ps.sum(axis=0))

    def _cost(self, what: Communication, gpus: Gpus) -> CollectiveCost:
        return self._pricer.cost(what, gpus)

    def _groups(self, group: str, stage: int) -> tuple[Gpus, ...]:
        """GPU groups that run a collective at the same time."""
        place, partition = self._placement, self._placement.partition
        match group:
            case "tp":
                return tuple(place.tensor_group(stage, rank) for rank in range(partition.dp))
            case "ep":
                return (place.stage_gpus(stage),)
            case "pp":
                following = place.stage_gpus((stage + 1) % partition.pp)
                return tuple(zip(place.stage_gpus(stage), following, strict=True))
            case _:
                raise AssertionError(f"unknown group {group!r}")
