"""The hand-over of requests from prefill to decode instances: open transfers, arrivals of KV, and failures.

A mode (`vidur_pd.kv.transfer.modes`) decides when blocks are reserved and KV is sent. The decode instance runs a
request only after all of its KV has arrived, and the prefill instance keeps the blocks until then.

A transfer that fails frees the blocks at its destination at once, and those at its source as soon as the prompt is
computed there. Then the request is lost, and `vidur_pd.cluster.faults.recovery` decides whether it begins again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from netsim import Completion
from netsim.units import PS_PER_US
from vidur_pd._core import RunningIteration
from vidur_pd.cluster.faults.recovery import NO_INSTANCE, STOOD_STILL
from vidur_pd.config import SimulationConfig
from vidur_pd.execution.clock import EventQueue, Priority
from vidur_pd.execution.instances.instance import Instance, Rank
from vidur_pd.kv.transfer.delivery import Delivery
from vidur_pd.kv.transfer.destinations import Destinations
from vidur_pd.kv.transfer.first_token import FIRST_TOKEN_RULES
from vidur_pd.kv.transfer.modes.calls import ModeCalls
from vidur_pd.kv.transfer.modes.registry import mode_class
from vidur_pd.kv.transfer.open_transfers import OpenTransfers
from vidur_pd.kv.transfer.sender import KvSender
from vidur_pd.kv.transfer.step_polls import StepPolls
from vidur_pd.kv.transfer.transfer import Chunk, KvTransfer, LayerTimes
from vidur_pd.workload.request import Request


class Outcomes(Protocol):
    """Receiver of the outcomes of the hand-over."""

    def traffic_changes(self, at_ps: int) -> None:
        """The load that transfers put on the network changes at ``at_ps``."""
        ...

    def delivered(self, request: Request) -> None:
        """The user gets a token."""
        ...

    def completed(self, request: Request) -> None:
        """The request has all its tokens."""
        ...

    def kv_left(self, request: Request) -> None:
        """The instance that has prefilled the request holds its KV no more."""
        ...

    def stays(self, request: Request) -> None:
        """The request goes on where it was prefilled."""
        ...

    def lost(self, request: Request, reason: str, delivered_tokens: int) -> None:
        """The KV of the request is lost; ``delivered_tokens`` have reached the user."""
        ...

    def fail(self, request: Request, reason: str) -> None:
        """The request ends without its tokens."""
        ...

    def forward(self, request: Request, after_ps: int, enter: Callable[[], None]) -> None:
        """The frontend sends a request to its decode instance, ``after_ps`` from now; ``enter``: it is there."""
        ...

    def may_prefill(self, request: Request, source: Rank) -> None:
        """A request that has waited for room on its decode instance may be computed."""
        ...


class HandOver:
    """Hand-over of requests from prefill to decode instances, by the mode and first-token rule of the configuration."""

    def __init__(
        self,
        config: SimulationConfig,
        sender: KvSender,
        queue: EventQueue,
        choose_destination: Callable[[Request], Rank | None],
        outcomes: Outcomes,
    ) -> None:
        """``choose_destination`` returns None while no decode instance is in service, and a rank of the instance that
        has prefilled the request where it goes on there.
        """
        self._mode = ModeCalls(config.kv_transfer.mode, mode_class(config.kv_transfer.mode)())
        self._first_token = FIRST_TOKEN_RULES[config.kv_transfer.first_token]
        self._recovery = config.recovery
        self._queue = queue
        self._connector = config.kv_transfer.connector
        self._room_ps = round(self._connector.room_us * PS_PER_US)
        self._sender = sender
        self._delivery = Delivery(
            config.recovery,
            sender,
            queue,
            outcomes.traffic_changes,
            self._give_up,
            has_costs=config.has_connector,
        )
        notices = self._connector.notices
        self._polls = None if notices == "at_once" else StepPolls(hears_at_once=notices == "step_begin")
        self._outcomes = outcomes
        self._transfers = OpenTransfers()
        self._choose_destination = choose_destination
        self._destinations = Destinations(self._transfers)
        self._instances_do_both = config.routing.has_mixed_pool
        self.rerouted = 0
        """Transfers that got another decode instance after theirs had failed."""

    @property
    def open_transfers(self) -> int:
        """Number of requests between their routing and the instant at which their decode instance has their KV."""
        return len(self._transfers) + (len(self._polls) if self._polls else 0)

    def involves(self, instance: Instance) -> bool:
        """Whether KV is or will be handed over from or to an instance."""
        return self._transfers.involve(instance)

    @property
    def retried_parts(self) -> int:
        """Number of parts of transfers that were sent again."""
        return self._delivery.retried

    @property
    def hears_launches(self) -> bool:
        """Whether ``launched`` is to be called for the iterations of prefill instances."""
        return self._mode.hears_launches

    def must_travel(self, request: Request) -> bool:
        """Whether the request needs a decode instance."""
        return self._first_token.must_travel(request)

    # Stages of a hand-over.

    def routed(self, request: Request, source: Rank) -> bool:
        """A request has been routed to a prefill rank; returns False where its prefill has to wait for room."""
        transfer = self._transfers.begin(request, source, self, travels=self.must_travel(request))
        if transfer.travels:
            self._mode.on_routed(transfer)
            is_reserved = self._destinations.is_reserved(transfer)
            waits = is_reserved and (not transfer.has_room or self._room_ps > 0)
            transfer.is_held_back = self._connector.room_before_prefill and waits
            if transfer.is_held_back and transfer.has_room:
                self._let_prefill(transfer)
        return not transfer.is_held_back

    def _let_prefill(self, transfer: KvTransfer) -> None:
        """The decode instance has blocks for a request: once its prefill instance knows, it may compute."""

        def know() -> None:
            is_there = transfer.has_room and self._transfers.get(transfer.request) is transfer
            if transfer.is_held_back and is_there:  # its decode instance may have failed meanwhile
                transfer.is_held_back = False
                self._outcomes.may_prefill(transfer.request, transfer.source)

        if self._room_ps:
            self._queue.schedule(self._queue.now_ps + self._room_ps, Priority.ARRIVAL, know)
        else:
            know()

    def launched(self, iteration: RunningIteration, now_ps: int) -> None:
        """A prefill instance begins an iteration, which computes chunks of prompts."""
        if iteration.batch is None:
            return
        for batch in iteration.batch.batches:
            if batch is None:
                continue
            for request, kv_tokens in zip(batch.requests, batch.kv_tokens.tolist(), strict=True):
                transfer = self._transfers[request]
                if transfer.travels and transfer.failure is None:
                    until_tokens = min(kv_tokens, request.context_tokens)
                    transfer.add_chunk(Chunk(until_tokens, LayerTimes(now_ps, iteration.end_ps)))
                    self._mode.on_launched(transfer)

    def prefilled(self, request: Request) -> None:
        """The prompt has been computed and one token sampled on the prefill side."""
        transfer = self._transfers[request]
        transfer.is_prefilled = True
        if transfer.failure is not None:
            self._release(transfer)
            self._end_failed(transfer)
            return
        if self._first_token.is_delivered_after_prefill or not transfer.travels:
            self._outcomes.delivered(request)
        if not transfer.travels:
            self._transfers.end(transfer)
            self._release(transfer)
            self._outcomes.completed(request)
            return
        if self._connector.forward_us and not self._destinations.is_reserved(transfer):
            self._forward(transfer)
            return
        self._show_prefilled(transfer)
        self._finish_if_complete(transfer, self._queue.now_ps)

    def _forward(self, transfer: KvTransfer) -> None:
        """The frontend hears of the prefill, and sends the decode instance its request."""
        request, costs = transfer.request, self._connector
        time_us = costs.forward_us + costs.forward_token_us * request.prompt_tokens

        def enter() -> None:
            if self._transfers.get(request) is transfer and transfer.failure is None:
                request.kv_forwarded_ps = self._queue.now_ps
                self._show_prefilled(transfer)

        self._outcomes.forward(request, round(time_us * PS_PER_US), enter)

    def _show_prefilled(self, transfer: KvTransfer) -> None:
        """Tells the mode that the prompt is computed; a request without blocks may then overtake others."""
        was_reserved = self._destinations.is_reserved(transfer)
        self._mode.on_prefilled(transfer)
        if transfer.failure is None:
            self._destinations.let_pass(transfer, was_reserved=was_reserved)

    def before_step(self, instance: Instance) -> None:
        """A decode instance is about to schedule: it takes over what has come, and reserves blocks for what fits."""
        if self._polls:
            for each in self._polls.before_step(instance):
                self._take_over(each.request, each.destination)
        for transfer in self._destinations.admit(instance):
            transfer.request.room_ps = self._queue.now_ps
            if transfer.is_held_back:
                self._let_prefill(transfer)
            self._mode.on_room(transfer)
        if self._instances_do_both:
            for transfer in self._destinations.without_way(instance):
                self._stay(transfer)

    def arrived(self, completion: Completion) -> bool:
        """A flow graph has arrived or failed; returns False if it is not part of a KV transfer."""
        if not self._delivery.knows(completion.handle):
            return False
        transfer = self._delivery.arrived(completion)
        if transfer is None:
            return True
        destination = transfer.destination
        self._finish_if_complete(transfer, completion.at_ps)
        if not transfer.is_under_way and not transfer.is_prefilled and destination is not None:
            self._destinations.try_stuck(destination)
        return True

    def _finish_if_complete(self, transfer: KvTransfer, now_ps: int) -> None:
        if transfer.is_under_way or not transfer.is_prefilled or not transfer.is_all_sent:
            return
        request, destination = transfer.request, transfer.destination
        assert destination is not None
        assert request.kv_sent_ps is not None, "the last token of a context is never resident, so something was sent"
        self._transfers.end(transfer)
        request.kv_arrived_ps = now_ps
        self._release(transfer)
        if self._polls is None or not self._polls.await_notice(request, destination):
            self._take_over(request, destination)

    def _take_over(self, request: Request, destination: Rank) -> None:
        """The decode instance knows that the KV of a request has come."""
        if self._polls is not None:
            request.kv_noticed_ps = self._queue.now_ps
        if self._first_token.is_delivered_after_transfer:
            self._outcomes.delivered(request)
        destination.state.remote_arrived(request, self._first_token.computed_tokens(request))
        destination.instance.wake()

    # What modes ask for.

    def reserve(self, transfer: KvTransfer) -> None:
        """Chooses a destination and queues the request for blocks there, unless that has been done."""
        if transfer.failure is not None or self._destinations.is_reserved(transfer):
            return
        rank = self._choose_destination(transfer.request)
        if rank is not None and rank.instance is transfer.source.instance:
            self._stay(transfer)
        elif rank is not None:
            self._destinations.assign(transfer, rank)
        elif self._recovery.without_instance == "wait":
            self._destinations.wait_for_instance(transfer)
        else:
            self._give_up_for_good(transfer, NO_INSTANCE)

    def send(self, transfer: KvTransfer, until_tokens: int) -> None:
        """Puts the KV up to ``until_tokens`` that has not been sent on the network."""
        self._mode.check_send(transfer, until_tokens)
        self._delivery.send(transfer, until_tokens)

    def _release(self, transfer: KvTransfer) -> None:
        """The prefill instance need not hold the KV any more."""
        transfer.source.release(transfer.request)
        self._outcomes.kv_left(transfer.request)

    def _stay(self, transfer: KvTransfer) -> None:
        """A prefilled request goes on where it is, with the KV that is there."""
        request, source = transfer.request, transfer.source
        self._destinations.leave(transfer)
        self._transfers.end(transfer)
        request.decode_instance = source.instance.index
        if self._first_token.is_delivered_after_transfer:
            self._outcomes.delivered(request)
        source.state.keep(request, self._first_token.computed_tokens(request))
        self._outcomes.stays(request)
        source.instance.wake()

    # Failures.

    def broken_off(self, request: Request, reason: str) -> bool:
        """A prefill instance has lost the request; returns False if the request is not in hand-over."""
        transfer = self._transfers.get(request)
        if transfer is None:
            return False
        self._fail(transfer, reason)
        self._end_failed(transfer)
        return True

    def instance_down(self, instance: Instance, reason: str) -> None:
        """An instance has failed: requests prefilled there are lost, transfers to it get another destination."""
        self._destinations.instance_down(instance)
        self._sender.forget(instance)
        for request in self._polls.take(instance) if self._polls else ():
            self._outcomes.lost(request, reason, self._first_token.delivered_tokens(request, is_prefilled=True))
        for transfer in self._transfers.at(instance):
            if transfer.source.instance is instance:
                if transfer.failure is None:
                    self._fail(transfer, reason)
                self._end_failed(transfer)
            elif transfer.goes_to(instance):
                self._delivery.withdraw(transfer)
                self._transfers.lose_destination(transfer)
                if self._recovery.requests == "fail":
                    self._give_up(transfer, reason)
                else:
                    self.rerouted += 1
                    transfer.request.kv_sent_ps = None
                    self._go_again(transfer)

    def in_service_again(self) -> None:
        """Some instance has come back: transfers without a destination may get one."""
        for transfer in self._destinations.take_waiting():
            self._go_again(transfer)

    @property
    def is_stuck(self) -> bool:
        """If no event will follow: some wait for a decode instance in service, or for KV that does not move."""
        return self._destinations.some_wait_for_instance or any(each.is_under_way for each in self._transfers.all())

    def end_all(self) -> None:
        """No event will follow: requests that wait for a destination, or for KV that does not move, fail."""
        transfers = self._transfers.all()
        for transfer in transfers:
            is_reserved = self._destinations.is_reserved(transfer)
            self._mode.check_progress(transfer, is_reserved=is_reserved, is_under_way=transfer.is_under_way)
        self._destinations.take_waiting()
        for transfer in transfers:
            if transfer.is_under_way:
                self._give_up_for_good(transfer, STOOD_STILL)
            elif transfer.destination is None:
                self._give_up_for_good(transfer, NO_INSTANCE)

    def _go_again(self, transfer: KvTransfer) -> None:
        """Calls the mode's hooks again, up to the present stage, for a transfer that has lost its destination."""
        self._mode.on_routed(transfer)
        if transfer.chunks and not transfer.is_prefilled and transfer.failure is None:
            self._mode.on_launched(transfer)
        if transfer.is_prefilled and transfer.failure is None:
            self._show_prefilled(transfer)

    def _give_up(self, transfer: KvTransfer, reason: str) -> None:
        """Fails a transfer whose KV will not arrive; the prefill instance, if it has the request already, releases it
        once it is prefilled."""
        self._fail(transfer, reason)
        if transfer.is_held_back:
            self._end_failed(transfer)
        elif transfer.is_prefilled:
            self._release(transfer)
            self._end_failed(transfer)

    def _give_up_for_good(self, transfer: KvTransfer, reason: str) -> None:
        transfer.ends_request = True
        self._give_up(transfer, reason)

    def _fail(self, transfer: KvTransfer, reason: str) -> None:
        """Marks a transfer as failed and takes it off the network and its destination."""
        transfer.failure = reason
        self._delivery.withdraw(transfer)
        self._destinations.leave(transfer)

    def _end_failed(self, transfer: KvTransfer) -> None:
        """Ends a failed transfer, once its prefill instance has released the request."""
        request, reason = transfer.request, transfer.failure
        assert reason is not None
        self._transfers.end(transfer)
        if transfer.ends_request:
            self._outcomes.fail(request, reason)
            return
        delivered = self._first_token.delivered_tokens(request, is_prefilled=transfer.is_prefilled)
        self._outcomes.lost(request, reason, delivered)
