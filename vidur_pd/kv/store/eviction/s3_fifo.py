"""S3-FIFO: a small queue for what comes, a main queue for what is used again, and a memory of what has gone.

Source: Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023, algorithm 1.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from vidur_pd.kv.store.eviction.policy import Eviction

SMALL_SHARE: Final = 0.1
"""Of the capacity (section 4.1 of the paper)."""
MOST_ACCESSES: Final = 3
"""That are counted (likewise: two bits)."""


class S3Fifo(Eviction):
    """Ghosts: as many as the main queue has room for, the oldest forgotten first."""

    def __init__(self) -> None:
        self._small: OrderedDict[int, int] = OrderedDict()
        """Accesses since it came in, oldest first."""
        self._main: OrderedDict[int, int] = OrderedDict()
        self._ghosts: OrderedDict[int, None] = OrderedDict()

    def hit(self, key: int) -> None:
        queue = self._small if key in self._small else self._main
        queue[key] = min(queue[key] + 1, MOST_ACCESSES)

    def add(self, key: int) -> list[int]:
        left = [self._evict()] if len(self._small) + len(self._main) >= self.capacity else []
        if key in self._ghosts:
            del self._ghosts[key]
            self._main[key] = 0
        else:
            self._small[key] = 0
        return left

    @property
    def _small_room(self) -> int:
        return max(1, int(SMALL_SHARE * self.capacity))

    def _evict(self) -> int:
        if len(self._small) >= self._small_room or not self._main:
            gone = self._evict_small()
            if gone is not None:
                return gone
        return self._evict_main()

    def _evict_small(self) -> int | None:
        """``None``: all of the small queue has gone to the main queue, and that has had no room too much."""
        while self._small:
            key, accesses = self._small.popitem(last=False)
            if accesses > 1:
                self._main[key] = 0
                if len(self._main) > self.capacity - self._small_room:
                    return self._evict_main()
            else:
                self._remember(key)
                return key
        return None

    def _evict_main(self) -> int:
        while True:
            key, accesses = self._main.popitem(last=False)
            if accesses == 0:
                return key
            self._main[key] = accesses - 1

    def _remember(self, key: int) -> None:
        self._ghosts[key] = None
        if len(self._ghosts) > self.capacity - self._small_room:
            self._ghosts.popitem(last=False)
