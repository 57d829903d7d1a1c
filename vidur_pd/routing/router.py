"""Routing policies over anything that can state its load."""

from __future__ import annotations

from collections.abc import Sequence
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
    decision, ``random`` draws from the router's own generator.
    """

    __slots__ = ("_candidates", "_policy", "_random", "_turn")

    def __init__(self, policy: Policy, candidates: Sequence[Choice], random: np.random.Generator) -> None:
        assert candidates, "a router needs a candidate"
        self._policy = policy
        self._candidates = tuple(candidates)
        self._random = random
        self._turn = 0

    def choose(self) -> Choice:
        """The candidate for the next request."""
        match self._policy:
            case "round_robin":
                choice = self._candidates[self._turn % len(self._candidates)]
                self._turn += 1
                return choice
            case "random":
                return self._candidates[int(self._random.integers(len(self._candidates)))]
            case "least_requests":
                return min(self._candidates, key=lambda candidate: candidate.pending_requests)
            case "least_tokens":
                return min(self._candidates, key=lambda candidate: candidate.pending_tokens)
