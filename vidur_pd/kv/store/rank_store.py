"""Tiers of one rank, and the flows and disk reads that its loads and writes consist of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from netsim import FlowGraph
from vidur_pd._core import ChunkKeys, Request, TierLoad
from vidur_pd.execution.instances.instance import Rank
from vidur_pd.kv.store.disk import Disk
from vidur_pd.kv.store.places import RankPlace, RemoteHost
from vidur_pd.kv.store.pooled import PooledTier
from vidur_pd.kv.store.tier import Tier


@dataclass(frozen=True, slots=True, eq=False)
class PrefetchPolicy:
    """Prefetch from a lower tier before a request's turn, and how long the request waits for it."""

    least_tokens: int
    """Fewest tokens that are prefetched."""
    base_ps: int | None = None
    """Wait that does not depend on the tokens; ``None``: until everything has come."""
    per_1024_tokens_ps: int = 0

    def wait_ps(self, tokens: int) -> int | None:
        """Timeout for so many tokens; ``None``: none."""
        return None if self.base_ps is None else self.base_ps + self.per_1024_tokens_ps * tokens // 1024


@dataclass(frozen=True, slots=True, eq=False)
class TierAccess:
    """Tier as one rank reaches it."""

    kind: str
    tier: Tier | PooledTier
    chunk_bytes: int
    """Size of a chunk in the tier."""
    host: RemoteHost | None = None
    """Host that it is behind; ``None``: that of the rank's own server, or those of several."""
    latency_ps: int = 0
    disk: Disk | None = None
    prefetches: bool = False
    """Chunks are prefetched into the first tier while their request queues behind others, which waits for none."""
    prefetch: PrefetchPolicy | None = None
    """Chunks are prefetched into the first tier for every request, which may wait for them; no GPU loads from here."""
    outlives_instances: bool = False
    """Content survives the failure of an instance."""


