"""Candidates as a router sees them that hears of loads and caches late (``routing.index_delay_s``).

Loads are those of its last decision that is at least the delay ago; before there is one, all instances are idle. Of
caches it knows the prompts that it has sent there at least the delay ago, the latest ones that fit into the KV blocks
of the instance. It hears neither of other evictions, nor that a prompt has not been computed yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from vidur_pd.cluster.routing.policy import Candidate
from vidur_pd.cluster.routing.prefix_index import PrefixIndex, prompt_blocks
from vidur_pd.scheduling import RequestView
from vidur_pd.workload.request import Request


class Loads(NamedTuple):
    """Loads of one candidate."""

    waiting_requests: int = 0
    running_requests: int = 0
    load_tokens: int = 0
    prefill_tokens: int = 0
    used_blocks: int = 0


class LateCandidate(Candidate):
    """Candidate as the router sees it."""

    __slots__ = ("_index", "_loads", "_view")

    def __init__(self, live: Candidate, view: LateView, index: PrefixIndex) -> None:
        super().__init__(live.name, live.place, live.ranks, role=live.role, block_tokens=live.block_tokens)
        self._transfer_s = live.transfer_s
        self._tiers = live.tiers_of_ranks
        self._view = view
        self._index = index
        self._loads = Loads()

    def know(self, loads: Loads) -> None:
        """The router hears of loads."""
        self._loads = loads

    def learn(self, blocks: list[int], at_ps: int) -> None:
        """The router hears, at ``at_ps``, that the prompt of these blocks is cached here."""
        self._index.add(blocks, at_ps)

    @property
    def waiting_requests(self) -> int:
        return self._loads.waiting_requests

    @property
    def running_requests(self) -> int:
        return self._loads.running_requests

    @property
    def load_tokens(self) -> int:
        return self._loads.load_tokens

    @property
    def prefill_tokens(self) -> int:
        return self._loads.prefill_tokens

    @property
    def used_blocks(self) -> int:
        return self._loads.used_blocks

    def _cached_of_ranks(self, request: Request) -> list[int]:
        """[ranks] the same for each: the router knows of the instance only."""
        return [self.cached_tokens(request)] * len(self.ranks)

    def cached_tokens(self, request: RequestView) -> int:
        return self._view.cached_tokens(self._index, request)


class LateView:
    """Candidates of one router as it sees them, and the loads that it has not heard of yet."""

    def __init__(
        self, live: Sequence[Candidate], delay_ps: int, now_ps: Callable[[], int], hash_block_tokens: int
    ) -> None:
        self._live = live
        self._delay_ps = delay_ps
        self._now_ps = now_ps
        self._block_tokens = hash_block_tokens
        self._heard: deque[tuple[int, list[Loads]]] = deque()
        """(instant at which it hears of them, [candidates] loads) at its past decisions, the oldest first."""
        self.candidates = [
            LateCandidate(each, self, PrefixIndex(each.usable_blocks * each.block_tokens // hash_block_tokens))
            for each in live
        ]

    def before_choice(self) -> None:
        """Records the loads of now, and shows the router the last ones that it has heard of."""
        now_ps = self._now_ps()
        noted = [
            Loads(each.waiting_requests, each.running_requests, each.load_tokens, each.prefill_tokens, each.used_blocks)
            for each in self._live
        ]
        self._heard.append((now_ps + self._delay_ps, noted))
        known = None
        while self._heard and self._heard[0][0] <= now_ps:
            _, known = self._heard.popleft()
        if known is not None:
            for candidate, loads in zip(self.candidates, known, strict=True):
                candidate.know(loads)

    def after_choice(self, request: RequestView, place: int) -> None:
        """Records where a request goes."""
        self.candidates[place].learn(prompt_blocks(request, self._block_tokens), self._now_ps() + self._delay_ps)

    def cached_tokens(self, index: PrefixIndex, request: RequestView) -> int:
        return index.matched(prompt_blocks(request, self._block_tokens), self._now_ps()) * self._block_tokens
