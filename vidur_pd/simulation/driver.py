"""The driver of a run: events of the loop and of a network outside it, in the order of one clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from netsim import Completion, GraphHandle
from netsim.units import PS_PER_S
from vidur_pd._core import (
    AcceptDrafts,
    BeforeStep,
    CallDue,
    DecideIteration,
    GraphEnded,
    InstanceRests,
    IterationLaunched,
    LaunchIteration,
    Loop,
    PriceCollectives,
    PriceIteration,
    PriceNextHost,
    PriceOperators,
    PromptPrefilled,
    PromptsComputed,
    RequestsCompleted,
    TiersDue,
)
from vidur_pd.execution.clock import EventQueue
from vidur_pd.execution.coupling.exact import ExactLauncher
from vidur_pd.execution.coupling.outer_network import OuterNetwork
from vidur_pd.execution.instances.instance import Instance
from vidur_pd.metrics.records import Records
from vidur_pd.simulation.lifecycle import RequestLifecycle
from vidur_pd.simulation.state import SimulationState

PROGRESS_EVERY_EVENTS = 256

Progress = Callable[[int, int, float], None]
"""Called with (requests done, requests in all, simulated seconds)."""


Carrier = Callable[[Completion], bool]
"""Called with a graph that has come to its end; returns False if it is none of its own."""


class Driver:
    """Runs the loop, with a network that the loop cannot advance, and answers what it asks for."""

    def __init__(
        self,
        state: SimulationState,
        loop: Loop,
        queue: EventQueue,
        lifecycle: RequestLifecycle,
        carriers: Sequence[Carrier],
        launcher: ExactLauncher | None,
        outer_network: OuterNetwork | None,
    ) -> None:
        """``carriers``: who has graphs on the network apart from iterations; ``launcher``: what launches iterations,
        ``outer_network``: what carries flows, where the loop does not."""
        self._pricers = state.iteration_pricers
        self._loop = loop
        self._queue = queue
        self._lifecycle = lifecycle
        self._carriers = carriers
        self._launcher = launcher
        self._outer_network = outer_network
        self._handlers = self._handlers_of_notices()

    def run(self, records: Records, requests: int, progress: Progress | None) -> None:
        """Runs until nothing happens any more; what is left of ``requests`` has been failed by then."""
        while True:
            self._run_loop(records, requests, progress)
            if (self._outer_network and self._outer_network.advance()) or self._loop.next_event_ps() is not None:
                continue
            if not self._lifecycle.unfinished or not self._lifecycle.end_all():
                break
        if progress is not None:
            self._report(progress, requests)

    def _run_loop(self, records: Records, requests: int, progress: Progress | None) -> None:
        """Runs the loop's events, as long as a network that is not the core's has nothing to do before."""
        reported_events = self._loop.executed
        while True:
            outer_ps = self._outer_network.next_event_ps() if self._outer_network else None
            notice = self._loop.run(records.until_ps if outer_ps is None else outer_ps)
            records.pass_on()
            if notice is None:
                return
            self._handlers[type(notice)](notice)
            if progress is not None and self._loop.executed - reported_events >= PROGRESS_EVERY_EVENTS:
                reported_events = self._loop.executed
                self._report(progress, requests)

    def _report(self, progress: Progress, requests: int) -> None:
        progress(self._loop.requests.ended, requests, self._queue.now_ps / PS_PER_S)

    def _handlers_of_notices(self) -> dict[type, Callable[[Any], None]]:
        """By the type of the notice."""
        hand_over = self._lifecycle.hand_over
        return {
            CallDue: lambda notice: self._queue.call(notice.number),
            BeforeStep: lambda notice: hand_over.before_step(notice.instance),
            DecideIteration: self._decide,
            PriceIteration: lambda notice: self._pricers[notice.instance.index].price(notice.iteration),
            PriceNextHost: lambda notice: self._pricers[notice.instance.index].price_next_host(notice.batch),
            PriceOperators: lambda notice: self._pricers[notice.instance.index].price_missing(),
            PriceCollectives: lambda notice: self._pricers[notice.instance.index].communicate(
                notice.stage, notice.number
            ),
            LaunchIteration: lambda notice: self._coupled_exactly.launch(notice.iteration),
            IterationLaunched: lambda notice: hand_over.launched(notice.iteration, self._queue.now_ps),
            AcceptDrafts: lambda notice: self._loop.set_accepted(*notice.instance.draw_drafts(notice.iteration)),
            PromptPrefilled: lambda notice: hand_over.prefilled(notice.request),
            **self._handlers_of_tiers(),
            InstanceRests: lambda notice: self._lifecycle.routes.rests(notice.instance),
            RequestsCompleted: lambda notice: self._lifecycle.ended(notice.requests),
            GraphEnded: self._graph_ended,
        }

    def _handlers_of_tiers(self) -> dict[type, Callable[[Any], None]]:
        store = self._lifecycle.kv_store
        return {} if store is None else {TiersDue: store.due, PromptsComputed: store.prompts_computed}

    def _decide(self, notice: DecideIteration) -> None:
        instance = notice.instance
        assert isinstance(instance, Instance)
        if instance.decides_run(notice.steps, self._loop.now_ps):
            self._loop.decode_run()

    @property
    def _coupled_exactly(self) -> ExactLauncher:
        assert self._launcher is not None, "iterations without flows are launched by the loop"
        return self._launcher

    def _graph_ended(self, notice: GraphEnded) -> None:
        """A flow graph has come to its end: of a transfer, of weights, or of an iteration."""
        completion = Completion(GraphHandle(notice.graph), None, self._queue.now_ps, notice.is_failed)
        if not any(arrived(completion) for arrived in self._carriers):
            self._coupled_exactly.completed(completion)
