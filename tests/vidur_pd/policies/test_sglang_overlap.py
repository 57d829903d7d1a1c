"""SGLang's overlap scheduling on requests whose batches were worked out by hand; pages of one token.

Batch N + 1 is decided when N begins, which is when N − 1 has ended. An iteration takes 1000 ps and 1 ps per token.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.vidur_pd.policies.test_sglang import Batch, batches_of, cached
from tests.vidur_pd.whole_runs import Scenario, scenario_of


def overlapped(*requests: tuple[int, int, int], **fields: Any) -> Scenario:
    return scenario_of(*requests, **({"block_tokens": 1, "plans_ahead": True} | fields))


@pytest.mark.parametrize(("plans_ahead", "third"), [(True, {0: 1}), (False, {1: 5})])
def test_an_arrival_during_a_step_joins_the_one_after_the_next(plans_ahead: bool, third: Batch) -> None:
    """r0 is prefilled [0, 1010) and decodes from then on; r1 comes at 1500, when that of [2011, 3012) is decided."""
    batches, _ = batches_of(overlapped((0, 10, 5), (1500, 5, 2), plans_ahead=plans_ahead))
    assert batches[:3] == [{0: 10}, {0: 1}, third]
    assert batches[3] == ({1: 5} if plans_ahead else {0: 1, 1: 1})


def test_a_request_that_ends_by_length_is_left_out_and_takes_no_slot() -> None:
    """r0's third token is under way when the third decode is decided: r1 goes on alone."""
    batches, _ = batches_of(overlapped((0, 4, 3), (0, 4, 5)))
    assert batches == [{0: 4, 1: 4}, {0: 1, 1: 1}, {0: 1, 1: 1}, {1: 1}, {1: 1}]


def test_the_kv_of_a_request_that_ends_is_free_one_step_later() -> None:
    """16 pages. r0 decodes when r1 is admitted, and both hold one page more after each decode: 5, 8, 10, 12, 14, 16.

    In the last of these r0's sixth token is under way. r1 needs a 17th page, and r0 has its own until the decode ends:
    nothing is decided before, and nobody is retracted. Ends: 1004, 2005, 3008, four times 1002 more, and 1001.
    """
    scenario = overlapped((0, 4, 6), (500, 3, 6), usable_blocks=16)
    batches, run = batches_of(scenario, schedule_conservativeness=0.05)
    assert batches == [{0: 4}, {0: 1}, {1: 3}, *[{0: 1, 1: 1}] * 4, {1: 1}]
    assert [request.preemptions for request in run.requests] == [0, 0]
    assert [request.last_token_ps for request in run.requests] == [7016, 8017]


def test_the_chunk_under_way_is_in_the_tree_when_the_next_is_decided() -> None:
    """Chunks of 12. r1 has r0's first 12 tokens. r0's last chunk of 6 leaves room for 6 more: r1's 18 less 12 cached.

    Decided while the first chunk is under way; the second and third batch follow.
    """
    r0, r1 = (0, 18, 2, (7, 8, 9)), (0, 18, 2, (7, 8, 5))
    batches, run = batches_of(replace(cached(r0, r1), budget=12, plans_ahead=True))
    assert batches == [{0: 12}, {0: 6, 1: 6}, {0: 1, 1: 1}]
    assert run.requests[1].cached_tokens == 12


def test_a_lone_prompt_of_one_token_output_ends_the_batch() -> None:
    """r0's only token is under way when the next is decided: nothing to run, and r1 is admitted when it has come."""
    batches, run = batches_of(overlapped((0, 4, 1), (500, 4, 2)))
    assert batches == [{0: 4}, {1: 4}, {1: 1}]
    assert run.requests[1].scheduled_ps == 1004
