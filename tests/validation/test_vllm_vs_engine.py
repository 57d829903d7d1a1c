"""The policy ``vllm_v1`` decides as vLLM's own scheduler does; needs an unpacked wheel in VLLM_SOURCE."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.validation.vllm_source import Source, load
from tests.validation.vllm_vs_engine import (
    AHEAD,
    DRAFTERS,
    MODES,
    agreement,
    drafted_sets,
    ours,
    pipeline_sets,
    sets,
    theirs,
)
from tests.vidur_pd.policies.by_hand import vllm_v1, vllm_v1_by_priority, vllm_v1_whole_prompts
from tests.vidur_pd.policies.by_hand.case import Case
from tests.vidur_pd.policies.test_policies_by_hand import scenario_of_case
from tests.vidur_pd.test_async_reference import RECOMPUTED_IN_FLIGHT

FOLDER = os.environ.get("VLLM_SOURCE")
SETS = 25
BY_HAND = (*vllm_v1.CASES, *vllm_v1_by_priority.CASES, *vllm_v1_whole_prompts.CASES)

pytestmark = pytest.mark.skipif(FOLDER is None, reason="VLLM_SOURCE names no unpacked wheel of vLLM 0.24.0")


@cache
def source() -> Source:
    return load(Path(FOLDER or ""))


@pytest.mark.parametrize("plans_ahead", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_batches_are_those_of_vllm(mode: str, plans_ahead: bool) -> None:
    """Instants, rows, preemptions and KV blocks of every batch; tokens, preemptions and hits of every request."""
    scenarios = sets(SETS, mode, plans_ahead)
    found = agreement(source(), scenarios, verbose=True)
    assert found.sets_with_preemptions > SETS / 2
    assert found.sets_with_hits > SETS / 2
    assert found.sets == SETS
    assert (found.equal, found.equal_sets) == (found.batches, found.sets)


def test_batches_through_a_pipeline_are_those_of_vllm() -> None:
    found = agreement(source(), pipeline_sets(SETS), verbose=True)
    assert found.sets_with_hits > SETS / 2
    assert (found.equal, found.equal_sets) == (found.batches, found.sets)


@pytest.mark.parametrize(
    ("drafter", "plans_ahead"), [*((drafter, False) for drafter in DRAFTERS), *((drafter, True) for drafter in AHEAD)]
)
def test_batches_with_drafts_are_those_of_vllm(drafter: str, plans_ahead: bool) -> None:
    found = agreement(source(), drafted_sets(SETS, drafter, plans_ahead), verbose=True)
    assert found.sets_with_preemptions > SETS / 2
    assert found.sets_with_hits > SETS / 2
    assert (found.equal, found.equal_sets) == (found.batches, found.sets)


@pytest.mark.parametrize("changed", [{"lookahead": 0}, {"drops_last_hit": False}])
def test_one_rule_of_drafts_that_differs_is_found(changed: dict[str, Any]) -> None:
    scenarios = drafted_sets(8, "a layer")
    found = agreement(source(), scenarios, changes=lambda scenario: replace(scenario, **changed))
    assert found.equal_sets < found.sets


def test_chunks_that_wait_for_the_last_stage_are_found() -> None:
    found = agreement(source(), pipeline_sets(8), changes=lambda scenario: replace(scenario, pipelines_chunks=False))
    assert found.equal_sets < found.sets


@pytest.mark.parametrize("case", BY_HAND, ids=lambda case: case.name)
def test_batches_worked_out_by_hand_are_those_of_vllm(case: Case) -> None:
    steps, _ = theirs(source(), scenario_of_case(case))
    assert [({row[0]: row[1] for row in step.rows}, step.preempted) for step in steps] == [
        (dict(step.computes), list(step.preempts)) for step in case.steps
    ]


def test_a_victim_that_is_recomputed_in_flight_hits_what_vllm_hits() -> None:
    assert ours(RECOMPUTED_IN_FLIGHT) == theirs(source(), RECOMPUTED_IN_FLIGHT)


@pytest.mark.parametrize(
    ("mode", "changed"),
    [
        ("first come, first served", {"watermark_blocks": 2}),
        ("first come, first served", {"threshold": 11}),
        ("first come, first served", {"plans_ahead": False}),
        ("first come, first served", {"caching": False}),
        ("by priority", {"priorities": None}),
        ("without chunked prefill", {"chunks_prompts": True}),
    ],
)
def test_one_rule_that_differs_is_found(mode: str, changed: dict[str, Any]) -> None:
    """vLLM serves the scenario, `vllm_v1` one with another rule."""
    scenarios = sets(8, mode, plans_ahead=True)
    found = agreement(source(), scenarios, changes=lambda scenario: replace(scenario, **changed))
    assert found.equal < found.batches
    assert found.equal_sets < found.sets
