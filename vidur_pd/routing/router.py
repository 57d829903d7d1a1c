"""Routing policies over anything that can state its load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from vidur_pd._core import Candidates, RankState
from vidur_pd.config import RoutingPolicy

Span = tuple[int, int]
"""Places of candidates: the first, and one past the last."""

MEASURES: Final = {"least_requests": "requests", "least_tokens": "tokens"}
"""Loads that policies compare (``core/candidates.hpp``); the others compare none."""


class Router:
    """Assigns requests to open candidates by one policy; ties go to the first candidate in order.

    ``round_robin`` counts per router, ``least_requests`` and ``least_tokens`` read the load at the instant of the
    decision (of equal tokens, the fewest requests), ``random`` draws from the router's own generator. A choice takes
    time that grows with the logarithm of the number of candidates.
    """

    __slots__ = ("_candidates", "_places", "_policy", "_random", "_turn")

    def __init__(
        self,
        policy: RoutingPolicy,
        candidates: Sequence[Sequence[RankState]],
        random: np.random.Generator | None = None,
    ) -> None:
        """``candidates``: the ranks that each consists of. ``random``: for the policy of that name."""
        assert candidates, "a router needs a candidate"
        self._policy = policy
        self._candidates = Candidates(candidates, MEASURES.get(policy, "none"))
        self._places = len(candidates)
        self._random = random
        self._turn = 0

    @property
    def loads_read(self) -> int:
        """How often the load of a candidate has been read."""
        return self._candidates.loads_read

    def set_open(self, place: int, is_open: bool) -> None:
        """The candidate at a place gets requests from now on, or gets none."""
        self._candidates.set_open(place, is_open)

    def choose(self, spans: Sequence[Span] | None = None) -> int | None:
        """The place of the candidate for the next request, of those in ``spans`` (rising); ``None``: none is open."""
        spans = [(0, self._places)] if spans is None else spans
        match self._policy:
            case "round_robin":
                place = self._candidates.next(spans, self._turn % self._places)
                self._turn = self._turn if place is None else place + 1
                return place
            case "random":
                is_open = self._candidates.open(spans)
                assert self._random is not None, "the policy draws"
                return self._candidates.nth(spans, int(self._random.integers(is_open))) if is_open else None
            case "least_requests" | "least_tokens":
                return self._candidates.least(spans)
