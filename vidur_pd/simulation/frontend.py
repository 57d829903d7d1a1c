"""The way of requests through a frontend: API servers with one loop and one tokeniser each.

Tokens go back through the same loops (``core/frontend.hpp``), so a server that is busy with answers holds up requests.
"""

from __future__ import annotations

from collections.abc import Callable

from netsim.units import PS_PER_US
from vidur_pd._core import Loop
from vidur_pd.config.frontend import VllmFrontend
from vidur_pd.execution.clock import EventQueue, Priority


class FrontendPath:
    """Takes requests to the engines: prepared in the order of arrival, then a job of the loop of their server."""

    def __init__(self, config: VllmFrontend, servers: int, loop: Loop, queue: EventQueue) -> None:
        """``servers``: of the simulation. To be made before the loop gets its instances."""
        self._config = config
        self._loop = loop
        self._queue = queue
        self._prepared_ps = [0] * servers
        """[servers] when each has prepared all requests so far."""
        self._accepted = 0
        loop.serve_through(
            servers,
            message_ps=_ps(config.message_us),
            process_ps=_ps(config.process_token_us),
            send_ps=_ps(config.send_token_us),
        )

    def accept(self, prompt_tokens: int, enter: Callable[[int], None]) -> None:
        """A client sends a request now; ``enter`` is called with its server when the engines get it."""
        server = self._accepted % len(self._prepared_ps)
        self._accepted += 1
        begin_ps = max(self._prepared_ps[server], self._queue.now_ps)
        prepared_ps = begin_ps + _ps(self._config.prepare_us + prompt_tokens * self._config.prepare_token_us)
        self._prepared_ps[server] = prepared_ps
        self._at(prepared_ps, lambda: self._prepared(server, enter))

    def _prepared(self, server: int, enter: Callable[[int], None]) -> None:
        done_ps = self._loop.work_of_server(server, _ps(self._config.request_us))
        self._at(done_ps + _ps(self._config.delay_us), lambda: enter(server))

    def _at(self, at_ps: int, action: Callable[[], None]) -> None:
        self._queue.schedule(at_ps, Priority.ARRIVAL, action)


def _ps(time_us: float) -> int:
    return round(time_us * PS_PER_US)
