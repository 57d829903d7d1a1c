"""Routing policies over numbered candidates: the instances of some pools, or the ranks of an instance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from vidur_pd.config import RoutingPolicy


class Least(Protocol):
    """Finds the candidate that has the least to do (``core/load.hpp``)."""

    def __call__(self, among: NDArray[np.int32], by_tokens: bool, after: int, /) -> int:
        """One of ``among``, by tokens or by requests; of equal ones the next after ``after``, in turns."""
        ...


class Router:
    """Assigns requests by one policy.

    ``least_tokens`` and ``least_requests`` compare loads at the instant of the decision; equal candidates take turns.
    ``round_robin`` counts per router, ``random`` draws from the router's own generator.
    """

    __slots__ = ("_candidates", "_last", "_least", "_policy", "_random")

    def __init__(
        self, policy: RoutingPolicy, candidates: Sequence[int], random: np.random.Generator, least: Least
    ) -> None:
        assert candidates, "a router needs a candidate"
        self._policy = policy
        self._candidates = np.array(sorted(candidates), dtype=np.int32)
        self._random = random
        self._least = least
        self._last = -1

    def choose(self, among: Sequence[int] | None = None) -> int:
        """The candidate for the next request, among all or among some of them in rising order: at least one."""
        candidates = self._candidates if among is None else np.array(among, dtype=np.int32)
        match self._policy:
            case "least_tokens" | "least_requests":
                self._last = self._least(candidates, self._policy == "least_tokens", self._last)
            case "round_robin":
                place = int(np.searchsorted(candidates, self._last, side="right"))
                self._last = int(candidates[place % len(candidates)])
            case "random":
                self._last = int(candidates[self._random.integers(len(candidates))])
        return self._last
