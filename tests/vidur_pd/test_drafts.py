"""Speculative decoding in the scheduler: which drafts are verified, and what their acceptance yields."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aicb import Drafting
from tests.vidur_pd.one_rank import OneRank
from tests.vidur_pd.whole_runs import WholeRun, scenario_of
from vidur_pd.scheduling import Drafts
from vidur_pd.scheduling.kv_blocks import CountingBlockPool
from vidur_pd.workload.request import Request


def scheduler(lengths: list[tuple[int, int]], acceptance: float, budget: int = 100) -> OneRank:
    """Four-token blocks, two drafts per step; prompts are computed."""
    drafts = Drafts([acceptance] * 2, np.random.default_rng(0))
    made = OneRank(CountingBlockPool(200, 4), max_batched_tokens=budget, max_seqs=8, max_model_len=1000, drafts=drafts)
    for index, (prompt, output) in enumerate(lengths):
        made.add(Request(index, str(index), prompt, output, 0, None))
    return made


def step(made: OneRank) -> tuple[list[int], list[int], int]:
    """(new tokens, drafts, drafts accepted)"""
    batch = made.schedule()
    assert batch is not None
    outcome = made.finish(batch)
    return batch.new_tokens.tolist(), batch.drafts.tolist(), outcome.accepted_drafts


@pytest.mark.parametrize(("drafts", "acceptance"), [(1, 0.85), (3, 0.6), (4, 1.0), (2, 0.0)])
def test_accepted_drafts_average_to_the_expected_tokens(drafts: int, acceptance: float) -> None:
    """a + a² + … + a^k, what ``aicb`` expects beyond the one token of each step."""
    accepted = Drafts([acceptance] * drafts, np.random.default_rng(1)).accepted(np.full(100_000, drafts))
    assert accepted.mean() == pytest.approx(Drafting(drafts, acceptance).expected_tokens - 1.0, abs=0.015)
    assert accepted.max(initial=0) <= drafts


def test_drafts_follow_the_first_token_and_end_with_the_request() -> None:
    """Prompt of 10, 6 outputs: prefill yields one, then 3 with both drafts, then 2 with the one that still fits."""
    made = scheduler([(10, 6)], acceptance=1.0)
    assert step(made) == ([10], [0], 0)
    assert step(made) == ([3], [2], 2)
    assert step(made) == ([2], [1], 1)
    assert made.schedule() is None
    assert made.used_blocks == 0


def test_rejected_drafts_are_computed_again() -> None:
    made = scheduler([(10, 4)], acceptance=0.0)
    batches = []
    while (batch := made.schedule()) is not None:
        made.finish(batch)
        batches.append((batch.kv_tokens.tolist(), batch.drafts.tolist()))
    assert batches == [([10], [0]), ([13], [2]), ([13], [1]), ([13], [0])]


def test_the_token_budget_cuts_drafts_before_decodes() -> None:
    """Budget 5 after two prompts of 2: the first decode takes 3 tokens, the second has 2 left."""
    made = scheduler([(2, 9), (2, 9)], acceptance=0.0, budget=5)
    assert step(made) == ([2, 2], [0, 0], 0)
    assert step(made) == ([3, 2], [2, 1], 0)


def test_steps_with_drafts_are_never_taken_at_once() -> None:
    scenario = scenario_of((0, 10, 50))
    assert WholeRun(scenario, takes_runs=True).serve().runs == [48]
    assert WholeRun(replace(scenario, drafts=2), takes_runs=True).serve().runs == []
