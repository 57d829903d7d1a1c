"""Caches to compare with: eviction policies as their papers state them, and a prefix cache.

Slow, and written apart from the package.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class Oracle(ABC):
    """A cache of keys; ``access`` returns whether the key was there."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity

    @abstractmethod
    def access(self, key: int) -> bool: ...


class LruOracle(Oracle):
    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.stack: list[int] = []

    def access(self, key: int) -> bool:
        is_hit = key in self.stack
        self.stack = [key, *[other for other in self.stack if other != key]][: self.capacity]
        return is_hit


class LfuOracle(Oracle):
    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.entries: dict[int, tuple[int, int]] = {}
        self.time = 0

    def access(self, key: int) -> bool:
        self.time += 1
        is_hit = key in self.entries
        if not is_hit and len(self.entries) == self.capacity:
            del self.entries[min(self.entries, key=lambda other: self.entries[other])]
        self.entries[key] = (self.entries.get(key, (0, 0))[0] + 1, self.time)
        return is_hit


class S3FifoOracle(Oracle):
    """Algorithm 1 of Yang et al. (SOSP 2023): S of a tenth of the objects, M and G of the rest each."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.s: list[int] = []
        self.m: list[int] = []
        self.g: list[int] = []
        self.freq: dict[int, int] = {}
        self.s_size = max(1, capacity // 10)

    def access(self, key: int) -> bool:
        if key in self.s or key in self.m:
            self.freq[key] = min(self.freq[key] + 1, 3)
            return True
        while len(self.s) + len(self.m) >= self.capacity:
            if len(self.s) >= self.s_size or not self.m:
                self.evict_s()
            else:
                self.evict_m()
        if key in self.g:
            self.g.remove(key)
            self.m.insert(0, key)
        else:
            self.s.insert(0, key)
        self.freq[key] = 0
        return False

    def evict_s(self) -> None:
        while self.s:
            tail = self.s.pop()
            if self.freq[tail] > 1:
                self.freq[tail] = 0
                self.m.insert(0, tail)
                if len(self.m) > self.capacity - self.s_size:
                    self.evict_m()
                    return
            else:
                self.g.insert(0, tail)
                del self.g[self.capacity - self.s_size :]
                return

    def evict_m(self) -> None:
        while True:
            tail = self.m.pop()
            if self.freq[tail] == 0:
                return
            self.freq[tail] -= 1
            self.m.insert(0, tail)


class ArcOracle(Oracle):
    """Figure 4 of Megiddo and Modha (FAST 2003), by its four cases; MRU ends are at the left."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.t1: list[int] = []
        self.t2: list[int] = []
        self.b1: list[int] = []
        self.b2: list[int] = []
        self.p = 0.0

    def replace(self, key: int) -> None:
        if self.t1 and ((key in self.b2 and len(self.t1) == self.p) or len(self.t1) > self.p):
            self.b1.insert(0, self.t1.pop())
        elif self.t2:
            self.b2.insert(0, self.t2.pop())
        else:
            self.b1.insert(0, self.t1.pop())

    def access(self, key: int) -> bool:
        c = self.capacity
        for live in (self.t1, self.t2):
            if key in live:
                live.remove(key)
                self.t2.insert(0, key)
                return True
        if key in self.b1:
            self.p = min(c, self.p + (1 if len(self.b1) >= len(self.b2) else len(self.b2) / len(self.b1)))
            self.replace(key)
            self.b1.remove(key)
            self.t2.insert(0, key)
            return False
        if key in self.b2:
            self.p = max(0, self.p - (1 if len(self.b2) >= len(self.b1) else len(self.b1) / len(self.b2)))
            self.replace(key)
            self.b2.remove(key)
            self.t2.insert(0, key)
            return False
        if len(self.t1) + len(self.b1) == c:
            if len(self.t1) < c:
                self.b1.pop()
                self.replace(key)
            else:
                self.t1.pop()
        else:
            total = len(self.t1) + len(self.t2) + len(self.b1) + len(self.b2)
            if total >= c:
                if total == 2 * c:
                    self.b2.pop()
                self.replace(key)
        self.t1.insert(0, key)
        return False


ORACLES: dict[str, type[Oracle]] = {"lru": LruOracle, "lfu": LfuOracle, "s3_fifo": S3FifoOracle, "arc": ArcOracle}


def is_in(oracle: Any, key: int) -> bool:
    """Whether an oracle has a key, by what it keeps."""
    kept = [getattr(oracle, name) for name in ("stack", "entries", "s", "m", "t1", "t2") if hasattr(oracle, name)]
    return any(key in each for each in kept)


class BlockPool:
    """The prefix cache of one request at a time, by vLLM's rules: a list of free blocks, first to be taken first."""

    def __init__(self, blocks: int) -> None:
        self.free: list[Any] = [None] * blocks

    def serve(self, prompt: list[Any], total: int) -> int:
        """Blocks of the prompt found; the request then holds ``total``, and gives them back tail first."""
        hits = 0
        for key in prompt:
            if key not in self.free:
                break
            hits += 1
        return hits

    def hold_and_release(self, prompt: list[Any], hits: int, total: int) -> list[Any]:
        """Returns what is cached no more, in the order in which its blocks were taken."""
        for key in prompt[:hits]:
            self.free.remove(key)
        taken = self.free[: total - hits]
        del self.free[: total - hits]
        gone = [key for key in taken if key is not None and key not in self.free and key not in prompt[:hits]]
        blank = total - len(prompt)
        self.free = [None] * blank + self.free + list(reversed(prompt))
        return gone
