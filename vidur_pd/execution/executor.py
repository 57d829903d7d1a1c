"""Price of one instance's iterations: compute from aicb, collectives from the fabric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from aicb import Batch, Communication, IterationCost, IterationModel, RankBatches
from vidur_pd.cluster import Placement
from vidur_pd.execution.communication import NO_COST, CollectiveCost, CommunicationPricer, Gpus
from vidur_pd.execution.passes import Drafting, Halves, TwoBatches, halve_all, in_turn, price_with_drafts, slowed


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


Collectives = tuple[Communication, tuple[Gpus, ...], int]
"""What, among which groups of GPUs at the same time, how often."""


Communicated = tuple[int, LinkLoad, tuple[Collectives, ...]]
"""``StagePrice.communication_ps``, ``load`` and ``collectives``."""


@dataclass(frozen=True, slots=True, eq=False)
class StagePrice:
    """One pipeline stage of one iteration on an idle fabric."""

    cost: IterationCost
    communication_ps: int
    """All collectives one after another."""
    load: LinkLoad
    collectives: tuple[Collectives, ...]
    halves: TwoBatches | None = None
    """Two half batches that hide communication behind each other's compute."""

    def exposed_ps(self, stretch: float) -> int:
        """Time beyond ``cost.compute_ps`` when communication takes ``stretch`` times as long as on an idle fabric."""
        if self.halves is not None:
            return self.halves.lasting_ps(stretch) - self.cost.compute_ps
        return round(self.communication_ps * stretch)


class Executor(Protocol):
    """Prices the iterations of one instance."""

    pace: float
    """Compute takes so many times as long as it was priced: 1 unless a GPU is slow."""

    @property
    def prices_runs(self) -> bool:
        """Whether ``price_run`` describes a run of decode iterations."""
        ...

    def price(self, batches: RankBatches, drafts: int = 0) -> tuple[StagePrice, ...]: ...

    def price_run(self, batches: RankBatches, steps: int) -> tuple[StagePrice, NDArray[np.int64]]: ...


class InstanceExecutor:
    """Prices the iterations of one instance: ``batches`` are those of its data-parallel ranks, in lockstep."""

    def __init__(
        self,
        placement: Placement,
        model: IterationModel,
        pricer: CommunicationPricer,
        *,
        drafting: Drafting | None = None,
        halves: Halves | None = None,
        fast_forward: bool = True,
    ) -> None:
        """``drafting``: decodes verify drafts. ``halves``: batches are halved where both halves have work.
        ``fast_forward``: runs of decode iterations are priced at once where that is exact.
        """
        self._placement = placement
        self._model = model
        self._pricer = pricer
        self._drafting = drafting
        self._halves = halves
        self._fast_forward = fast_forward
        self.pace = 1.0
        self._communication: dict[tuple[int, tuple[tuple[Communication, int], ...]], Communicated] = {}

    @property
    def prices_runs(self) -> bool:
        """Halves hide less or more as attention grows, and drafts change the batch: both are priced step by step."""
        return self._fast_forward and self._drafting is None and self._halves is None

    def price(self, batches: RankBatches, drafts: int = 0) -> tuple[StagePrice, ...]:
        """One price per pipeline stage; ``drafts`` is the most drafted tokens that a decode verifies."""
        halved = halve_all(batches.split()) if self._halves is not None else None
        stages = range(self._placement.partition.pp)
        if halved is not None and not drafts:
            return tuple(self._two_batches(halved, stage) for stage in stages)
        return tuple(self._stage(batches, stage, drafts) for stage in stages)

    def price_run(self, batches: RankBatches, steps: int) -> tuple[StagePrice, NDArray[np.int64]]:
        """The first of consecutive decode iterations, and [steps] compute time of each; without pipeline stages."""
        cost, compute_ps = self._model.price_run(batches, steps)
        if self.pace != 1.0:
            compute_ps = np.rint(compute_ps * self.pace).astype(np.int64)
        return self._priced(cost, 0), compute_ps

    def _stage(self, batches: RankBatches, stage: int, drafts: int) -> StagePrice:
        if drafts and self._drafting is not None:
            cost = price_with_drafts(self._model, self._drafting, batches.split(), stage)
        else:
            cost = self._model.price(batches, stage=stage)
        return self._priced(cost, stage)

    def _priced(self, cost: IterationCost, stage: int) -> StagePrice:
        return StagePrice(slowed(cost, self.pace), *self._communicated(stage, cost.communications))

    def _two_batches(self, halved: tuple[Sequence[Batch], Sequence[Batch]], stage: int) -> StagePrice:
        assert self._halves is not None
        costs = (
            slowed(self._model.price(halved[0], stage=stage), self.pace),
            slowed(self._model.price(halved[1], stage=stage), self.pace),
        )
        whole = in_turn(costs, host_ps=max(cost.host_ps for cost in costs))
        first_ps, second_ps = (self._communicated(stage, cost.communications)[0] for cost in costs)
        turns = TwoBatches(costs, (first_ps, second_ps), self._halves.communication_sm_share)
        return StagePrice(whole, *self._communicated(stage, whole.communications), turns)

    def _communicated(self, stage: int, communications: tuple[tuple[Communication, int], ...]) -> Communicated:
        """Time on an idle fabric, loads of links, and what runs among which GPUs."""
        key = (stage, communications)
        if key not in self._communication:
            groups = tuple((what, self._groups(what.group, stage), count) for what, count in communications)
            self._communication[key] = (*self._communicate(stage, communications), groups)
        return self._communication[key]

    def _communicate(self, stage: int, communications: tuple[tuple[Communication, int], ...]) -> tuple[int, LinkLoad]:
        """Time of all collectives of a stage one after another, and the bytes they leave on links."""
        total_ps = 0
        parts: list[tuple[int, int, CollectiveCost]] = [(0, 0, NO_COST)]
        for turn, (what, count) in enumerate(communications):
            costs = [self._pricer.cost(what, gpus) for gpus in self._groups(what.group, stage)]
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
