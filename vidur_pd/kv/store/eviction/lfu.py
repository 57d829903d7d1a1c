"""Least frequently used first."""

from __future__ import annotations

from collections import OrderedDict, defaultdict

from vidur_pd.kv.store.eviction.policy import Eviction


class Lfu(Eviction):
    """Of equally many accesses the one whose last is longest ago goes first. Counts are those since a chunk came in."""

    def __init__(self) -> None:
        self._accesses: dict[int, int] = {}
        self._order: defaultdict[int, OrderedDict[int, None]] = defaultdict(OrderedDict)
        """Chunks of each number of accesses, in the order of the last one."""
        self._fewest = 1

    def hit(self, key: int) -> None:
        accesses = self._accesses[key]
        self._order[accesses].pop(key)
        if not self._order[accesses]:
            del self._order[accesses]
            self._fewest += accesses == self._fewest
        self._put(key, accesses + 1)

    def add(self, key: int) -> list[int]:
        left = []
        if len(self._accesses) == self.capacity:
            while self._fewest not in self._order:
                self._fewest += 1
            least = self._order[self._fewest]
            gone, _ = least.popitem(last=False)
            if not least:
                del self._order[self._fewest]
            del self._accesses[gone]
            left.append(gone)
        self._put(key, 1)
        self._fewest = 1
        return left

    def _put(self, key: int, accesses: int) -> None:
        self._accesses[key] = accesses
        self._order[accesses][key] = None
