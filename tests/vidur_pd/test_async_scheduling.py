"""Asynchronous scheduling of vLLM V1 by hand: an iteration is decided when the one before begins.

KV blocks have 4 tokens; an iteration of n tokens takes 1000 + n ps. Batches are (request, new tokens, KV tokens).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.vidur_pd.whole_runs import Scenario, WholeRun, scenario_of
from vidur_pd.scheduling import Policy
from vidur_pd.scheduling.vllm_v1_python import VllmV1Python

in_core_and_python = pytest.mark.parametrize("policy", [None, VllmV1Python])


def ahead(*requests: tuple[int, int, int], **fields: Any) -> Scenario:
    return scenario_of(*requests, plans_ahead=True, **fields)


def served(scenario: Scenario, policy: type[Policy] | None, **options: Any) -> WholeRun:
    run = WholeRun(scenario, policy, **options).serve()
    assert run.left_undone() == []
    return run


def batches(run: WholeRun) -> list[list[tuple[int, int, int]]]:
    return [[row[:3] for row in rows] for rows, _, _ in run.batches]


@in_core_and_python
def test_a_request_that_comes_during_a_step_joins_the_next_but_one(policy: type[Policy] | None) -> None:
    """Step 1 takes 0 to 1005; step 2, a decode to 2006, was decided at 0. The request of 500 begins in step 3."""
    scenario = ahead((0, 5, 4), (500, 4, 2))
    run = served(scenario, policy)
    assert batches(run) == [
        [(0, 5, 5)],
        [(0, 1, 6)],
        [(0, 1, 7), (1, 4, 4)],
        [(0, 1, 8), (1, 1, 5)],
    ]
    assert (run.requests[1].scheduled_ps, run.requests[1].first_token_ps) == (2006, 3011)
    assert served(replace(scenario, plans_ahead=False), policy).requests[1].scheduled_ps == 1005


@in_core_and_python
def test_a_request_that_ends_by_length_is_left_out_and_keeps_its_place_for_one_step(
    policy: type[Policy] | None,
) -> None:
    """Two may run. The first gets its second and last token in step 2: when step 3 is decided, at the begin of step 2,
    it has nothing left to compute, and the third request finds no place. It finds one in step 4.
    """
    scenario = ahead((0, 5, 2), (0, 6, 4), (0, 4, 1), max_seqs=2)
    run = served(scenario, policy)
    assert batches(run) == [
        [(0, 5, 5), (1, 6, 6)],
        [(0, 1, 6), (1, 1, 7)],
        [(1, 1, 8)],
        [(1, 1, 9), (2, 4, 4)],
    ]
    without = served(replace(scenario, plans_ahead=False), policy)
    assert batches(without)[2:] == [[(1, 1, 8), (2, 4, 4)], [(1, 1, 9)]]


@in_core_and_python
def test_blocks_of_an_ended_request_return_one_step_later(policy: type[Policy] | None) -> None:
    """5 blocks: 2 for each of two requests, 1 is free. The third needs 3. The first ends in step 2, which begins at
    1013; step 3, decided then, does not find its blocks; step 4, decided at 2015, does: 1 free and 2 returned."""
    run = served(ahead((0, 7, 2), (0, 6, 3), (0, 12, 1), usable_blocks=5), policy)
    assert batches(run) == [
        [(0, 7, 7), (1, 6, 6)],
        [(0, 1, 8), (1, 1, 7)],
        [(1, 1, 8)],
        [(2, 12, 12)],
    ]
    assert run.requests[2].scheduled_ps == 1013 + 1002 + 1001


@in_core_and_python
def test_a_request_that_is_preempted_in_flight_keeps_the_token_under_way(policy: type[Policy] | None) -> None:
    """3 blocks, of which two prompts of 4 tokens take 2. Step 2, decided at 0, has a block for the first one's fifth
    token and none for the second one's: that loses its KV while its first token is under way, which comes at 1008.
    It waits with 5 tokens, for 2 blocks, until the first has ended at 4011.
    """
    run = served(ahead((0, 4, 4), (0, 4, 4), usable_blocks=3), policy)
    assert batches(run) == [
        [(0, 4, 4), (1, 4, 4)],
        [(0, 1, 5)],
        [(0, 1, 6)],
        [(0, 1, 7)],
        [(1, 5, 5)],
        [(1, 1, 6)],
        [(1, 1, 7)],
    ]
    assert [preempted for _, _, preempted in run.batches[:3]] == [[], [1], []]
    second = run.requests[1]
    assert (second.first_token_ps, second.last_token_ps, second.preemptions) == (1008, 7018, 1)
    gaps_ps, counts = run.loop.iterations.gap_counts.counts()
    assert dict(zip(gaps_ps.tolist(), counts.tolist(), strict=True)) == {1001: 5, 5016 - 1008: 1}


@in_core_and_python
def test_a_request_that_is_preempted_with_its_last_token_in_flight_ends_all_the_same(
    policy: type[Policy] | None,
) -> None:
    """2 blocks for two prompts of 4 tokens. For the first one's fifth token the second gives up its block, though it
    needs it no more: its only token comes at 1008. Without, it would have ended before step 2 is decided.
    """
    scenario = ahead((0, 4, 3), (0, 4, 1), usable_blocks=2)
    run = served(scenario, policy)
    assert batches(run) == [[(0, 4, 4), (1, 4, 4)], [(0, 1, 5)], [(0, 1, 6)]]
    second = run.requests[1]
    assert (second.status, second.last_token_ps, second.preemptions) == ("completed", 1008, 1)
    assert served(replace(scenario, plans_ahead=False), policy).requests[1].preemptions == 0


@in_core_and_python
def test_without_a_plan_the_next_step_is_decided_when_the_last_one_has_ended(policy: type[Policy] | None) -> None:
    """One-token outputs leave nothing to plan: the second comes at 300 and begins at 1004, as it would without; the
    third finds an idle engine."""
    scenario = ahead((0, 4, 1), (300, 4, 1), (5000, 4, 2))
    run = served(scenario, policy)
    assert [request.scheduled_ps for request in run.requests] == [0, 1004, 5000]
    assert batches(run) == [[(0, 4, 4)], [(1, 4, 4)], [(2, 4, 4)], [(2, 1, 5)]]
    assert served(replace(scenario, plans_ahead=False), policy).seen() == run.seen()


@in_core_and_python
def test_a_prompt_in_flight_is_hit(policy: type[Policy] | None) -> None:
    """The budget is one prompt of 13 tokens. The second, the same, is admitted to step 2 while step 1 computes the
    first: its 3 full blocks count as cached since they were scheduled."""
    scenario = replace(ahead(budget=13, caching=True), requests=((0, 13, 2, (7, 7, 7)), (0, 13, 2, (7, 7, 7))))
    run = served(scenario, policy)
    assert batches(run) == [[(0, 13, 13)], [(0, 1, 14), (1, 1, 13)], [(1, 1, 14)]]
    assert run.requests[1].cached_tokens == 12


@in_core_and_python
def test_chunks_of_a_prompt_follow_each_other(policy: type[Policy] | None) -> None:
    """10 tokens in chunks of 4; the first token is there when the third has ended: 1004 + 1004 + 1002."""
    run = served(ahead((0, 10, 2), budget=4), policy)
    assert batches(run) == [[(0, 4, 4)], [(0, 4, 8)], [(0, 2, 10)], [(0, 1, 11)]]
    assert run.requests[0].first_token_ps == 3010


@in_core_and_python
def test_kv_that_arrives_during_a_step_is_decoded_in_the_next_but_one(policy: type[Policy] | None) -> None:
    """The first request's KV is there at 2500, steps take 1001 from then on. The second asks at 2600, gets its blocks
    when step 3 is decided, at 3501, and its KV at 6001, in step 4. Step 6 begins at 7505."""
    run = served(ahead((0, 2, 9), (2600, 2, 3), role="decode"), policy)
    assert run.requests[1].scheduled_ps == 2500 + 5 * 1001


@in_core_and_python
def test_a_run_ends_one_step_after_that_in_which_a_request_comes(policy: type[Policy] | None) -> None:
    """Steps take 1001 after the prefill of 5 tokens. The request of 6500 comes in the sixth, when the seventh has been
    decided; it joins the eighth. Of 49 decodes 48 change nothing, of which the last follows the run: 47. While both
    run, 2 of the second's 3 decodes change nothing: 1. With the twelfth the second has left; of the other 37 decodes 36
    change nothing: 35."""
    run = served(ahead((0, 5, 50), (6500, 4, 4)), policy, takes_runs=True)
    assert run.requests[1].scheduled_ps == 1005 + 7 * 1001
    assert run.runs == [47, 1, 35]


@in_core_and_python
@pytest.mark.parametrize("at_ps", [600, 1005, 1006])
def test_a_run_that_has_not_begun_is_cut_to_its_first_step(policy: type[Policy] | None, at_ps: int) -> None:
    """The run is planned at 0 to begin at 1005. A request that comes before, or just then, joins the step that begins
    at 2006; one that comes in its first step, the one after that."""
    scenario = ahead((0, 5, 50), (at_ps, 4, 4))
    run = served(scenario, policy, takes_runs=True)
    assert run.requests[1].scheduled_ps == (2006 if at_ps <= 1005 else 3007)
    assert run.seen() == served(scenario, policy).seen()
