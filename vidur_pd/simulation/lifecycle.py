"""Lifecycle of requests: routed, handed from prefill to decode, lost and restarted, completed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from vidur_pd._core import Loop, RunningIteration
from vidur_pd.clock import EventQueue, Priority
from vidur_pd.cluster.instance import Instance, Rank
from vidur_pd.cluster.routing import RankRouter
from vidur_pd.execution.coupling.exact import ExactLauncher
from vidur_pd.faults.recovery import STOOD_STILL, Recovery
from vidur_pd.kv_transfer.hand_over import HandOver
from vidur_pd.kv_transfer.sender import KvSender
from vidur_pd.simulation.frontend import FrontendPath
from vidur_pd.simulation.state import SimulationState
from vidur_pd.workload.request import Request, request_of
from vidur_pd.workload.source import RequestSource, Sending


class RequestLifecycle:
    """Lets requests arrive, routes them, and records how each ends; in between the loop computes them."""

    def __init__(
        self, state: SimulationState, source: RequestSource, loop: Loop, queue: EventQueue, kv_sender: KvSender
    ) -> None:
        config = state.plan.config
        self._source = source
        self._timed = iter(source.timed())
        self._latency_ps = state.plan.request_latency_ps
        self._frontend = _frontend_of(state, loop, queue)
        self._instances = state.instances
        self._loop = loop
        self._queue = queue
        routing, seed = config.routing, config.seed
        self._entries = RankRouter(state.instances, ("prefill", "mixed"), routing, seed, self._refusal)
        self._destinations = RankRouter(state.instances, ("decode",), routing, seed, Instance.refusal)
        self.hand_over = HandOver(config, kv_sender, queue, self._choose_destination, self)
        self.recovery = Recovery(config.recovery, queue, self._enter, self._end)

    def join(self, launcher: ExactLauncher | None) -> None:
        """``launcher`` launches iterations where the loop does not."""
        self._launcher = launcher

    @property
    def unfinished(self) -> int:
        """Number of requests that have been sent, or are going to be, and have not ended."""
        return self._source.expected - self._loop.requests.ended

    # Requests in.

    def schedule_arrivals(self) -> None:
        """To be called once; of requests with times of their own each arrival schedules the next."""
        if self._source.is_closed:
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
        request = request_of(self._source.workload, sending.row, sending.at_ps)
        if self._frontend is None:
            self._enter(request)
        else:
            self._frontend.accept(request.prompt_tokens, lambda server: self._come_through(request, server))

    def _come_through(self, request: Request, server: int) -> None:
        request.server, request.entered_ps = server, self._queue.now_ps
        self._enter(request)

    def _enter(self, request: Request) -> None:
        """A request is routed, for the first time or again."""
        rank, reason = self._entries.choose(request)
        if rank is None:
            self._not_routed(request, reason)
            return
        request.prefill_instance, request.decode_instance = rank.instance.index, None
        if rank.instance.placement.role == "prefill":
            self.hand_over.routed(request, rank)
        else:
            request.decode_instance = rank.instance.index
        rank.state.add(request)
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

    def _refusal(self, instance: Instance, request: Request) -> str | None:
        """Why the instance, or every decode instance that would have to follow it, could never hold the request."""
        reason = Instance.refusal(instance, request)
        if reason is None and instance.placement.role == "prefill" and self.hand_over.must_travel(request):
            reason = self._destinations.refusal(request)
        return reason

    def _choose_destination(self, request: Request) -> Rank | None:
        rank, reason = self._destinations.choose(request)
        assert reason is None, f"request {request.request_id} was let in although {reason}"
        return rank

    def set_open(self, instance: Instance, *, is_open: bool) -> None:
        """Opens an instance to new requests, or closes it."""
        self._entries.set_open(instance, is_open)
        self._destinations.set_open(instance, is_open)
        if is_open and instance.placement.role == "decode":
            self.hand_over.in_service_again()
        elif is_open:
            self.recovery.in_service_again()

    # Outcomes of the hand-over.

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
        return instance.halt()

    def _drop_iterations(self, instance: Instance) -> None:
        """Takes the flows of running iterations off the network, where iterations have flows."""
        if self._launcher is not None:
            for iteration in instance.running_iterations:
                self._launcher.drop(iteration)

    def instance_down(self, instance: Instance, lost: list[Request], reason: str) -> None:
        """An instance has failed; ``lost`` are the requests that ran or waited there."""
        self.hand_over.instance_down(instance, reason)
        if instance.placement.role != "prefill":  # whose requests are all in hand-over
            for request in lost:
                self.recovery.lost(request, reason, request.generated_tokens)

    def end_all(self) -> bool:
        """No event is left: requests that wait for an instance, or on a network that stands still, fail.

        Returns whether any request ended.
        """
        ended = self._loop.requests.ended
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

    def _end(self, request: Request, reason: str) -> None:
        """The request fails and gets no more tokens."""
        self._loop.fail(request, reason)
        self.ended([request])

    def ended(self, requests: Iterable[Request]) -> None:
        """Requests get no more tokens, all of them or not: whoever waited for that sends the next."""
        for request in requests:
            at_ps = self._queue.now_ps if request.completed_ps is None else request.completed_ps
            self._schedule_all(self._source.after(request.index, at_ps))


def _frontend_of(state: SimulationState, loop: Loop, queue: EventQueue) -> FrontendPath | None:
    config = state.plan.config.frontend
    if config.kind == "none":
        return None
    entries = sum(instance.placement.role != "decode" for instance in state.instances)
    return FrontendPath(config, config.servers or entries, loop, queue)
