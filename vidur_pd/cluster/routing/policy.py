"""A routing policy of one's own: which of the instances in service gets a request.

Named by ``routing.policy: module:Class`` (or ``file.py:Class`` in the folder of the configuration). Each router has one
object of it, made without arguments, so it may remember things::

    class Sticky(Routing):
        def choose(self, request: RequestView, candidates: Sequence[Candidate]) -> Candidate:
            return max(candidates, key=lambda each: (each.cached_tokens(request), -each.load_tokens))
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

from vidur_pd._core import RankState
from vidur_pd.config.own_classes import check_names, check_shapes
from vidur_pd.scheduling import RequestView
from vidur_pd.workload.request import Request

HOOKS: Final = ("choose",)


class Candidate:
    """An instance, or one data-parallel rank of it, as it is at this instant."""

    __slots__ = ("_ranks", "name", "place")

    def __init__(self, name: str, place: int, ranks: Sequence[RankState]) -> None:
        self.name = name
        self.place = place
        """Index among all candidates of the router, out of service or not."""
        self._ranks = ranks

    @property
    def waiting_requests(self) -> int:
        """Requests that do not run yet, those whose KV is on its way included."""
        return sum(rank.waiting_requests for rank in self._ranks)

    @property
    def running_requests(self) -> int:
        """Requests admitted to the batch."""
        return sum(rank.running_requests for rank in self._ranks)

    @property
    def load_tokens(self) -> int:
        """Tokens to compute before all is decode; where decodes run, plus the context of all requests."""
        return sum(rank.load_tokens for rank in self._ranks)

    @property
    def used_blocks(self) -> int:
        """KV blocks that requests and transfers hold."""
        return sum(rank.used_blocks for rank in self._ranks)

    @property
    def usable_blocks(self) -> int:
        """KV blocks in all."""
        return sum(rank.usable_blocks for rank in self._ranks)

    @property
    def free_blocks(self) -> int:
        """KV blocks that no request and no transfer holds; those with cached content count."""
        return self.usable_blocks - self.used_blocks

    def cached_tokens(self, request: RequestView) -> int:
        """Tokens of the request whose KV is in the prefix cache of a rank here: of that which has most."""
        assert isinstance(request, Request)
        return max(rank.cached_tokens(request) for rank in self._ranks)


class Routing(ABC):
    """A routing policy. Each router makes one, without arguments.

    Public methods other than ``choose`` are refused, as nothing would call them; so is a ``choose`` of another shape.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        check_names(cls, HOOKS)
        check_shapes(cls, Routing, HOOKS)

    @abstractmethod
    def choose(self, request: RequestView, candidates: Sequence[Candidate]) -> Candidate:
        """One of ``candidates``: those that are in service and could hold the request, at least one."""
