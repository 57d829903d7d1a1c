"""Pooled tier: CPU memory of several servers, in one of which a chunk lies, and from which all instances load it.

As Mooncake's store with segments of all servers, or LMCache's peers. Each server evicts for itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vidur_pd._core import ChunkIndex, ChunkKeys
from vidur_pd.kv.store.eviction import Eviction
from vidur_pd.kv.store.places import RemoteHost
from vidur_pd.kv.store.tier import Tier, TierCounts


@dataclass(frozen=True, slots=True)
class Spread:
    """Rule by which new chunks are spread over servers."""

    hosts: tuple[RemoteHost, ...]
    to_writer: bool
    """To the server of the rank that writes them; otherwise to the servers in turn, by number of the chunk."""

    def host_of(self, key: int, writer: int) -> RemoteHost:
        """The host of a new chunk; ``writer``: node of the writing rank's host."""
        if self.to_writer:
            (host,) = (each for each in self.hosts if each.node == writer)
            return host
        return self.hosts[key % len(self.hosts)]


class PooledTier:
    """Tier of several servers, each of which has a `Tier` of its own with the chunks that lie there."""

    def __init__(
        self, keys: ChunkKeys, eviction: Callable[[], Eviction], *, writes_at: int | None, spread: Spread
    ) -> None:
        self.index = ChunkIndex(keys)
        self.spread = spread
        self._shares = {host: Tier(keys, eviction, writes_at=writes_at, index=self.index) for host in spread.hosts}
        self._host_of: dict[int, RemoteHost] = {}
        """Host of chunks that are there or on their way, and of some that have been evicted."""

    @property
    def counts(self) -> TierCounts:
        """Counters of the first server, which has those of loads, as these may come from several servers."""
        return self._first.counts

    @property
    def caches(self) -> int:
        """Number of servers."""
        return len(self._shares)

    @property
    def is_written_back(self) -> bool:
        return self._first.is_written_back

    @property
    def _first(self) -> Tier:
        return self._shares[self.spread.hosts[0]]

    def all_counts(self) -> TierCounts:
        """Counters of all servers, added up."""
        counts = TierCounts()
        for share in self._shares.values():
            counts.add(share.counts)
        return counts

    def access(
        self, keys: Sequence[int], writer: int, *, is_fetch: bool = False
    ) -> list[tuple[RemoteHost, Tier, list[int]]]:
        """As `Tier.access`, for each server. ``writer``: node of the host of the rank that has computed the prompt."""
        of_hosts: dict[RemoteHost, list[int]] = {}
        for key in keys:
            host = self._host_of.get(key)
            if host is None or not self._shares[host].holds(key):
                host = self._host_of[key] = self.spread.host_of(key, writer)
            of_hosts.setdefault(host, []).append(key)
        shares = [(host, self._shares[host], of_host) for host, of_host in of_hosts.items()]
        return [(host, share, share.access(of_host, is_fetch=is_fetch)) for host, share, of_host in shares]

    def listen(self, tell: Callable[[Sequence[int], bool], None]) -> None:
        """As `Tier.listen`."""
        for share in self._shares.values():
            share.listen(tell)

    def has(self, key: int) -> bool:
        """Whether a chunk is here, or on its way."""
        return (host := self._host_of.get(key)) is not None and self._shares[host].has(key)

    def chunks_at(self, keys: Sequence[int]) -> dict[RemoteHost, int]:
        """How many of these, which are there, lie on each server."""
        return Counter(self._host_of[key] for key in keys)
