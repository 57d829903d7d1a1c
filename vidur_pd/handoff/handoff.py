"""Hand-off of requests from prefill to decode instances: reservation, transfer, first token.

A transfer is one or more flow graphs on the shared network; the decode instance runs a request only after the last of
them has arrived, and the prefill instance keeps the blocks until then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from netsim import Completion, GraphHandle
from vidur_pd._core import Flight
from vidur_pd.config import KvTransferConfig
from vidur_pd.handoff.wire import Computation, KvWire
from vidur_pd.instance import Instance, Rank
from vidur_pd.request import Request


@dataclass(slots=True)
class _Passage:
    """Where a request's KV is between two instances."""

    request: Request
    source: Rank
    destination: Rank | None = None
    is_reserved: bool = False
    """The destination holds blocks for it."""
    is_prefilled: bool = False
    sent_tokens: int = 0
    """Prompt tokens whose KV has been put on the network, or need not travel."""
    is_state_sent: bool = False
    """The recurrent state of a hybrid model has been put on the network."""
    outstanding: set[GraphHandle] = field(default_factory=set)
    failure: str | None = None
    """Why the request will not run on the decode side."""
    chunk: tuple[int, Computation] | None = None
    """In layer-wise mode the prompt tokens that the last chunk reaches, and when it is computed."""


class Outcomes(Protocol):
    """Is told how requests end here."""

    def completed(self, request: Request) -> None: ...

    def failed(self, request: Request, reason: str) -> None: ...


