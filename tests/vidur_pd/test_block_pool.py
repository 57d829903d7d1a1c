"""KV blocks: counting, prefix hits, eviction order."""

from __future__ import annotations

import gzip
import json
from collections import OrderedDict
from itertools import count
from pathlib import Path

import pytest

from boundary.errors import InputError
from vidur_pd.scheduling.kv_blocks import CountingBlockPool, KvGroups, PrefixCachingBlockPool
from vidur_pd.workload.request import Request

MOONCAKE = Path(__file__).parents[3] / "shared/data/traces/mooncake_conversation_trace.jsonl.gz"
_serial = count()


def _request(prompt_tokens: int, ids: tuple[int, ...] | None = None) -> Request:
    index = next(_serial)
    return Request(index, f"r{index}", prompt_tokens, 100, 0, ids)


def _serve(pool: PrefixCachingBlockPool, request: Request) -> int:
    """Compute the whole prompt, free it; returns the tokens hit."""
    prefix = pool.cached_prefix(request)
    pool.allocate(request, request.prompt_tokens, prefix)
    pool.register(request, request.prompt_tokens)
    pool.release(request)
    return prefix.tokens


def test_one_block_is_the_null_block() -> None:
    assert CountingBlockPool(10).usable_blocks == PrefixCachingBlockPool(10).usable_blocks == 9


def test_a_pool_takes_memory_for_the_blocks_it_has_used() -> None:
    """10⁹ blocks would take 28 GB; clusters have thousands of pools."""
    pool = PrefixCachingBlockPool(10**9)
    request = _request(1000)
    pool.allocate(request, 1000, pool.cached_prefix(request))
    assert pool.free_blocks == pool.usable_blocks - 63
    pool.release(request)
    assert pool.free_blocks == pool.usable_blocks


@pytest.mark.parametrize("kind", [CountingBlockPool, PrefixCachingBlockPool])
def test_blocks_grow_with_the_tokens_and_all_return(kind: type[CountingBlockPool | PrefixCachingBlockPool]) -> None:
    """33 tokens need 3 blocks of 16; 48 fit into the same; the 49th needs a fourth."""
    pool, request = kind(10), _request(60)
    for tokens, held in [(33, 3), (48, 3), (49, 4)]:
        pool.allocate(request, tokens)
        assert (pool.held_blocks(request), pool.used_blocks, pool.free_blocks) == (held, held, 9 - held)
    pool.release(request)
    assert (pool.held_blocks(request), pool.used_blocks, pool.free_blocks) == (0, 0, 9)


@pytest.mark.parametrize("kind", [CountingBlockPool, PrefixCachingBlockPool])
def test_taking_more_than_is_free_is_a_broken_invariant(
    kind: type[CountingBlockPool | PrefixCachingBlockPool],
) -> None:
    with pytest.raises(AssertionError, match="free block"):
        kind(3).allocate(_request(60), 33)


GPT_OSS = KvGroups(whole=1, spanned=1, most_spanned_blocks=9)
"""Full layers, and as many with a window of 128 tokens."""


@pytest.mark.parametrize("kind", [CountingBlockPool, PrefixCachingBlockPool])
def test_layers_with_a_window_hold_as_many_blocks_as_it_lies_in(
    kind: type[CountingBlockPool | PrefixCachingBlockPool],
) -> None:
    """100 tokens are 7 blocks of either group, 1000 are 63 and 9."""
    pool, request = kind(100, groups=GPT_OSS), _request(2000)
    for tokens, held in [(100, 14), (144, 18), (145, 19), (1000, 72)]:
        pool.allocate(request, tokens)
        assert (pool.held_blocks(request), pool.free_blocks) == (held, 99 - held)
    pool.release(request)
    assert (pool.held_blocks(request), pool.free_blocks) == (0, 99)


def test_blocks_of_a_window_are_not_hit_but_taken() -> None:
    """Of 320 tokens 19 blocks are hit; the last block and 9 of the window are taken."""
    pool = PrefixCachingBlockPool(100, groups=GPT_OSS)
    assert _serve(pool, _request(320, (7,))) == 0
    again = _request(320, (7,))
    prefix = pool.cached_prefix(again)
    assert prefix.tokens == 19 * 16
    pool.allocate(again, 320, prefix)
    assert pool.held_blocks(again) == 20 + 9


def test_hits_need_one_group_of_layers_that_keeps_every_token() -> None:
    with pytest.raises(InputError, match="prefix caching: found 2 groups of layers"):
        PrefixCachingBlockPool(100, groups=KvGroups(whole=2, spanned=1, most_spanned_blocks=9))


