"""Hand-off of requests from prefill to decode instances: reservation, transfer, first token.

A transfer is one or more flow graphs on the shared network; the decode instance runs a request only after the last of
them has arrived, and the prefill instance keeps the blocks until then.

A passage that fails lets its destination go at once, and its source as soon as that has done with the request: then the
request is lost, and somebody else decides what becomes of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from netsim import Completion
from vidur_pd._core import Flight
from vidur_pd.config import SimulationConfig
from vidur_pd.events import EventQueue
from vidur_pd.faults.recovery import NO_INSTANCE, STOOD_STILL
from vidur_pd.handoff.delivery import Delivery
from vidur_pd.handoff.passage import Passage
from vidur_pd.handoff.passages import Passages
from vidur_pd.handoff.wire import Computation, KvWire
from vidur_pd.instance import Instance, Rank
from vidur_pd.request import Request


class Outcomes(Protocol):
    """Is told what becomes of requests here."""

    def traffic_changes(self, at_ps: int) -> None:
        """Transfers load the network differently from ``at_ps`` on."""
        ...

    def delivered(self, request: Request) -> None:
        """The user gets a token."""
        ...

    def completed(self, request: Request) -> None: ...

    def lost(self, request: Request, reason: str, delivered_tokens: int) -> None:
        """The KV of the request is gone; the user has so many of its tokens."""
        ...

    def fail(self, request: Request, reason: str) -> None:
        """The request ends without its tokens."""
        ...


class Handoff:
    """Moves prefilled requests to decode instances by one of the modes of `KvTransferConfig`."""

    def __init__(
        self,
        config: SimulationConfig,
        wire: KvWire,
        queue: EventQueue,
        choose_destination: Callable[[Request], Rank | None],
        listener: Outcomes,
    ) -> None:
        """``choose_destination`` gives nothing while no instance is in service."""
        self._config = config.kv_transfer
        self._recovery = config.recovery
        self._queue = queue
        self._delivery = Delivery(config.recovery, wire, queue, listener.traffic_changes, self._give_up)
        self._choose_destination = choose_destination
        self._listener = listener
        self._unreserved: Counter[int] = Counter()
        """Requests that wait for blocks, by index of the decode instance."""
        self._passages = Passages()
        self._unassigned: dict[int, Passage] = {}
        """Those that need a destination while no decode instance is in service."""
        self.rerouted = 0
        """Passages whose decode instance has failed, and that got another."""

    @property
    def open_passages(self) -> int:
        """Requests between their routing and the arrival of their KV."""
        return len(self._passages)

    @property
    def retried_transfers(self) -> int:
        return self._delivery.retried

    # The way of a request.

    def routed(self, request: Request, source: Rank) -> None:
        """A request goes to a prefill rank; unless the decode side pulls, it reserves blocks from now on."""
        passage = self._passages.begin(request, source)
        if self._config.mode != "pull" and self.must_travel(request):
            self._assign(passage)

    def prefilled(self, request: Request) -> None:
        """The prompt has been computed and one token sampled on the prefill side."""
        passage = self._passages[request]
        passage.is_prefilled = True
        if passage.failure is not None:
            passage.source.release(request)
            self._end(passage)
            return
        travels = self.must_travel(request)
        if self._config.first_token == "prefill" or not travels:
            self._listener.delivered(request)
        if not travels:
            self._passages.end(passage)
            passage.source.release(request)
            self._listener.completed(request)
        elif passage.destination is None:
            if request.index not in self._unassigned:
                self._assign(passage)
        elif passage.is_reserved:
            self._send_rest(passage)
        else:
            self._make_room(passage)

    def before_step(self, instance: Instance) -> None:
        """A decode instance is about to schedule: it reserves blocks for requests that fit."""
        for rank in instance.ranks:
            for request in rank.state.admit_remote():
                self._wait_for_room(instance, -1)
                passage = self._passages[request]
                passage.is_reserved = True
                passage.sent_tokens = request.resident_tokens
                self._passages.unstick(passage)
                if passage.is_prefilled:
                    self._send_rest(passage)
                elif passage.chunk is not None:
                    self._delivery.send(passage, *passage.chunk)

    def launched(self, flight: Flight, now_ps: int) -> None:
        """A prefill instance computes chunks: in layer-wise mode each layer leaves as soon as it is done."""
        if self._config.mode != "layerwise" or flight.batch is None:
            return
        for batch in flight.batch.batches:
            if batch is None:
                continue
            for request, kv_tokens in zip(batch.requests, batch.kv_tokens.tolist(), strict=True):
                passage = self._passages[request]
                until_tokens = min(kv_tokens, request.context_tokens)
                passage.chunk = until_tokens, Computation(now_ps, flight.end_ps)
                if passage.is_reserved:
                    self._delivery.send(passage, *passage.chunk)

    def arrived(self, completion: Completion) -> bool:
        """A graph of a transfer has arrived or failed; False where the graph belongs to something else."""
        if not self._delivery.knows(completion.handle):
            return False
        passage = self._delivery.arrived(completion)
        if passage is None:
            return True
        destination = passage.destination
        self._finish_if_complete(passage, completion.at_ps)
        if not passage.is_on_its_way and not passage.is_prefilled and destination is not None:
            for stuck in self._passages.stuck_at(destination):
                self._make_room(stuck)
        return True

    def must_travel(self, request: Request) -> bool:
        """A single missing token is sampled by the prefill instance, unless the decode side recomputes it."""
        missing = request.prompt_tokens + request.output_tokens - request.context_tokens
        return missing > 1 or self._config.first_token == "decode_recompute"

    # Failures.

    def broken_off(self, request: Request, reason: str) -> bool:
        """A prefill instance has lost the request; False where the request is not between two instances."""
        passage = self._passages.get(request)
        if passage is None:
            return False
        self._fail(passage, reason)
        self._end(passage)
        return True

    def instance_down(self, instance: Instance, reason: str) -> None:
        """An instance has failed. What it prefilled, or was to prefill, is lost; what came to it goes elsewhere."""
        self._wait_for_room(instance, -self._unreserved[instance.index])
        for passage in self._passages.concerning(instance):
            if passage.source.instance is instance:
                if passage.failure is None:
                    self._fail(passage, reason)
                self._end(passage)
            elif passage.goes_to(instance):
                self._delivery.withdraw(passage)
                self._passages.lose_destination(passage)
                if self._recovery.requests == "fail":
                    self._give_up(passage, reason)
                else:
                    self.rerouted += 1
                    passage.request.kv_sent_ps = None
                    self._assign(passage)

    def in_service_again(self) -> None:
        """Some instance has come back: passages without a destination may get one."""
        waiting, self._unassigned = list(self._unassigned.values()), {}
        for passage in waiting:
            self._assign(passage)

    def end_all(self) -> None:
        """Nothing will change any more: what waits for a destination, or for KV that does not move, fails."""
        self._unassigned.clear()
        for passage in self._passages.all():
            if passage.is_on_its_way or passage.destination is None:
                passage.is_hopeless = True
                self._give_up(passage, STOOD_STILL if passage.is_on_its_way else NO_INSTANCE)

    def _give_up(self, passage: Passage, reason: str) -> None:
        """The KV will not reach a destination; the prefill instance lets the request go as soon as it is prefilled."""
        self._fail(passage, reason)
        if passage.is_prefilled:
            passage.source.release(passage.request)
            self._end(passage)

    def _fail(self, passage: Passage, reason: str) -> None:
        """The passage leads nowhere: nothing of it stays on the network or at its destination."""
        request, destination = passage.request, passage.destination
        passage.failure = reason
        self._delivery.withdraw(passage)
        self._unassigned.pop(request.index, None)
        if destination is None:
            return
        self._wait_for_room(destination.instance, -int(not passage.is_reserved))
        self._passages.lose_destination(passage)
        destination.state.abandon_remote(request)
        destination.instance.note_kv_use()
        destination.instance.wake()

    def _end(self, passage: Passage) -> None:
        """A failed passage is over: its prefill instance has let the request go."""
        request = passage.request
        assert passage.failure is not None
        self._passages.end(passage)
        if passage.is_hopeless:
            self._listener.fail(request, passage.failure)
            return
        is_withheld = passage.is_prefilled and self._config.first_token != "prefill"
        self._listener.lost(request, passage.failure, request.generated_tokens - int(is_withheld))

    # Destinations.

    def _assign(self, passage: Passage) -> None:
        request = passage.request
        rank = self._choose_destination(request)
        if rank is None:
            if self._recovery.without_instance == "wait":
                self._unassigned[request.index] = passage
            else:
                passage.is_hopeless = True
                self._give_up(passage, NO_INSTANCE)
            return
        self._passages.assign(passage, rank)
        request.decode_instance = rank.instance.index
        rank.state.add_remote(request)
        self._wait_for_room(rank.instance, 1)
        if passage.is_prefilled and self._config.mode != "pull":
            self._make_room(passage)
        rank.instance.wake()

    def _wait_for_room(self, instance: Instance, more: int) -> None:
        """So many more requests wait for blocks on a decode instance."""
        self._unreserved[instance.index] += more
        instance.set_waits_for_room(self._unreserved[instance.index] > 0)

    def _make_room(self, passage: Passage) -> None:
        """A prefilled request goes before those that have reserved blocks but are not prefilled.

        One that has overtaken them would otherwise hold KV on the prefill side that they need to go on.
        """
        self._passages.stick(passage)
        rank = passage.destination
        assert rank is not None
        reserved = {
            other.request.index: other
            for other in self._passages.to(rank)
            if other.is_reserved and not other.is_prefilled and not other.is_on_its_way
        }
        candidates = [other.request for other in reserved.values()]
        for request in rank.state.make_room_for_remote(passage.request, candidates):
            other = reserved[request.index]
            other.is_reserved = other.is_state_sent = False
            other.sent_tokens = 0
            self._wait_for_room(rank.instance, 1)
        rank.instance.note_kv_use()
        rank.instance.wake()

    # KV.

    def _send_rest(self, passage: Passage) -> None:
        self._delivery.send(passage, passage.request.context_tokens, None)
        self._finish_if_complete(passage, self._queue.now_ps)

    def _finish_if_complete(self, passage: Passage, now_ps: int) -> None:
        request, destination = passage.request, passage.destination
        if passage.is_on_its_way or not passage.is_prefilled or passage.sent_tokens < request.context_tokens:
            return
        assert destination is not None
        assert request.kv_sent_ps is not None, "the last token of a context is never resident, so something was sent"
        self._passages.end(passage)
        request.kv_arrived_ps = now_ps
        passage.source.release(request)
        recomputes = self._config.first_token == "decode_recompute"
        if self._config.first_token == "decode_after_transfer":
            self._listener.delivered(request)
        destination.state.remote_arrived(request, request.context_tokens - int(recomputes))
        destination.instance.wake()
