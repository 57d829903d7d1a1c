"""Price of one instance's iterations: compute from aicb, collectives from the fabric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from aicb import Batch, Communication, IterationCost, IterationModel
from vidur_pd.cluster import Placement
from vidur_pd.execution.communication import NO_COST, CollectiveCost, CommunicationPricer, Gpus


@dataclass(frozen=True, slots=True, eq=False)
class LinkLoad:
    """What the collectives of one iteration put on the links they touch."""

    links: NDArray[np.int64]
    """[touched links] rising."""
    link_bytes: NDArray[np.float64]
    """[touched links]"""
    link_flows: NDArray[np.float64]
    """[touched links] mean number of flows on each while there is one."""


Collectives = tuple[Communication, tuple[Gpus, ...], int]
"""What, among which groups of GPUs at the same time, how often."""


@dataclass(frozen=True, slots=True, eq=False)
class StagePrice:
    """One pipeline stage of one iteration on an idle fabric."""

    cost: IterationCost
    communication_ps: int
    load: LinkLoad
    collectives: tuple[Collectives, ...]


class Executor(Protocol):
    """Prices the iterations of one instance."""

    def price(self, batches: Sequence[Batch]) -> tuple[StagePrice, ...]: ...

    def decode_compute_ps(self, kv_tokens: Sequence[NDArray[np.int64]], steps: int) -> NDArray[np.int64]: ...


class InstanceExecutor:
    """Prices the iterations of one instance: ``batches`` are those of its data-parallel ranks, in lockstep."""

    def __init__(self, placement: Placement, model: IterationModel, pricer: CommunicationPricer) -> None:
        self._placement = placement
        self._model = model
        self._pricer = pricer
        self._communication: dict[tuple[int, tuple[tuple[Communication, int], ...]], tuple[int, LinkLoad]] = {}

    def price(self, batches: Sequence[Batch]) -> tuple[StagePrice, ...]:
        """One price per pipeline stage."""
        return tuple(self._stage(batches, stage) for stage in range(self._placement.partition.pp))

    def decode_compute_ps(self, kv_tokens: Sequence[NDArray[np.int64]], steps: int) -> NDArray[np.int64]:
        """[steps] compute time of consecutive decode iterations that start from ``kv_tokens`` of each rank."""
        return self._model.decode_steps(kv_tokens, steps)

    def _stage(self, batches: Sequence[Batch], stage: int) -> StagePrice:
        cost = self._model.price(batches, stage=stage)
        key = (stage, cost.communications)
        if key not in self._communication:
            self._communication[key] = self._communicate(*key)
        communication_ps, load = self._communication[key]
        collectives = tuple((what, self._groups(what.group, stage), count) for what, count in cost.communications)
        return StagePrice(cost, communication_ps, load, collectives)

    def _communicate(self, stage: int, communications: tuple[tuple[Communication, int], ...]) -> tuple[int, LinkLoad]:
        """Time of all collectives of a stage one after another, and the bytes they leave on links."""
        total_ps = 0
        parts: list[tuple[int, CollectiveCost]] = [(0, NO_COST)]
        for what, count in communications:
            costs = [self._pricer.cost(what, gpus) for gpus in self._groups(what.group, stage)]
            total_ps += count * max(cost.duration_ps for cost in costs)
            parts += [(count, cost) for cost in costs]
        links, place = np.unique(np.concatenate([cost.links for _, cost in parts]), return_inverse=True)
        part_bytes = np.concatenate([count * cost.link_bytes for count, cost in parts])
        link_bytes = np.bincount(place, weights=part_bytes, minlength=len(links)).astype(np.float64)
        flow_bytes = part_bytes * np.concatenate([cost.link_flows for _, cost in parts])
        link_flows = np.bincount(place, weights=flow_bytes, minlength=len(links)).astype(np.float64) / link_bytes
        return total_ps, LinkLoad(links, link_bytes, link_flows)

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
