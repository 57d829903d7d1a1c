"""The tiers of one rank, and what its loads and writes are: flows, and turns of its disks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from netsim import FlowGraph
from vidur_pd._core import ChunkKeys, Request, TierLoad
from vidur_pd.cluster.instance import Rank
from vidur_pd.kv_store.disk import Disk
from vidur_pd.kv_store.places import RankPlace, RemoteHost
from vidur_pd.kv_store.tier import Tier


@dataclass(frozen=True, slots=True, eq=False)
class TierAccess:
    """A tier as one rank reaches it."""

    kind: str
    tier: Tier
    chunk_bytes: int
    """Of a chunk there."""
    host: RemoteHost | None = None
    """``None``: that of the rank's own server."""
    latency_ps: int = 0
    disk: Disk | None = None
    prefetches: bool = False
    """Into the first tier, while a request queues."""
    outlives_instances: bool = False
    """It keeps its content where an instance fails."""


@dataclass(frozen=True, slots=True, eq=False)
class LoadPart:
    """What one tier gives to a request."""

    access: TierAccess
    tokens: int
    """Beyond those that were there before."""
    chunks: int
    size_bytes: int
    graph: FlowGraph


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """Chunks on their way to tiers behind one host."""

    targets: tuple[tuple[TierAccess, tuple[int, ...]], ...]
    graph: FlowGraph | None
    """``None``: they come from disks behind that host."""
    read_ps: int = 0
    """When these have read them."""


class RankStore:
    """What a rank loads from its tiers and writes to them."""

    def __init__(self, rank: Rank, place: RankPlace, tiers: Sequence[TierAccess], chunk_tokens: int) -> None:
        self.rank, self.place, self.tiers = rank, place, tuple(tiers)
        self._chunk_tokens = chunk_tokens

    def parts(self, load: TierLoad, now_ps: int) -> list[LoadPart]:
        """Whole chunks cross, also where the prefix cache has the beginning of the first."""
        parts, start = [], load.cached
        for access, end in zip(self.tiers, load.reaches, strict=True):
            if end == start:
                continue
            chunks = (end - start // self._chunk_tokens * self._chunk_tokens) // self._chunk_tokens
            tokens = chunks * self._chunk_tokens
            delay_ps = access.latency_ps
            if access.disk is not None:
                delay_ps = access.disk.read(tokens * self.place.stored_token_bytes, now_ps) - now_ps
            flows = self.place.load if load.arrivals is None else self.place.load_layers
            graph = flows(tokens, delay_ps=delay_ps, host=access.host)
            parts.append(LoadPart(access, end - start, chunks, tokens * self.place.loaded_token_bytes, graph))
            start = end
        return parts

    def prefetches(self, request: Request, keys: ChunkKeys, now_ps: int) -> list[Write]:
        """What lower tiers have of a request that is going to queue, and CPU memory has not."""
        if not any(access.prefetches for access in self.tiers):
            return []
        memory, most, writes = self.tiers[0], request.context_tokens - 1, []
        cached, of_prompt = self.rank.state.cached_tokens(request), keys.of(request, most)
        start = memory.tier.index.reach(request, cached, most)
        memory.tier.access(of_prompt[cached // self._chunk_tokens : start // self._chunk_tokens])  # to keep them
        for access in self.tiers[1:]:
            end = access.tier.index.reach(request, start, most)
            if end > start and access.prefetches:
                chunks = of_prompt[start // self._chunk_tokens : end // self._chunk_tokens]
                if new := memory.tier.access(chunks, is_fetch=True):
                    access.tier.counts.prefetched_chunks += len(new)
                    writes.append(self._fetch(memory, access, tuple(new), now_ps))
            start = end
        return writes

    def _fetch(self, memory: TierAccess, access: TierAccess, new: tuple[int, ...], now_ps: int) -> Write:
        """From a lower tier to CPU memory."""
        if access.disk is not None:
            return Write(((memory, new),), None, access.disk.read(len(new) * access.chunk_bytes, now_ps))
        assert access.host is not None, "what is not behind disks is on another server"
        graph = self.place.fetch(len(new) * self._chunk_tokens, access.host, delay_ps=access.latency_ps)
        return Write(((memory, new),), graph)

    def writes(self, keys: Sequence[int]) -> list[Write]:
        """What a computed prompt with these chunks adds to the tiers; what goes to one host crosses once."""
        of_hosts: dict[RemoteHost | None, list[tuple[TierAccess, tuple[int, ...]]]] = {}
        for access in self.tiers:
            new = access.tier.access(keys)
            if new:
                of_hosts.setdefault(access.host, []).append((access, tuple(new)))
        writes = []
        for host, targets in of_hosts.items():
            chunks = len({key for _, new in targets for key in new})
            writes.append(Write(tuple(targets), self.place.store(chunks * self._chunk_tokens, host=host)))
        return writes
