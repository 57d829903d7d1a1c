"""KV cache of one scheduler rank."""

from vidur_pd.kv.block_pool import (
    NO_PREFIX,
    BlockPool,
    CachedPrefix,
    CountingBlockPool,
    PrefixCachingBlockPool,
)

__all__ = ["NO_PREFIX", "BlockPool", "CachedPrefix", "CountingBlockPool", "PrefixCachingBlockPool"]
