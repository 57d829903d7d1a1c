"""Tiers as a configuration has them, for the ranks of the instances that compute prompts."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from boundary.errors import InputError
from vidur_pd._core import ChunkKeys
from vidur_pd.config.kv_cache import (
    NAMED_EVICTIONS,
    AnyTier,
    CpuTier,
    KvCacheConfig,
    LowerTier,
    NvmeTier,
    RemoteTier,
)
from vidur_pd.config.kv_cache import PooledTier as PooledTierConfig
from vidur_pd.execution.instances.instance import Rank
from vidur_pd.kv.store.disk import Disk
from vidur_pd.kv.store.eviction import Eviction
from vidur_pd.kv.store.eviction.asked import AskedEviction
from vidur_pd.kv.store.eviction.registry import eviction_class
from vidur_pd.kv.store.places import Places, RankPlace
from vidur_pd.kv.store.pooled import PooledTier, Spread
from vidur_pd.kv.store.rank_store import PrefetchPolicy, RankStore, TierAccess
from vidur_pd.kv.store.tier import Tier

WRITES_AT: dict[str, int | None] = {"through": 1, "selective": 2, "back": None}
"""Accesses to a chunk with which it is written."""


class TierBuilder:
    """Makes the tiers of ranks; those in the network are one for all."""

    def __init__(self, config: KvCacheConfig, keys: ChunkKeys, places: Places) -> None:
        self._config, self._keys, self._places = config, keys, places
        self._evictions = [
            eviction_class(f"kv_cache.tiers.{n}.eviction", tier.eviction) for n, tier in enumerate(config.tiers)
        ]
        self._shared: dict[tuple[int, Hashable], TierAccess] = {}
        """By number of the tier, and who shares it."""

    def of(self, rank: Rank, place: RankPlace) -> RankStore:
        """The tiers of a rank. Raises: InputError, where one has no room for a chunk."""
        tiers = [self._access(number, tier, place) for number, tier in enumerate(self._config.tiers)]
        return RankStore(rank, place, tiers, self._keys)

    def _access(self, number: int, config: AnyTier, place: RankPlace) -> TierAccess:
        chunk_bytes = self._config.chunk_tokens * place.stored_token_bytes
        if isinstance(config, RemoteTier | PooledTierConfig):
            sharing: Hashable = "all"
        elif config.scope == "server":
            sharing = place.hosts
        else:
            return self._new(number, config, chunk_bytes)
        access = self._shared.get((number, sharing))
        if access is None:
            access = self._shared[number, sharing] = self._new(number, config, chunk_bytes)
        if chunk_bytes != access.chunk_bytes:
            raise InputError(
                f"kv_cache.tiers.{number}: found ranks whose KV has {access.chunk_bytes} and {chunk_bytes} bytes a "
                "chunk, expected one size for a tier that they share"
            )
        return access

    def _new(self, number: int, config: AnyTier, chunk_bytes: int) -> TierAccess:
        if isinstance(config, PooledTierConfig):
            return self._pooled(number, config, chunk_bytes)
        tier = Tier(self._keys, self._eviction(number, config, chunk_bytes), writes_at=WRITES_AT[config.write])
        match config:
            case CpuTier():
                return TierAccess(config.kind, tier, chunk_bytes, outlives_instances=config.scope == "server")
            case NvmeTier():
                disk = Disk(config.read, config.written, config.latency)
                outlives = config.scope == "server"
                return TierAccess(
                    config.kind,
                    tier,
                    chunk_bytes,
                    disk=disk,
                    prefetches=config.prefetch is True,
                    prefetch=_prefetch_policy(config),
                    outlives_instances=outlives,
                )
            case RemoteTier():
                host = self._places.host_of_server(f"kv_cache.tiers.{number}.server", config.server)
                return TierAccess(
                    config.kind,
                    tier,
                    chunk_bytes,
                    host,
                    config.latency,
                    prefetches=config.prefetch is True,
                    prefetch=_prefetch_policy(config),
                    outlives_instances=True,
                )

    def _pooled(self, number: int, config: PooledTierConfig, chunk_bytes: int) -> TierAccess:
        eviction, spread = (
            self._eviction(number, config, chunk_bytes),
            Spread(self._places.hosts, config.place == "writer"),
        )
        tier = PooledTier(self._keys, eviction, writes_at=WRITES_AT[config.write], spread=spread)
        return TierAccess(config.kind, tier, chunk_bytes, latency_ps=config.latency, outlives_instances=True)

    def _eviction(self, number: int, config: AnyTier, chunk_bytes: int) -> Callable[[], Eviction]:
        capacity = config.capacity // chunk_bytes
        if capacity < 1:
            raise InputError(
                f"kv_cache.tiers.{number}.capacity: found {config.capacity} bytes, "
                f"expected at least the {chunk_bytes} of a chunk"
            )
        make = self._evictions[number]

        def eviction() -> Eviction:
            if config.eviction not in NAMED_EVICTIONS:
                return AskedEviction(config.eviction, make, capacity)
            made = make()
            made.capacity = capacity
            return made

        return eviction


def _prefetch_policy(config: LowerTier) -> PrefetchPolicy | None:
    least, timeout = config.prefetch_tokens_min, config.prefetch_timeout
    match config.prefetch:
        case "best_effort":
            return PrefetchPolicy(least, 0)
        case "timeout":
            return PrefetchPolicy(least, timeout.base, timeout.per_1024_tokens)
        case "wait_complete":
            return PrefetchPolicy(least)
    return None