def test_without_caching_nothing_is_ever_hit() -> None:
    pool = CountingBlockPool(10)
    first, second = _request(40, (1,)), _request(40, (1,))
    pool.allocate(first, 40)
    pool.register(first, 40)
    assert pool.cached_prefix(second).tokens == 0


def test_a_fully_cached_prompt_of_32_tokens_hits_16_and_recomputes_16() -> None:
    """floor((32 − 1) / 16) = 1 block: at least one token has to be computed, and blocks are hit whole."""
    pool = PrefixCachingBlockPool(20)
    assert _serve(pool, _request(32, (7,))) == 0
    assert _serve(pool, _request(32, (7,))) == 16
    assert _serve(pool, _request(33, (7,))) == 32


def test_a_block_is_hit_as_soon_as_it_is_registered_and_shared_while_held() -> None:
    """Two prompts of 40 tokens share two full blocks; the partial third one is each request's own: 4 blocks in all."""
    pool = PrefixCachingBlockPool(20)
    first, second = _request(40, (7,)), _request(40, (7,))
    pool.allocate(first, 40)
    assert pool.cached_prefix(second).tokens == 0
    pool.register(first, 40)
    prefix = pool.cached_prefix(second)
    assert (prefix.tokens, prefix.shared_blocks) == (32, 2)
    pool.allocate(second, 40, prefix)
    assert pool.used_blocks == 4
    pool.release(first)
    assert pool.used_blocks == 3
    assert pool.cached_prefix(_request(40, (7,))).shared_blocks == 2
    pool.release(second)
    assert (pool.used_blocks, pool.cached_free_blocks) == (0, 2)
    assert pool.cached_prefix(_request(40, (7,))).shared_blocks == 0


def test_equal_ids_after_different_prefixes_are_different_content() -> None:
    pool = PrefixCachingBlockPool(200)
    _serve(pool, _request(1024, (1, 2)))
    assert _serve(pool, _request(1024, (3, 2))) == 0
    assert _serve(pool, _request(1024, (1, 4))) == 512


def test_a_partial_trace_block_is_shared_up_to_its_last_full_block() -> None:
    """600 tokens are one trace block and 88 tokens of another: 37 full blocks (592 tokens) and 8 tokens beyond."""
    pool = PrefixCachingBlockPool(200)
    _serve(pool, _request(600, (1, 2)))
    assert pool.cached_free_blocks == 37
    assert _serve(pool, _request(600, (1, 2))) == 592


def test_prompts_without_ids_share_nothing_but_hit_their_own_blocks_after_preemption() -> None:
    pool = PrefixCachingBlockPool(20)
    request = _request(40)
    _serve(pool, request)
    assert pool.cached_prefix(_request(40)).tokens == 0
    assert pool.cached_prefix(request).tokens == 32


def test_generated_tokens_are_hit_by_their_own_request_alone() -> None:
    """20 prompt + 13 generated tokens, of which 32 have KV: the second block is half prompt, half output."""
    pool = PrefixCachingBlockPool(20)
    request, other = _request(20, (1,)), _request(40, (1,))
    pool.allocate(request, 32)
    pool.register(request, 32)
    pool.release(request)
    request.set_progress(0, 13)
    assert pool.cached_prefix(request).tokens == 32
    assert pool.cached_prefix(other).tokens == 16


def test_blocks_without_content_are_reused_before_cached_ones_and_tails_before_heads() -> None:
    """4 usable blocks. A 40-token prompt leaves blocks 1, 2 cached and 3 blank; 4 was never used.

    Of the next 3 blocks two are the blank ones and the third evicts the tail (tokens 16–31) of the first prompt, whose
    head can still be hit.
    """
    pool = PrefixCachingBlockPool(5)
    _serve(pool, _request(40, (1,)))
    stranger = _request(48)
    pool.allocate(stranger, 32)
    assert pool.cached_prefix(_request(40, (1,))).tokens == 32
    pool.allocate(stranger, 48)
    assert pool.cached_prefix(_request(40, (1,))).tokens == 16


def test_the_least_recently_released_request_is_evicted_first_and_a_hit_renews_it() -> None:
    """6 usable blocks, prompts of 33 tokens (2 cached, 1 blank): a, b, then a again, so b's blocks are the oldest.

    The next prompt takes the 2 blank blocks and one more, the tail of b.
    """
    pool = PrefixCachingBlockPool(7)
    for ids in ((1,), (2,), (1,)):
        _serve(pool, _request(33, ids))
    pool.allocate(_request(48), 48)
    assert pool.cached_prefix(_request(33, (1,))).tokens == 32
    assert pool.cached_prefix(_request(33, (2,))).tokens == 16


