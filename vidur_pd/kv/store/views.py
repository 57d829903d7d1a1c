"""Tiers as routers see them: as they are, or as they were ``routing.index_delay_s`` ago."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from vidur_pd._core import ChunkIndex, ChunkKeys, Request
from vidur_pd.execution.instances.instance import Rank
from vidur_pd.kv.store.pooled import PooledTier
from vidur_pd.kv.store.rank_store import RankStore
from vidur_pd.kv.store.tier import Tier


class LateIndex:
    """Index of a tier's chunks that follows the tier with a delay."""

    def __init__(self, keys: ChunkKeys, delay_ps: int, now_ps: Callable[[], int]) -> None:
        self._index, self._delay_ps, self._now_ps = ChunkIndex(keys), delay_ps, now_ps
        self._events: deque[tuple[int, Sequence[int], bool]] = deque()

    def tell(self, keys: Sequence[int], is_there: bool) -> None:
        """Takes note of chunks that have come, or gone."""
        self._events.append((self._now_ps() + self._delay_ps, keys, is_there))
        self._hear()

    def now(self) -> ChunkIndex:
        """The index, with all that has been heard of by now."""
        self._hear()
        return self._index

    def _hear(self) -> None:
        while self._events and self._events[0][0] <= self._now_ps():
            _, keys, is_there = self._events.popleft()
            (self._index.add if is_there else self._index.remove)(keys)


class TierViews:
    """Tiers of all ranks, as routers see them."""

    def __init__(
        self, stores: Sequence[Sequence[RankStore]], keys: ChunkKeys, delay_ps: int, now_ps: Callable[[], int]
    ) -> None:
        """``stores``: [instances][ranks]"""
        self._stores = stores
        self._late: dict[Tier | PooledTier, LateIndex] = {}
        for store in (each for of_instance in stores for each in of_instance) if delay_ps else ():
            for access in store.tiers:
                if access.tier not in self._late:
                    self._late[access.tier] = late = LateIndex(keys, delay_ps, now_ps)
                    access.tier.listen(late.tell)

    def tokens(self, rank: Rank, request: Request, start: int) -> dict[str, int]:
        """{kind of tier: tokens} that tiers have of a request behind token ``start``, each behind those above it."""
        found = dict[str, int]()
        stores = self._stores[rank.instance.index]
        for access in stores[rank.index].tiers if stores else ():
            late = self._late.get(access.tier)
            index = access.tier.index if late is None else late.now()
            end = index.reach(request, start, request.context_tokens - 1)
            found[access.kind] = end - start
            start = end
        return found
