"""Content of one tier: the chunks that it has, and those of a prompt that have to be written to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vidur_pd._core import ChunkIndex, ChunkKeys
from vidur_pd.kv.store.eviction import Eviction


@dataclass(slots=True)
class TierCounts:
    """Counters of a tier since the begin of the run."""

    loads: int = 0
    """Requests that got tokens from it."""
    loaded_tokens: int = 0
    """Tokens of these that the prefix cache did not have."""
    loaded_chunks: int = 0
    loaded_bytes: int = 0
    """Bytes of whole chunks that GPUs have loaded, all together."""
    failed_loads: int = 0
    prefetched_chunks: int = 0
    """Chunks that were prefetched while their request queued."""
    load_ps: int = 0
    """Time from the begin of a load to the arrival of its last byte, summed; a load of several tiers counts in each."""
    recompute_ps: int = 0
    """Time that computing these tokens would have taken, each request alone."""
    stored_chunks: int = 0
    stored_bytes: int = 0
    evicted_chunks: int = 0

    def add(self, other: TierCounts) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Tier:
    """Tier of one rank, or of several. Chunks that are being written have a place, but are found only when written."""

    def __init__(
        self,
        keys: ChunkKeys,
        eviction: Callable[[], Eviction],
        *,
        writes_at: int | None,
        index: ChunkIndex | None = None,
    ) -> None:
        """``writes_at``: the access to a chunk at which it is written; ``None``: when a prefix cache evicts it.

        ``index``: shared by tiers that have no chunk in common.
        """
        self.index = ChunkIndex(keys) if index is None else index
        self.counts = TierCounts()
        self._new_eviction = eviction
        self._eviction = eviction()
        self._writes_at = writes_at
        self._accesses: Counter[int] = Counter()
        """Accesses to chunks that are not there, where these are not written at the first one."""
        self._held: set[int] = set()
        self._writing: set[int] = set()
        self._missing: set[int] = set()
        """Chunks that have a place, but whose write has failed."""
        self._tell: Callable[[Sequence[int], bool], None] | None = None

    def listen(self, tell: Callable[[Sequence[int], bool], None]) -> None:
        """``tell`` is called from now on with chunks that have come (true) or gone (false)."""
        self._tell = tell

    def access(self, keys: Sequence[int], *, is_fetch: bool = False) -> list[int]:
        """Accesses the chunks of a computed prompt; returns those that have to be written, the last first.

        ``is_fetch``: whatever is missing is written, at the first access too: for prefetches and write-backs.
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
        """Whether a chunk has a place here."""
        return key in self._held

    def has(self, key: int) -> bool:
        """Whether a chunk is here, or on its way."""
        return key in self._held and key not in self._missing

    def written(self, keys: Sequence[int]) -> None:
        """Ends a write; chunks that were evicted meanwhile do not come."""
        come = [key for key in keys if key in self._writing]
        self._writing.difference_update(come)
        self._come(come)
        self.counts.stored_chunks += len(come)

    def not_written(self, keys: Sequence[int]) -> None:
        """Ends a write that has failed; the next prompt with these chunks writes them again."""
        self._missing.update(key for key in keys if key in self._writing)
        self._writing.difference_update(keys)

    def clear(self) -> None:
        """Loses all content, chunks that are being written included."""
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
        """Takes evicted chunks out."""
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
