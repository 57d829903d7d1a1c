"""Delivery of KV transfers: their parts are sent, sent again when they fail, and withdrawn."""

from __future__ import annotations

from collections.abc import Callable

from netsim import Completion, GraphHandle, NoPath
from netsim.units import PS_PER_S
from vidur_pd.config.faults import RecoveryConfig
from vidur_pd.execution.clock import EventQueue, Priority
from vidur_pd.execution.network_clock import FAR_PS
from vidur_pd.kv.transfer.sender import KvSender
from vidur_pd.kv.transfer.transfer import KvTransfer, TransferPart

GIVEN_UP = "the network gave up its KV transfer"


class Delivery:
    """Parts of transfers on the network. A part that fails is sent again as a whole, with exponential back-off."""

    def __init__(
        self,
        recovery: RecoveryConfig,
        sender: KvSender,
        queue: EventQueue,
        traffic_changes: Callable[[int], None],
        give_up: Callable[[KvTransfer, str], None],
        *,
        has_costs: bool,
    ) -> None:
        """``traffic_changes`` is called with every instant at which transfers begin or cease to load the network,
        ``give_up`` with a transfer one of whose parts has used up its retries. ``has_costs``: requests get figures of
        the connector's.
        """
        self._has_costs = has_costs
        self._retries = recovery.transfer_retries
        self._backoff_ps = round(recovery.transfer_backoff_s * PS_PER_S)
        self._sender = sender
        self._queue = queue
        self._traffic_changes = traffic_changes
        self._give_up = give_up
        self._by_handle: dict[GraphHandle, KvTransfer] = {}
        self._withdrawn: set[GraphHandle] = set()
        """Graphs that were taken off the network; some may complete at the same instant."""
        self.retried = 0
        """Number of parts that were sent again."""

    def send(self, transfer: KvTransfer, until_tokens: int) -> None:
        """Puts the KV of the tokens up to ``until_tokens`` on the network, each layer once it is computed.

        What has been sent is not sent again; the recurrent state goes with the last token.
        """
        tokens = until_tokens - transfer.sent_tokens
        is_last = until_tokens == transfer.context_tokens
        with_state = self._sender.has_state and is_last and not transfer.is_state_sent
        if tokens <= 0 and not with_state:
            return
        transfer.sent_tokens = max(until_tokens, transfer.sent_tokens)
        transfer.is_state_sent |= with_state
        self._put(transfer, TransferPart(max(tokens, 0), with_state, transfer.layers_up_to(until_tokens)))

    def arrived(self, completion: Completion) -> KvTransfer | None:
        """Handles a graph that has arrived or failed; returns its transfer if a part of one has arrived."""
        handle, now_ps = completion.handle, completion.at_ps
        transfer = self._by_handle.pop(handle, None)
        if transfer is None:
            return None
        part = transfer.on_network.pop(handle)
        if completion.is_failed:
            self._abandon(transfer, handle)
            self._traffic_changes(now_ps)
            self._failed(transfer, part)
            return None
        self._sender.arrived(handle, transfer.request.index)
        self._traffic_changes(now_ps)
        return transfer

    def knows(self, handle: GraphHandle) -> bool:
        """Whether a graph is, or was, a part of a transfer."""
        return handle in self._by_handle or handle in self._withdrawn

    def withdraw(self, transfer: KvTransfer) -> None:
        """Takes all parts of a transfer off the network and cancels those that wait to be sent again."""
        for handle in sorted(transfer.on_network):
            del self._by_handle[handle]
            self._abandon(transfer, handle)
        for event in transfer.to_resend.values():
            event.cancel()
        transfer.on_network.clear()
        transfer.to_resend.clear()
        self._traffic_changes(self._queue.now_ps)

    def _put(self, transfer: KvTransfer, part: TransferPart) -> None:
        destination, now_ps, request = transfer.destination, self._queue.now_ps, transfer.request
        assert destination is not None
        try:
            sent = self._sender.send(
                transfer.source,
                destination,
                part.tokens,
                with_state=part.with_state,
                now_ps=now_ps,
                layers=part.layers,
            )
        except NoPath:
            self._schedule(transfer, part, now_ps, lambda: self._failed(transfer, part))
            return
        transfer.on_network[sent.handle] = part
        self._by_handle[sent.handle] = transfer
        request.kv_bytes = (request.kv_bytes or 0) + sent.size_bytes
        if self._has_costs:
            request.kv_handshake_ps = (request.kv_handshake_ps or 0) + sent.handshake_ps
            request.kv_posting_ps = (request.kv_posting_ps or 0) + sent.posting_ps
        if request.kv_sent_ps is None:
            request.kv_sent_ps = sent.first_byte_ps
        self._traffic_changes(now_ps)
        self._traffic_changes(sent.first_byte_ps)

    def _abandon(self, transfer: KvTransfer, handle: GraphHandle) -> None:
        """Takes a part off the network; bytes that were not delivered no longer count in ``kv_bytes``."""
        self._withdrawn.add(handle)
        lost_bytes = self._sender.abandon(handle, self._queue.now_ps)
        transfer.request.kv_bytes = (transfer.request.kv_bytes or 0) - lost_bytes

    def _failed(self, transfer: KvTransfer, part: TransferPart) -> None:
        part.failures += 1
        at_ps = self._queue.now_ps + (self._backoff_ps << (part.failures - 1))
        if part.failures > self._retries or at_ps > FAR_PS:
            self._give_up(transfer, GIVEN_UP)
            return
        self.retried += 1
        self._schedule(transfer, part, at_ps, lambda: self._put(transfer, part))

    def _schedule(self, transfer: KvTransfer, part: TransferPart, at_ps: int, action: Callable[[], None]) -> None:
        def act() -> None:
            del transfer.to_resend[part]
            action()

        transfer.to_resend[part] = self._queue.schedule(at_ps, Priority.COMPLETION, act)
