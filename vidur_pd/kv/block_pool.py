"""Paged KV blocks of one scheduler rank, with and without prefix caching, as vLLM V1 keeps them.

Source of the rules: vLLM 0.24.0, ``vllm/v1/core/block_pool.py``, ``kv_cache_manager.py`` and ``kv_cache_utils.py``.
Block 0 is a null block that no request gets, so ``usable_blocks = num_blocks - 1``.

With prefix caching, every full block has a key (the hash of all tokens up to its end). The free queue starts in id
order; blocks are taken from its front, and a block that is taken loses its key: that is the eviction. A request's
blocks come back tail first, those without a key to the front, those with one to the back. Blocks without a key
therefore always precede those with one, which is why a stack and an ordered dictionary make up the queue.

Assumed: one KV group with one block size for all layers; no sliding window, no drafts, no LoRA or multimodal keys.
Ignored: a hash collision; the reuse of generated tokens by other requests (traces do not identify their content, so
hits on earlier answers in a conversation appear only where the trace's prompt ids repeat).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

from vidur_pd.errors import InputError
from vidur_pd.kv.block_keys import BlockKeys
from vidur_pd.request import Request


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """The longest cached prefix of a request at this instant; valid until the pool changes."""

    tokens: int
    block_ids: tuple[int, ...]
    shared_blocks: int
    """Those of ``block_ids`` that another request holds: reusing them takes nothing from the free queue."""


NO_PREFIX = CachedPrefix(tokens=0, block_ids=(), shared_blocks=0)


class BlockPool(Protocol):
    """KV blocks of one rank.

    A request holds ceil(tokens / ``block_tokens``) blocks from its first ``allocate`` until its ``release``. The caller
    checks ``free_blocks`` first; ``allocate`` beyond them is a broken invariant.
    """

    @property
    def block_tokens(self) -> int:
        """Tokens of one block."""

    @property
    def usable_blocks(self) -> int:
        """Blocks that requests can hold."""

    @property
    def free_blocks(self) -> int:
        """Blocks that no request holds; cached ones among them count, they are evicted on demand."""

    def cached_prefix(self, request: Request) -> CachedPrefix:
        """The request's longest cached prefix, short of its last token; changes nothing."""

    def allocate(self, request: Request, tokens: int, prefix: CachedPrefix = NO_PREFIX) -> None:
        """Let the request hold ``prefix`` (first call only) and new blocks up to ``tokens`` tokens in all."""

    def register(self, request: Request, computed_tokens: int) -> None:
        """Make the full blocks among the first ``computed_tokens`` available to later requests."""

    def release(self, request: Request) -> None:
        """Take all blocks of the request back."""


