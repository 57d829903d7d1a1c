"""Tiers of KV behind the prefix caches of instances in the configuration."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from boundary.fields import Count, NotBool, Number, Section
from netsim.units import PS_PER_S, parse_size_bytes
from netsim.units.fields import Rate, Time
from vidur_pd.config.names import one_of

NAMED_EVICTIONS: Final = {"lru": "Lru", "lfu": "Lfu", "s3_fifo": "S3Fifo", "arc": "Arc"}
"""Module in ``vidur_pd/kv/store/eviction``, and the class in it."""
EvictionName = Annotated[str, one_of(*NAMED_EVICTIONS)]


def _size(value: Any) -> int:
    if isinstance(value, bool | float) or not isinstance(value, int | str):
        raise ValueError(f"found {value!r}, expected a size such as 64GB")
    return parse_size_bytes(value, "size")


Size = Annotated[int, BeforeValidator(_size), Field(ge=1), PlainSerializer(lambda size: f"{size}B", when_used="json")]
"""Bytes."""


class Tier(Section):
    """What all tiers have."""

    capacity: Size
    """Of the KV that it holds: of each one of its kind, or of all together for ``remote``; of each server for
    ``pooled``."""
    eviction: EvictionName = "lru"
    """Which chunk leaves a full tier: ``lru``, ``lfu``, ``s3_fifo``, ``arc``, or ``module:Class``, a policy of one's
    own (`vidur_pd.kv.store.eviction`)."""
    write: Literal["through", "selective", "back"] = "through"
    """Chunks are stored when their prompt has been computed: ``through``, at the first one that has them (LMCache, and
    HiCache's default); ``selective``, at the second (HiCache's ``write_through_selective``). ``back``: when a prefix
    cache evicts them (HiCache's ``write_back``), and the batch that takes their blocks waits for it."""


class LocalTier(Tier):
    """One in servers."""

    scope: Literal["rank", "server"] = "rank"
    """``rank``: each data-parallel rank has its own, which goes with the rank's instance (LMCache inside the engine,
    HiCache). ``server``: all ranks on the same servers, of any instance, share one that outlives them (LMCache as a
    process of its own)."""


class CpuTier(LocalTier):
    """Memory of the server of each GPU, over its PCIe links."""

    kind: Literal["cpu"]


class PrefetchTimeout(Section):
    """Longest wait for a prefetch, HiCache's ``prefetch_timeout_base`` and ``prefetch_timeout_per_ki_token``."""

    base: Time = PS_PER_S
    """However little is fetched (by default ``1s``)."""
    per_1024_tokens: Time = PS_PER_S // 4
    """Besides, for what is fetched (by default ``250ms``)."""


class LowerTier(Section):
    """What comes from a tier behind CPU memory before the turn of a request."""

    prefetch: bool | Literal["best_effort", "timeout", "wait_complete"] = False
    """Chunks of a request come to CPU memory while it queues. ``true``: where it finds others waiting; what is missing
    at its turn is loaded from here. The others are HiCache's (`PrefetchTimeout`): from its arrival on, and what is
    missing at its turn is computed; the request is passed over until all has come (``wait_complete``), or for so long
    at most (``timeout``)."""
    prefetch_timeout: PrefetchTimeout = PrefetchTimeout()
    """Of ``timeout``."""
    prefetch_tokens_min: Count = 256
    """Of HiCache's: less is not fetched (its ``prefetch_threshold``)."""


class NvmeTier(LocalTier, LowerTier):
    """Disks of the server, behind its CPU memory; one queue for all reads and writes of a tier."""

    kind: Literal["nvme"]
    read: Rate
    """Of the tier's disks together: ``6GB/s``."""
    written: Rate
    latency: Time
    """Of a read, besides the bytes; those of one load overlap."""


class RemoteTier(Tier, LowerTier):
    """Memory of one server, which all instances reach over their NICs (Mooncake's store, LMCache's server)."""

    kind: Literal["remote"]
    server: Number
    """Of the topology, from 0 on; one on which no instance stands, or one that instances share."""
    latency: Time = 0
    """Of a load, besides its flows."""


class PooledTier(Tier):
    """Memory of all servers together, each of which has ``capacity``: a chunk lies in one of them, and instances read
    it over their NICs where that is another (Mooncake's store with segments of all servers, LMCache's peers)."""

    kind: Literal["pooled"]
    place: Literal["spread", "writer"] = "spread"
    """Where a chunk lies: ``spread``, on one server after the other, whoever has computed it (Mooncake's store);
    ``writer``, on the server that has (LMCache's peers)."""
    latency: Time = 0
    """Of a load, besides its flows."""


AnyTier = Annotated[CpuTier | NvmeTier | RemoteTier | PooledTier, Field(discriminator="kind")]


class KvCacheConfig(Section):
    """Tiers of KV behind the prefix caches of instances that compute prompts.

    A request is looked up when its turn has come: each tier goes on where the one before ends. What is found is loaded
    while the request holds blocks for its context and others run.
    """

    tiers: Annotated[tuple[AnyTier, ...], Field(min_length=1)]
    """In the order in which they are asked."""
    chunk_tokens: Count = 256
    """Tokens of a chunk (LMCache's default); a multiple of ``engine.block_tokens``."""
    load: Literal["always", "if_faster"] = "always"
    """``if_faster``: only as many tokens as add more to an iteration than it takes to load them on an idle network, by
    the instance's own prices; HiCache and LMCache do not ask."""
    layerwise: bool = False
    """A request runs while it is loaded, and each layer of its first iteration waits for its KV (SGLang's HiCache,
    LMCache's ``use_layerwise``); else it waits for all of it, and others run meanwhile."""
    load_tokens_min: Annotated[int, NotBool, Field(ge=1, le=2**31 - 1)] = 1
    """Fewer tokens are computed (HiCache: 10)."""

    @model_validator(mode="after")
    def _kinds_are_distinct(self) -> KvCacheConfig:
        kinds = [tier.kind for tier in self.tiers]
        for kind in kinds:
            if kinds.count(kind) > 1:
                raise ValueError(f"tiers: found two of kind {kind}, expected one of each")
        return self

    @model_validator(mode="after")
    def _prefetches_into_memory(self) -> KvCacheConfig:
        for tier in self.tiers:
            if isinstance(tier, LowerTier) and tier.prefetch and self.tiers[0].kind != "cpu":
                raise ValueError(f"tiers: found {tier.kind} with prefetch, expected one of kind cpu as the first")
        return self
