"""Routers over anything that can state its load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Final, Protocol, cast

import numpy as np
from pydantic import ValidationError

from boundary.errors import InputError
from boundary.fields import Section
from vidur_pd._core import Candidates, RankState
from vidur_pd.cluster.routing.late_view import LateView
from vidur_pd.cluster.routing.policies.least import LeastRequests, LeastTokens
from vidur_pd.cluster.routing.policy import Candidate, Routing, RoutingContext
from vidur_pd.config import CORE_ROUTING, NAMED_ROUTING, SPLITWISE, RoutingConfig
from vidur_pd.config.file import describe as describe_field
from vidur_pd.config.own_classes import FAULTS, describe, load_class
from vidur_pd.workload.request import Request

Span = tuple[int, int]
"""Places of candidates: the first, and one past the last."""

MEASURES: Final = {"least_requests": "requests", "least_tokens": "tokens"}
"""Loads that policies compare (``core/candidates.hpp``); the others compare none."""
LATE_POLICIES: Final[dict[str, type[Routing]]] = {"least_requests": LeastRequests, "least_tokens": LeastTokens}
"""The same for routers that hear of loads late."""


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
    """A policy in Python; what is wrong with one of the user's own ends in one line."""

    __slots__ = ("_candidates", "_is_open", "_late", "_name", "_policy")

    def __init__(
        self,
        name: str,
        make: Callable[[], Routing],
        candidates: Sequence[Candidate],
        setting: RouterSetting | None = None,
    ) -> None:
        """``setting``: of routers among instances."""
        self._name = name.rpartition("/")[2]
        self._late: LateView | None = None
        if setting is not None and setting.delay_ps:
            context = setting.context
            self._late = LateView(candidates, setting.delay_ps, context.now_ps, context.hash_block_tokens)
        self._candidates = candidates if self._late is None else self._late.candidates
        self._is_open = [True] * len(candidates)
        try:
            self._policy = make()
            if setting is not None:
                self._policy.options, self._policy.context = setting.options, setting.context
        except FAULTS as error:
            raise InputError(f"routing policy {self._name}: raises: {describe(error)}") from error

    def set_open(self, place: int, is_open: bool) -> None:
        self._is_open[place] = is_open

    def choose(self, request: Request, spans: Sequence[Span] | None = None) -> int | None:
        spans = [(0, len(self._candidates))] if spans is None else spans
        places = [place for first, last in spans for place in range(first, last) if self._is_open[place]]
        if not places:
            return None
        if self._late is not None:
            self._late.before_choice()
        offered = [self._candidates[place] for place in places]
        try:
            chosen = self._policy.choose(request, offered)
        except FAULTS as error:
            raise InputError(f"routing policy {self._name}: raises: {describe(error)}") from error
        if not isinstance(chosen, Candidate) or chosen not in offered:
            found = chosen.name if isinstance(chosen, Candidate) else repr(chosen)
            raise InputError(f"routing policy {self._name}: chose {found}, expected one of the candidates it was given")
        if self._late is not None:
            self._late.after_choice(request, chosen.place)
        return chosen.place


@dataclass(frozen=True, slots=True)
class RouterSetting:
    """What a router among instances gives its policy, and how late it hears of loads and caches."""

    context: RoutingContext
    options: Section
    delay_ps: int = 0


def routing_class(field: str, policy: str, *, is_late: bool = False) -> type[Routing] | None:
    """The class of a policy in Python; ``None`` for one of the core.

    ``is_late``: the router hears of loads late, which the core's policies do not.

    Raises: InputError, where there is none of that name.
    """
    if is_late and policy in LATE_POLICIES:
        return LATE_POLICIES[policy]
    if policy in (*CORE_ROUTING, SPLITWISE):
        return None
    if policy in NAMED_ROUTING:
        module = import_module(f"vidur_pd.cluster.routing.policies.{policy}")
        return cast(type[Routing], getattr(module, NAMED_ROUTING[policy]))
    return load_class(field, policy, Routing)


def routing_options(routing: RoutingConfig, field: str) -> Section:
    """Options of a policy, as it knows them. Raises: InputError."""
    policy = routing.policy if field == "policy" else routing.decode_policy or routing.policy
    given = routing.options_of(field)
    own = routing_class(f"routing.{field}", policy)
    known = Section if own is None else own.Options
    where = f"routing.{field}_options"
    if given and not known.model_fields:
        raise InputError(f"{where}.{next(iter(given))}: unknown field; expected no options with {policy}")
    try:
        return known.model_validate(given)
    except ValidationError as error:
        raise InputError(f"{where}.{describe_field(error, known)}") from None


def router_of(
    policy: str,
    candidates: Sequence[Candidate],
    field: str,
    random: np.random.Generator | None = None,
    setting: RouterSetting | None = None,
) -> Router:
    """A router over candidates, of the core where that knows the policy."""
    own = routing_class(field, policy, is_late=setting is not None and setting.delay_ps > 0)
    if own is None:
        return BuiltInRouter(policy, [each.ranks for each in candidates], random)
    return AskedRouter(policy, own, candidates, setting)
