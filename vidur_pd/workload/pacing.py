"""Who waits for what: sessions whose turns follow one another, and clients that send after they have been answered."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
NOBODY = -1
"""In a column of rows or of populations: there is none."""


@dataclass(frozen=True, slots=True, eq=False)
class Sessions:
    """Which requests are turns of one conversation. Arrays are [requests]."""

    session: Rows
    """Number of the session."""
    turn: Rows
    """Number of the turn in its session, from 1 on."""
    previous: Rows
    """Row of the turn before; `NOBODY` for the first one that is known."""

    def of(self, rows: NDArray[np.intp]) -> Sessions:
        """Those of requests in another order, or of some of them."""
        return Sessions(self.session[rows], self.turn[rows], moved(self.previous, rows))

    @staticmethod
    def of_single_requests(requests: int) -> Sessions:
        """Sessions of one turn."""
        return Sessions(np.arange(requests), np.ones(requests, dtype=np.int64), np.full(requests, NOBODY))


@dataclass(frozen=True, slots=True)
class Clients:
    """Clients that each have one session at a time, or one request where there are none, and then the next."""

    clients: int
    until_ps: int | None
    """Nothing is sent from here on."""


@dataclass(frozen=True, slots=True, eq=False)
class Pacing:
    """Which requests are sent after others have ended. Arrays are [requests]."""

    follows: Rows
    """Row that has to end before this one is sent; `NOBODY`: sent by a client that has nothing else, or at its time."""
    think_ps: Rows
    """From that end, or from that of the client's session before, until this one is sent."""
    population: Rows
    """Number of the clients that send it; `NOBODY`: it is sent at its time, or follows one that is."""
    populations: tuple[Clients, ...]

    def of(self, rows: NDArray[np.intp]) -> Pacing:
        """That of requests in another order, or of some of them."""
        return Pacing(moved(self.follows, rows), self.think_ps[rows], self.population[rows], self.populations)

    @staticmethod
    def of_timed_requests(requests: int) -> Pacing:
        """Requests that wait for nothing."""
        nobody = np.full(requests, NOBODY)
        return Pacing(nobody, np.zeros(requests, dtype=np.int64), nobody, ())


def moved(links: Rows, rows: NDArray[np.intp]) -> Rows:
    """[rows] links from row to row after the rows have been reordered; to one that has gone: `NOBODY`."""
    place = np.full(len(links) + 1, NOBODY, dtype=np.int64)  # one more for `NOBODY`, the last position
    place[rows] = np.arange(len(rows))
    return place[links[rows]]


def shifted(links: Rows, by: int) -> Rows:
    """Links behind ``by`` other rows, or populations."""
    return np.where(links == NOBODY, NOBODY, links + by)


def first_of(links: Rows) -> Rows:
    """[rows] where the way along the links ends."""
    first = np.where(links == NOBODY, np.arange(len(links)), links)
    while not np.array_equal(further := first[first], first):
        first = further
    return first
