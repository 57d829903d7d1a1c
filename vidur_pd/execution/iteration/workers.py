"""Price of an iteration of attention workers and FFN workers: compute by `aicb`, exchanges on the fabric, a schedule.

``compute_ps`` of an iteration is the length of its schedule where communication takes no time; what communication adds
to that is exposed. The two kinds of workers overlap, so that their own compute, which is logged apart, adds up to more.
The schedule's length under load is exact where all communication is slowed down by one factor (coupling ``fluid``);
coupling ``exact`` runs the schedule itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from aicb import Batch, Communication, RankBatches
from aicb.iteration.ping_pong import PingPong, PingPongTime
from aicb.iteration.pricing import PHASES
from aicb.iteration.workers import HEAD, FfnLayer, MicroBatchCost, SplitIterationCost, WorkersModel
from netsim.fabric import FabricState, Gpus
from vidur_pd._core import GroupBatch, Stage
from vidur_pd.execution.communication.pricer import CollectiveCost, CommunicationPricer
from vidur_pd.execution.instances.placement import Placement
from vidur_pd.execution.iteration.pricer import (
    Among,
    IterationPricer,
    LayerCommunication,
    StageCommunication,
    WorkerSchedule,
)

Listed = tuple[tuple[Communication, int], ...]


class WorkerIterationPricer(IterationPricer):
    """Pricer of the iterations of one instance with FFN workers, which prices each of them by itself."""

    def __init__(
        self,
        placement: Placement,
        workers: WorkersModel,
        pricer: CommunicationPricer,
        ffn_pricer: CommunicationPricer,
        *,
        runs_schedule: bool = False,
    ) -> None:
        """``pricer``: of exchanges, and of collectives among attention workers; ``ffn_pricer``: among FFN workers.

        ``runs_schedule``: iterations become flow graphs (coupling ``exact``), which need the length of every piece.
        """
        super().__init__(placement, workers.attention, pricer)
        self._workers, self._ffn_pricer, self._runs_schedule = workers, ffn_pricer, runs_schedule
        self._layers_of_kind = np.bincount(workers.kind_of_layer, minlength=len(workers.networks)).tolist()
        self._schedules: dict[tuple[FabricState, WorkerSchedule], int] = {}

    @property
    def _is_priced_by_core(self) -> bool:
        return False

    def _stage(self, batch: GroupBatch | None, batches: RankBatches, stage: int) -> Stage:  # noqa: ARG002
        cost = self._workers.price(batches)
        self._estimated.update(cost.estimated_operators)
        schedule = self._schedule(cost)
        length = self._length(cost, schedule)
        number = self._number_of_schedule(schedule)
        idle_ps = round(length.lasting_ps(0.0))
        attention_ps = sum(each.attention_ps + each.embedding_ps for each in cost.micro_batches)
        attention_ps += cost.host_ps + cost.head_ps
        ffn_ps = sum(count * layer.compute_ps for layer, count in self._ffn_layers(cost))
        return Stage(
            compute_ps=idle_ps + cost.host_ps,
            communication_ps=self._stage_communications[number].communication_ps,
            load=number,
            host_ps=cost.host_ps,
            phase_ps=_phases_ps(cost, self._ffn_layers(cost), length, idle_ps),
            estimated_ps=round(idle_ps * self._estimated_share(cost)),
            not_overlapped_ps=length.not_overlapped_ps - idle_ps,
            overlapped=length.overlapped,
            prepare_ps=cost.prepare_ps,
            launch_ps=cost.launch_ps,
            hand_over_ps=cost.hand_over_ps,
            attention_ps=attention_ps,
            ffn_ps=ffn_ps,
            pauses_ps=_pauses_ps(cost, schedule) if self._runs_schedule else (),
        )

    def idle_ps(self, batches: Sequence[Batch]) -> int:
        cost = self._workers.price(batches)
        length = self._length(cost, self._schedule(cost))
        return max(round(length.lasting_ps()) + cost.host_ps, cost.host_period_ps)

    def _ffn_layers(self, cost: SplitIterationCost) -> list[tuple[FfnLayer, int]]:
        """(cost of a layer, number of such layers) on FFN workers, of all micro-batches."""
        return [
            (layer, count)
            for batch in cost.micro_batches
            for layer, count in zip(batch.layers, self._layers_of_kind, strict=True)
        ]

    def _estimated_share(self, cost: SplitIterationCost) -> float:
        """Share of the compute of both kinds of workers that rests on flagged estimates."""
        estimated_ps, total_ps = cost.head.estimated_ps, cost.head.total_ps
        for batch in cost.micro_batches:
            estimated_ps += batch.attention.estimated_ps
            total_ps += batch.attention.compute_ps - batch.attention.host_ps
        for layer, count in self._ffn_layers(cost):
            estimated_ps += count * layer.operators.estimated_ps
            total_ps += count * layer.operators.total_ps
        return min(estimated_ps / total_ps, 1.0)

    def _schedule(self, cost: SplitIterationCost) -> WorkerSchedule:
        batches = cost.micro_batches
        divided = [self._of_attention(each.attention.communications) for each in batches]
        layers = tuple(
            tuple(
                LayerCommunication(
                    attention=per_layer,
                    there=self._among(batch.layers[kind].there),
                    ffn=tuple(self._among(what) for what, _ in batch.layers[kind].operators.communications),
                    back=self._among(batch.layers[kind].back),
                )
                for batch, (_, per_layer) in zip(batches, divided, strict=True)
            )
            for kind in range(len(self._workers.networks))
        )
        last = tuple(self._among(what) for what, _ in cost.head.communications)
        return WorkerSchedule(self._workers.kind_of_layer, tuple(first for first, _ in divided), layers, last)

    def _of_attention(self, listed: Listed) -> tuple[tuple[Among, ...], tuple[Among, ...]]:
        """Collectives before the first layer, which are the embedding's, and those of every layer."""
        has_embedding = self._placement.partition.tp > 1
        first, per_layer = (listed[:1], listed[1:]) if has_embedding else ((), listed)
        return tuple(self._among(what) for what, _ in first), tuple(self._among(what) for what, _ in per_layer)

    def _length(self, cost: SplitIterationCost, schedule: WorkerSchedule) -> PingPongTime:
        return ping_pong(cost, schedule, self._duration_ps).time()

    def _duration_ps(self, among: Iterable[Among]) -> int:
        """Duration of collectives one after another."""
        return sum(max(self._cost(what, gpus).duration_ps for gpus in groups) for what, groups in among)

    def _number_of_schedule(self, schedule: WorkerSchedule) -> int:
        """Number under which the loop knows the communication of such an iteration, on the fabric as it is now."""
        key = (self._pricer.state_among(self._placement.all_gpus), schedule)
        if key not in self._schedules:
            listed = _counted(schedule)
            total_ps, load = self._communicate(0, listed)
            groups = tuple((what, self._groups(what.group, 0), count) for what, count in listed)
            self._schedules[key] = self._stage_communications.remember(
                StageCommunication(total_ps, load, groups, schedule)
            )
        return self._schedules[key]

    def _among(self, what: Communication) -> Among:
        return what, self._groups(what.group, 0)

    def _cost(self, what: Communication, gpus: Gpus) -> CollectiveCost:
        return (self._ffn_pricer if what.group == "ffn_tp" else self._pricer).cost(what, gpus)

    def _groups(self, group: str, stage: int) -> tuple[Gpus, ...]:
        match group:
            case "workers":
                return (self._placement.all_gpus,)
            case "ffn_tp":
                return self._placement.ffn_groups()
            case _:
                return super()._groups(group, stage)


