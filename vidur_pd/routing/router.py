"""Routing policies over anything that can state its load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Literal, Protocol, TypeVar

import numpy as np

Policy = Literal["round_robin", "random", "least_requests", "least_tokens"]


class Candidate(Protocol):
    """An instance, or a data-parallel rank of one, as routing sees it."""

    @property
    def pending_requests(self) -> int:
        """Requests assigned and not finished here, weighted as the engine's front end does."""
        ...

    @property
    def pending_tokens(self) -> int:
        """Prompt tokens assigned and not yet computed here."""
        ...


Choice = TypeVar("Choice", bound=Candidate)


class Router(Generic[Choice]):
    """Assigns requests by one policy; ties go to the first candidate in order.

    ``round_robin`` counts per router, ``least_requests`` and ``least_tokens`` read the load at the instant of the
    decision (of equal tokens, as on decode instances, the fewest requests), ``random`` draws from the router's own
    generator.
    """

    __slots__ = ("_candidates", "_policy", "_random", "_turn")

    def __init__(self, policy: Policy, candidates: Sequence[Choice], random: np.random.Generator) -> None:
        assert candidates, "a router needs a candidate"
        self._policy = policy
        self._candidates = tuple(candidates)
        self._random = random
        self._turn = 0

    def choose(self, accepts: Callable[[Choice], bool] | None = None) -> Choice:
        """The candidate for the next request, among those that ``accepts`` lets through: at least one."""
        accepting: Sequence[Choice] = self._candidates
        if accepts is not None:
            accepting = [candidate for candidate in self._candidates if accepts(candidate)]
            assert accepting, "no candidate accepts"
        match self._policy:
            case "round_robin":
                turns = len(self._candidates)
                while accepts is not None and not accepts(self._candidates[self._turn % turns]):
                    self._turn += 1
                self._turn += 1
                return self._candidates[(self._turn - 1) % turns]
            case "random":
                return accepting[int(self._random.integers(len(accepting)))]
            case "least_requests":
                return min(accepting, key=lambda candidate: candidate.pending_requests)
            case "least_tokens":
                return min(accepting, key=lambda candidate: (candidate.pending_tokens, candidate.pending_requests))
