"""Recovery of requests after faults: they are restarted, kept waiting, or failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from vidur_pd.config.faults import RecoveryConfig
from vidur_pd.execution.clock import EventQueue, Priority
from vidur_pd.workload.request import Request

NO_INSTANCE = "no instance that could take it was in service"
STOOD_STILL = "the network stood still"


class Recovery:
    """Restarts, parks or fails requests that have lost their KV, or find no instance in service.

    A restarted request arrives once more at the router, at the instant of its loss, and is routed like any other.
    Losses are known at once: the time that a router needs to notice a failure is not modelled.
    """

    def __init__(
        self,
        config: RecoveryConfig,
        queue: EventQueue,
        enter: Callable[[Request], None],
        end: Callable[[Request, str], None],
    ) -> None:
        """``enter`` routes a request, ``end`` fails it for a reason."""
        self._config = config
        self._queue = queue
        self._enter = enter
        self._end = end
        self._attempts: Counter[int] = Counter()
        """Number of restarts, by index of the request."""
        self._parked: dict[int, Request] = {}
        self._is_over = False
        self.recomputed = self.retried = self.failed = 0
        """Restarts that keep the delivered tokens, restarts from the prompt, and requests that failed."""

    def attempts(self, request: Request) -> int:
        """Number of restarts of the request."""
        return self._attempts[request.index]

    def lost(self, request: Request, reason: str, delivered_tokens: int) -> None:
        """The KV of the request is lost on all instances; ``delivered_tokens`` have reached the user."""
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
        request.again_ps = self._queue.now_ps
        self._queue.schedule(self._queue.now_ps, Priority.ARRIVAL, lambda: self._enter(request))

    def unserved(self, request: Request) -> None:
        """Every instance that could take the request is out of service."""
        if self._is_over or self._config.without_instance == "fail":
            self.fail(request, NO_INSTANCE)
        else:
            self._parked[request.index] = request

    def in_service_again(self) -> None:
        """Some instance is back in service: parked requests are routed again, in order of arrival."""
        waiting, self._parked = list(self._parked.values()), {}
        for request in waiting:
            self._enter(request)

    def fail(self, request: Request, reason: str) -> None:
        """The request gets no more tokens."""
        self.failed += 1
        self._end(request, reason)

    @property
    def has_parked(self) -> bool:
        """Requests wait for an instance in service."""
        return bool(self._parked)

    def end_all(self) -> None:
        """No event will follow: parked requests fail, and so do those lost from now on."""
        self._is_over = True
        waiting, self._parked = list(self._parked.values()), {}
        for request in waiting:
            self.fail(request, NO_INSTANCE)