def ping_pong(
    cost: SplitIterationCost, schedule: WorkerSchedule, duration_ps: Callable[[Iterable[Among]], int]
) -> PingPong:
    """Schedule of an iteration, with the times of its pieces; ``duration_ps``: of collectives on an idle fabric."""
    layers = len(schedule.kind_of_layer)
    return PingPong(
        kind_of_layer=schedule.kind_of_layer,
        pieces=[
            [
                (
                    (batch.attention_ps / layers, duration_ps(own.attention)),
                    (0, duration_ps([own.there])),
                    (batch.layers[kind].compute_ps, duration_ps(own.ffn)),
                    (0, duration_ps([own.back])),
                )
                for batch, own in zip(cost.micro_batches, of_kind, strict=True)
            ]
            for kind, of_kind in enumerate(schedule.layers)
        ],
        first=[
            (batch.embedding_ps, duration_ps(first))
            for batch, first in zip(cost.micro_batches, schedule.first, strict=True)
        ],
        last=(cost.head_ps, duration_ps(schedule.last)),
    )


def least_ps(cost: SplitIterationCost, kind_of_layer: Sequence[int]) -> int:
    """Shortest time of an iteration: its schedule where communication takes no time."""
    layers = len(kind_of_layer)
    schedule = PingPong(
        kind_of_layer=kind_of_layer,
        pieces=[
            [
                ((batch.attention_ps / layers, 0), (0, 0), (batch.layers[kind].compute_ps, 0), (0, 0))
                for batch in cost.micro_batches
            ]
            for kind in range(len(cost.micro_batches[0].layers))
        ],
        first=[(batch.embedding_ps, 0) for batch in cost.micro_batches],
        last=(cost.head_ps, 0),
    )
    return max(round(schedule.time().lasting_ps(0.0)) + cost.host_ps, cost.host_period_ps)


