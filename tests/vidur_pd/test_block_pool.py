"""KV blocks of a rank: counting, prefix hits, eviction order. A policy that the test speaks for decides."""

from __future__ import annotations

import gzip
import json
from collections import OrderedDict
from itertools import count
from pathlib import Path

import pytest

from boundary.errors import InputError
from tests.vidur_pd.one_rank import DirectedRank
from vidur_pd.scheduling.kv_blocks import CountingBlockPool, KvGroups, PrefixCachingBlockPool
from vidur_pd.workload.request import Request

MOONCAKE = Path(__file__).parents[3] / "shared/data/traces/mooncake_conversation_trace.jsonl.gz"
Ids = tuple[int, ...] | None
_serial = count()


class Rank(DirectedRank):
    """Prompts that are admitted, and what of them hits."""

    @property
    def free_blocks(self) -> int:
        return self.view.free_blocks

    def admit(self, prompt_tokens: int, ids: Ids = None, *, compute: int, output: int = 2) -> Request:
        """A new request computes its first tokens, and is there until it has its last."""
        request = _request(prompt_tokens, ids, output)
        self.add(request)
        self.compute(request, compute)
        return request

    def hits(self, prompt_tokens: int, ids: Ids = None) -> int:
        """Tokens of such a prompt that are cached."""
        return self.view.cached_tokens(_request(prompt_tokens, ids))

    def serve(self, prompt_tokens: int, ids: Ids = None) -> int:
        """Computes what is not cached of a prompt, whose blocks it gives back; returns the tokens hit."""
        found = self.hits(prompt_tokens, ids)
        request = self.admit(prompt_tokens, ids, compute=prompt_tokens - found, output=1)
        assert request.cached_tokens == found
        return found


def _request(prompt_tokens: int, ids: Ids = None, output_tokens: int = 2) -> Request:
    index = next(_serial)
    return Request(index, f"r{index}", prompt_tokens, output_tokens, 0, ids)


def caching(blocks: int, *sizes: int) -> Rank:
    return Rank(PrefixCachingBlockPool(blocks, *sizes))


def test_one_block_is_the_null_block() -> None:
    assert Rank(CountingBlockPool(10)).usable_blocks == caching(10).usable_blocks == 9


def test_a_pool_takes_memory_for_the_blocks_it_has_used() -> None:
    """10⁹ blocks would take 28 GB; clusters have thousands of pools."""
    rank = caching(10**9)
    request = rank.admit(1000, compute=1000)
    assert rank.free_blocks == rank.usable_blocks - 63
    rank.compute(request, 1)
    assert rank.free_blocks == rank.usable_blocks


@pytest.mark.parametrize("kind", [CountingBlockPool, PrefixCachingBlockPool])
def test_blocks_grow_with_the_tokens_and_all_return(kind: type[CountingBlockPool | PrefixCachingBlockPool]) -> None:
    """33 tokens need 3 blocks of 16; 48 fit into the same; the 49th needs a fourth."""
    rank = Rank(kind(10))
    request = rank.admit(60, compute=33)
    for tokens, held in [(0, 3), (15, 3), (1, 4)]:
        if tokens:
            rank.compute(request, tokens)
        assert (rank.used_blocks, rank.free_blocks) == (held, 9 - held)
    for tokens in (11, 1):
        rank.compute(request, tokens)
    assert (rank.used_blocks, rank.free_blocks) == (0, 9)


GPT_OSS = KvGroups(whole=1, spanned=1, most_spanned_blocks=9)
"""Full layers, and as many with a window of 128 tokens."""


@pytest.mark.parametrize("kind", [CountingBlockPool, PrefixCachingBlockPool])
def test_layers_with_a_window_hold_as_many_blocks_as_it_lies_in(
    kind: type[CountingBlockPool | PrefixCachingBlockPool],
) -> None:
    """100 tokens are 7 blocks of either group, 999 are 63 and 9."""
    rank = Rank(kind(100, groups=GPT_OSS))
    request = rank.admit(1000, compute=100, output=1)
    for tokens, held in [(0, 14), (44, 18), (1, 19), (854, 72)]:
        if tokens:
            rank.compute(request, tokens)
        assert (rank.used_blocks, rank.free_blocks) == (held, 99 - held)
    rank.compute(request, 1)
    assert (rank.used_blocks, rank.free_blocks) == (0, 99)


