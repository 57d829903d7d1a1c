"""Parcels of KV on the network: sent, sent again when they fail, and taken off."""

from __future__ import annotations

from collections.abc import Callable

from netsim import Completion, GraphHandle, NoPath
from vidur_pd.events import EventQueue, Priority
from vidur_pd.execution.network_clock import FAR_PS
from vidur_pd.faults.config import RecoveryConfig
from vidur_pd.handoff.passage import Parcel, Passage
from vidur_pd.handoff.wire import Computation, KvWire
from vidur_pd.metrics.quantities import PS_PER_S

GIVEN_UP = "the network gave up its KV transfer"


class Delivery:
    """Carries the parcels of passages. A parcel that fails is sent again as a whole, after a time that doubles."""

    def __init__(
        self,
        recovery: RecoveryConfig,
        wire: KvWire,
        queue: EventQueue,
        traffic_changes: Callable[[int], None],
        give_up: Callable[[Passage, str], None],
    ) -> None:
        """``traffic_changes`` is told of every instant at which transfers begin or cease to load the network,
        ``give_up`` of a passage one of whose parcels has used up its retries.
        """
        self._retries = recovery.transfer_retries
        self._backoff_ps = round(recovery.transfer_backoff_s * PS_PER_S)
        self._wire = wire
        self._queue = queue
        self._traffic_changes = traffic_changes
        self._give_up = give_up
        self._by_handle: dict[GraphHandle, Passage] = {}
        self._withdrawn: set[GraphHandle] = set()
        """Graphs that were taken off the network; some may complete at the same instant."""
        self.retried = 0
        """Parcels that were sent again."""

    def send(self, passage: Passage, until_tokens: int, computed: Computation | None) -> None:
        """Puts the KV of the tokens up to ``until_tokens`` on the network, each layer once it is computed."""
        tokens = until_tokens - passage.sent_tokens
        is_last = until_tokens == passage.request.context_tokens
        with_state = self._wire.has_state and is_last and not passage.is_state_sent
        if tokens <= 0 and not with_state:
            return
        passage.sent_tokens = max(until_tokens, passage.sent_tokens)
        passage.is_state_sent |= with_state
        self._put(passage, Parcel(max(tokens, 0), with_state, computed))

    def arrived(self, completion: Completion) -> Passage | None:
        """A graph has arrived or failed: the passage one of whose parcels has arrived with it, if it is one."""
        handle, now_ps = completion.handle, completion.at_ps
        passage = self._by_handle.pop(handle, None)
        if passage is None:
            return None
        parcel = passage.outstanding.pop(handle)
        if completion.is_failed:
            self._abandon(passage, handle)
            self._traffic_changes(now_ps)
            self._failed(passage, parcel)
            return None
        self._wire.arrived(handle)
        self._traffic_changes(now_ps)
        return passage

    def knows(self, handle: GraphHandle) -> bool:
        """Whether a graph is, or was, a parcel."""
        return handle in self._by_handle or handle in self._withdrawn

    def withdraw(self, passage: Passage) -> None:
        """Takes all parcels of a passage off the network: some of its KV is lost, so the rest need not travel."""
        for handle in sorted(passage.outstanding):
            del self._by_handle[handle]
            self._abandon(passage, handle)
        for event in passage.pending.values():
            event.cancel()
        passage.outstanding.clear()
        passage.pending.clear()
        self._traffic_changes(self._queue.now_ps)

    def _put(self, passage: Passage, parcel: Parcel) -> None:
        destination, now_ps, request = passage.destination, self._queue.now_ps, passage.request
        assert destination is not None
        try:
            sent = self._wire.send(
                passage.source,
                destination,
                parcel.tokens,
                with_state=parcel.with_state,
                now_ps=now_ps,
                computed=parcel.computed,
            )
        except NoPath:
            self._schedule(passage, parcel, now_ps, lambda: self._failed(passage, parcel))
            return
        passage.outstanding[sent.handle] = parcel
        self._by_handle[sent.handle] = passage
        request.kv_bytes = (request.kv_bytes or 0) + sent.size_bytes
        if request.kv_sent_ps is None:
            request.kv_sent_ps = sent.first_byte_ps
        self._traffic_changes(now_ps)
        self._traffic_changes(sent.first_byte_ps)

    def _abandon(self, passage: Passage, handle: GraphHandle) -> None:
        """What has not got through is not counted."""
        self._withdrawn.add(handle)
        lost_bytes = self._wire.abandon(handle, self._queue.now_ps)
        passage.request.kv_bytes = (passage.request.kv_bytes or 0) - lost_bytes

    def _failed(self, passage: Passage, parcel: Parcel) -> None:
        parcel.failures += 1
        at_ps = self._queue.now_ps + (self._backoff_ps << (parcel.failures - 1))
        if parcel.failures > self._retries or at_ps > FAR_PS:
            self._give_up(passage, GIVEN_UP)
            return
        self.retried += 1
        self._schedule(passage, parcel, at_ps, lambda: self._put(passage, parcel))

    def _schedule(self, passage: Passage, parcel: Parcel, at_ps: int, action: Callable[[], None]) -> None:
        def act() -> None:
            del passage.pending[parcel]
            action()

        passage.pending[parcel] = self._queue.schedule(at_ps, Priority.COMPLETION, act)
