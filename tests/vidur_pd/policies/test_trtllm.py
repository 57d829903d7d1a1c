"""TensorRT-LLM's rules on requests whose batches were worked out by hand. Blocks have four tokens.

An iteration takes 1000 ps and 1 ps per token (`WholeRun`), which says when arrivals fall.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from boundary.errors import InputError
from tests.vidur_pd.whole_runs import Scenario, WholeRun, scenario_of
from vidur_pd.scheduling.policies.trtllm import Trtllm

Batch = dict[int, int]
PAUSED = ((0, 4, 9), (0, 4, 9))
"""Two requests that come to 12 tokens of KV each, and may come to 13."""


def cached(*requests: tuple[int, int, int, tuple[int, ...]], **fields: Any) -> Scenario:
    """(arrival, prompt, output, ids of 6 tokens each), with reuse of blocks."""
    return replace(scenario_of(caching=True, **fields), requests=requests)


def batches_of(scenario: Scenario, **options: Any) -> tuple[list[Batch], WholeRun]:
    """New tokens of each request in each batch, step by step; runs of decodes at once give the same."""
    run = WholeRun(scenario, Trtllm, **options).serve()
    assert WholeRun(scenario, Trtllm, takes_runs=True, **options).serve().seen() == run.seen()
    assert run.left_undone() == []
    return [{index: new for index, new, *_ in entries} for entries, *_ in run.batches], run


def preempted(run: WholeRun) -> list[list[int]]:
    return [victims for *_, victims in run.batches if victims]


def test_a_prompt_joins_the_decodes() -> None:
    """r0 is prefilled [0, 1010) and decodes [1010, 2011); r1 comes at 1500 and is in the next iteration."""
    batches, _ = batches_of(scenario_of((0, 10, 4), (1500, 5, 3)))
    assert batches == [{0: 10}, {0: 1}, {1: 5, 0: 1}, {0: 1, 1: 1}, {1: 1}]


@pytest.mark.parametrize(
    ("usable", "expected"),
    [
        (8, [{0: 10}, {0: 1, 1: 6}, *[{0: 1, 1: 1}] * 5, *[{0: 1}] * 3]),
        (7, [{0: 10}, *[{0: 1}] * 9, {1: 6}, *[{1: 1}] * 5]),
    ],
)
def test_a_request_is_admitted_when_blocks_for_its_longest_output_are_sure(usable: int, expected: list[Batch]) -> None:
    """r0 may come to 20 tokens, 5 blocks, of which it holds 3 when r1 comes, which may come to 12, 3 blocks."""
    batches, _ = batches_of(scenario_of((0, 10, 10), (500, 6, 6), usable_blocks=usable))
    assert batches == expected


def test_a_block_for_the_last_token_counts_though_it_has_no_kv() -> None:
    """11 + 6 tokens take 5 blocks; KV has 16, which take 4."""
    run = WholeRun(scenario_of((0, 11, 6), usable_blocks=4), Trtllm)
    found = run.refusal(run.requests[0])
    assert found == "the 5 KV blocks that its longest output would take exceed the 4 of the pool"
    batches, _ = batches_of(scenario_of((0, 11, 6), usable_blocks=4), capacity_scheduler_policy="max_utilization")
    assert batches == [{0: 11}, *[{0: 1}] * 5]


def test_a_full_pool_lets_the_second_wait_where_nobody_is_evicted() -> None:
    """13 tokens are 4 blocks, the whole pool."""
    batches, run = batches_of(scenario_of(*PAUSED, usable_blocks=4))
    assert batches == [{0: 4}, *[{0: 1}] * 8, {1: 4}, *[{1: 1}] * 8]
    assert preempted(run) == []


@pytest.mark.parametrize(("caching", "again"), [(False, 9), (True, 5)])
def test_a_full_pool_pauses_the_second_at_maximal_utilisation(caching: bool, again: int) -> None:
    """Both are prefilled into a block and decode four times, with two blocks each: 8 tokens.

    The next token of r0 needs a fifth block: r1, with 5 tokens generated, is paused. Its 9 tokens need 3 blocks, and r0
    leaves 1 until it has ended after four decodes. With reuse r1 left its two full blocks; r0 took the second.
    """
    scenario = scenario_of(*PAUSED, usable_blocks=4, caching=caching)
    batches, run = batches_of(scenario, capacity_scheduler_policy="max_utilization")
    assert batches == [{0: 4, 1: 4}, *[{0: 1, 1: 1}] * 4, *[{0: 1}] * 4, {1: again}, *[{1: 1}] * 3]
    assert preempted(run) == [[1]]


def test_who_came_after_a_paused_request_does_not_pass_it() -> None:
    """As before; r2 comes while both decode and would fit into the block that r0 leaves, but r1 is before it."""
    scenario = scenario_of(*PAUSED, (2000, 3, 1), usable_blocks=4)
    batches, _ = batches_of(scenario, capacity_scheduler_policy="max_utilization")
    assert batches == [{0: 4, 1: 4}, *[{0: 1, 1: 1}] * 4, *[{0: 1}] * 4, {1: 9, 2: 3}, *[{1: 1}] * 3]


def test_a_static_batch_ends_before_the_next_begins() -> None:
    scenario = scenario_of((0, 4, 2), (0, 4, 4), (500, 4, 2))
    batches, _ = batches_of(scenario, capacity_scheduler_policy="static_batch")
    assert batches == [{0: 4, 1: 4}, {0: 1, 1: 1}, {1: 1}, {1: 1}, {2: 4}, {2: 1}]


@pytest.mark.parametrize(
    ("short", "expected"),
    [
        (6, [{0: 16}, {0: 16}, {0: 8, 1: 6}, {0: 1, 1: 1}]),
        (2, [{0: 16, 1: 2}, {0: 16, 1: 1}, {0: 8}, {0: 1}]),
    ],
)
def test_chunks_are_whole_blocks_and_the_rest_goes_to_who_fits_whole(short: int, expected: list[Batch]) -> None:
    """18 tokens an iteration: r0's 40 are cut to 16, and 2 are left, of which 6 tokens get no block, but 2 are whole.

    Beside a decode 17 are left, which are 16 as well.
    """
    assert batches_of(scenario_of((0, 40, 2), (0, short, 2), budget=18))[0] == expected


def test_with_equal_progress_prompts_get_a_block_in_turn() -> None:
    """18 tokens: r0 4, r1 4, r0 4, r1 its last 2, r0 4. Then 17 beside r1's decode: four blocks."""
    batches, _ = batches_of(scenario_of((0, 40, 2), (0, 6, 2), budget=18), context_chunking_policy="equal_progress")
    assert batches == [{0: 12, 1: 6}, {0: 16, 1: 1}, {0: 12}, {0: 1}]


