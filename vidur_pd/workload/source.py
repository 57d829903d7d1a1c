"""Requests as they are sent: at times known before, or when others have ended."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError
from vidur_pd.workload.pacing import NOBODY, Pacing, first_of
from vidur_pd.workload.workload import MAX_ARRIVAL_S, PS_PER_S, Workload

NEVER = -1


class Sending(NamedTuple):
    """A request is sent by its user."""

    row: int
    at_ps: int


class RequestSource:
    """Says when the requests of a workload are sent while a simulation goes on, and remembers it.

    A request that was refused or has failed counts as ended: its client goes on with what comes next, as the clients of
    benchmarks do. Of clients that become free at one instant the one whose request ended first is served first. What is
    sent depends on the order of ends alone.
    """

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self._paces = None if workload.pacing is None else _Paces(workload, workload.pacing)
        self.arrived_ps = workload.arrived_ps if self._paces is None else self._paces.arrived_ps
        """[requests] when each was sent; ``NEVER`` as long as that is not known."""

    @property
    def is_closed(self) -> bool:
        """Whether some requests wait for others to end."""
        return self._paces is not None

    @property
    def expected(self) -> int:
        """Requests that have been sent, or will be at a time that is known."""
        return len(self.workload) if self._paces is None else self._paces.expected

    @property
    def sent(self) -> slice | NDArray[np.int64]:
        """Rows of the requests that have a time, in order of arrival."""
        if self._paces is None:
            return slice(None)
        rows = np.flatnonzero(self.arrived_ps != NEVER)
        return rows[np.argsort(self.arrived_ps[rows], kind="stable")]

    def timed(self) -> Iterable[Sending]:
        """Requests with times of their own, in their order."""
        rows = range(len(self.workload)) if self._paces is None else self._paces.timed
        return (Sending(row, int(self.workload.arrived_ps[row])) for row in rows)

    def first(self) -> list[Sending]:
        """What clients send at the beginning, all at time zero."""
        return [] if self._paces is None else self._paces.first()

    def after(self, row: int, now_ps: int) -> list[Sending]:
        """What is sent because a request has ended now."""
        return [] if self._paces is None else self._paces.after(row, now_ps)


class _Paces:
    """The state of a workload with pacing."""

    def __init__(self, workload: Workload, pacing: Pacing) -> None:
        requests = len(workload)
        self._pacing = pacing
        self._head = first_of(pacing.follows).tolist()
        heads = pacing.follows == NOBODY
        self.timed: list[int] = np.flatnonzero(heads & (pacing.population == NOBODY)).tolist()
        self.arrived_ps = np.full(requests, NEVER, dtype=np.int64)
        self.arrived_ps[self.timed] = workload.arrived_ps[self.timed]
        self.expected = len(self.timed)
        self._followers: defaultdict[int, list[int]] = defaultdict(list)
        for row in np.flatnonzero(~heads).tolist():
            self._followers[int(pacing.follows[row])].append(row)
        self._heads: list[deque[int]] = [
            deque(np.flatnonzero(heads & (pacing.population == number)).tolist())
            for number in range(len(pacing.populations))
        ]
        self._open = Counter(self._head)
        """Requests that have not ended, by the first of those that follow one another."""

    def first(self) -> list[Sending]:
        found = (
            self._send_head(number, 0, thinks=False)
            for number, population in enumerate(self._pacing.populations)
            for _ in range(min(population.clients, len(self._heads[number])))
        )
        return [sending for sending in found if sending is not None]

    def after(self, row: int, now_ps: int) -> list[Sending]:
        found = [self._send(follower, now_ps) for follower in self._followers.pop(row, ())]
        head = self._head[row]
        self._open[head] -= 1
        population = int(self._pacing.population[row])
        if population != NOBODY and not self._open[head]:
            found.append(self._send_head(population, now_ps))
        return [sending for sending in found if sending is not None]

    def _send_head(self, population: int, now_ps: int, *, thinks: bool = True) -> Sending | None:
        """A client begins its next session."""
        heads = self._heads[population]
        return self._send(heads.popleft(), now_ps, thinks=thinks) if heads else None

    def _send(self, row: int, now_ps: int, *, thinks: bool = True) -> Sending | None:
        at_ps = now_ps + (int(self._pacing.think_ps[row]) if thinks else 0)
        population = int(self._pacing.population[row])
        until_ps = None if population == NOBODY else self._pacing.populations[population].until_ps
        if until_ps is not None and at_ps >= until_ps:
            return None
        if at_ps > MAX_ARRIVAL_S * PS_PER_S:
            raise InputError(
                f"workload: found a request that would be sent at {at_ps // PS_PER_S} s, "
                f"expected at most {MAX_ARRIVAL_S} s (fewer requests, shorter think times, or duration_s)"
            )
        self.arrived_ps[row] = at_ps
        self.expected += 1
        return Sending(row, at_ps)