@dataclass(frozen=True, slots=True, eq=False)
class LoadPart:
    """Part of a load that comes from one tier."""

    access: TierAccess
    tokens: int
    """Tokens behind those of the prefix cache and of higher tiers."""
    chunks: int
    size_bytes: int
    graphs: tuple[FlowGraph, ...]
    """[servers] flows from each that has some of the chunks."""


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """Chunks to write to a tier, or to one server's part of it."""

    access: TierAccess
    tier: Tier
    host: RemoteHost | None
    """Host of that server; ``None``: the rank's own."""
    chunks: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """Write of chunks to the tiers behind one host."""

    targets: tuple[Target, ...]
    graph: FlowGraph | None
    """Flows that bring them there; ``None``: they come from disks behind that host."""
    read_ps: int = 0
    """Instant at which those disks have read them."""


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Chunks that one prefetch brings from a lower tier to CPU memory."""

    access: TierAccess
    chunks: tuple[int, ...]
    tokens: int


class RankStore:
    """Loads and writes of one rank, as lists of flows and disk reads; `vidur_pd.kv.store.store` carries them out."""

    def __init__(self, rank: Rank, place: RankPlace, tiers: Sequence[TierAccess], keys: ChunkKeys) -> None:
        self.rank, self.place, self.tiers, self._keys = rank, place, tuple(tiers), keys
        self.direct = tuple(access for access in tiers if access.prefetch is None)
        """Tiers that GPUs load from, looked up at the turn of a request; the others are prefetched from."""
        self._chunk_tokens = keys.chunk_tokens
        self._is_written_back = any(access.tier.is_written_back for access in tiers)
        self._chunk_of: dict[int, int] = {}
        """Chunks that the prefix cache may have, by the hash that it has for their content; for tiers written back."""
        if self._is_written_back:
            rank.state.log_evictions(keys.chunk_tokens)

    @property
    def _memory(self) -> Tier:
        """Target of prefetches: the first tier, CPU memory of the rank's own server."""
        assert isinstance(self.tiers[0].tier, Tier), "nothing is prefetched into other servers"
        return self.tiers[0].tier

    def parts(self, load: TierLoad, now_ps: int) -> list[LoadPart]:
        """Parts of a load, one for each tier that has some of it. Chunks are loaded whole, also where the prefix cache
        has the beginning of the first one."""
        parts, start = [], load.cached
        for access, end in zip(self.direct, load.reaches, strict=True):
            if end == start:
                continue
            first, last = start // self._chunk_tokens, end // self._chunk_tokens
            tokens = (last - first) * self._chunk_tokens
            delay_ps = access.latency_ps
            if access.disk is not None:
                delay_ps = access.disk.read(tokens * self.place.stored_token_bytes, now_ps) - now_ps
            flows = self.place.load if load.arrivals is None else self.place.load_layers
            graphs = tuple(
                flows(chunks * self._chunk_tokens, delay_ps=delay_ps, host=host)
                for host, chunks in self._hosts_of(access, load.request, first, last).items()
            )
            size_bytes = tokens * self.place.loaded_token_bytes
            parts.append(LoadPart(access, end - start, last - first, size_bytes, graphs))
            start = end
        return parts

    def _hosts_of(self, access: TierAccess, request: Request, first: int, last: int) -> dict[RemoteHost | None, int]:
        """Number of chunks, of those from ``first`` to before ``last``, that are loaded from each host."""
        if not isinstance(access.tier, PooledTier):
            return {access.host: last - first}
        keys = self._keys.of(request, last * self._chunk_tokens)[first:]
        return {self._seen(host): chunks for host, chunks in access.tier.chunks_at(keys).items()}

    def farthest_host(self, access: TierAccess) -> RemoteHost | None:
        """Host from which a load takes longest on an idle network; ``None``: the rank's own."""
        if not isinstance(access.tier, PooledTier):
            return access.host
        others = [host for host in access.tier.spread.hosts if host.node not in self.place.hosts]
        return others[0] if others else None

    def _seen(self, host: RemoteHost) -> RemoteHost | None:
        """The host as `RankPlace` names it: ``None`` where it is the rank's only one."""
        return None if self.place.hosts == (host.node,) else host

    def prefetches(self, request: Request, now_ps: int) -> list[Write]:
        """Writes into CPU memory of what lower tiers have of a request that is about to queue behind others."""
        if not any(access.prefetches for access in self.tiers):
            return []
        writes = []
        for access, _, chunks in self._behind_memory(request):
            if access.prefetches and (new := self._memory.access(chunks, is_fetch=True)):
                access.tier.counts.prefetched_chunks += len(new)
                writes.append(self._fetch(access, tuple(new), now_ps))
        return writes

    def pieces(self, request: Request, most_chunks: int) -> list[Piece]:
        """Pieces that lower tiers with a `PrefetchPolicy` prefetch for a request, in the order of its tokens."""
        if len(self.direct) == len(self.tiers):
            return []
        pieces = []
        for access, tokens, chunks in self._behind_memory(request):
            if access.prefetch is None:
                continue
            if tokens < access.prefetch.least_tokens:
                break
            new = self._memory.access(chunks, is_fetch=True)[::-1]
            access.tier.counts.prefetched_chunks += len(new)
            for first in range(0, len(new), most_chunks):
                of_piece = tuple(new[first : first + most_chunks])
                pieces.append(Piece(access, of_piece, len(of_piece) * self._chunk_tokens))
        return pieces

    def _behind_memory(self, request: Request) -> list[tuple[TierAccess, int, list[int]]]:
        """(tier, tokens, chunks) of a request that each lower tier has behind those above it. What CPU memory has of it
        counts as accessed, so that it stays."""
        most, width = request.context_tokens - 1, self._chunk_tokens
        cached, of_prompt = self.rank.state.cached_tokens(request), self._keys.of(request, most)
        start = self._memory.index.reach(request, cached, most)
        self._memory.access(of_prompt[cached // width : start // width])
        found = []
        for access in self.tiers[1:]:
            end = access.tier.index.reach(request, start, most)
            if end > start:
                found.append((access, end - start, of_prompt[start // width : end // width]))
            start = end
        return found

    def fetch(self, piece: Piece, now_ps: int) -> Write:
        """Write of a piece into CPU memory."""
        return self._fetch(piece.access, piece.chunks, now_ps)

    def forget(self, piece: Piece) -> None:
        """Cancels a piece that has not been fetched."""
        self._memory.not_written(piece.chunks)

    def _fetch(self, access: TierAccess, new: tuple[int, ...], now_ps: int) -> Write:
        """Write of chunks from a lower tier into CPU memory."""
        target = Target(self.tiers[0], self._memory, None, new)
        if access.disk is not None:
            return Write((target,), None, access.disk.read(len(new) * access.chunk_bytes, now_ps))
        assert access.host is not None, "what is not behind disks is on another server"
        graph = self.place.fetch(len(new) * self._chunk_tokens, access.host, delay_ps=access.latency_ps)
        return Write((target,), graph)

    def writes(self, request: Request, keys: Sequence[int]) -> list[Write]:
        """Writes of a computed prompt to the tiers that lack some of these chunks of it."""
        if self._is_written_back:
            contents = self.rank.state.chunk_contents(request, self._chunk_tokens, len(keys) * self._chunk_tokens)
            self._chunk_of.update(zip(contents, keys, strict=False))
        return self._writes([target for access in self.tiers for target in self._targets(access, keys)])

    def written_back(self) -> list[Write]:
        """Writes of what the prefix cache has evicted since the last call to tiers written back that lack it."""
        if not self._is_written_back:
            return []
        evicted = [self._chunk_of.pop(content, None) for content in self.rank.state.take_evicted()]
        keys = [key for key in reversed(evicted) if key is not None]
        tiers = [access for access in self.tiers if access.tier.is_written_back]
        lacking = [(access, [key for key in keys if not access.tier.has(key)]) for access in tiers]
        return self._writes(
            [target for access, keys in lacking for target in self._targets(access, keys, is_fetch=True)]
        )

    def _targets(self, access: TierAccess, keys: Sequence[int], *, is_fetch: bool = False) -> list[Target]:
        """Targets that lack some of these chunks, one for each server."""
        if not isinstance(access.tier, PooledTier):
            new = access.tier.access(keys, is_fetch=is_fetch)
            return [Target(access, access.tier, access.host, tuple(new))] if new else []
        of_hosts = access.tier.access(keys, self.place.hosts[0], is_fetch=is_fetch)
        return [Target(access, share, self._seen(host), tuple(new)) for host, share, new in of_hosts if new]

    def _writes(self, targets: Sequence[Target]) -> list[Write]:
        """Writes to these targets, one for each host: a chunk for several tiers of one host crosses once."""
        of_hosts: dict[RemoteHost | None, list[Target]] = {}
        for target in targets:
            of_hosts.setdefault(target.host, []).append(target)
        writes = []
        for host, of_host in of_hosts.items():
            every = of_host[0].chunks if len(of_host) == 1 else {key for target in of_host for key in target.chunks}
            chunks = len(every)
            writes.append(Write(tuple(of_host), self.place.store(chunks * self._chunk_tokens, host=host)))
        return writes
