"""One tier: which chunks are in it, and which of a prompt have to be written there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vidur_pd._core import ChunkIndex, ChunkKeys
from vidur_pd.kv_store.eviction import Eviction


@dataclass(slots=True)
class TierCounts:
    """What has happened in a tier so far."""

    loads: int = 0
    """Requests that got tokens from it."""
    loaded_tokens: int = 0
    """Tokens of these that the prefix cache did not have."""
    loaded_chunks: int = 0
    loaded_bytes: int = 0
    """Of whole chunks, on all links that lead to the GPUs."""
    failed_loads: int = 0
    load_ps: int = 0
    """From the begin of a load to the arrival of its last byte; loads of several tiers count in each."""
    recompute_ps: int = 0
    """What it would have taken to compute these tokens, each request alone."""
    stored_chunks: int = 0
    stored_bytes: int = 0
    evicted_chunks: int = 0

    def add(self, other: TierCounts) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Tier:
    """A tier of one rank, or of all. Chunks that are being written count for eviction, and not for look-ups."""

    def __init__(self, keys: ChunkKeys, eviction: Callable[[], Eviction], *, writes_at: int) -> None:
        """``writes_at``: accesses to a chunk with which it is written."""
        self.index = ChunkIndex(keys)
        self.counts = TierCounts()
        self._new_eviction = eviction
        self._eviction = eviction()
        self._writes_at = writes_at
        self._accesses: Counter[int] = Counter()
        """Of chunks that are not there, where they are not written at the first."""
        self._held: set[int] = set()
        self._writing: set[int] = set()

    def access(self, keys: Sequence[int]) -> list[int]:
        """A prompt with these chunks has been computed; returns those that have to be written, the last first."""
        new = []
        for key in reversed(keys):
            if key in self._held:
                self._eviction.hit(key)
                if key not in self._writing and key not in self.index:
                    new.append(key)  # an earlier write of it has failed
            elif self._is_due(key):
                new.append(key)
                self._held.add(key)
                self._evict(self._eviction.add(key))
        new = [key for key in new if key in self._held]
        self._writing.update(new)
        return new

    def written(self, keys: Sequence[int]) -> None:
        """Chunks have come; those that were evicted meanwhile are gone."""
        for key in keys:
            if key in self._writing:
                self._writing.remove(key)
                self.index.add(key)
                self.counts.stored_chunks += 1

    def clear(self) -> None:
        """All content is lost; what is being written does not come."""
        for key in self._held:
            if key in self.index:
                self.index.remove(key)
        self._held.clear()
        self._writing.clear()
        self._accesses.clear()
        self._eviction = self._new_eviction()

    def not_written(self, keys: Sequence[int]) -> None:
        """A write has failed."""
        self._writing.difference_update(keys)

    def _is_due(self, key: int) -> bool:
        if self._writes_at == 1:
            return True
        self._accesses[key] += 1
        if self._accesses[key] < self._writes_at:
            return False
        del self._accesses[key]
        return True

    def _evict(self, keys: Sequence[int]) -> None:
        for key in keys:
            self._held.remove(key)
            self._writing.discard(key)
            if key in self.index:
                self.index.remove(key)
                self.counts.evicted_chunks += 1