def test_without_chunks_the_first_prompt_that_does_not_fit_ends_the_batch() -> None:
    """18 tokens: r0's 10 leave 8, r1 asks for 9, and r2, whose 3 would fit, is not tried. Then 1 + 9 + 3."""
    scenario = scenario_of((0, 10, 3), (0, 9, 2), (0, 3, 2), budget=18, chunks_prompts=False)
    assert batches_of(scenario)[0] == [{0: 10}, {0: 1, 1: 9, 2: 3}, {0: 1, 1: 1, 2: 1}]


def test_without_chunks_a_prompt_longer_than_an_iteration_is_refused() -> None:
    for prompt, reason in ((18, None), (19, "its 19 tokens exceed the 18 of an iteration, and prompts are not split")):
        run = WholeRun(scenario_of((0, prompt, 3), budget=18, chunks_prompts=False), Trtllm)
        assert run.refusal(run.requests[0]) == reason


def test_without_chunks_a_paused_request_that_has_outgrown_an_iteration_is_cut() -> None:
    """As above, but 8 tokens an iteration, and r1 has 9 when it comes back: 8 and 1."""
    scenario = scenario_of(*PAUSED, usable_blocks=4, budget=8, chunks_prompts=False)
    batches, _ = batches_of(scenario, capacity_scheduler_policy="max_utilization")
    assert batches[9:] == [{1: 8}, {1: 1}, *[{1: 1}] * 3]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ((7, 8), [{0: 12}, {0: 1, 1: 4}, {1: 1}]),
        ((7, 9), [{0: 12}, {0: 1, 1: 8}, {1: 1}]),
        ((9, 8), [{0: 12, 1: 12}, {0: 1, 1: 1}]),
    ],
)
def test_a_prompt_waits_for_a_first_block_that_another_computes(ids: tuple[int, ...], expected: list[Batch]) -> None:
    """r0 and r1 come together. r1 hits two blocks of an equal prompt (the last token is computed again), or one."""
    assert batches_of(cached((0, 12, 2, (7, 8)), (0, 12, 2, ids)))[0] == expected


def test_who_waited_for_a_block_is_still_before_those_that_passed() -> None:
    """r1 waits for r0's block, and r2 passes it. Of 4 blocks r0 and r2 have one each and need another; r1 needs one.

    In order of arrival r0 and r1 get theirs, and r2 is paused. When r0 has ended it computes its last token again.
    """
    scenario = cached((0, 4, 2, (7,)), (0, 4, 2, (7,)), (0, 4, 2, (9,)), usable_blocks=4)
    batches, run = batches_of(scenario, capacity_scheduler_policy="max_utilization")
    assert batches == [{0: 4, 2: 4}, {0: 1, 1: 4}, {1: 1, 2: 1}]
    assert preempted(run) == [[2]]


