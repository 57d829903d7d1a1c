"""Experts of instances in simulated time: drift that changes prices, and rebalancing whose weights are flows.

When an iteration begins, its instance looks at the clock, for the step of the drift, and at the number of iterations so
far: when the period is over, EPLB's rule places its experts for the load of the window, and the weights that a GPU
lacks travel, one layer after another. As with vLLM's asynchronous form, the default of 0.24, iterations go on and share
the network with the weights, and there is no other rebalancing until all have arrived. The new placement counts from
then on; vLLM takes over each layer by itself. What the rule's computation and the copies within a GPU take is
ignored. Weights under way when an instance fails travel on; where the network fails them, experts stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from aicb import IterationModel
from aicb.experts.placed import Move, PlacedExperts
from aicb.experts.placement import Placement
from aicb.operators.memory import expert_weights
from netsim import Completion, FlowGraph, GraphHandle, NetworkBackend, NoPath
from netsim.units import PS_PER_S
from vidur_pd._core import Loop
from vidur_pd.config import EngineConfig
from vidur_pd.execution.coupling.plan import COLLECTIVE
from vidur_pd.execution.instances.instance import Instance


@dataclass(frozen=True, slots=True, eq=False)
class InstanceExperts:
    """What an instance's experts are, and how they change."""

    engine: EngineConfig
    placed: PlacedExperts
    model: IterationModel
    """That prices the instance's iterations."""


@dataclass(frozen=True, slots=True, eq=False)
class WeightsUnderWay:
    """A placement that waits for weights."""

    owner: ExpertBalancer
    placements: list[Placement]
    since_ps: int


class ExpertBalancer:
    """Keeps the experts of one instance up to date."""

    def __init__(self, instance: Instance, experts: InstanceExperts) -> None:
        self._place, self._placed, self._model = instance.placement, experts.placed, experts.model
        drift, eplb = experts.engine.expert_drift, experts.engine.eplb
        self._step_ps = None if drift is None else round(drift.seconds_per_step * PS_PER_S)
        self._period = None if eplb is None else eplb.period_steps
        self._steps = 0 if self._period is None else self._period - self._period // 4
        self._tokens: int | None = None
        self.is_moving = False

    def catch_up(self, now_ps: int) -> None:
        """An iteration begins: the one before has been, and popularity is that of this instant."""
        if self._tokens is not None:
            self._placed.count(self._tokens)
            self._steps += 1
        if self._step_ps is not None and self._placed.move_to(now_ps // self._step_ps):
            self._model.forget_experts()

    def begin(self, tokens: int) -> None:
        """The iteration has so many tokens."""
        self._tokens = tokens

    @property
    def is_due(self) -> bool:
        is_over = self._period is not None and self._steps >= self._period
        return is_over and self._tokens is not None and not self.is_moving

    def balanced(self) -> tuple[list[Placement], FlowGraph]:
        """A placement for the load of the window, and the flows that it needs; the next period begins."""
        self._steps = 0
        placements = self._placed.balanced()
        moves, first, stages = self._placed.moves(placements), 0, []
        partition = self._place.partition
        for stage in range(partition.pp):
            layers, expert_bytes = expert_weights(self._model.model, partition, self._model.precision, stage)
            of_layers = [moves[layer % len(moves)] for layer in range(first, first + layers)]
            stages.append((of_layers, self._place.stage_gpus(stage), expert_bytes))
            first += layers
        return placements, weight_flows(stages)

    def place(self, placements: list[Placement]) -> None:
        self._placed.place(placements)
        self._model.forget_experts()


class ExpertBalancers:
    """Those of all instances whose experts change, and the weights that they have on the network."""

    def __init__(self, loop: Loop, network: NetworkBackend) -> None:
        self._loop, self._network = loop, network
        self._under_way: dict[GraphHandle, WeightsUnderWay] = {}
        self.rebalances = self.given_up = 0
        """Placements that took the place of others, and that did not as the network did not deliver."""
        self.moved_bytes = self.moving_ps = 0

    def of(self, instance: Instance, experts: InstanceExperts) -> Callable[[int, int], None]:
        """What an instance does when an iteration begins, given the instant and its tokens."""
        balancer = ExpertBalancer(instance, experts)

        def before_pricing(now_ps: int, tokens: int) -> None:
            balancer.catch_up(now_ps)
            if balancer.is_due:
                self._rebalance(balancer, now_ps)
            balancer.begin(tokens)

        return before_pricing

    def _rebalance(self, balancer: ExpertBalancer, now_ps: int) -> None:
        """Puts weights on the network; experts lie elsewhere at once where none have to move."""
        placements, graph = balancer.balanced()
        if not len(graph):
            balancer.place(placements)
            self.rebalances += 1
            return
        try:
            handle = self._network.submit(graph, now_ps)
        except NoPath:
            self.given_up += 1
            return
        balancer.is_moving = True
        self._under_way[handle] = WeightsUnderWay(balancer, placements, now_ps)
        self.moved_bytes += int(graph.size_bytes.sum())
        self._loop.traffic_changes(now_ps)

    def arrived(self, completion: Completion) -> bool:
        """A flow graph has arrived or failed; returns False if it is not of weights."""
        weights = self._under_way.pop(completion.handle, None)
        if weights is None:
            return False
        self._network.forget(completion.handle)
        self.moving_ps += completion.at_ps - weights.since_ps
        weights.owner.is_moving = False
        if completion.is_failed:
            self.given_up += 1
        else:
            self.rebalances += 1
            weights.owner.place(weights.placements)
        self._loop.traffic_changes(completion.at_ps)
        return True


def weight_flows(stages: Iterable[tuple[Sequence[Sequence[Move]], Sequence[int], int]]) -> FlowGraph:
    """Flows of (moves of each layer, GPUs of the ranks, bytes of an expert) of each stage.

    The layers of a stage go one after another, what one GPU sends to another of a layer as one flow. After each layer
    comes a flow without bytes, which the next one waits for.
    """
    src: list[int] = []
    dst: list[int] = []
    sizes: list[int] = []
    deps: list[list[int]] = []
    for layers, gpus, expert_bytes in stages:
        before: list[int] = []
        for moves in layers:
            pairs, counts = np.unique(np.array(moves, dtype=np.int64).reshape(-1, 2), axis=0, return_counts=True)
            if not len(pairs):
                continue
            flows = list(range(len(src), len(src) + len(pairs)))
            src += [gpus[sender] for sender in pairs[:, 0].tolist()] + [gpus[0]]
            dst += [gpus[receiver] for receiver in pairs[:, 1].tolist()] + [gpus[0]]
            sizes += [*(counts * expert_bytes).tolist(), 0]
            deps += [*([before] * len(pairs)), flows]
            before = [len(src) - 1]
    return replace(FlowGraph.from_lists(src, dst, sizes, deps=deps), traffic=COLLECTIVE)