def _counted(schedule: WorkerSchedule) -> Listed:
    """(collective, number of times that it runs) of an iteration."""
    found: dict[Communication, int] = {}
    per_kind = np.bincount(schedule.kind_of_layer, minlength=len(schedule.layers)).tolist()
    for (what, _), count in chain(
        ((among, 1) for first in schedule.first for among in first),
        (
            (among, count)
            for of_kind, count in zip(schedule.layers, per_kind, strict=True)
            for own in of_kind
            for among in (*own.attention, own.there, *own.ffn, own.back)
        ),
        ((among, 1) for among in schedule.last),
    ):
        found[what] = found.get(what, 0) + count
    return tuple(found.items())


def _phases_ps(
    cost: SplitIterationCost, layers: Iterable[tuple[FfnLayer, int]], length: PingPongTime, whole_ps: int
) -> tuple[int, ...]:
    """Time by phases, ``whole_ps`` in all: the parts of the longest path on attention workers and on FFN workers, each
    divided as these workers' phases are."""
    attention = _sum((each.attention.phase_ps, 1) for each in cost.micro_batches)
    ffn = _sum((layer.operators.phase_ps, count) for layer, count in layers)
    found = attention * (length.attention_ps / max(attention.sum(), 1.0))
    found += ffn * (length.ffn_ps / max(ffn.sum(), 1.0))
    found[HEAD] += length.last_ps
    rounded = np.rint(found).astype(np.int64)
    rounded[np.argmax(rounded)] += whole_ps - rounded.sum()
    return tuple(rounded.tolist())


def _sum(phases: Iterable[tuple[tuple[int, ...], int]]) -> NDArray[np.float64]:
    """Weighted sum of times by phase."""
    total = np.zeros(len(PHASES))
    for each, count in phases:
        total += np.array(each) * count
    return total


def _pauses_ps(cost: SplitIterationCost, schedule: WorkerSchedule) -> list[int]:
    """Compute piece by piece: each micro-batch before the first layer; by layer and micro-batch attention, then FFN;
    the head."""
    layers = len(schedule.kind_of_layer)

    def attention_ps(batch: MicroBatchCost, layer: int) -> int:
        return (layer + 1) * batch.attention_ps // layers - layer * batch.attention_ps // layers

    return [
        *(batch.embedding_ps for batch in cost.micro_batches),
        *(
            piece_ps
            for layer, kind in enumerate(schedule.kind_of_layer)
            for batch in cost.micro_batches
            for piece_ps in (attention_ps(batch, layer), batch.layers[kind].compute_ps)
        ),
        cost.head_ps,
    ]