def test_blocks_of_a_window_are_not_hit_but_taken() -> None:
    """Of 320 tokens 19 blocks are hit; the last block and 9 of the window are taken."""
    rank = Rank(PrefixCachingBlockPool(100, groups=GPT_OSS))
    assert rank.serve(320, (7,)) == 0
    assert rank.hits(320, (7,)) == 19 * 16
    rank.admit(320, (7,), compute=16)
    assert rank.used_blocks == 20 + 9


def test_hits_need_one_group_of_layers_that_keeps_every_token() -> None:
    with pytest.raises(InputError, match="prefix caching: found 2 groups of layers"):
        PrefixCachingBlockPool(100, groups=KvGroups(whole=2, spanned=1, most_spanned_blocks=9))


def test_without_caching_nothing_is_ever_hit() -> None:
    rank = Rank(CountingBlockPool(10))
    rank.admit(40, (1,), compute=40)
    assert rank.hits(40, (1,)) == 0


def test_a_fully_cached_prompt_of_32_tokens_hits_16_and_recomputes_16() -> None:
    """floor((32 − 1) / 16) = 1 block: at least one token has to be computed, and blocks are hit whole."""
    rank = caching(20)
    assert [rank.serve(32, (7,)), rank.serve(32, (7,)), rank.serve(33, (7,))] == [0, 16, 32]


def test_a_block_is_hit_as_soon_as_it_is_registered_and_shared_while_held() -> None:
    """Two prompts of 40 tokens share two full blocks; the partial third one is each request's own: 4 blocks in all.

    What is shared takes nothing from the free blocks; what is cached in free ones does.
    """
    rank, third = caching(20), _request(40, (7,))
    assert rank.hits(40, (7,)) == 0
    first = rank.admit(40, (7,), compute=40)
    assert rank.hits(40, (7,)) == 32
    second = rank.admit(40, (7,), compute=8)
    assert rank.used_blocks == 4
    rank.compute(first, 1)
    assert rank.used_blocks == 3
    assert rank.view.lacking_blocks(third, 8) == 1
    rank.compute(second, 1)
    assert rank.used_blocks == 0
    assert rank.view.lacking_blocks(third, 8) == 3
    assert rank.hits(40, (7,)) == 32


def test_equal_ids_after_different_prefixes_are_different_content() -> None:
    rank = caching(200)
    assert [rank.serve(1024, ids) for ids in ((1, 2), (3, 2), (1, 4))] == [0, 0, 512]


def test_a_partial_trace_block_is_shared_up_to_its_last_full_block() -> None:
    """600 tokens are one trace block and 88 tokens of another: 37 full blocks (592 tokens) and 8 tokens beyond."""
    rank = caching(200)
    assert [rank.serve(600, (1, 2)) for _ in range(2)] == [0, 592]


def test_prompts_without_ids_share_nothing_but_hit_their_own_blocks_after_preemption() -> None:
    rank = caching(20)
    request = rank.admit(40, compute=40)
    assert rank.hits(40) == 0
    rank.preempt(request)
    assert rank.view.cached_tokens(request) == 32


def test_generated_tokens_are_hit_by_their_own_request_alone() -> None:
    """20 prompt + 13 generated tokens, of which 32 have KV: the second block is half prompt, half output."""
    rank = caching(20)
    request = rank.admit(20, (1,), compute=20, output=20)
    for _ in range(12):
        rank.compute(request, 1)
    rank.preempt(request)
    assert (request.sequence_tokens, rank.view.cached_tokens(request)) == (33, 32)
    assert rank.hits(40, (1,)) == 16


def test_blocks_without_content_are_reused_before_cached_ones_and_tails_before_heads() -> None:
    """4 usable blocks. A 40-token prompt leaves blocks 1, 2 cached and 3 blank; 4 was never used.

    Of the next 3 blocks two are the blank ones and the third evicts the tail (tokens 16–31) of the first prompt, whose
    head can still be hit.
    """
    rank = caching(5)
    rank.serve(40, (1,))
    stranger = rank.admit(48, compute=32)
    assert rank.hits(40, (1,)) == 32
    rank.compute(stranger, 16)
    assert rank.hits(40, (1,)) == 16


