"""Routers over anything that can state its load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast

import numpy as np

from boundary.errors import InputError
from vidur_pd._core import Candidates, RankState
from vidur_pd.cluster.routing.policy import Candidate, Routing
from vidur_pd.config import ROUTING_POLICIES, SPLITWISE
from vidur_pd.config.own_classes import FAULTS, describe, load_class
from vidur_pd.workload.request import Request

Span = tuple[int, int]
"""Places of candidates: the first, and one past the last."""

MEASURES: Final = {"least_requests": "requests", "least_tokens": "tokens"}
"""Loads that policies compare (``core/candidates.hpp``); the others compare none."""


class Router(Protocol):
    """Assigns requests to open candidates."""

    def set_open(self, place: int, is_open: bool) -> None:
        """The candidate at a place gets requests from now on, or gets none."""

    def choose(self, request: Request, spans: Sequence[Span] | None = None) -> int | None:
        """The place of the candidate for a request, of those in ``spans`` (rising); ``None``: none is open."""


class BuiltInRouter:
    """One of the policies of the core; ties go to the first candidate in order.

    ``round_robin`` counts per router, ``least_requests`` and ``least_tokens`` read the load at the instant of the
    decision (of equal tokens, the fewest requests), ``random`` draws from the router's own generator. A choice takes
    time that grows with the logarithm of the number of candidates.
    """

    __slots__ = ("_candidates", "_places", "_policy", "_random", "_turn")

    def __init__(
        self, policy: str, candidates: Sequence[Sequence[RankState]], random: np.random.Generator | None = None
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
        self._candidates.set_open(place, is_open)

    def choose(self, request: Request, spans: Sequence[Span] | None = None) -> int | None:
        del request  # these policies look at loads alone
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
            case _:
                return self._candidates.least(spans)


class AskedRouter:
    """A policy of the user's own; what is wrong with it ends in one line."""

    __slots__ = ("_candidates", "_is_open", "_name", "_policy")

    def __init__(self, name: str, make: Callable[[], Routing], candidates: Sequence[Candidate]) -> None:
        self._name = name.rpartition("/")[2]
        self._candidates = candidates
        self._is_open = [True] * len(candidates)
        try:
            self._policy = make()
        except FAULTS as error:
            raise InputError(f"routing policy {self._name}: raises: {describe(error)}") from error

    def set_open(self, place: int, is_open: bool) -> None:
        self._is_open[place] = is_open

    def choose(self, request: Request, spans: Sequence[Span] | None = None) -> int | None:
        spans = [(0, len(self._candidates))] if spans is None else spans
        places = [place for first, last in spans for place in range(first, last) if self._is_open[place]]
        if not places:
            return None
        offered = [self._candidates[place] for place in places]
        try:
            chosen = self._policy.choose(request, offered)
        except FAULTS as error:
            raise InputError(f"routing policy {self._name}: raises: {describe(error)}") from error
        if not isinstance(chosen, Candidate) or chosen not in offered:
            found = chosen.name if isinstance(chosen, Candidate) else repr(chosen)
            raise InputError(f"routing policy {self._name}: chose {found}, expected one of the candidates it was given")
        return chosen.place


def routing_class(field: str, policy: str) -> Callable[[], Routing] | None:
    """The user's class; ``None`` for a policy of the core. Raises: InputError, where there is none of that name."""
    if policy in (*ROUTING_POLICIES, SPLITWISE):
        return None
    return cast(Callable[[], Routing], load_class(field, policy, Routing))


def router_of(
    policy: str,
    candidates: Sequence[tuple[str, Sequence[RankState]]],
    field: str,
    random: np.random.Generator | None = None,
) -> Router:
    """A router over (name, ranks) of each candidate."""
    own = routing_class(field, policy)
    if own is None:
        return BuiltInRouter(policy, [ranks for _, ranks in candidates], random)
    named = [Candidate(name, place, ranks) for place, (name, ranks) in enumerate(candidates)]
    return AskedRouter(policy, own, named)
