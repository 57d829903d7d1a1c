"""Policies step by step: every batch is the one that was worked out by hand (``by_hand/``)."""

from __future__ import annotations

import re
from typing import Final

import pytest

from boundary.errors import InputError
from tests.vidur_pd.policies.by_hand import (
    faster_transformer,
    lightllm,
    orca,
    sarathi,
    splitwise,
    vllm_v0,
    vllm_v1,
    vllm_v1_by_priority,
    vllm_v1_whole_prompts,
)
from tests.vidur_pd.policies.by_hand.case import Case, Step
from tests.vidur_pd.whole_runs import Scenario, WholeRun, scenario_of
from vidur_pd.scheduling.policies import policy_named

CASES: Final[dict[str, tuple[Case, ...]]] = {
    module.__name__.rpartition(".")[2]: module.CASES
    for module in (faster_transformer, orca, vllm_v0, sarathi, lightllm, splitwise, vllm_v1)
}
CASES["vllm_v1"] += vllm_v1_by_priority.CASES + vllm_v1_whole_prompts.CASES
every_case = pytest.mark.parametrize(
    ("policy", "case"),
    [pytest.param(policy, case, id=f"{policy}: {case.name}") for policy, cases in CASES.items() for case in cases],
)


def run_of(policy: str, case: Case, *, takes_runs: bool = False) -> WholeRun:
    return WholeRun(scenario_of_case(case), policy_named(policy), takes_runs=takes_runs)


def scenario_of_case(case: Case) -> Scenario:
    return scenario_of(*case.requests, contents=case.contents, **case.limits)


@every_case
def test_batches_are_those_worked_out_by_hand(policy: str, case: Case) -> None:
    """Requests, their tokens and their order in each batch, and who was preempted for it."""
    run = run_of(policy, case)
    assert [request.index for request in run.requests if run.refusal(request) is not None] == list(case.refused)
    run.serve()
    batches = [({row[0]: row[1] for row in rows}, preempted) for rows, _, preempted in run.batches]
    assert [(list(computes.items()), preempted) for computes, preempted in batches] == [
        (list(step.computes.items()), list(step.preempts)) for step in case.steps
    ]


@every_case
def test_jumps_over_plain_decodes_give_the_same_stamps(policy: str, case: Case) -> None:
    assert run_of(policy, case, takes_runs=True).serve().seen() == run_of(policy, case).serve().seen()


@pytest.mark.parametrize(
    ("policy", "limits", "field"),
    [
        ("faster_transformer", {"max_model_len": 404}, "engine.max_model_len: found 404 (101 KV blocks)"),
        ("orca", {"max_model_len": 404}, "engine.max_model_len: found 404 (101 KV blocks)"),
        ("vllm_v0", {"max_seqs": 101}, "engine.max_batched_tokens: found 100, expected at least the 101"),
        ("vllm_v0", {"max_seqs": 303, "stages": 3}, "engine.max_batched_tokens: found 100, expected at least the 101"),
        ("sarathi", {"max_seqs": 101}, "engine.max_batched_tokens: found 100, expected at least the 101"),
        ("lightllm", {"max_seqs": 101, "block_tokens": 1}, "engine.max_batched_tokens: found 100, expected at least"),
        ("lightllm", {}, "engine.block_tokens: found 4, expected 1"),
        ("lightllm", {"block_tokens": 1, "stages": 2}, "pp: found 2, expected 1"),
    ],
)
def test_engines_that_a_policy_cannot_decide_for_are_refused(policy: str, limits: dict[str, int], field: str) -> None:
    with pytest.raises(InputError, match=re.escape(field)):
        run_of(policy, Case("", requests=((0, 4, 1),), limits=limits, steps=()))


@pytest.mark.parametrize(
    ("policy", "request_", "reason"),
    [
        ("vllm_v0", (0, 101, 1), "its 101 tokens exceed the 100 of an iteration, and prompts are not split"),
        # 90 + 11 tokens, should it be preempted before its last: Vidur would then wait for ever
        ("vllm_v0", (0, 90, 12), "its 101 tokens exceed the 100 of an iteration, and prompts are not split"),
        ("lightllm", (0, 101, 1), "its 101 tokens exceed the 100 of an iteration, and prompts are not split"),
        ("vllm_v0", (0, 12, 10), "its 6 KV blocks exceed the 5 of the pool above the watermark"),
        ("sarathi", (0, 12, 10), "its 6 KV blocks exceed the 5 of the pool above the watermark"),
    ],
)
def test_requests_that_could_never_end_are_refused_with_a_reason(
    policy: str, request_: tuple[int, int, int], reason: str
) -> None:
    usable = 6 if "blocks" in reason else 200
    limits = {"usable_blocks": usable, "watermark_blocks": 1, "block_tokens": 1 if policy == "lightllm" else 4}
    run = run_of(policy, Case("", requests=(request_,), limits=limits, steps=()))
    assert run.refusal(run.requests[0]) == reason


@pytest.mark.parametrize("policy", CASES)
def test_hand_work_serves_every_token_once(policy: str) -> None:
    """Of the expectations alone: each request computes its prompt, and a token for each but the last of its output."""
    for case in CASES[policy]:
        for index, (_, prompt, output) in enumerate(case.requests):
            if index not in case.refused:
                assert kept_tokens(case.steps, index) == prompt + output - 1, case.name


def kept_tokens(steps: tuple[Step, ...], index: int) -> int:
    """KV tokens that the request has at its end: after a preemption it begins with what it hits."""
    tokens, has_lost = 0, False
    for step in steps:
        has_lost |= index in step.preempts
        if index in step.computes:
            tokens = (0 if has_lost else tokens) + step.computes[index] + step.hits.get(index, 0)
            has_lost = False
    return tokens