def test_the_least_recently_released_request_is_evicted_first_and_a_hit_renews_it() -> None:
    """6 usable blocks, prompts of 33 tokens (2 cached, 1 blank): a, b, then a again, so b's blocks are the oldest.

    The next prompt takes the 2 blank blocks and one more, the tail of b.
    """
    rank = caching(7)
    for ids in ((1,), (2,), (1,)):
        rank.serve(33, ids)
    rank.admit(48, compute=48)
    assert rank.hits(33, (1,)) == 32
    assert rank.hits(33, (2,)) == 16


def test_a_copy_serves_hits_after_the_first_block_of_its_content_is_gone() -> None:
    """A 16-token prompt never hits (one token must be computed), so two of them leave two copies of a block.

    3 usable blocks: a stranger of 2 blocks takes the blank one and the older copy; the younger one is still hit.
    """
    rank = caching(4)
    assert [rank.serve(16, (1,)) for _ in range(2)] == [0, 0]
    stranger = rank.admit(47, compute=32, output=1)
    assert rank.hits(17, (1,)) == 16
    rank.compute(stranger, 15)
    assert rank.hits(17, (1,)) == 0


@pytest.mark.parametrize(("block_tokens", "hit"), [(16, 96), (64, 64), (48, 96), (128, 0), (20, 80)])
def test_any_block_length_goes_with_any_trace_block_length(block_tokens: int, hit: int) -> None:
    """Two prompts share six ids of 16 tokens, 96 tokens; hits are the full KV blocks within them.

    KV blocks of 20 tokens: the fifth ends at token 100, inside the seventh id, which differs.
    """
    rank = caching(100, block_tokens, 16)
    rank.serve(200, tuple(range(13)))
    assert rank.serve(200, (0, 1, 2, 3, 4, 5, *range(90, 97))) == hit


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


def _mooncake(requests: int) -> list[tuple[int, tuple[int, ...]]]:
    """Prompt tokens and block ids."""
    if not MOONCAKE.exists():
        pytest.skip("the Mooncake conversation trace is not beside this checkout")
    with gzip.open(MOONCAKE, "rt") as lines:
        rows = [json.loads(next(lines)) for _ in range(requests)]
    return [(row["input_length"], tuple(row["hash_ids"])) for row in rows]


def test_an_unlimited_cache_hits_every_mooncake_block_seen_before() -> None:
    """Ids of the trace already stand for the prefix, so a set of ids seen is a perfect cache of 512-token blocks."""
    rank, seen, hit_tokens = caching(600_000), set[int](), 0
    for prompt_tokens, ids in _mooncake(600):
        known = next((i for i, one in enumerate(ids) if one not in seen), len(ids))
        hits = rank.serve(prompt_tokens, ids)
        assert hits == min(known * 512, prompt_tokens - 1) // 16 * 16
        seen.update(ids)
        hit_tokens += hits
    assert hit_tokens > 0


def test_a_small_cache_hits_mooncake_blocks_as_a_plain_lru_does() -> None:
    """One request at a time on 20,000 blocks (320,000 tokens, about 27 prompts) against an LRU list of block contents.

    Prompts that end with a full block are left out: recomputing such a block makes a copy, which a plain LRU has not.
    """
    usable = 20_000
    rank, lru, evictions = caching(usable + 1), OrderedDict[tuple[int, int], None](), 0
    for prompt_tokens, ids in _mooncake(700):
        if prompt_tokens % 16 == 0 or prompt_tokens > usable * 16:
            continue
        contents = [(ids[i // 32], i % 32) for i in range(prompt_tokens // 16)]
        hits = next((i for i, content in enumerate(contents) if content not in lru), len(contents))
        assert rank.serve(prompt_tokens, ids) == hits * 16
        for content in contents[:hits]:
            del lru[content]
        while len(lru) > usable - len(contents) - 1:
            lru.popitem(last=False)
            evictions += 1
        lru.update(dict.fromkeys(reversed(contents)))
    assert evictions > usable
