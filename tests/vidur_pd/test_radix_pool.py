"""A pool with a radix tree: hits, splits, locks and evictions as SGLang's RadixCache has them."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boundary.errors import InputError
from tests.vidur_pd.one_rank import DirectedRank
from tests.vidur_pd.radix_oracle import RadixOracle, Token
from vidur_pd.scheduling import Decision, Policy, RankView
from vidur_pd.scheduling.kv_blocks import RadixBlockPool
from vidur_pd.workload.request import Request

TRACES = Path(__file__).parents[3] / "shared/data/traces"
HASH_BLOCK = 6
Ids = tuple[int, ...] | None


class Rank(DirectedRank):
    """Pages, and requests numbered in turn."""

    def __init__(self, pages: int, page: int = 1, *, hash_block: int = HASH_BLOCK, eviction: str = "lru") -> None:
        self.pool = RadixBlockPool(pages + 1, page, hash_block, eviction)
        self._serial = count()
        super().__init__(self.pool)

    def request(self, prompt: int, ids: Ids, output: int = 1) -> Request:
        index = next(self._serial)
        return Request(index, f"r{index}", prompt, output, 0, ids)

    def hits(self, prompt: int, ids: Ids) -> int:
        return self.view.cached_tokens(self.request(prompt, ids))

    def serve(self, prompt: int, ids: Ids, output: int = 1) -> int:
        """A request from its first token to its last; returns the tokens hit."""
        request = self.request(prompt, ids, output)
        found = self.view.cached_tokens(request)
        self.add(request)
        self.compute(request, prompt - found)
        for _ in range(output - 1):
            self.compute(request, 1)
        assert request.cached_tokens == found
        return found

    @property
    def nodes(self) -> list[tuple[int, int]]:
        return [(start, end) for start, end, *_ in self.pool.nodes]


def test_a_prompt_seen_before_is_hit_but_for_its_last_token() -> None:
    rank = Rank(100)
    assert [rank.serve(12, (1, 2)) for _ in range(2)] == [0, 11]


def test_a_lookup_changes_nothing_and_an_admission_splits_the_node_that_it_ends_in() -> None:
    """12 tokens of ids (1, 2); a prompt (1, 3) shares the first 6, and puts its other 4 beside."""
    rank = Rank(100)
    rank.serve(12, (1, 2))
    assert rank.hits(10, (1, 3)) == 6
    assert rank.nodes == [(0, 12)]
    rank.serve(10, (1, 3))
    assert rank.nodes == [(0, 6), (6, 12), (6, 10)]


def test_output_is_cached_behind_the_prompt_in_a_node_of_its_own() -> None:
    """8 prompt tokens and 4 generated ones, the last of which never gets KV."""
    rank = Rank(100)
    rank.serve(8, (1, 2), output=4)
    assert rank.nodes == [(0, 8), (8, 11)]
    assert (rank.used_blocks, rank.pool.evictable_tokens) == (0, 11)


def test_tokens_can_be_hit_when_they_have_been_computed() -> None:
    """Not when they are scheduled: two equal prompts in one batch both compute, and one copy remains."""
    rank = Rank(100)
    requests = [rank.request(12, (1, 2)) for _ in range(2)]

    class Both(Policy):
        def decide(self, rank: RankView, decision: Decision) -> None:
            for request in rank.waiting:
                decision.run(request, rank.most_tokens(request))

    rank._policy = Both()
    for request in requests:
        rank.add(request)
    batch = rank.schedule()
    assert batch is not None
    assert batch.new_tokens.tolist() == [12, 12]
    assert rank.used_blocks == 24
    rank.finish(batch)
    assert (rank.used_blocks, rank.pool.evictable_tokens) == (0, 12)


def test_a_request_that_loses_its_kv_leaves_its_prompt_and_no_output() -> None:
    rank = Rank(100)
    request = rank.request(8, (1, 2), 5)
    rank.add(request)
    rank.compute(request, 8)
    rank.compute(request, 1)
    assert rank.used_blocks == 9
    rank.preempt(request)
    assert (rank.used_blocks, rank.nodes) == (0, [(0, 8)])
    assert rank.view.cached_tokens(request) == 8


def test_whole_leaves_are_evicted_the_longest_unused_first() -> None:
    """20 pages of a token: prompts of 6, 7 and 5 leave 2 blank; the first is used once more.

    A prompt of 4 lacks 2: the second prompt goes as a whole, 7 tokens.
    """
    rank = Rank(20)
    for prompt, ids in ((6, (1,)), (7, (2, 2)), (5, (3,)), (6, (1,))):
        rank.serve(prompt, ids)
    rank.serve(4, (4,))
    assert [rank.hits(8, ids) for ids in ((1, 0), (2, 2), (3, 0), (4, 0))] == [6, 0, 5, 4]


def test_lfu_evicts_what_the_fewest_requests_have_used() -> None:
    """As before, but the first prompt, used twice, is also the one unused for the longest; it stays."""
    kept = {}
    for eviction in ("lru", "lfu"):
        rank = Rank(20, eviction=eviction)
        for prompt, ids in ((6, (1,)), (6, (1,)), (7, (2, 2)), (5, (3,)), (4, (4,))):
            rank.serve(prompt, ids)
        kept[eviction] = [rank.hits(8, ids) for ids in ((1, 0), (2, 2), (3, 0), (4, 0))]
    assert kept == {"lru": [0, 7, 5, 4], "lfu": [6, 0, 5, 4]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1,), "num_blocks: found 1, expected at least 2"),
        ((9, 1, 0), "hash_block_tokens: found 0, expected at least 1"),
        ((9, 1, 1, "mru"), "eviction: found 'mru', expected lru or lfu"),
    ],
)
def test_impossible_pools_are_refused(arguments: tuple[int, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        RadixBlockPool(*arguments)


@dataclass
class Known:
    """A request, and the tokens that it stands for."""

    request: Request
    ids: Ids
    chunks: bool

    def tokens(self, length: int) -> list[Token]:
        index, prompt, ids = self.request.index, self.request.prompt_tokens, self.ids
        identified = 0 if ids is None else min(prompt, len(ids) * HASH_BLOCK)
        of_ids = [(ids[i // HASH_BLOCK], i % HASH_BLOCK) for i in range(identified)] if ids is not None else []
        return [*of_ids, *((f"own {index}", i) for i in range(identified, length))][:length]

    @property
    def sequence(self) -> list[Token]:
        return self.tokens(self.request.sequence_tokens)


class Twins:
    """The same steps on a rank with the pool, and on the oracle."""

    def __init__(self, pages: int, page: int, eviction: str) -> None:
        self.rank, self.oracle = Rank(pages, page, eviction=eviction), RadixOracle(pages, page, eviction)
        self.known: list[Known] = []

    def begin(self, prompt: int, ids: Ids, output: int, share: int) -> None:
        request = self.rank.request(prompt, ids, output)
        if self.rank.rejection_reason(request) is None:
            self.known.append(Known(request, ids, True))
            self.rank.add(request)
            self.go_on(self.known[-1], share)

    def go_on(self, each: Known, share: int) -> None:
        """The request computes a part of what it can, if it has room."""
        request, rank, oracle = each.request, self.rank, self.oracle
        is_new = not request.is_running
        found, locked = oracle.peek(each.sequence[:-1]) if is_new else (0, 0)
        past = found if is_new else request.computed_tokens
        assert not is_new or rank.view.cached_tokens(request) == found
        tokens = max((request.sequence_tokens - past) * share // 4, 1)
        if is_new:
            lacking = -(-(found + tokens) // oracle.page) - locked // oracle.page
            assert rank.view.lacking_blocks(request, tokens) == lacking
        if rank.view.lacking_blocks(request, tokens) > rank.view.free_blocks:
            return
        was_prefill = is_new or each.chunks
        if is_new:
            oracle.admit(request.index, each.sequence, request.sequence_tokens - 1)
        oracle.grow(request.index, past + tokens)
        each.chunks = past + tokens < request.sequence_tokens
        self.rank.compute(request, tokens)
        if request.status == "completed":
            oracle.checkpoint(request.index, each.tokens(past + tokens), request.prompt_tokens)
            oracle.release(request.index)
            self.known.remove(each)
        elif was_prefill:
            oracle.checkpoint(request.index, each.tokens(past + tokens), request.prompt_tokens)

    def preempt(self, each: Known) -> None:
        if each.request.is_running:
            self.rank.preempt(each.request)
            self.oracle.release(each.request.index)

    def touch(self, each: Known, less: int) -> None:
        tokens = each.request.sequence_tokens - less
        self.rank.decision.touch(each.request, tokens)
        self.oracle.match(each.sequence[:tokens])

    def compare(self) -> None:
        assert sorted(self.rank.pool.nodes) == self.oracle.shown()
        assert self.rank.view.free_blocks == self.oracle.free()
        assert self.rank.pool.evictable_tokens == self.oracle.evictable()


ids_of = st.one_of(st.none(), st.lists(st.integers(0, 2), min_size=1, max_size=9).map(tuple))
steps = st.tuples(st.sampled_from("bbgggptd"), st.integers(0, 10**6), ids_of, st.integers(1, 40), st.integers(1, 9))


@settings(max_examples=150, deadline=None)
@given(
    page=st.sampled_from([1, 4, 16]),
    pages=st.integers(4, 60),
    eviction=st.sampled_from(["lru", "lfu"]),
    steps=st.lists(steps, max_size=40),
)
def test_the_pool_is_the_oracle(
    page: int, pages: int, eviction: str, steps: list[tuple[str, int, Ids, int, int]]
) -> None:
    """Hits, locks, hits counted, splits, evictable and free pages after every step of random requests."""
    _serve(Twins(pages, page, eviction), steps)


@pytest.mark.parametrize("eviction", ["lru", "lfu"])
@pytest.mark.parametrize(("page", "pages"), [(1, 60), (1, 150), (4, 30), (16, 12)])
def test_long_runs_of_the_pool_and_the_oracle_evict_the_same(page: int, pages: int, eviction: str) -> None:
    """A thousand steps each, so that the cache is full, and nodes are used, split and evicted many times."""
    rng = Random(7)
    twins = Twins(pages, page, eviction)
    for _ in range(1000):
        if len(twins.known) > 3:
            each = twins.known.pop(0)
            twins.preempt(each)
        ids = tuple(rng.choice((0, 0, 1)) for _ in range(9)) if rng.random() < 0.9 else None
        _serve(twins, [(rng.choice("bbggggpt"), rng.randrange(10**6), ids, rng.randint(1, 40), rng.randint(1, 9))])
    assert len(twins.oracle.evicted) > 50


def _serve(twins: Twins, steps: list[tuple[str, int, Ids, int, int]]) -> None:
    for kind, number, ids, prompt, output in steps:
        each = twins.known[number % len(twins.known)] if twins.known else None
        if kind == "b":
            twins.begin(prompt, ids and ids[: -(-prompt // HASH_BLOCK)], output, 1 + number % 4)
        elif each is None:
            continue
        elif kind == "g":
            twins.go_on(each, 1 + number % 4)
        elif kind == "p":
            twins.preempt(each)
        elif kind == "t":
            twins.touch(each, number % 3 if each.request.sequence_tokens > 3 else 0)
        else:
            order = twins.rank.view.depth_first([other.request for other in twins.known])
            assert order == twins.oracle.depth_first([other.sequence for other in twins.known])
        twins.compare()


def _mooncake(trace: str, requests: int) -> list[tuple[int, tuple[int, ...]]]:
    """Prompt tokens and block ids."""
    path = TRACES / f"mooncake_{trace}_trace.jsonl.gz"
    if not path.exists():
        pytest.skip(f"{path.name} is not beside this checkout")
    with gzip.open(path, "rt") as lines:
        rows = [json.loads(next(lines)) for _ in range(requests)]
    return [(row["input_length"], tuple(row["hash_ids"])) for row in rows]


@pytest.mark.parametrize("page", [1, 16])
def test_an_unlimited_tree_hits_every_mooncake_token_seen_before(page: int) -> None:
    """Ids of the trace already stand for the prefix, so a set of ids seen is a perfect cache."""
    rank, seen, hit_tokens = Rank(30_000_000 // page, page, hash_block=512), set[int](), 0
    for prompt, ids in _mooncake("conversation", 2_000):
        known = next((i for i, one in enumerate(ids) if one not in seen), len(ids))
        hits = rank.serve(prompt, ids)
        assert hits == min(known * 512, prompt - 1) // page * page
        seen.update(ids)
        hit_tokens += hits
    assert hit_tokens > 0


@pytest.mark.parametrize("trace", ["conversation", "synthetic"])
@pytest.mark.parametrize("eviction", ["lru", "lfu"])
def test_a_small_tree_hits_mooncake_blocks_as_the_oracle_does(eviction: str, trace: str) -> None:
    """Pages of 512 tokens, a token of the oracle each; 300 of them, about 13 prompts.

    One request at a time. A last page that is not full is the request's own while it runs.
    """
    pages = 300
    rank, oracle = Rank(pages, 512, hash_block=512, eviction=eviction), RadixOracle(pages, 1, eviction)
    hit_pages = 0
    for index, (prompt, ids) in enumerate(_mooncake(trace, 1_500)):
        if len(ids) > pages:
            continue
        whole = [*ids[: prompt // 512]]
        oracle.admit(index, whole, (prompt - 1) // 512)
        hits = oracle.held[index].in_tree
        oracle.grow(index, len(ids))
        if whole:
            oracle.checkpoint(index, whole, len(whole))
        oracle.held[index].own_pages = 0
        oracle.release(index)
        assert rank.serve(prompt, ids) == hits * 512
        hit_pages += hits
    assert hit_pages > 0
    assert len(oracle.evicted) > 100
