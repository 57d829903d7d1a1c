"""Requests that a fault has hit: begun again, kept waiting, or ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from vidur_pd.clock import EventQueue, Priority
from vidur_pd.config.faults import RecoveryConfig
from vidur_pd.workload.request import Request

NO_INSTANCE = "no instance that could take it was in service"
STOOD_STILL = "the network stood still"


class Recovery:
    """Decides what becomes of requests that have lost their KV, or find no instance in service.

    A request that begins again arrives once more at the router, at the instant of its loss; it is chosen an instance as
    any other. Losses are known at once: the time a router needs to notice a failure is not modelled.
    """

    def __init__(
        self,
        config: RecoveryConfig,
        queue: EventQueue,
        enter: Callable[[Request], None],
        end: Callable[[Request, str], None],
    ) -> None:
        """``enter`` routes a request, ``end`` makes it fail with a reason."""
        self._config = config
        self._queue = queue
        self._enter = enter
        self._end = end
        self._attempts: Counter[int] = Counter()
        """By index of the request: how often it has begun again."""
        self._parked: dict[int, Request] = {}
        self._is_over = False
        self.recomputed = self.retried = self.failed = 0
        """Times that requests began again, and requests that failed."""

    def attempts(self, request: Request) -> int:
        """How often the request has begun again."""
        return self._attempts[request.index]

    def lost(self, request: Request, reason: str, delivered_tokens: int) -> None:
        """The KV of the request is gone, and no instance has anything of it; the user has ``delivered_tokens``."""
        is_spent = self._attempts[request.index] >= self._config.max_attempts
        if self._is_over or is_spent or self._config.requests == "fail":
            self.fail(request, reason)
            return
        self._attempts[request.index] += 1
        if self._config.requests == "recompute":
            self.recomputed += 1
            request.restart(delivered_tokens)
        else:
            self.retried += 1
            request.restart(0)
        self._queue.schedule(self._queue.now_ps, Priority.ARRIVAL, lambda: self._enter(request))

    def unserved(self, request: Request) -> None:
        """Every instance that could take the request is out of service."""
        if self._is_over or self._config.without_instance == "fail":
            self.fail(request, NO_INSTANCE)
        else:
            self._parked[request.index] = request

    def in_service_again(self) -> None:
        """Some instance has come back: what waits is routed again, in the order in which it came."""
        waiting, self._parked = list(self._parked.values()), {}
        for request in waiting:
            self._enter(request)

    def fail(self, request: Request, reason: str) -> None:
        """The request gets no more tokens."""
        self.failed += 1
        self._end(request, reason)

    def end_all(self) -> None:
        """Nothing will change any more: what waits fails, and so does all that is lost from now on."""
        self._is_over = True
        waiting, self._parked = list(self._parked.values()), {}
        for request in waiting:
            self.fail(request, NO_INSTANCE)
