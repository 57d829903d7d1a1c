"""Least recently used first."""

from __future__ import annotations

from collections import OrderedDict

from vidur_pd.kv.store.eviction.policy import Eviction


class Lru(Eviction):
    """LMCache's default (0.5.6, ``lmcache/v1/storage_backend/cache_policy/lru.py``)."""

    def __init__(self) -> None:
        self._order: OrderedDict[int, None] = OrderedDict()

    def hit(self, key: int) -> None:
        self._order.move_to_end(key)

    def add(self, key: int) -> list[int]:
        self._order[key] = None
        return [self._order.popitem(last=False)[0]] if len(self._order) > self.capacity else []