class Handoff:
    """Moves prefilled requests to decode instances by one of the modes of `KvTransferConfig`."""

    def __init__(
        self,
        config: KvTransferConfig,
        wire: KvWire,
        choose_destination: Callable[[Request], Rank],
        listener: Outcomes,
        traffic_changes: Callable[[int], None],
    ) -> None:
        """``traffic_changes`` is told of every instant at which transfers begin or cease to load the network."""
        self._config = config
        self._wire = wire
        self._choose_destination = choose_destination
        self._listener = listener
        self._traffic_changes = traffic_changes
        self._unreserved: Counter[int] = Counter()
        """Requests that wait for blocks, by index of the decode instance."""
        self._passages: dict[int, _Passage] = {}
        self._by_handle: dict[GraphHandle, _Passage] = {}
        self._withdrawn: set[GraphHandle] = set()
        """Transfers that ended because another one of the same request failed."""
        self._stuck: dict[int, _Passage] = {}
        """Prefilled requests whose decode instance has no blocks for them yet, though they were routed to it before."""

    @property
    def open_passages(self) -> int:
        """Requests between their routing and the arrival of their KV."""
        return len(self._passages)

    def routed(self, request: Request, source: Rank) -> None:
        """A request goes to a prefill rank; unless the decode side pulls, it reserves blocks from now on."""
        passage = _Passage(request, source)
        self._passages[request.index] = passage
        if self._config.mode != "pull" and self.must_travel(request):
            self._assign(passage)

    def prefilled(self, request: Request, now_ps: int) -> None:
        """The prompt has been computed and one token sampled on the prefill side."""
        passage = self._passages[request.index]
        passage.is_prefilled = True
        if passage.failure is not None:
            passage.source.release(request)
            self._end(passage)
            return
        if self._config.first_token == "prefill":
            request.first_token_ps = request.last_token_ps = now_ps
        if not self.must_travel(request):
            request.first_token_ps = request.last_token_ps = now_ps
            del self._passages[request.index]
            passage.source.release(request)
            self._listener.completed(request)
        elif passage.destination is None:
            self._assign(passage)
        elif passage.is_reserved:
            self._send_rest(passage, now_ps)
        else:
            self._stuck[request.index] = passage
            self._make_room(passage)

    def before_step(self, instance: Instance, now_ps: int) -> None:
        """A decode instance is about to schedule: it reserves blocks for requests that fit."""
        for rank in instance.ranks:
            for request in rank.scheduler.admit_remote():
                self._wait_for_room(instance, -1)
                passage = self._passages[request.index]
                passage.is_reserved = True
                passage.sent_tokens = request.resident_tokens
                self._stuck.pop(request.index, None)
                if passage.is_prefilled:
                    self._send_rest(passage, now_ps)
                elif passage.chunk is not None:
                    self._send_chunk(passage, now_ps)

    def launched(self, flight: Flight, now_ps: int) -> None:
        """A prefill instance computes chunks: in layer-wise mode each layer leaves as soon as it is done."""
        if self._config.mode != "layerwise" or flight.batch is None:
            return
        for batch in flight.batch.batches:
            if batch is None:
                continue
            for request, kv_tokens in zip(batch.requests, batch.kv_tokens.tolist(), strict=True):
                passage = self._passages[request.index]
                until_tokens = min(kv_tokens, request.prompt_tokens)
                passage.chunk = until_tokens, Computation(now_ps, flight.end_ps)
                if passage.is_reserved:
                    self._send_chunk(passage, now_ps)

    def broken_off(self, request: Request, reason: str, now_ps: int) -> bool:
        """A prefill instance has lost the request; False where the request is not between two instances."""
        passage = self._passages.get(request.index)
        if passage is None:
            return False
        passage.failure = reason
        self._withdraw(passage, now_ps)
        self._end(passage)
        return True

    def arrived(self, completion: Completion) -> bool:
        """A graph of a transfer has arrived or failed; False where the graph belongs to something else."""
        handle, now_ps = completion.handle, completion.at_ps
        passage = self._by_handle.pop(handle, None)
        if passage is None:
            return handle in self._withdrawn
        if completion.is_failed:
            passage.failure = "the network gave up its KV transfer"
            self._withdraw(passage, now_ps)
            if passage.is_prefilled:
                passage.source.release(passage.request)
                self._end(passage)
            return True
        self._wire.arrived(handle, now_ps)
        passage.outstanding.remove(handle)
        self._traffic_changes(now_ps)
        self._finish_if_complete(passage, now_ps)
        if not passage.outstanding and not passage.is_prefilled:
            for stuck in [other for other in self._stuck.values() if other.destination is passage.destination]:
                self._make_room(stuck)
        return True

    def _withdraw(self, passage: _Passage, now_ps: int) -> None:
        """Some of the KV is lost, so the rest need not travel."""
        for handle in sorted(passage.outstanding):
            self._by_handle.pop(handle, None)
            self._withdrawn.add(handle)
            self._wire.abandon(handle)
        passage.outstanding.clear()
        self._traffic_changes(now_ps)

    def _end(self, passage: _Passage) -> None:
        """The request fails; its prefill instance has let it go."""
        request, destination = passage.request, passage.destination
        assert passage.failure is not None
        del self._passages[request.index]
        self._stuck.pop(request.index, None)
        if destination is not None:
            self._wait_for_room(destination.instance, -int(not passage.is_reserved))
            destination.scheduler.abandon_remote(request)
            destination.instance.note_kv_use()
            destination.instance.wake()
        self._listener.failed(request, passage.failure)

    def must_travel(self, request: Request) -> bool:
        """A single output token is sampled by the prefill instance, unless the decode side recomputes it."""
        return request.output_tokens > 1 or self._config.first_token == "decode_recompute"

    def _assign(self, passage: _Passage) -> None:
        rank = self._choose_destination(passage.request)
        passage.destination = rank
        passage.request.decode_instance = rank.instance.index
        rank.scheduler.add_remote(passage.request)
        self._wait_for_room(rank.instance, 1)
        rank.instance.wake()

    def _wait_for_room(self, instance: Instance, more: int) -> None:
        """So many more requests wait for blocks on a decode instance."""
        self._unreserved[instance.index] += more
        instance.set_waits_for_room(self._unreserved[instance.index] > 0)

    def _make_room(self, passage: _Passage) -> None:
        """A prefilled request goes before those that have reserved blocks but are not prefilled.

        One that has overtaken them would otherwise hold KV on the prefill side that they need to go on.
        """
        rank = passage.destination
        assert rank is not None
        reserved = {
            other.request.index: other
            for other in self._passages.values()
            if other.destination is rank and other.is_reserved and not other.is_prefilled and not other.outstanding
        }
        candidates = [other.request for other in reserved.values()]
        for request in rank.scheduler.make_room_for_remote(passage.request, candidates):
            other = reserved[request.index]
            other.is_reserved = other.is_state_sent = False
            other.sent_tokens = 0
            self._wait_for_room(rank.instance, 1)
        rank.instance.note_kv_use()
        rank.instance.wake()

    def _send_rest(self, passage: _Passage, now_ps: int) -> None:
        self._send(passage, passage.request.prompt_tokens, now_ps, None)
        self._finish_if_complete(passage, now_ps)

    def _send_chunk(self, passage: _Passage, now_ps: int) -> None:
        assert passage.chunk is not None
        until_tokens, computed = passage.chunk
        self._send(passage, until_tokens, now_ps, computed)

    def _send(self, passage: _Passage, until_tokens: int, now_ps: int, computed: Computation | None) -> None:
        """Puts the KV of the tokens up to ``until_tokens`` on the network, each layer once it is computed."""
        if passage.failure is not None:
            return
        request, destination = passage.request, passage.destination
        assert destination is not None
        tokens = until_tokens - passage.sent_tokens
        sends_state = self._wire.has_state and until_tokens == request.prompt_tokens and not passage.is_state_sent
        if tokens <= 0 and not sends_state:
            return
        sent = self._wire.send(
            passage.source,
            destination,
            max(tokens, 0),
            with_state=sends_state,
            now_ps=now_ps,
            computed=computed,
        )
        passage.sent_tokens = max(until_tokens, passage.sent_tokens)
        passage.is_state_sent |= sends_state
        passage.outstanding.add(sent.handle)
        self._by_handle[sent.handle] = passage
        request.kv_bytes = (request.kv_bytes or 0) + sent.size_bytes
        if request.kv_sent_ps is None:
            request.kv_sent_ps = sent.first_byte_ps
        self._traffic_changes(now_ps)
        self._traffic_changes(sent.first_byte_ps)

    def _finish_if_complete(self, passage: _Passage, now_ps: int) -> None:
        request, destination = passage.request, passage.destination
        if passage.outstanding or not passage.is_prefilled or passage.sent_tokens < request.prompt_tokens:
            return
        assert destination is not None
        assert request.kv_sent_ps is not None, "the last token of a prompt is never resident, so something was sent"
        del self._passages[request.index]
        request.kv_arrived_ps = now_ps
        passage.source.release(request)
        recomputes = self._config.first_token == "decode_recompute"
        if self._config.first_token == "decode_after_transfer":
            request.first_token_ps = request.last_token_ps = now_ps
        destination.scheduler.remote_arrived(request, request.prompt_tokens - int(recomputes))
        destination.instance.wake()
