"""KV cache of one scheduler rank (``vidur_pd/core/block_pool.hpp``, ``radix_pool.hpp``)."""

from __future__ import annotations

from dataclasses import dataclass

from vidur_pd._core import BlockPool, CountingBlockPool, KvGroups, PrefixCachingBlockPool, RadixBlockPool

__all__ = ["BlockPool", "CountingBlockPool", "KvGroups", "PrefixCacheSizes", "PrefixCachingBlockPool", "RadixBlockPool"]


@dataclass(frozen=True, slots=True)
class PrefixCacheSizes:
    """What a prefix cache of a rank is to hold."""

    num_blocks: int
    """KV blocks, the null block included."""
    block_tokens: int
    hash_block_tokens: int
    """Tokens that an id of a prompt's content stands for."""
    groups: KvGroups
    drops_last_hit: bool = False
    """Drafting needs hidden states of the last tokens of a hit, which are computed again."""

    def hash_chains(self, *, when_computed: bool = False) -> PrefixCachingBlockPool:
        """vLLM's cache; ``when_computed``: a block is found when it has been computed, not when it is scheduled."""
        return PrefixCachingBlockPool(
            self.num_blocks,
            self.block_tokens,
            self.hash_block_tokens,
            self.groups,
            drops_last_hit=self.drops_last_hit,
            when_computed=when_computed,
        )
