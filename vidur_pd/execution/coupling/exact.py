"""Coupling ``exact``: every collective of every iteration runs as flows on the network of the KV transfers.

The compute time of an iteration is spread evenly between its collectives, which run in turn (the first of each kind,
then the second, …): the order within a layer is kept, differences between layers are not. Iterations with FFN workers
run as they are scheduled. Needs a pipeline of one stage.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from aicb import Communication
from netsim import NO_FLOW, Completion, FlowGraph, GraphHandle, NetworkBackend, NoPath
from vidur_pd._core import Loop, RunningIteration
from vidur_pd.execution.clock import EventQueue, Priority
from vidur_pd.execution.communication.pricer import CommunicationPricer
from vidur_pd.execution.coupling.plan import COLLECTIVE
from vidur_pd.execution.iteration.pricer import (
    Among,
    Collectives,
    StageCommunication,
    StageCommunications,
    WorkerSchedule,
)
from vidur_pd.execution.network_clock import catch_up

KEPT_TEMPLATES = 64
"""Iteration graphs kept for reuse, the last used ones. Decode batches are padded to a few sizes and recur; each prefill
has a size of its own, and a graph of an expert-parallel model takes megabytes."""


@dataclass(frozen=True, slots=True, eq=False)
class IterationGraph:
    """Flows of one iteration; each pause between collectives is a flow without bytes whose delay is compute time."""

    graph: FlowGraph
    pauses: NDArray[np.int64]
    """[collectives + 1] flows that stand for compute."""


@dataclass(frozen=True, slots=True)
class GroupPricers:
    """Who knows the communicators of an instance."""

    own: CommunicationPricer
    ffn: CommunicationPricer
    """Among FFN workers; of the same GPU where there are none."""

    def of(self, what: Communication) -> CommunicationPricer:
        return self.ffn if what.group == "ffn_tp" else self.own


class ExactLauncher:
    """Submits each iteration as one flow graph; it ends when its last flow has arrived."""

    def __init__(
        self,
        loop: Loop,
        stage_communications: StageCommunications,
        network: NetworkBackend,
        pricers: Sequence[GroupPricers],
        queue: EventQueue,
        broken_off: Callable[[RunningIteration], None],
    ) -> None:
        """``pricers`` by instance: they know its communicators. ``broken_off`` is called for iterations that come to
        nothing because the network gives up a collective."""
        self._loop, self._queue = loop, queue
        self._stage_communications = stage_communications
        self._network = network
        self._pricers = pricers
        self._broken_off = broken_off
        self._under_way: dict[GraphHandle, RunningIteration] = {}
        self._graphs: dict[int, GraphHandle] = {}
        """By number of the iteration."""
        self._dropped: set[GraphHandle] = set()
        self._templates: OrderedDict[tuple[Collectives, ...] | WorkerSchedule, IterationGraph] = OrderedDict()

    def launch(self, iteration: RunningIteration) -> None:
        assert not iteration.is_pipelined, "exact coupling needs one pipeline stage"
        stage, compute_ps = iteration.stages[0], int(iteration.compute_ps[0])
        self._loop.set_end_times(iteration)  # as on an idle fabric; the last flow says when it really ends
        if not stage.communication_ps:
            self._loop.schedule_end(iteration)
            return
        communication, pricers = self._stage_communications[stage.load], self._pricers[iteration.instance]
        template = self._template(communication, pricers)
        delay_ps = template.graph.delay_ps.copy()
        if communication.schedule is None:
            steps = np.linspace(0, compute_ps, len(template.pauses) + 1).astype(np.int64)
            delay_ps[template.pauses] = np.diff(steps)
        else:
            delay_ps[template.pauses] = stage.pauses_ps
            delay_ps[template.pauses[0]] += stage.host_ps
        try:
            handle = self._network.submit(replace(template.graph, delay_ps=delay_ps), iteration.start_ps)
        except NoPath:
            iteration.ends_ps = np.array([iteration.start_ps], dtype=np.int64)
            self._queue.schedule(iteration.start_ps, Priority.COMPLETION, lambda: self._broken_off(iteration))
            return
        self._under_way[handle] = iteration
        self._graphs[iteration.number] = handle

    def drop(self, iteration: RunningIteration, /) -> None:
        catch_up(self._network, self._loop.now_ps)
        handle = self._graphs.pop(iteration.number, None)
        if handle is not None:
            del self._under_way[handle]
            self._dropped.add(handle)
            self._network.cancel(handle)
            self._network.forget(handle)

    def completed(self, completion: Completion) -> None:
        """Ends the iteration whose graph has completed, or breaks it off where the network gave up flows of it."""
        if completion.handle in self._dropped:  # at this very instant
            return
        iteration = self._under_way.pop(completion.handle)
        del self._graphs[iteration.number]
        self._network.forget(completion.handle)
        iteration.ends_ps = np.array([completion.at_ps], dtype=np.int64)
        if completion.is_failed:
            self._broken_off(iteration)
        else:
            self._loop.end(iteration)

    def _template(self, communication: StageCommunication, pricers: GroupPricers) -> IterationGraph:
        key = communication.schedule or communication.collectives
        if key in self._templates:
            self._templates.move_to_end(key)
            return self._templates[key]
        if communication.schedule is not None:
            self._templates[key] = scheduled_graph(communication.schedule, pricers)
        else:
            collectives = communication.collectives
            first_gpu = collectives[0][1][0][0]
            self._templates[key] = _iteration_graph(list(_rounds(collectives, pricers.own)), first_gpu)
        if len(self._templates) > KEPT_TEMPLATES:
            self._templates.popitem(last=False)
        return self._templates[key]


def scheduled_graph(schedule: WorkerSchedule, pricers: GroupPricers) -> IterationGraph:
    """Flows of micro-batches that take turns on attention workers and FFN workers (`aicb.iteration.ping_pong`).

    Each resource serves one after another: what is next on it waits for the last flows of what was before. Pauses are
    in the order of ``Stage.pauses_ps``.
    """
    assembly = _Assembly(schedule.layers[0][0].there[1][0][0])
    free: dict[str, list[int]] = {"attention": [], "there": [], "ffn": [], "back": []}

    def run(on: str, ready: list[int], among: Iterable[Among]) -> tuple[int, list[int]]:
        """Puts work on a resource; returns its pause, and its last flows."""
        pause = assembly.pause([*ready, *(flow for flow in free[on] if flow not in ready)])
        free[on] = _in_turn(assembly, pause, among, pricers)
        return pause, free[on]

    firsts: list[int] = []
    pieces: list[int] = []
    ready: list[list[int]] = [[] for _ in schedule.first]
    for layer, kind in enumerate(schedule.kind_of_layer):
        for batch, own in enumerate(schedule.layers[kind]):
            done = ready[batch]
            if layer == 0:
                pause, done = run("attention", done, schedule.first[batch])
                firsts.append(pause)
            for on, among, computes in (
                ("attention", own.attention, True),
                ("there", (own.there,), False),
                ("ffn", own.ffn, True),
                ("back", (own.back,), False),
            ):
                pause, done = run(on, done, among)
                pieces += [pause] if computes else []
            ready[batch] = done
    pause, _ = run("attention", [flow for flows in ready for flow in flows], schedule.last)
    return IterationGraph(assembly.graph(), np.array([*firsts, *pieces, pause], dtype=np.int64))


def _in_turn(assembly: _Assembly, pause: int, among: Iterable[Among], pricers: GroupPricers) -> list[int]:
    """Adds collectives one after another behind a pause; returns the last flows."""
    last = [pause]
    for what, groups in among:
        pricer = pricers.of(what)
        at = [pricer.communicator(gpus) for gpus in groups if len(gpus) > 1 and what.size_bytes]
        if not at:
            continue
        begin = last[0] if last == [pause] else assembly.pause(last)
        last = [flow for each in at for flow in assembly.append(pricer.flows(what, each), begin)]
    return last


def _rounds(collectives: tuple[Collectives, ...], pricer: CommunicationPricer) -> Iterator[list[FlowGraph]]:
    """Graphs that run at the same time, in turn."""
    kinds: list[tuple[int, list[FlowGraph]]] = []
    for what, groups, count in collectives:
        communicators = [pricer.communicator(gpus) for gpus in groups if len(gpus) > 1 and what.size_bytes]
        if communicators:
            kinds.append((count, [pricer.flows(what, at) for at in communicators]))
    for turn in range(max((count for count, _ in kinds), default=0)):
        for count, graphs in kinds:
            if turn < count:
                yield graphs


def _iteration_graph(rounds: list[list[FlowGraph]], gpu: int) -> IterationGraph:
    """Chains rounds of graphs; before each, and at the end, stands one pause on ``gpu``."""
    assembly = _Assembly(gpu)
    pauses: list[int] = []
    terminal: list[int] = []
    for graphs in rounds:
        pause = assembly.pause(terminal)
        pauses.append(pause)
        terminal = [flow for graph in graphs for flow in assembly.append(graph, pause)]
    pauses.append(assembly.pause(terminal))
    return IterationGraph(assembly.graph(), np.array(pauses, dtype=np.int64))


class _Assembly:
    """Joins flow graphs one after another into one."""

    def __init__(self, gpu: int) -> None:
        self._pause = FlowGraph.from_lists([gpu], [gpu], [0])
        self._parts: list[FlowGraph] = []
        self._delay_ps: list[NDArray[np.int64]] = []
        self._dep_counts: list[NDArray[np.int64]] = []
        self._deps: list[NDArray[np.int64]] = []
        self._after: list[NDArray[np.int64]] = []
        self._credit_counts: list[NDArray[np.int64]] = []
        self._credits: list[NDArray[np.int64]] = []
        self._flows = 0

    def pause(self, after: list[int]) -> int:
        """Adds a flow without bytes that waits for ``after``; returns its number."""
        self._add(self._pause, self._pause.delay_ps, np.array([len(after)]), np.array(after, dtype=np.int64))
        return self._flows - 1

    def append(self, graph: FlowGraph, pause: int) -> list[int]:
        """Adds a graph that starts after ``pause``; returns the flows that nothing in it waits for.

        Ready times count from the submission of a graph; here they count from the pause, as flows without bytes whose
        delay is the ready time.
        """
        ready_ps, timer_of_flow = np.unique(graph.ready_ps, return_inverse=True)
        timers = np.array([pause if at_ps == 0 else self._timer(pause, int(at_ps)) for at_ps in ready_ps])
        counts = np.diff(graph.dep_offsets)
        needs_timer = (counts == 0) | (graph.ready_ps > 0)
        first_dep = graph.dep_offsets[:-1][needs_timer]
        deps = np.insert(graph.deps + self._flows, first_dep, timers[timer_of_flow[needs_timer]])
        is_last = np.ones(len(graph), dtype=np.bool_)
        is_last[graph.deps] = is_last[graph.credits] = False
        last = np.flatnonzero(is_last) + self._flows
        self._add(graph, graph.delay_ps, counts + needs_timer, deps)
        return last.tolist()

    def _timer(self, pause: int, at_ps: int) -> int:
        """A flow without bytes that ends ``at_ps`` after ``pause``."""
        self._add(self._pause, np.array([at_ps], dtype=np.int64), np.array([1]), np.array([pause], dtype=np.int64))
        return self._flows - 1

    def graph(self) -> FlowGraph:
        parts = self._parts
        return FlowGraph(
            src=np.concatenate([part.src for part in parts]),
            dst=np.concatenate([part.dst for part in parts]),
            size_bytes=np.concatenate([part.size_bytes for part in parts]),
            ready_ps=np.zeros(self._flows, dtype=np.int64),
            delay_ps=np.concatenate(self._delay_ps),
            dep_offsets=np.concatenate(([0], np.cumsum(np.concatenate(self._dep_counts)))),
            deps=np.concatenate(self._deps),
            flow_label=np.concatenate([part.flow_label for part in parts]),
            notify=np.concatenate([part.notify for part in parts]),
            max_rate_bps=np.concatenate([part.max_rate_bps for part in parts]),
            after=np.concatenate(self._after),
            credit_offsets=np.concatenate(([0], np.cumsum(np.concatenate(self._credit_counts)))),
            credits=np.concatenate(self._credits),
            priority=np.concatenate([part.priority for part in parts]),
            traffic=COLLECTIVE,
        )

    def _add(
        self, part: FlowGraph, delay_ps: NDArray[np.int64], dep_counts: NDArray[np.int64], deps: NDArray[np.int64]
    ) -> None:
        self._parts.append(part)
        self._delay_ps.append(delay_ps)
        self._dep_counts.append(dep_counts)
        self._deps.append(deps)
        self._after.append(np.where(part.after == NO_FLOW, NO_FLOW, part.after + self._flows))
        self._credit_counts.append(np.diff(part.credit_offsets))
        self._credits.append(part.credits + self._flows)
        self._flows += len(part)