def test_a_copy_serves_hits_after_the_first_block_of_its_content_is_gone() -> None:
    """A 16-token prompt never hits (one token must be computed), so two of them in turn leave two copies of a block.

    3 usable blocks: a stranger of 2 blocks takes the blank one and the older copy; the younger one is still hit.
    """
    pool = PrefixCachingBlockPool(4)
    first, second = _request(16, (1,)), _request(16, (1,))
    for request in (first, second):
        pool.allocate(request, 16)
        pool.register(request, 16)
    pool.release(first)
    pool.release(second)
    assert (pool.cached_free_blocks, pool.free_blocks) == (2, 3)
    stranger = _request(48)
    pool.allocate(stranger, 32)
    assert pool.cached_prefix(_request(17, (1,))).tokens == 16
    pool.allocate(stranger, 48)
    assert pool.cached_prefix(_request(17, (1,))).tokens == 0


@pytest.mark.parametrize(("block_tokens", "hit"), [(16, 96), (64, 64), (48, 96), (128, 0), (20, 80)])
def test_any_block_length_goes_with_any_trace_block_length(block_tokens: int, hit: int) -> None:
    """Two prompts share six ids of 16 tokens, 96 tokens; hits are the full KV blocks within them.

    KV blocks of 20 tokens: the fifth ends at token 100, inside the seventh id, which differs.
    """
    pool = PrefixCachingBlockPool(100, block_tokens, hash_block_tokens=16)
    _serve(pool, _request(200, tuple(range(13))))
    assert _serve(pool, _request(200, (0, 1, 2, 3, 4, 5, *range(90, 97)))) == hit


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((1, 16), "num_blocks: found 1, expected at least 2"),
        ((9, 0), "block_tokens: found 0, expected at least 1"),
        ((9, 16, 0), "hash_block_tokens: found 0, expected at least 1"),
    ],
)
def test_impossible_sizes_are_refused(sizes: tuple[int, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        PrefixCachingBlockPool(*sizes)


def _mooncake(requests: int) -> list[Request]:
    if not MOONCAKE.exists():
        pytest.skip("the Mooncake conversation trace is not beside this checkout")
    with gzip.open(MOONCAKE, "rt") as lines:
        rows = [json.loads(next(lines)) for _ in range(requests)]
    return [_request(row["input_length"], tuple(row["hash_ids"])) for row in rows]


def test_an_unlimited_cache_hits_every_mooncake_block_seen_before() -> None:
    """Ids of the trace already stand for the prefix, so a set of ids seen is a perfect cache of 512-token blocks."""
    pool, seen, hit_tokens = PrefixCachingBlockPool(600_000), set[int](), 0
    for request in _mooncake(600):
        assert request.block_hashes is not None
        known = next((i for i, one in enumerate(request.block_hashes) if one not in seen), len(request.block_hashes))
        hits = _serve(pool, request)
        assert hits == min(known * 512, request.prompt_tokens - 1) // 16 * 16
        seen.update(request.block_hashes)
        hit_tokens += hits
    assert hit_tokens > 0


def test_a_small_cache_hits_mooncake_blocks_as_a_plain_lru_does() -> None:
    """One request at a time on 20,000 blocks (320,000 tokens, about 27 prompts) against an LRU list of block contents.

    Prompts that end with a full block are left out: recomputing such a block makes a copy, which a plain LRU has not.
    """
    usable = 20_000
    pool, lru, evictions = PrefixCachingBlockPool(usable + 1), OrderedDict[tuple[int, int], None](), 0
    for request in _mooncake(700):
        if request.prompt_tokens % 16 == 0 or request.prompt_tokens > usable * 16:
            continue
        assert request.block_hashes is not None
        contents = [(request.block_hashes[i // 32], i % 32) for i in range(request.prompt_tokens // 16)]
        hits = next((i for i, content in enumerate(contents) if content not in lru), len(contents))
        assert _serve(pool, request) == hits * 16
        for content in contents[:hits]:
            del lru[content]
        while len(lru) > usable - len(contents) - 1:
            lru.popitem(last=False)
            evictions += 1
        lru.update(dict.fromkeys(reversed(contents)))
    assert evictions > usable
