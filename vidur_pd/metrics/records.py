"""What a simulation records, taken from the core at its end or, with a stream, as it comes."""

from __future__ import annotations

from typing import Final, Protocol

from vidur_pd._core import Loop
from vidur_pd.execution.network_clock import FAR_PS
from vidur_pd.metrics.iterations import Columns, IterationLog
from vidur_pd.metrics.quantities import PS_PER_S
from vidur_pd.metrics.requests import RequestTable
from vidur_pd.metrics.tally import RequestTally
from vidur_pd.workload.source import RequestSource

REQUESTS_AT_ONCE: Final = 16_384
ITERATIONS_AT_ONCE: Final = 262_144
LOOK_EVERY_PS: Final = 10 * PS_PER_S
"""Simulated time after which the loop comes back where nothing else interrupts it."""


class Stream(Protocol):
    """Takes what has ended: to keep it outside the memory of the simulation, or to judge it meanwhile."""

    requests_at_once: int
    """So many are handed over together, or more."""

    def add_requests(self, table: RequestTable) -> None:
        """Requests that have ended, in the order of their ends."""
        ...

    def add_iterations(self, columns: Columns) -> None:
        """Iterations that have ended."""
        ...


class Records:
    """Hands what has come to an end to a stream, if there is one, and counts it for the summary."""

    def __init__(
        self, source: RequestSource, loop: Loop, log: IterationLog, stream: Stream | None, *, has_connector: bool
    ) -> None:
        """``has_connector``: KV is handed over by a connector with costs, of which requests have figures."""
        self.tally = RequestTally(source)
        self._source = source
        self._loop = loop
        self._ended = loop.requests
        self._log = log
        self._stream = stream
        self._has_connector = has_connector
        self._names = tuple(name for name, _ in log.instances)
        self._taken_iterations = 0

    @property
    def until_ps(self) -> int:
        """How far the loop may run by itself."""
        if self._stream is None:
            return FAR_PS
        next_ps = self._loop.next_event_ps()  # none is queued in the middle of a step
        return (self._loop.now_ps if next_ps is None else next_ps) + LOOK_EVERY_PS

    def pass_on(self) -> None:
        """Hands over what has become enough for a row group."""
        if self._stream is None:
            return
        if len(self._ended) >= self._stream.requests_at_once:
            self._pass_on_requests(self._stream)
        if self._log.iterations - self._taken_iterations >= ITERATIONS_AT_ONCE:
            self._pass_on_iterations(self._stream)

    def finish(self) -> RequestTable:
        """Hands over the rest; without a stream all requests are returned, in the order of arrival."""
        if self._stream is not None:
            self._pass_on_requests(self._stream)
            self._pass_on_iterations(self._stream)
        table = self._take().in_order_of_arrival()
        self.tally.add(table)
        return table

    def _take(self) -> RequestTable:
        taken = self._ended.take()
        return RequestTable.of(self._source, taken, self._names, has_connector=self._has_connector)

    def _pass_on_requests(self, stream: Stream) -> None:
        table = self._take()
        self.tally.add(table)
        stream.add_requests(table)

    def _pass_on_iterations(self, stream: Stream) -> None:
        self._taken_iterations = self._log.iterations
        stream.add_iterations(self._log.take_columns())
