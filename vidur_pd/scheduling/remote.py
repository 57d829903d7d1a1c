"""Requests of a decode rank whose KV comes from elsewhere, until they run.

Source of the rules: vLLM 0.24.0, ``vllm/v1/core/sched/scheduler.py`` (``WAITING_FOR_REMOTE_KVS``). Blocks for the whole
prompt are reserved before the transfer starts; a request that waits for its KV, or has it and waits for its turn, holds
its blocks and is never preempted.
"""

from __future__ import annotations

from collections import deque

from vidur_pd.kv import BlockPool
from vidur_pd.request import Request, RequestStatus


class RemoteQueue:
    """First come, first served: requests without blocks, those in transfer, and those whose KV has ``arrived``."""

    def __init__(self, pool: BlockPool) -> None:
        self.arrived: deque[Request] = deque()
        self._pool = pool
        self._pending: deque[Request] = deque()
        self._transferring: dict[int, Request] = {}

    def __len__(self) -> int:
        return len(self._pending) + len(self._transferring) + len(self.arrived)

    @property
    def is_transferring(self) -> bool:
        """Some request's KV is on its way."""
        return bool(self._transferring)

    def add(self, request: Request) -> None:
        """Queue a request that has no blocks here yet."""
        request.status = RequestStatus.WAITING
        self._pending.append(request)

    def reserve(self, promised_blocks: int) -> list[Request]:
        """Reserve blocks for whole prompts until one does not fit beside ``promised_blocks``; returns those served."""
        reserved: list[Request] = []
        while self._pending and self.fits(self._pending[0], promised_blocks):
            request = self._pending[0]
            prefix = self._pool.cached_prefix(request)
            self._pool.allocate(request, request.prompt_tokens, prefix)
            request.resident_tokens = prefix.tokens
            request.status = RequestStatus.TRANSFERRING
            self._transferring[request.index] = self._pending.popleft()
            reserved.append(request)
        return reserved

    def fits(self, request: Request, promised_blocks: int) -> bool:
        """Whether blocks for the whole prompt are free beside ``promised_blocks``."""
        needed = -(-request.prompt_tokens // self._pool.block_tokens) - self._pool.cached_prefix(request).shared_blocks
        return needed <= self._pool.free_blocks - promised_blocks

    def prefer(self, request: Request) -> None:
        """Let a request without blocks be the next to get some."""
        self._pending.remove(request)
        self._pending.appendleft(request)

    def retract(self, request: Request) -> None:
        """Take reserved blocks back while no KV is on its way to them; the request queues again, behind the others."""
        del self._transferring[request.index]
        self._pool.release(request)
        self.add(request)

    def abandon(self, request: Request) -> None:
        """Forget a request that will not run."""
        if request.index in self._transferring:
            del self._transferring[request.index]
            self._pool.release(request)
        else:
            self._pending.remove(request)

    def complete(self, request: Request, computed_tokens: int) -> None:
        """The transfer has ended; ``computed_tokens`` is P (first token from prefill) or P − 1 (first token here)."""
        assert request.prompt_tokens - 1 <= computed_tokens <= request.prompt_tokens, "neither P nor P − 1"
        del self._transferring[request.index]
        request.set_progress(computed_tokens, computed_tokens - request.prompt_tokens + 1)
        assert not request.is_finished, f"request {request.request_id} has no token left to decode"
        request.status = RequestStatus.WAITING
        self._pool.register(request, computed_tokens)
        self.arrived.append(request)

    def drop_last_arrived(self) -> Request:
        """Release the KV of the request that arrived last."""
        request = self.arrived.pop()
        self._pool.release(request)
        return request
