"""Price of one instance's iterations: compute from aicb, collectives from the fabric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from aicb import Batch, Communication, IterationCost, IterationModel
from vidur_pd.cluster import Placement
from vidur_pd.execution.communication import CommunicationPricer, Gpus


@dataclass(frozen=True, slots=True, eq=False)
class LinkLoad:
    """Bytes that the collectives of one iteration put on each link they touch."""

    links: NDArray[np.int64]
    link_bytes: NDArray[np.float64]

    def times(self, count: int) -> LinkLoad:
        """The load of ``count`` equal iterations."""
        return self if count == 1 else LinkLoad(self.links, self.link_bytes * count)


NO_LOAD = LinkLoad(np.zeros(0, dtype=np.int64), np.zeros(0))


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
        loads: dict[int, float] = {}
        for what, count in communications:
            costs = [self._pricer.cost(what, gpus) for gpus in self._groups(what.group, stage)]
            total_ps += count * max(cost.duration_ps for cost in costs)
            for cost in costs:
                for link, size in zip(cost.links.tolist(), cost.link_bytes.tolist(), strict=True):
                    loads[link] = loads.get(link, 0.0) + count * size
        links = sorted(loads)
        return total_ps, LinkLoad(np.array(links, dtype=np.int64), np.array([loads[link] for link in links]))

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
