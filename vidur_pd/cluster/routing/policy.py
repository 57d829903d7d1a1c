"""A routing policy of one's own: which of the candidates that are open gets a request.

Named by ``routing.policy: module:Class`` (or ``file.py:Class`` in the folder of the configuration). Each router has one
object of it, made without arguments, so it may remember things::

    class Sticky(Routing):
        def choose(self, request: RequestView, candidates: Sequence[Candidate]) -> Candidate:
            return max(candidates, key=lambda each: (each.cached_tokens(request), -each.load_tokens))
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from vidur_pd._core import RankState
from vidur_pd.scheduling import RequestView
from vidur_pd.workload.request import Request


class Candidate:
    """An instance, or one data-parallel rank of it, as it is at this instant."""

    __slots__ = ("_ranks", "name", "place")

    def __init__(self, name: str, place: int, ranks: Sequence[RankState]) -> None:
        self.name = name
        self.place = place
        """Among all candidates of the router, those included that are closed."""
        self._ranks = ranks

    @property
    def waiting_requests(self) -> int:
        """Those that do not run yet, KV on its way to them included."""
        return sum(rank.waiting_requests for rank in self._ranks)

    @property
    def running_requests(self) -> int:
        return sum(rank.running_requests for rank in self._ranks)

    @property
    def load_tokens(self) -> int:
        """Tokens to compute before all is decode; where decodes run, plus the context of all requests."""
        return sum(rank.load_tokens for rank in self._ranks)

    @property
    def used_blocks(self) -> int:
        return sum(rank.used_blocks for rank in self._ranks)

    @property
    def usable_blocks(self) -> int:
        return sum(rank.usable_blocks for rank in self._ranks)

    def cached_tokens(self, request: RequestView) -> int:
        """Tokens of the request whose KV a prefix cache here has: the most that one rank has."""
        assert isinstance(request, Request)
        return max(rank.cached_tokens(request) for rank in self._ranks)


class Routing(ABC):
    """Chooses for one router."""

    @abstractmethod
    def choose(self, request: RequestView, candidates: Sequence[Candidate]) -> Candidate:
        """One of ``candidates``: those that are in service and could hold the request, at least one."""
