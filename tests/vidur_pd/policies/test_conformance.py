"""What holds of every policy: limits are kept, every request ends, jumps over plain decodes change nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from examples.policies.shortest_job_first import ShortestJobFirst
from tests.integration.random_configurations import random_scenario, with_faults
from tests.integration.run_checks import check_run, run_scenario
from tests.integration.small_runs import config, pool, simulate
from tests.vidur_pd.policies.others import PassThrough, PrefillFirst, RetractsTheShortest, StaticBatches
from tests.vidur_pd.whole_runs import Scenario, WholeRun, scenarios
from vidur_pd.scheduling import Policy
from vidur_pd.scheduling.policies import POLICIES as NAMED
from vidur_pd.scheduling.policies import policy_named
from vidur_pd.scheduling.policies.faster_transformer import FasterTransformer
from vidur_pd.scheduling.policies.lightllm import LightLlm
from vidur_pd.scheduling.policies.orca import Orca
from vidur_pd.scheduling.policies.sarathi import Sarathi
from vidur_pd.scheduling.policies.sglang import Sglang
from vidur_pd.scheduling.policies.vllm_v0 import VllmV0
from vidur_pd.scheduling.vllm_v1_python import VllmV1Python

POLICIES: list[type[Policy] | None] = [
    None,
    VllmV1Python,
    ShortestJobFirst,
    PassThrough,
    StaticBatches,
    PrefillFirst,
    RetractsTheShortest,
    *(policy_named(name) for name in sorted(NAMED)),
]
"""``None``: vLLM V1 of the core."""
every_policy = pytest.mark.parametrize("policy", POLICIES)
in_python = pytest.mark.parametrize("policy", [policy for policy in POLICIES if policy is not None])
random_runs = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


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
    return {**tree, **stages, "engine": {**tree.get("engine", {}), **engine_of(policy, 2_000)}}


def name_of(policy: type[Policy] | None) -> str:
    return "vllm_v1" if policy is None else f"{policy.__module__}:{policy.__name__}"


def suited(scenario: Scenario, policy: type[Policy] | None) -> Scenario:
    """The scenario on an engine that the policy does not refuse."""
    if policy is LightLlm:
        blocks = scenario.usable_blocks * scenario.block_tokens
        return replace(scenario, block_tokens=1, usable_blocks=blocks, stages=1, drafts=0)
    if policy in (Sarathi, Sglang):
        return replace(scenario, budget=max(scenario.budget, scenario.max_seqs * (1 + scenario.drafts)))
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
@given(scenario=st.one_of(scenarios(), scenarios(drafts=2)))
def test_limits_are_kept_and_every_request_ends(policy: type[Policy] | None, scenario: Scenario) -> None:
    """`WholeRun` looks at tokens, requests and blocks of every iteration."""
    run = WholeRun(suited(scenario, policy), policy).serve()
    for request in run.requests:
        if run.refusal(request) is None:
            assert request.generated_tokens == (1 if scenario.role == "prefill" else request.output_tokens)
    assert (run.state.used_blocks, run.state.waiting_requests, run.state.running_requests) == (0, 0, 0)
    assert run.state.load_tokens == 0


@every_policy
@random_runs
@given(scenario=scenarios())
def test_jumps_over_plain_decodes_change_nothing(policy: type[Policy] | None, scenario: Scenario) -> None:
    scenario = suited(scenario, policy)
    fast, slow = WholeRun(scenario, policy, takes_runs=True).serve(), WholeRun(scenario, policy).serve()
    assert fast.seen() == slow.seen()
    assert fast.questions <= slow.questions


@every_policy
@pytest.mark.parametrize("mode", ["pull", "layerwise"])
def test_requests_pass_from_prefill_to_decode(policy: type[Policy] | None, mode: str) -> None:
    pools = [pool("p", "prefill"), pool("d", "decode", instances=2)]
    sections: dict[str, Any] = {"kv_transfer": {"mode": mode}, "output": {"flows": True}}
    sections["engine"] = {"num_kv_blocks": 150, "max_batched_tokens": 300, **engine_of(policy, 2_000)}
    result = simulate(config(pools, **sections), [(2_000 * i, 1 + 170 * i % 1900, 2 + 7 * i % 90) for i in range(24)])
    assert result.summary.completed == 24
    check_run(result)


@in_python
@pytest.mark.parametrize("seed", [1, 4])
def test_random_configurations_hold_what_holds_of_every_run(policy: type[Policy], seed: int, tmp_path: Path) -> None:
    """Mixed and disaggregated pools, data-parallel ranks, pipelines, prefix caches, drafts, and faults (odd seeds)."""
    scenario = random_scenario(seed)
    if seed % 2:
        scenario = with_faults(scenario, tmp_path / "bare")
    tree = scenario.tree
    if policy is LightLlm:
        tree = {**tree, "engine": {key: value for key, value in tree["engine"].items() if key != "speculative"}}
    pools = [_suited_pool(each, policy) for each in tree["cluster"]["pools"]]
    check_run(run_scenario(scenario.with_fields(cluster={**tree["cluster"], "pools": pools}), tmp_path / "run"))


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
