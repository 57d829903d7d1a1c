"""The hand-over of requests from prefill to decode instances: what is open, what arrives, and what fails.

When blocks are reserved and KV is sent is up to a mode (`vidur_pd.kv_transfer.modes`). The decode instance runs a
request only after all of its KV has arrived, and the prefill instance keeps the blocks until then.

A transfer that fails lets its destination go at once, and its source as soon as that has computed the prompt: then the
request is lost, and `vidur_pd.faults.recovery` decides what becomes of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from netsim import Completion
from vidur_pd._core import RunningIteration
from vidur_pd.clock import EventQueue
from vidur_pd.cluster.instance import Instance, Rank
from vidur_pd.config import SimulationConfig
from vidur_pd.faults.recovery import NO_INSTANCE, STOOD_STILL
from vidur_pd.kv_transfer.delivery import Delivery
from vidur_pd.kv_transfer.destinations import Destinations
from vidur_pd.kv_transfer.first_token import FIRST_TOKEN_RULES
from vidur_pd.kv_transfer.modes.calls import ModeCalls
from vidur_pd.kv_transfer.modes.registry import mode_class
from vidur_pd.kv_transfer.open_transfers import OpenTransfers
from vidur_pd.kv_transfer.sender import KvSender
from vidur_pd.kv_transfer.transfer import Chunk, KvTransfer, LayerTimes
from vidur_pd.workload.request import Request


class Outcomes(Protocol):
    """What becomes of requests in the hand-over."""

    def traffic_changes(self, at_ps: int) -> None:
        """Transfers load the network differently from ``at_ps`` on."""
        ...

    def delivered(self, request: Request) -> None:
        """The user gets a token."""
        ...

    def completed(self, request: Request) -> None:
        """The request has all its tokens."""
        ...

    def lost(self, request: Request, reason: str, delivered_tokens: int) -> None:
        """The KV of the request is gone; the user has so many of its tokens."""
        ...

    def fail(self, request: Request, reason: str) -> None:
        """The request ends without its tokens."""
        ...


class HandOver:
    """The way of requests from prefill to decode instances, by the mode and first-token rule of `KvTransferConfig`."""

    def __init__(
        self,
        config: SimulationConfig,
        sender: KvSender,
        queue: EventQueue,
        choose_destination: Callable[[Request], Rank | None],
        outcomes: Outcomes,
    ) -> None:
        """``choose_destination`` gives nothing while no instance is in service."""
        self._mode = ModeCalls(config.kv_transfer.mode, mode_class(config.kv_transfer.mode)())
        self._first_token = FIRST_TOKEN_RULES[config.kv_transfer.first_token]
        self._recovery = config.recovery
        self._queue = queue
        self._delivery = Delivery(config.recovery, sender, queue, outcomes.traffic_changes, self._give_up)
        self._outcomes = outcomes
        self._transfers = OpenTransfers()
        self._destinations = Destinations(self._transfers, choose_destination)
        self.rerouted = 0
        """Transfers whose decode instance has failed, and that got another."""

    @property
    def open_transfers(self) -> int:
        """Requests between their routing and the arrival of their KV."""
        return len(self._transfers)

    @property
    def retried_parts(self) -> int:
        """Parts of transfers that were sent again."""
        return self._delivery.retried

    @property
    def hears_launches(self) -> bool:
        """``launched`` is to be called for the iterations of prefill instances."""
        return self._mode.hears_launches

    def must_travel(self, request: Request) -> bool:
        """The request needs a decode instance."""
        return self._first_token.must_travel(request)

    # The way of a request.

    def routed(self, request: Request, source: Rank) -> None:
        """A request goes to a prefill rank."""
        transfer = self._transfers.begin(request, source, self, travels=self.must_travel(request))
        if transfer.travels:
            self._mode.on_routed(transfer)

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
            transfer.source.release(request)
            self._end_failed(transfer)
            return
        if self._first_token.is_delivered_after_prefill or not transfer.travels:
            self._outcomes.delivered(request)
        if not transfer.travels:
            self._transfers.end(transfer)
            transfer.source.release(request)
            self._outcomes.completed(request)
            return
        self._show_prefilled(transfer)
        self._finish_if_complete(transfer, self._queue.now_ps)

    def _show_prefilled(self, transfer: KvTransfer) -> None:
        """The mode hears that the prompt is computed; without room the request may go before others."""
        was_reserved = self._destinations.is_reserved(transfer)
        self._mode.on_prefilled(transfer)
        if transfer.failure is None:
            self._destinations.let_pass(transfer, was_reserved=was_reserved)

    def before_step(self, instance: Instance) -> None:
        """A decode instance is about to schedule: it reserves blocks for requests that fit."""
        for transfer in self._destinations.admit(instance):
            self._mode.on_room(transfer)

    def arrived(self, completion: Completion) -> bool:
        """A graph of a transfer has arrived or failed; False where the graph belongs to something else."""
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
        transfer.source.release(request)
        if self._first_token.is_delivered_after_transfer:
            self._outcomes.delivered(request)
        destination.state.remote_arrived(request, self._first_token.computed_tokens(request))
        destination.instance.wake()

    # What modes ask for.

    def reserve(self, transfer: KvTransfer) -> None:
        """Chooses a destination and queues the request for blocks there, unless that has been done."""
        if transfer.failure is not None or self._destinations.is_reserved(transfer):
            return
        if self._destinations.assign(transfer):
            return
        if self._recovery.without_instance == "wait":
            self._destinations.wait_for_instance(transfer)
        else:
            self._give_up_for_good(transfer, NO_INSTANCE)

    def send(self, transfer: KvTransfer, until_tokens: int) -> None:
        """Puts KV on the network that has not been sent."""
        self._mode.check_send(transfer, until_tokens)
        self._delivery.send(transfer, until_tokens)

    # Failures.

    def broken_off(self, request: Request, reason: str) -> bool:
        """A prefill instance has lost the request; False where the request is not between two instances."""
        transfer = self._transfers.get(request)
        if transfer is None:
            return False
        self._fail(transfer, reason)
        self._end_failed(transfer)
        return True

    def instance_down(self, instance: Instance, reason: str) -> None:
        """An instance has failed. What it prefilled, or was to prefill, is lost; what came to it goes elsewhere."""
        self._destinations.instance_down(instance)
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

    def end_all(self) -> None:
        """Nothing will change any more: what waits for a destination, or for KV that does not move, fails."""
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
        """The transfer has lost its destination: the mode hears once more of what has happened to the request."""
        self._mode.on_routed(transfer)
        if transfer.chunks and not transfer.is_prefilled and transfer.failure is None:
            self._mode.on_launched(transfer)
        if transfer.is_prefilled and transfer.failure is None:
            self._show_prefilled(transfer)

    def _give_up(self, transfer: KvTransfer, reason: str) -> None:
        """The KV will not reach a destination; the prefill instance lets the request go as soon as it is prefilled."""
        self._fail(transfer, reason)
        if transfer.is_prefilled:
            transfer.source.release(transfer.request)
            self._end_failed(transfer)

    def _give_up_for_good(self, transfer: KvTransfer, reason: str) -> None:
        transfer.ends_request = True
        self._give_up(transfer, reason)

    def _fail(self, transfer: KvTransfer, reason: str) -> None:
        """The transfer leads nowhere: nothing of it stays on the network or at its destination."""
        transfer.failure = reason
        self._delivery.withdraw(transfer)
        self._destinations.leave(transfer)

    def _end_failed(self, transfer: KvTransfer) -> None:
        """A failed transfer is over: its prefill instance has let the request go."""
        request, reason = transfer.request, transfer.failure
        assert reason is not None
        self._transfers.end(transfer)
        if transfer.ends_request:
            self._outcomes.fail(request, reason)
            return
        delivered = self._first_token.delivered_tokens(request, is_prefilled=transfer.is_prefilled)
        self._outcomes.lost(request, reason, delivered)