def test_whoever_finds_all_blocks_waits_for_nobody() -> None:
    """r1 and r2 find r0's whole prompt: neither has a block for the other to wait for."""
    same = (12, 1, (7, 8))
    assert batches_of(cached((0, *same), (5000, *same), (5000, *same)))[0] == [{0: 12}, {1: 4, 2: 4}]


def test_a_prompt_that_is_cut_lets_others_wait_for_the_rest_of_it() -> None:
    """Chunks of 8 of 16 equal tokens. r1 finds r0's first chunk, but not the next block, which r0 is about to compute.

    When r0 has ended r1 counts 16: 8 of them, which begin behind the 12 that are cached, are the 4 that are left.
    """
    same = (16, 1, (5, 5, 5))
    assert batches_of(cached((0, *same), (0, *same), budget=8))[0] == [{0: 8}, {0: 8}, {1: 4}]


def test_a_chunk_begins_behind_the_cached_prefix_and_is_as_long_as_without() -> None:
    """r1 finds r0's 8 tokens. 8 of its 20 count for the first chunk, and are 9th to 16th."""
    batches, run = batches_of(cached((0, 8, 1, (1, 2)), (5000, 20, 1, (1, 2, 3, 4)), budget=8))
    assert batches == [{0: 8}, {1: 8}, {1: 4}]
    assert run.requests[1].cached_tokens == 8


def test_without_chunks_a_cached_prompt_counts_whole() -> None:
    """18 tokens: r1's 12, of which 8 are cached, leave no room for r2's 7."""
    rows = [(0, 12, 1, (7, 8)), (5000, 12, 1, (7, 8)), (5000, 7, 1, (1, 1))]
    assert batches_of(cached(*rows, budget=18, chunks_prompts=False))[0] == [{0: 12}, {1: 4}, {2: 7}]


def test_all_blocks_of_a_prompt_are_taken_with_its_first_chunk() -> None:
    """r0's 16 tokens are cut to 8; it holds 4 blocks, and 2 of 6 are left, too few for r1's 9 at most utilisation."""
    scenario = scenario_of((0, 16, 2), (500, 9, 1), budget=8, usable_blocks=6)
    batches, _ = batches_of(scenario, capacity_scheduler_policy="max_utilization")
    assert batches == [{0: 8}, {0: 8}, {0: 1}, {1: 8}, {1: 1}]


@pytest.mark.parametrize("overlaps", [False, True])
def test_seats_are_those_of_active_requests(overlaps: bool) -> None:
    batches, _ = batches_of(scenario_of(*[(0, 4, 3)] * 3, max_seqs=2, plans_ahead=overlaps))
    assert batches == [{0: 4, 1: 4}, *[{0: 1, 1: 1}] * 2, {2: 4}, *[{2: 1}] * 2]


def test_overlapped_a_request_that_ends_by_length_is_left_out() -> None:
    """r0's third token is under way when the third decode is decided: r1 goes on alone."""
    batches, _ = batches_of(scenario_of((0, 4, 3), (0, 4, 5), plans_ahead=True))
    assert batches == [{0: 4, 1: 4}, {0: 1, 1: 1}, {0: 1, 1: 1}, {1: 1}, {1: 1}]


@pytest.mark.parametrize(
    ("arrival", "expected"),
    [
        (900, [{0: 1, 1: 12}, {0: 1, 1: 1, 2: 12}, {0: 1, 2: 1}]),
        (1500, [{0: 1, 1: 12}, {0: 1, 1: 1, 2: 12}, {0: 1, 2: 1}]),
        (2500, [{0: 1, 1: 12}, {0: 1, 1: 1}, {0: 1, 2: 4}]),
    ],
)
def test_overlapped_a_prompt_under_way_is_not_in_the_cache_yet(arrival: int, expected: list[Batch]) -> None:
    """r0 is prefilled [0, 1004), decodes [1004, 2005). r1's prompt comes at 900, is decided at 1004, runs from 2005 on.

    r2, with the same prompt, waits for it where it came before 1004. In vain: at 2005 r1 decodes next, so nobody is
    going to compute its blocks, which are cached at 3018.
    """
    rows = [(0, 4, 9, (1,)), (900, 12, 2, (7, 8)), (arrival, 12, 2, (7, 8))]
    assert batches_of(cached(*rows, plans_ahead=True))[0][2:5] == expected


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"budget": 3}, "engine.max_batched_tokens: found 3, expected at least the 4 tokens that a block has"),
        (
            {"budget": 2, "drafts": 2, "chunks_prompts": False},
            "engine.max_batched_tokens: found 2, expected at least the 3 tokens that a decode takes",
        ),
    ],
)
def test_an_iteration_without_room_for_anything_is_refused(fields: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError, match=line):
        WholeRun(scenario_of((0, 1, 1), **fields), Trtllm)
