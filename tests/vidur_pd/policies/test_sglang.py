"""SGLang's rules on requests whose batches were worked out by hand. Pages have one token unless said otherwise.

An iteration takes 1000 ps and 1 ps per token (`WholeRun`), which says when arrivals fall.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.vidur_pd.whole_runs import Scenario, WholeRun, scenario_of
from vidur_pd.scheduling.policies.sglang import Sglang

Batch = dict[int, int]


def cached(*requests: tuple[int, int, int, tuple[int, ...]], **fields: Any) -> Scenario:
    """(arrival, prompt, output, ids of 6 tokens each), with a radix tree."""
    scenario = scenario_of(**{"block_tokens": 1, "caching": True} | fields)
    return replace(scenario, requests=requests)


def batches_of(scenario: Scenario, **options: Any) -> tuple[list[Batch], WholeRun]:
    """New tokens of each request in each batch, step by step; runs of decodes at once give the same."""
    run = WholeRun(scenario, Sglang, **options).serve()
    assert WholeRun(scenario, Sglang, takes_runs=True, **options).serve().seen() == run.seen()
    return [{index: new for index, new, *_ in entries} for entries, *_ in run.batches], run


def test_an_extend_goes_before_the_decodes_which_wait() -> None:
    """r0 is prefilled [0, 1010) and decodes [1010, 2011); r1 comes at 1500 and is next, alone."""
    batches, _ = batches_of(scenario_of((0, 10, 4), (1500, 5, 3), block_tokens=1))
    assert batches == [{0: 10}, {0: 1}, {1: 5}, {0: 1, 1: 1}, {0: 1, 1: 1}]


def test_a_prompt_beyond_the_chunk_is_cut_to_pages_and_goes_on_first() -> None:
    """Chunk 18, pages of 4: 40 tokens are cut to 16. The 2 left are no page, so r1 is not cut as well: the round ends.

    The next chunk is not rounded (18); then the 6 that are left count as 8, and 10 remain for r1, whose 6 count as 8.
    """
    batches, _ = batches_of(scenario_of((0, 40, 2), (0, 6, 2), block_tokens=4, budget=18))
    assert batches == [{0: 16}, {0: 18}, {0: 6, 1: 6}, {0: 1, 1: 1}]


@pytest.mark.parametrize(("usable", "second"), [(132, {1: 30}), (131, {0: 1})])
def test_the_total_budget_decides_by_a_token(usable: int, second: Batch) -> None:
    """r0 holds 20 and may generate 100 more, of which 0.7 are reserved: usable − 90 are left.

    r1 asks for 30 + 10 + 1 page = 41, which has to be less: 42 with 132 usable tokens, 41 with 131. Refused, it is not
    tried again until r0 leaves.
    """
    batches, _ = batches_of(scenario_of((0, 20, 101), (500, 30, 10), block_tokens=1, usable_blocks=usable))
    assert batches[:2] == [{0: 20}, second]
    if second == {0: 1}:
        assert batches == [{0: 20}, *[{0: 1}] * 100, {1: 30}, *[{1: 1}] * 9]


@pytest.mark.parametrize(("usable", "next_batch"), [(1013, {1: 30}), (1012, {0: 1})])
def test_the_ratio_has_fallen_after_three_hundred_decodes(usable: int, next_batch: Batch) -> None:
    """0.7 − 300 · (0.7 − 0.098)/600 = 0.399. r0 (P 20, D 801) has generated 301: holds 320, may generate 500.

    Its reserve is 199.5, so usable − 519.5 are left. r1 asks for 462 + 30 + 1 = 493 < 493.5 with 1013 usable tokens.
    It comes within the 300th decode: 1020 + 299 · 1001 = 300,319 ps and after.
    """
    scenario = scenario_of((0, 20, 801), (300_400, 30, 462), block_tokens=1, usable_blocks=usable)
    batches, _ = batches_of(scenario)
    assert batches[300:302] == [{0: 1}, next_batch]


def test_the_fewest_tokens_then_the_longest_prompt_is_retracted_to_the_end_of_the_queue() -> None:
    """40 pages; hardly anything is reserved for outputs. r0, r1, r2 are prefilled one after another (20 tokens).

    r3 (20 + 10 + 1) never fits beside them. Six decodes take 18 of the 20 left, the seventh lacks one: all have
    generated 7, so r0 with the longest prompt goes, behind r3. r1 and r2 end after 8 more. r3 is first and leaves
    40 − 31 = 9 to promise; r0 asks for 17 + 8 + 1 and waits until r3 has left. It computes 10 + 7 tokens again.
    """
    scenario = scenario_of((0, 10, 15), (500, 4, 15), (1500, 6, 15), (3500, 20, 10), block_tokens=1, usable_blocks=40)
    batches, run = batches_of(scenario, schedule_conservativeness=0.01)
    assert batches == [
        {0: 10},
        {1: 4},
        {2: 6},
        *[{0: 1, 1: 1, 2: 1}] * 6,
        *[{1: 1, 2: 1}] * 8,
        {3: 20},
        *[{3: 1}] * 9,
        {0: 17},
        *[{0: 1}] * 7,
    ]
    assert [preempted for *_, preempted in run.batches if preempted] == [[0]]


@pytest.mark.parametrize(("output", "next_batch"), [(6, {2: 50}), (7, {0: 1})])
def test_after_a_retraction_the_ratio_is_an_estimate_and_the_queue_is_tried_again(
    output: int, next_batch: Batch
) -> None:
    """r0 (P 4, D 200) and r1 (P 5, D 200), 230 pages: 110 decodes leave one, the next lacks one.

    Both have generated 111; r1 with the longer prompt goes. Ratio: (111 + 20)/(200 + 1) = 0.6517. r2, which was refused
    before, is now first. r0 holds 115, has generated 112 and may generate 88, of which 57.35 are reserved: of the 115
    that are free 57.65 are left, for which r2 asks 50 + output + 1.
    """
    scenario = scenario_of((0, 4, 200), (500, 5, 200), (101_217, 50, output), block_tokens=1, usable_blocks=230)
    batches, _ = batches_of(scenario, schedule_conservativeness=0.01)
    assert batches[:114] == [{0: 4}, {1: 5}, *[{0: 1, 1: 1}] * 110, {0: 1}, next_batch]


def test_a_prefix_is_hit_and_its_node_split() -> None:
    """r0 leaves one node of 12 tokens. r1 shares the first 6; r2 all 12, of which the last is computed again."""
    scenario = cached((0, 12, 1, (1, 2)), (5000, 12, 1, (1, 3)), (10_000, 12, 1, (1, 2)))
    batches, run = batches_of(scenario)
    assert batches == [{0: 12}, {1: 6}, {2: 1}]
    assert [(start, end) for start, end, *_ in run.pool.nodes] == [(0, 6), (6, 11), (11, 12), (6, 12)]


def test_a_leaf_that_was_not_used_for_the_longest_time_is_evicted_as_a_whole() -> None:
    """20 pages: r0 leaves 8 and r1 7; r2 uses r0's once more. r3 needs 6 of the 5 blank ones: r1's 7 go.

    8 + 6 are cached then. r4, as r1, has to compute all its 7 and needs 1 more than is blank: the last token of r0's
    prompt, a node of its own since r2 has computed it again. So r5 still hits 7.
    """
    requests = [(8, (1, 1)), (7, (2, 2)), (8, (1, 1)), (6, (3,)), (7, (2, 2)), (8, (1, 1))]
    rows = [(5000 * i, prompt, 1, ids) for i, (prompt, ids) in enumerate(requests)]
    batches, _ = batches_of(cached(*rows, usable_blocks=20))
    assert batches == [{0: 8}, {1: 7}, {2: 1}, {3: 6}, {4: 7}, {5: 1}]


def test_prefixes_of_requests_admitted_together_are_locked_before_anything_is_evicted() -> None:
    """20 pages: r0 leaves 8, then r1 7. r2 (6 new) and r3, as r0, come together.

    What is unused for the longest time when r2 is admitted is r0's prompt; but r3 finds it first, and r1's goes.
    """
    requests = [(0, 8, 1, (1, 1)), (5000, 7, 1, (2, 2)), (10_000, 6, 1, (3,)), (10_000, 8, 1, (1, 1))]
    batches, _ = batches_of(cached(*requests, usable_blocks=20))
    assert batches == [{0: 8}, {1: 7}, {2: 6, 3: 1}]


def test_with_a_mixed_chunk_decodes_run_beside_the_extend() -> None:
    """Chunk 10, one of which is r0's decode: r1 gets 9, 9 and 2 of its 20."""
    batches, _ = batches_of(scenario_of((0, 4, 6), (500, 20, 2), block_tokens=1, budget=10), mixed_chunk=True)
    assert batches == [{0: 4}, {1: 9, 0: 1}, {1: 9, 0: 1}, {1: 2, 0: 1}, {0: 1, 1: 1}, {0: 1}]


