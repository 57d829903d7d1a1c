"""A routing policy of one's own: which of the instances in service gets a request.

Named by ``routing.policy: module:Class`` (or ``file.py:Class`` in the folder of the configuration). Each router has one
object of it, made without arguments, so it may remember things::

    class Sticky(Routing):
        def choose(self, request: RequestView, candidates: Sequence[Candidate]) -> Candidate:
            return max(candidates, key=lambda each: (each.cached_tokens(request), -each.load_tokens))
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from boundary.fields import Section
from vidur_pd._core import RankState
from vidur_pd.config import Role
from vidur_pd.config.own_classes import check_names, check_shapes
from vidur_pd.scheduling import RequestView
from vidur_pd.workload.request import Request

HOOKS: Final = ("choose",)
TierTokens = Callable[[Request, int], Mapping[str, int]]
"""(request, token): by kind of tier, how much of the request it goes on with from there."""


class Candidate:
    """An instance, or one data-parallel rank of it, as it is at this instant."""

    __slots__ = ("_only", "_tiers", "_transfer_s", "block_tokens", "name", "place", "ranks", "role")

    def __init__(
        self,
        name: str,
        place: int,
        ranks: Sequence[RankState],
        *,
        role: Role = "mixed",
        block_tokens: int = 1,
        transfer_s: Callable[[RequestView], float] | None = None,
        tiers: Sequence[TierTokens] = (),
    ) -> None:
        """``transfer_s``: of decode instances, how long the KV of a request would travel there; ``tiers``: [ranks],
        none without tiers."""
        self.name = name
        self.role = role
        self.block_tokens = block_tokens
        """Tokens of a KV block."""
        self._transfer_s = transfer_s
        self._tiers = tiers
        self.place = place
        """Index among all candidates of the router, out of service or not."""
        self.ranks = ranks
        self._only = ranks[0] if len(ranks) == 1 else None

    @property
    def tiers_of_ranks(self) -> Sequence[TierTokens]:
        """[ranks] what tiers have of a request."""
        return self._tiers

    @property
    def waiting_requests(self) -> int:
        """Requests that do not run yet, those whose KV is on its way included."""
        return self._only.waiting_requests if self._only else sum(rank.waiting_requests for rank in self.ranks)

    @property
    def running_requests(self) -> int:
        """Requests admitted to the batch."""
        return self._only.running_requests if self._only else sum(rank.running_requests for rank in self.ranks)

    @property
    def load_tokens(self) -> int:
        """Tokens to compute before all is decode; where decodes run, plus the context of all requests."""
        return self._only.load_tokens if self._only else sum(rank.load_tokens for rank in self.ranks)

    @property
    def prefill_tokens(self) -> int:
        """Tokens of prompts that no ended iteration has computed."""
        return self._only.outstanding_tokens if self._only else sum(rank.outstanding_tokens for rank in self.ranks)

    @property
    def context_tokens(self) -> int:
        """Prompts of requests that decode here, or are going to."""
        return self.load_tokens - self.prefill_tokens

    @property
    def used_blocks(self) -> int:
        """KV blocks that requests and transfers hold."""
        return self._only.used_blocks if self._only else sum(rank.used_blocks for rank in self.ranks)

    @property
    def usable_blocks(self) -> int:
        """KV blocks in all."""
        return self._only.usable_blocks if self._only else sum(rank.usable_blocks for rank in self.ranks)

    @property
    def free_blocks(self) -> int:
        """KV blocks that no request and no transfer holds; those with cached content count."""
        return self.usable_blocks - self.used_blocks

    def cached_tokens(self, request: RequestView) -> int:
        """Tokens of the request whose KV is in the prefix cache of a rank here: of that which has most."""
        assert isinstance(request, Request)
        if self._only:
            return self._only.cached_tokens(request)
        return max(rank.cached_tokens(request) for rank in self.ranks)

    def tier_tokens(self, request: RequestView) -> Mapping[str, int]:
        """Tokens behind the cached ones that tiers have, by kind; of the rank that has most cached."""
        assert isinstance(request, Request)
        ranks = [
            (cached, of(request, cached))
            for of, cached in zip(self._tiers, self._cached_of_ranks(request), strict=False)
        ]
        _, found = max(ranks, key=lambda rank: (rank[0], sum(rank[1].values())), default=(0, {}))
        return found

    def _cached_of_ranks(self, request: Request) -> list[int]:
        """[ranks]"""
        return [rank.cached_tokens(request) for rank in self.ranks]

    def transfer_s(self, request: RequestView) -> float:
        """Expected duration of the transfer of the request's KV to this decode instance, with links as they are loaded
        with KV now; 0 for other instances."""
        return 0.0 if self._transfer_s is None else self._transfer_s(request)


@dataclass(frozen=True, slots=True)
class RoutingContext:
    """What a policy may use in addition to candidates."""

    random: np.random.Generator
    """The router's own stream."""
    now_ps: Callable[[], int]
    hash_block_tokens: int
    """Tokens of a block of the workload's hashes."""
    session_of: Callable[[RequestView], int]
    """Number of a request's conversation; the request's own where the workload has none."""


class Routing(ABC):
    """A routing policy. Each router makes one, without arguments, and sets its ``options`` and ``context``.

    ``Options`` are the fields that ``routing.policy_options`` may have (``decode_policy_options`` of the router among
    decode instances).
    Public methods other than ``choose`` are refused, as nothing would call them; so is a ``choose`` of another shape.
    """

    class Options(Section):
        """None."""

    options: Section
    """An object of the class's `Options`."""
    context: RoutingContext

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        check_names(cls, HOOKS)
        check_shapes(cls, Routing, HOOKS)

    @abstractmethod
    def choose(self, request: RequestView, candidates: Sequence[Candidate]) -> Candidate:
        """One of ``candidates``: those that are in service and could hold the request, at least one."""
