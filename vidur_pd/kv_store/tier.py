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
    prefetched_chunks: int = 0
    """That were asked for while their request queued."""
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

    def __init__(
        self,
        keys: ChunkKeys,
        eviction: Callable[[], Eviction],
        *,
        writes_at: int | None,
        index: ChunkIndex | None = None,
    ) -> None:
        """``writes_at``: accesses to a chunk with which it is written; ``None``: when a prefix cache evicts it.

        ``index``: of several that have no chunk in common.
        """
        self.index = ChunkIndex(keys) if index is None else index
        self.counts = TierCounts()
        self._new_eviction = eviction
        self._eviction = eviction()
        self._writes_at = writes_at
        self._accesses: Counter[int] = Counter()
        """Of chunks that are not there, where they are not written at the first."""
        self._held: set[int] = set()
        self._writing: set[int] = set()
        self._missing: set[int] = set()
        """Held for eviction, but a write of them has failed."""
        self._tell: Callable[[Sequence[int], bool], None] | None = None

    def listen(self, tell: Callable[[Sequence[int], bool], None]) -> None:
        """Tells from now on of chunks that have come, and of those that have gone."""
        self._tell = tell

    def access(self, keys: Sequence[int], *, is_fetch: bool = False) -> list[int]:
        """A prompt with these chunks has been computed; returns those that have to be written, the last first.

        ``is_fetch``: it is going to be, or a prefix cache has evicted it: what is missing is written whatever came
        before.
        """
        held, hit, add = self._held, self._eviction.hit, self._eviction.add
        new, evicted = list[int](), list[int]()
        is_written = is_fetch or self._writes_at == 1
        missing = self._missing if is_fetch or self._writes_at is not None else ()
        for key in reversed(keys):
            if key in held:
                hit(key)
                if missing and key in missing:
                    new.append(key)
            elif is_written or self._is_due(key):
                new.append(key)
                held.add(key)
                if left := add(key):
                    held.difference_update(left)
                    evicted += left
        if evicted:
            self._forget(evicted)
            new = [key for key in new if key in held]
        self._missing.difference_update(new)
        self._writing.update(new)
        return new

    def holds(self, key: int) -> bool:
        """Whether a chunk has room here."""
        return key in self._held

    def has(self, key: int) -> bool:
        """Whether a chunk is here, or on its way."""
        return key in self._held and key not in self._missing

    def written(self, keys: Sequence[int]) -> None:
        """Chunks have come; those that were evicted meanwhile are gone."""
        come = [key for key in keys if key in self._writing]
        self._writing.difference_update(come)
        self._come(come)
        self.counts.stored_chunks += len(come)

    def not_written(self, keys: Sequence[int]) -> None:
        """A write has failed; it is tried again with the next prompt that has these chunks."""
        self._missing.update(key for key in keys if key in self._writing)
        self._writing.difference_update(keys)

    def clear(self) -> None:
        """All content is lost; what is being written does not come."""
        self._go(sorted(key for key in self._held if key in self.index))
        for known in (self._held, self._writing, self._missing):
            known.clear()
        self._accesses.clear()
        self._eviction = self._new_eviction()

    @property
    def is_written_back(self) -> bool:
        """Chunks come when a prefix cache evicts them."""
        return self._writes_at is None

    def _is_due(self, key: int) -> bool:
        """Whether a chunk that is not there is written with this access."""
        if self._writes_at is None:
            return False
        self._accesses[key] += 1
        if self._accesses[key] < self._writes_at:
            return False
        del self._accesses[key]
        return True

    def _forget(self, keys: Sequence[int]) -> None:
        """Chunks have been evicted."""
        self._writing.difference_update(keys)
        self._missing.difference_update(keys)
        gone = [key for key in dict.fromkeys(keys) if key in self.index]  # some have come and gone again
        self._go(gone)
        self.counts.evicted_chunks += len(gone)

    def _come(self, keys: Sequence[int]) -> None:
        self.index.add(keys)
        if self._tell is not None:
            self._tell(keys, True)

    def _go(self, keys: Sequence[int]) -> None:
        self.index.remove(keys)
        if self._tell is not None:
            self._tell(keys, False)
