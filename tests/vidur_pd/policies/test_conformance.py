"""What holds of every policy: limits are kept, every request ends, jumps over plain decodes change nothing."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from examples.policies.shortest_job_first import ShortestJobFirst
from tests.integration.random_configurations import random_scenario, with_faults
from tests.integration.run_checks import check_run, run_scenario
from tests.integration.small_runs import config, pool, simulate
from tests.vidur_pd.policies.others import PassThrough, PrefillFirst, RetractsTheShortest, StaticBatches
from tests.vidur_pd.whole_runs import Scenario, WholeRun, extremes, scenario_of, scenarios
from vidur_pd.config import NAMED_POLICIES
from vidur_pd.scheduling import Policy
from vidur_pd.scheduling.policies import policy_named
from vidur_pd.scheduling.policies.faster_transformer import FasterTransformer
from vidur_pd.scheduling.policies.lightllm import LightLlm
from vidur_pd.scheduling.policies.orca import Orca
from vidur_pd.scheduling.policies.sarathi import Sarathi
from vidur_pd.scheduling.policies.sglang import Sglang
from vidur_pd.scheduling.policies.trtllm import Trtllm
from vidur_pd.scheduling.policies.vllm_v0 import VllmV0
from vidur_pd.scheduling.vllm_v1_python import VllmV1Python

NAMED = [policy_named(name) for name in sorted(NAMED_POLICIES)]
POLICIES: list[type[Policy] | None] = [
    None,
    VllmV1Python,
    ShortestJobFirst,
    PassThrough,
    StaticBatches,
    PrefillFirst,
    RetractsTheShortest,
    *NAMED,
]
"""``None``: vLLM V1 of the core."""
every_policy = pytest.mark.parametrize("policy", POLICIES)
in_python = pytest.mark.parametrize("policy", [policy for policy in POLICIES if policy is not None])
LONG_S = 600
random_runs = settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])


def engine_of(policy: type[Policy] | None, longest: int) -> dict[str, Any]:
    """Fields of an engine that the policy does not refuse, nor requests of up to ``longest`` tokens on it."""
    named: dict[str, Any] = {"policy": name_of(policy)}
    if policy is LightLlm:
        return named | {"block_tokens": 1, "num_kv_blocks": 2 * longest, "max_batched_tokens": longest}
    if policy in (Orca, FasterTransformer):
        return named | {"max_model_len": longest}
    if policy is VllmV0:
        return named | {"max_batched_tokens": longest}
    return named


def _suited_pool(tree: dict[str, Any], policy: type[Policy]) -> dict[str, Any]:
    stages = {"pp": 1} if policy is LightLlm else {}
    return {**tree, **stages, "engine": {**_suited_engine(tree.get("engine", {}), policy), **engine_of(policy, 2_000)}}


def _suited_engine(tree: dict[str, Any], policy: type[Policy]) -> dict[str, Any]:
    """The engine without drafts, where the policy refuses them."""
    return {key: value for key, value in tree.items() if key != "speculative" or policy is not LightLlm}


def name_of(policy: type[Policy] | None) -> str:
    return "vllm_v1" if policy is None else f"{policy.__module__}:{policy.__name__}"


def suited(scenario: Scenario, policy: type[Policy] | None) -> Scenario:
    """The scenario on an engine that the policy does not refuse; named ones keep no slots for drafts."""
    if policy is not None and not policy.pipelines_chunks:
        scenario = replace(scenario, pipelines_chunks=False)
    if policy in NAMED:
        whole = policy is Trtllm and not scenario.chunks_prompts
        scenario = replace(scenario, priorities=None, chunks_prompts=not whole, lookahead=0)
    if policy is LightLlm:
        blocks = scenario.usable_blocks * scenario.block_tokens
        budget = max(scenario.budget, scenario.max_seqs)
        return replace(scenario, block_tokens=1, usable_blocks=blocks, budget=budget, stages=1, drafts=0)
    if policy in (Sarathi, Sglang, VllmV0):
        decodes = max(scenario.max_seqs // scenario.stages, 1) * (1 + scenario.drafts)
        page = scenario.block_tokens if policy is Sglang else 1
        return replace(scenario, budget=max(scenario.budget, decodes, page))
    if policy is Trtllm:
        return replace(scenario, budget=max(scenario.budget, 1 + scenario.drafts, scenario.block_tokens))
    if policy in (Orca, FasterTransformer):
        longest = max(prompt + output for _, prompt, output, _ in scenario.requests) + 1
        return replace(
            scenario,
            max_model_len=longest,
            usable_blocks=max(scenario.usable_blocks, -(-longest // scenario.block_tokens)),
        )
    return scenario


@every_policy
@random_runs
@given(scenario=st.one_of(scenarios(), scenarios(drafts=2), scenarios(plans_ahead=True)))
def test_limits_are_kept_and_every_request_ends(policy: type[Policy] | None, scenario: Scenario) -> None:
    check_all_end(suited(scenario, policy), policy)


def check_all_end(scenario: Scenario, policy: type[Policy] | None) -> WholeRun:
    """`WholeRun` looks at tokens, requests and blocks of every iteration."""
    run = WholeRun(scenario, policy).serve()
    assert run.left_undone() == []
    return run


def check_extreme(scenario: Scenario, policy: type[Policy] | None) -> None:
    scenario = suited(scenario, policy)
    run = check_all_end(scenario, policy)
    assert WholeRun(scenario, policy, takes_runs=True).serve().seen() == run.seen()


@every_policy
@settings(random_runs, max_examples=60)
@given(scenario=extremes())
def test_extremes_lose_no_request(policy: type[Policy] | None, scenario: Scenario) -> None:
    """No deadlock, no livelock: whoever is not refused at arrival gets all tokens, and jumps change nothing."""
    check_extreme(scenario, policy)


@pytest.mark.parametrize(
    ("name", "scenario"),
    [
        # the first by arrival has lost its KV to another, and wants both blocks; that one has one of them
        (
            "splitwise",
            scenario_of(
                (0, 1, 1), (0, 1, 2), (0, 1, 1), (0, 1, 2), (0, 1, 2), block_tokens=1, usable_blocks=2, max_seqs=2
            ),
        ),
        # an answer that is recomputed, of which all but the last token is cached, has no blocks for the rest of it
        (
            "splitwise",
            scenario_of(
                *((0, 1, 7), (0, 1, 5), (0, 1, 1), (0, 1, 5), (0, 1, 1), (0, 1, 1), (0, 1, 1)),
                contents=[(0,)] * 7,
                caching=True,
                block_tokens=1,
                usable_blocks=7,
                budget=8,
                max_seqs=7,
            ),
        ),
        # the last chunk of an answer that is recomputed has no drafts: with them it would lose its blocks each time
        (
            "vllm_v1",
            scenario_of(
                *((60_000, 17, 33), (60_000, 28, 7), (60_000, 23, 19), (60_000, 1, 35)),
                *((60_700, 25, 21), (60_700, 23, 39), (120_700, 23, 33), (125_700, 29, 34)),
                role="decode",
                block_tokens=1,
                usable_blocks=76,
                budget=14,
                max_seqs=1,
                threshold=7,
                drafts=2,
                watermark_blocks=1,
                priorities=(1, 2, 2, 0, 0, 0, 1, 0),
            ),
        ),
        # the first in line hits blocks that nobody holds; once they are evicted it shares copies, and needs fewer
        (
            "vllm_v1",
            scenario_of(
                *((0, 1, 1), (0, 5, 37), (0, 8, 12), (0, 21, 15), (0, 14, 14)),
                *((5000, 29, 1), (5000, 9, 1), (5000, 1, 1)),
                contents=[(1,), (0,), (0, 0), (0, 0, 1, 0), (0, 1, 0), (1, 0, 0, 0, 0), (0, 0), (1,)],
                caching=True,
                role="decode",
                usable_blocks=30,
                budget=4,
                max_seqs=4,
                plans_ahead=True,
            ),
        ),
        # three prompts have come to a decode rank, a block each; the first wants all three
        (
            "trtllm",
            scenario_of((0, 1, 3), *[(0, 1, 1)] * 4, role="decode", block_tokens=1, usable_blocks=3, max_seqs=1),
        ),
        # the last chunk of an answer that is recomputed is one token, and has no drafts
        (
            "sarathi",
            scenario_of(
                *(
                    (0, 9, 21),
                    (700, 19, 20),
                    (5700, 7, 14),
                    (5700, 24, 14),
                    (5700, 24, 19),
                    (5700, 17, 29),
                    (5700, 4, 10),
                ),
                usable_blocks=22,
                budget=17,
                max_seqs=3,
                drafts=2,
            ),
        ),
        # the last piece of an answer that was cut is one token, and an extend batch of its own
        (
            "sglang",
            scenario_of(
                *((0, 1, 1), (0, 5, 10), (0, 1, 11), (0, 1, 5), (0, 1, 7), (0, 1, 7), (0, 1, 29)),
                role="decode",
                usable_blocks=8,
                budget=4,
                max_seqs=4,
                plans_ahead=True,
            ),
        ),
        # one that runs gives its blocks up for itself, and then those whose KV has come give up theirs for it
        (
            "trtllm",
            scenario_of(
                *((0, 1, 1), (0, 1, 9), *[(0, 1, 1)] * 3, *[(5000, 1, 1)] * 6),
                role="decode",
                block_tokens=1,
                usable_blocks=13,
                max_seqs=2,
            ),
        ),
    ],
)
def test_what_campaigns_have_found_goes_well(name: str, scenario: Scenario) -> None:
    check_extreme(scenario, None if name == "vllm_v1" else policy_named(name))


@every_policy
def test_a_campaign_loses_no_request(policy: type[Policy] | None, request: pytest.FixtureRequest) -> None:
    """``--long``: ten minutes over all policies, from new seeds; Hypothesis prints the scenario that fails."""
    if not request.config.getoption("--long"):
        pytest.skip("with --long")
    end_s = time.monotonic() + LONG_S / len(POLICIES)
    drawn = st.one_of(extremes(), extremes(), scenarios(), scenarios(drafts=2), scenarios(plans_ahead=True))
    many = settings(random_runs, max_examples=50, database=None)
    while time.monotonic() < end_s:
        many(seed(time.time_ns())(given(scenario=drawn)(lambda scenario: check_extreme(scenario, policy))))()


@every_policy
@random_runs
@given(scenario=st.one_of(scenarios(), scenarios(plans_ahead=True)))
def test_jumps_over_plain_decodes_change_nothing(policy: type[Policy] | None, scenario: Scenario) -> None:
    scenario = suited(scenario, policy)
    fast, slow = WholeRun(scenario, policy, takes_runs=True).serve(), WholeRun(scenario, policy).serve()
    assert fast.seen() == slow.seen()
    assert fast.questions <= slow.questions


@every_policy
@pytest.mark.parametrize(
    ("mode", "is_async"), [("pull", False), ("layerwise", False), ("pull", True), ("layerwise", True)]
)
def test_requests_pass_from_prefill_to_decode(policy: type[Policy] | None, mode: str, is_async: bool) -> None:
    pools = [pool("p", "prefill"), pool("d", "decode", instances=2)]
    sections: dict[str, Any] = {"kv_transfer": {"mode": mode}, "output": {"flows": True}}
    engine = {"num_kv_blocks": 150, "max_batched_tokens": 300, "async_scheduling": is_async}
    sections["engine"] = {**engine, **engine_of(policy, 2_000)}
    result = simulate(config(pools, **sections), [(2_000 * i, 1 + 170 * i % 1900, 2 + 7 * i % 90) for i in range(24)])
    assert result.summary.completed == 24
    check_run(result)


@in_python
@pytest.mark.parametrize("seed", [1, 98])
def test_random_configurations_hold_what_holds_of_every_run(policy: type[Policy], seed: int, tmp_path: Path) -> None:
    """1: mixed pools, collectives as flows, faults. 98: disaggregated pools, pipelines, prefix caches, drafts."""
    scenario = random_scenario(seed)
    if seed % 2:
        scenario = with_faults(scenario, tmp_path / "bare")
    cluster, engine = scenario.tree["cluster"], _suited_engine(scenario.tree["engine"], policy)
    pools = [_suited_pool(each, policy) for each in cluster["pools"]]
    fields = {"cluster": {**cluster, "pools": pools}, "engine": engine}
    check_run(run_scenario(scenario.with_fields(**fields), tmp_path / "run"))


def test_pools_have_policies_of_their_own() -> None:
    """Static batches on one of two mixed pools: requests that meet there wait for each other."""
    rows = [(0, 100, 40), (1_000, 100, 4), (1_000, 100, 4), (2_000, 100, 4), (2_000, 100, 4), (3_000, 100, 4)]
    own = {"policy": name_of(StaticBatches)}
    plain = simulate(config([pool("a", "mixed"), pool("b", "mixed")], routing={"policy": "round_robin"}), rows)
    mixed = simulate(
        config([pool("a", "mixed", engine=own), pool("b", "mixed")], routing={"policy": "round_robin"}), rows
    )
    ends = [[each.completed_ps for each in result.requests] for result in (plain, mixed)]
    assert ends[0][2] < ends[1][2] > ends[1][0]
    assert ends[0][1::2] == ends[1][1::2]
