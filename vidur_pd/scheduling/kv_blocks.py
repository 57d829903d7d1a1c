"""KV cache of one scheduler rank (``vidur_pd/core/block_pool.hpp``, ``radix_pool.hpp``)."""

from vidur_pd._core import BlockPool, CountingBlockPool, KvGroups, PrefixCachingBlockPool, RadixBlockPool

__all__ = ["BlockPool", "CountingBlockPool", "KvGroups", "PrefixCachingBlockPool", "RadixBlockPool"]