def test_lpm_lets_a_request_wait_for_the_prefix_that_another_one_computes() -> None:
    """r0 and r1 share 36 tokens, r2 is another; nothing is cached. r1 is last, though it came second.

    The chunk of 80 ends the first round; in the next one r1 hits 36.
    """
    shared = (9, 9, 9, 9, 9, 9)
    requests = [(0, 40, 1, (*shared, 1)), (0, 40, 1, (*shared, 2)), (0, 40, 1, (8,) * 7)]
    assert batches_of(cached(*requests, budget=80), schedule_policy="lpm")[0] == [{0: 40, 2: 40}, {1: 4}]
    assert batches_of(cached(*requests, budget=80), schedule_policy="fcfs")[0] == [{0: 40, 1: 40}, {2: 40}]


def test_lpm_takes_the_longest_cached_prefix_first() -> None:
    requests = [(0, 48, 1, (1,) * 8), (5000, 48, 1, (2,) * 8), (5000, 48, 1, (1,) * 7 + (3,))]
    batches, _ = batches_of(cached(*requests, budget=48, usable_blocks=200), schedule_policy="lpm")
    assert batches == [{0: 48}, {2: 6, 1: 42}, {1: 6}]


def test_dfs_weight_takes_the_subtree_with_the_most_requests_first() -> None:
    """r0 and r1 leave a node each. Of r2 below the first, r3 and r4 below the second, r3 is first.

    Then both have one, and the first node is older: r2, r4. Chunks of 6 let one run at a time.
    """
    requests = [(0, 6, 1, (1,)), (0, 6, 1, (2,))]
    requests += [(20_000, 12, 1, ids) for ids in ((1, 5), (2, 6), (2, 7))]
    batches, _ = batches_of(cached(*requests, budget=6, max_seqs=6), schedule_policy="dfs-weight")
    assert batches == [{0: 6}, {1: 6}, {3: 6}, {2: 6}, {4: 6}]


def test_lof_takes_the_longest_output_first() -> None:
    scenario = scenario_of((0, 10, 2), (0, 10, 5), block_tokens=1, budget=10)
    assert batches_of(scenario, schedule_policy="lof")[0][:2] == [{1: 10}, {0: 10}]


def test_a_request_that_admission_could_never_take_is_refused() -> None:
    """20 + 9 + 1 page has to be less than the pool."""
    for usable, reason in ((31, None), (30, "the 30 tokens of KV that its admission asks for are not below the 30")):
        run = WholeRun(scenario_of((0, 20, 9), block_tokens=1, usable_blocks=usable), Sglang)
        found = run.refusal(run.requests[0])
        assert found == reason or (reason is not None and found is not None and found.startswith(reason))