class CountingBlockPool:
    """KV blocks without prefix caching: all blocks are alike, so counting them is exact and every call is O(1)."""

    def __init__(self, num_blocks: int, block_tokens: int = 16) -> None:
        _check_sizes(num_blocks, block_tokens)
        self.block_tokens = block_tokens
        self.usable_blocks = num_blocks - 1
        self.free_blocks = self.usable_blocks
        self._held: dict[int, int] = {}

    @property
    def used_blocks(self) -> int:
        """Blocks that requests hold."""
        return self.usable_blocks - self.free_blocks

    def held_blocks(self, request: Request) -> int:
        """Blocks that this request holds."""
        return self._held.get(request.index, 0)

    def cached_prefix(self, request: Request) -> CachedPrefix:  # noqa: ARG002
        """Nothing is ever cached."""
        return NO_PREFIX

    def allocate(self, request: Request, tokens: int, prefix: CachedPrefix = NO_PREFIX) -> None:
        """See ``BlockPool``."""
        assert prefix is NO_PREFIX, "a pool without prefix caching finds no prefix"
        held = self._held.get(request.index, 0)
        needed = -(-tokens // self.block_tokens) - held
        if needed > 0:
            assert needed <= self.free_blocks, (
                f"request {request.request_id} needs {needed} of {self.free_blocks} free blocks"
            )
            self.free_blocks -= needed
            self._held[request.index] = held + needed

    def register(self, request: Request, computed_tokens: int) -> None:
        """Nothing to do."""

    def release(self, request: Request) -> None:
        """See ``BlockPool``."""
        self.free_blocks += self._held.pop(request.index)


class PrefixCachingBlockPool:
    """KV blocks with hash-chained prefix caching; O(1) per block.

    ``hash_block_tokens`` is the length of the prompt blocks that ``Request.block_hashes`` identifies.
    """

    def __init__(self, num_blocks: int, block_tokens: int = 16, hash_block_tokens: int = 512) -> None:
        _check_sizes(num_blocks, block_tokens)
        self.block_tokens = block_tokens
        self.usable_blocks = num_blocks - 1
        self._keys = BlockKeys(block_tokens, hash_block_tokens)
        self._blank = list(range(num_blocks - 1, 0, -1))  # free blocks without a key; the last is the queue's front
        self._cached: OrderedDict[int, None] = OrderedDict()  # free blocks with a key, next victim first
        self._holders = [0] * num_blocks
        self._key_of: dict[int, int] = {}
        self._blocks_of: dict[int, list[int]] = {}  # key -> blocks with this content, first registered first
        self._tables: dict[int, list[int]] = {}  # request -> its blocks in token order
        self._registered: dict[int, int] = {}  # request -> leading blocks that have been registered

    @property
    def free_blocks(self) -> int:
        """Blocks that no request holds, cached or not."""
        return len(self._blank) + len(self._cached)

    @property
    def used_blocks(self) -> int:
        """Blocks that requests hold; a shared block counts once."""
        return self.usable_blocks - self.free_blocks

    @property
    def cached_free_blocks(self) -> int:
        """Free blocks whose content could still be hit."""
        return len(self._cached)

    def held_blocks(self, request: Request) -> int:
        """Blocks that this request holds, shared ones included."""
        return len(self._tables.get(request.index, ()))

    def cached_prefix(self, request: Request) -> CachedPrefix:
        """See ``BlockPool``. At most floor((tokens − 1) / block) blocks, so at least one token is computed."""
        limit = (request.sequence_tokens - 1) // self.block_tokens
        block_ids: list[int] = []
        shared = 0
        for key in self._keys.of(request, 0, limit):
            blocks = self._blocks_of.get(key)
            if blocks is None:
                break
            block_ids.append(blocks[0])
            shared += self._holders[blocks[0]] > 0
        if not block_ids:
            return NO_PREFIX
        return CachedPrefix(len(block_ids) * self.block_tokens, tuple(block_ids), shared)

    def allocate(self, request: Request, tokens: int, prefix: CachedPrefix = NO_PREFIX) -> None:
        """See ``BlockPool``. Hits leave the free queue before new blocks are taken from its front."""
        table = self._tables.setdefault(request.index, [])
        if prefix.block_ids:
            assert not table, f"request {request.request_id} reuses a prefix but holds blocks already"
            for block in prefix.block_ids:
                if self._holders[block] == 0:
                    del self._cached[block]
                self._holders[block] += 1
            table.extend(prefix.block_ids)
            self._registered[request.index] = len(table)
        for _ in range(-(-tokens // self.block_tokens) - len(table)):
            table.append(self._take_block())

    def register(self, request: Request, computed_tokens: int) -> None:
        """See ``BlockPool``. Blocks of equal content are not merged; the first one registered serves the hits."""
        start = self._registered.get(request.index, 0)
        end = computed_tokens // self.block_tokens
        if end <= start:
            return
        table = self._tables[request.index]
        for position, key in enumerate(self._keys.of(request, start, end), start):
            self._key_of[table[position]] = key
            self._blocks_of.setdefault(key, []).append(table[position])
        self._registered[request.index] = end

    def release(self, request: Request) -> None:
        """See ``BlockPool``."""
        self._registered.pop(request.index, None)
        for block in reversed(self._tables.pop(request.index)):
            self._holders[block] -= 1
            if self._holders[block] == 0:
                if block in self._key_of:
                    self._cached[block] = None
                else:
                    self._blank.append(block)

    def _take_block(self) -> int:
        """The front of the free queue; its key, if any, is forgotten."""
        if self._blank:
            block = self._blank.pop()
        else:
            assert self._cached, "no free block"
            block, _ = self._cached.popitem(last=False)
            key = self._key_of.pop(block)
            same_content = self._blocks_of[key]
            same_content.remove(block)
            if not same_content:
                del self._blocks_of[key]
        self._holders[block] = 1
        return block


def _check_sizes(num_blocks: int, block_tokens: int) -> None:
    if num_blocks < 2:
        raise InputError(f"num_blocks: found {num_blocks}, expected at least 2 (one is the null block)")
    if block_tokens < 1:
        raise InputError(f"block_tokens: found {block_tokens}, expected at least 1")
