"""Lifecycle of requests: routed, handed from prefill to decode, lost and restarted, completed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from boundary.errors import InputError
from netsim.units import PS_PER_S
from vidur_pd._core import Loop, RunningIteration
from vidur_pd.cluster.faults.recovery import STOOD_STILL, Recovery
from vidur_pd.cluster.routing import Routes, RoutingKnowledge, SeparateRoutes, SplitwiseRoutes
from vidur_pd.config import Role, SimulationConfig
from vidur_pd.execution.clock import EventQueue, Priority
from vidur_pd.execution.coupling.exact import ExactLauncher
from vidur_pd.execution.instances.instance import Instance, Rank
from vidur_pd.kv.store.store import KvStore
from vidur_pd.kv.transfer.hand_over import HandOver
from vidur_pd.kv.transfer.sender import KvSender
from vidur_pd.scheduling import RequestView
from vidur_pd.simulation.frontend import FrontendPath
from vidur_pd.simulation.state import SimulationState
from vidur_pd.workload.request import Request, request_of
from vidur_pd.workload.source import RequestSource, Sending


class RequestObserver(Protocol):
    """What hears of requests."""

    def arrived(self, request: Request) -> None:
        """A request has come, for the first time."""
        ...

    def ended(self, requests: Sequence[Request]) -> None:
        """Requests get no more tokens, all of them or not."""
        ...


class RequestLifecycle:
    """Lets requests arrive, routes them, and records how each ends; in between the loop computes them."""

    def __init__(
        self,
        state: SimulationState,
        source: RequestSource,
        loop: Loop,
        queue: EventQueue,
        kv_sender: KvSender,
        kv_store: KvStore | None = None,
    ) -> None:
        self._config = config = state.plan.config
        self._source = source
        self._timed = iter(source.timed())
        self._latency_ps = state.plan.request_latency_ps
        self._frontend = _frontend_of(state, loop, queue)
        self._instances = state.instances
        self._loop = loop
        self._queue = queue
        self._kv_sender = kv_sender
        self.kv_store = kv_store
        self._hash_block_tokens = state.plan.hash_block_tokens
        self.routes = self._routes(config)
        self.hand_over = HandOver(config, kv_sender, queue, self.routes.destination, self)
        self.recovery = Recovery(config.recovery, queue, self._enter, self._end)

    def join(self, launcher: ExactLauncher | None, observer: RequestObserver | None) -> None:
        """``launcher`` launches iterations where the loop does not; ``observer`` hears of all requests."""
        self._launcher, self._observer = launcher, observer

    @property
    def unfinished(self) -> int:
        """Number of requests that have been sent, or are going to be, and have not ended."""
        return self._source.expected - self._loop.requests.ended

    # Requests in.

    def schedule_arrivals(self) -> None:
        """To be called once; of requests with times of their own each arrival schedules the next."""
        if self._source.is_closed or self._observer is not None:
            self._loop.report_completions()
        self._schedule_timed()
        self._schedule_all(self._source.first())

    def _schedule_timed(self) -> None:
        if (sending := next(self._timed, None)) is not None:
            self._schedule(sending, self._arrive_timed)

    def _schedule_all(self, sendings: Iterable[Sending]) -> None:
        for sending in sendings:
            self._schedule(sending, self._arrive)

    def _schedule(self, sending: Sending, arrive: Callable[[Sending], None]) -> None:
        self._queue.schedule(sending.at_ps + self._latency_ps, Priority.ARRIVAL, lambda: arrive(sending))

    def _arrive_timed(self, sending: Sending) -> None:
        self._schedule_timed()
        self._arrive(sending)

    def _arrive(self, sending: Sending) -> None:
        """A request has come to the frontend, or to the engines where there is none."""
        self._loop.note_arrival()
        request = request_of(self._source.workload, sending.row, sending.at_ps)
        if self._observer is not None:
            self._observer.arrived(request)
        if self._frontend is None:
            self._enter(request)
        else:
            self._frontend.accept(request.prompt_tokens, lambda server: self._come_through(request, server))

    def _come_through(self, request: Request, server: int) -> None:
        request.server, request.entered_ps = server, self._queue.now_ps
        self._enter(request)

    def _enter(self, request: Request) -> None:
        """A request is routed, for the first time or again."""
        assignment, reason = self.routes.enter(request)
        if assignment is None:
            self._not_routed(request, reason)
            return
        rank = assignment.rank
        request.prefill_instance, request.decode_instance = rank.instance.index, None
        if assignment.role != "prefill":
            request.decode_instance = rank.instance.index
        elif not self.hand_over.routed(request, rank):
            return
        self._queue_on(rank, request, assignment.role)

    def _queue_on(self, rank: Rank, request: Request, role: Role) -> None:
        if self.kv_store is not None:
            self.kv_store.enters(request, rank)
        rank.state.add(request, role)
        rank.instance.wake()

    def _not_routed(self, request: Request, reason: str | None) -> None:
        if reason is None:
            self.recovery.unserved(request)
        elif self.recovery.attempts(request):
            self.recovery.fail(request, reason)
        else:
            self._loop.reject(request, reason)
            self.ended([request])

    # Routing.

    def _routes(self, config: SimulationConfig) -> Routes:
        def must_travel(request: Request) -> bool:
            return self.hand_over.must_travel(request)

        if config.routing.is_splitwise:
            return SplitwiseRoutes(self._instances, config.routing, must_travel, lambda: self._queue.now_ps)
        if "session" in (config.routing.policy, config.routing.decode_policy) and not self._source.workload.sessions:
            field = "policy" if config.routing.policy == "session" else "decode_policy"
            raise InputError(
                f"routing.{field}: found session with a workload that does not say which requests are turns of one "
                "conversation, expected workload.sessions, or a trace with session or chat_id"
            )
        knowledge = RoutingKnowledge(
            seed=config.seed,
            now_ps=lambda: self._queue.now_ps,
            hash_block_tokens=self._hash_block_tokens,
            session_of=self._session_of,
            transfer_s=self._transfer_s,
            tier_tokens=self._tier_tokens(config),
        )
        return SeparateRoutes(self._instances, config.routing, knowledge, must_travel)

    def _tier_tokens(self, config: SimulationConfig) -> Callable[[Rank, Request, int], Mapping[str, int]] | None:
        """What routers know of tiers."""
        if self.kv_store is None:
            return None
        return self.kv_store.seen_after(round(config.routing.index_delay_s * PS_PER_S)).tokens

    def _session_of(self, request: RequestView) -> int:
        """Number of the conversation; a request of a workload without any is one of its own."""
        sessions = self._source.workload.sessions
        return int(sessions.session[request.index]) if sessions else request.index

    def _transfer_s(self, destination: Rank, request: RequestView) -> float:
        """Expected time of the KV transfer of a request that has been routed to a prefill instance; else 0."""
        assert isinstance(request, Request)
        if request.prefill_instance is None:
            return 0.0
        source = self._instances[request.prefill_instance].ranks[0]
        return self._kv_sender.expected_s(source, destination, request.context_tokens)

    def set_open(self, instance: Instance, *, is_open: bool) -> None:
        """Opens an instance to new requests, or closes it."""
        self.routes.set_open(instance, is_open=is_open)
        if not is_open:
            return
        serves_both = self._config.routing.has_mixed_pool
        if serves_both or instance.placement.role == "decode":
            self.hand_over.in_service_again()
        if self._config.routing.decode_instances_prefill or instance.placement.role != "decode":
            self.recovery.in_service_again()

    # Outcomes of the hand-over.

    def kv_left(self, request: Request) -> None:
        """The prefill instance holds the KV of a request no more."""
        self.routes.kv_left(request)

    def forward(self, request: Request, after_ps: int, enter: Callable[[], None]) -> None:
        """The frontend sends a request to its decode instance, on the same way as to the first."""
        at_ps = self._queue.now_ps + after_ps
        frontend = self._frontend
        if frontend is None:
            self._queue.schedule(at_ps + self._latency_ps, Priority.ARRIVAL, enter)
            return

        def come_through(server: int) -> None:
            request.server = server
            enter()

        accept = partial(frontend.accept, request.prompt_tokens, come_through)
        self._queue.schedule(at_ps, Priority.ARRIVAL, accept)

    def may_prefill(self, request: Request, source: Rank) -> None:
        """A request that has waited for room on its decode instance may be computed."""
        self._queue_on(source, request, "prefill")

    def stays(self, request: Request) -> None:
        """A request goes on where it was prefilled."""
        self.routes.stays(request)

    def traffic_changes(self, at_ps: int) -> None:
        """The load that transfers put on the network changes at ``at_ps``."""
        self._loop.traffic_changes(at_ps)

    def delivered(self, request: Request) -> None:
        """The hand-over delivers a token to the user, the first one or one after a restart."""
        self._loop.deliver(request)

    def completed(self, request: Request) -> None:
        """The last token of a request has been delivered."""
        self._loop.complete(request)
        self.ended([request])

    def lost(self, request: Request, reason: str, delivered_tokens: int) -> None:
        """The hand-over has lost the KV of a request."""
        self.recovery.lost(request, reason, delivered_tokens)

    def fail(self, request: Request, reason: str) -> None:
        """The hand-over has failed a request, which does not begin again."""
        self.recovery.fail(request, reason)

    # Requests out.

    def break_off(self, iteration: RunningIteration, reason: str) -> None:
        """Aborts an iteration; its requests have lost their KV."""
        for request in self._instances[iteration.instance].break_off(iteration):
            if not self.hand_over.broken_off(request, reason):  # one between two instances is taken off both first
                self.recovery.lost(request, reason, request.generated_tokens)

    def halt(self, instance: Instance) -> list[Request]:
        """Fails an instance now; returns the requests that ran or waited there."""
        self._drop_iterations(instance)
        if self.kv_store is not None:
            self.kv_store.instance_down(instance)
        return instance.halt()

    def _drop_iterations(self, instance: Instance) -> None:
        """Takes the flows of running iterations off the network, where iterations have flows."""
        if self._launcher is not None:
            for iteration in instance.running_iterations:
                self._launcher.drop(iteration)

    def instance_down(self, instance: Instance, lost: list[Request], reason: str) -> None:
        """An instance has failed; ``lost`` are the requests that ran or waited there."""
        self.hand_over.instance_down(instance, reason)
        for request in lost:
            if request.role != "prefill":  # those are in hand-over
                self.recovery.lost(request, reason, request.generated_tokens)

    def end_all(self) -> bool:
        """No event is left: requests that wait for an instance, or on a network that stands still, fail.

        Those that wait for loads from tiers go on without them. Returns whether any request ended, or went on.
        """
        if self.kv_store is not None and self.kv_store.end_all():
            return True
        ended = self._loop.requests.ended
        if not self._some_wait_in_vain():
            for instance in self._instances:
                instance.check_progress()
        self.recovery.end_all()
        self.hand_over.end_all()
        for instance in self._instances:
            self._drop_iterations(instance)
            for iteration in instance.running_iterations:
                iteration.ends_ps = np.array([self._queue.now_ps], dtype=np.int64)
                self.break_off(iteration, STOOD_STILL)
        return self._loop.requests.ended > ended

    def _some_wait_in_vain(self) -> bool:
        """Whether requests wait for an instance, or on a network that stands still; what they hold, others may lack."""
        stand_still = any(instance.running_iterations for instance in self._instances)
        return stand_still or self.recovery.has_parked or self.hand_over.is_stuck

    def _end(self, request: Request, reason: str) -> None:
        """The request fails and gets no more tokens."""
        self._loop.fail(request, reason)
        self.ended([request])

    def ended(self, requests: Sequence[Request]) -> None:
        """Requests get no more tokens, all of them or not: whoever waited for that sends the next."""
        for request in requests:
            self.routes.ended(request)
            at_ps = self._queue.now_ps if request.completed_ps is None else request.completed_ps
            self._schedule_all(self._source.after(request.index, at_ps))
        if self._observer is not None:
            self._observer.ended(requests)


def _frontend_of(state: SimulationState, loop: Loop, queue: EventQueue) -> FrontendPath | None:
    config = state.plan.config.frontend
    if config.kind == "none":
        return None
    serves_both = state.plan.config.routing.has_mixed_pool
    entries = sum(serves_both or instance.placement.role != "decode" for instance in state.instances)
    return FrontendPath(config, config.servers or entries, loop, queue)
