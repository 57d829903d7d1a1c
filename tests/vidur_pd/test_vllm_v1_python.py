"""vLLM V1 in Python decides as vLLM V1 in C++."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from tests.integration.small_runs import config, pool, requests
from tests.vidur_pd.whole_runs import Scenario, WholeRun, scenarios
from vidur_pd.metrics.request_rows import requests_csv
from vidur_pd.metrics.summary import Effort
from vidur_pd.scheduling.vllm_v1_python import VllmV1Python
from vidur_pd.simulation.api import simulate

TWIN = "vidur_pd.scheduling.vllm_v1_python:VllmV1Python"


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(scenarios(), scenarios(drafts=2), scenarios(plans_ahead=True)))
def test_both_decide_the_same_batches(scenario: Scenario) -> None:
    core, twin = WholeRun(scenario).serve(), WholeRun(scenario, VllmV1Python).serve()
    assert core.batches == twin.batches
    assert core.seen() == twin.seen()
    event(f"{scenario.role}: preemptions {'yes' if any(batch[2] for batch in core.batches) else 'no'}")
    event(f"hits {'yes' if any(request.cached_tokens for request in core.requests) else 'no'}")


VICTIM_AFTER_A_RUN = Scenario(
    role="mixed",
    caching=True,
    block_tokens=1,
    usable_blocks=11,
    budget=30,
    max_seqs=4,
    threshold=0,
    stages=1,
    drafts=0,
    requests=((0, 5, 4, (0,)), (0, 5, 5, (0,))),
    plans_ahead=True,
)
"""The second request is preempted while the step after a run is under way, and hits what was known before that step."""


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(scenarios(), scenarios(plans_ahead=True)))
@example(VICTIM_AFTER_A_RUN)
def test_both_take_the_same_runs_of_plain_decodes(scenario: Scenario) -> None:
    """Equal batches between equal runs; and what is seen is that of single steps."""
    core = WholeRun(scenario, takes_runs=True).serve()
    twin = WholeRun(scenario, VllmV1Python, takes_runs=True).serve()
    assert core.batches == twin.batches
    assert core.seen() == twin.seen() == WholeRun(scenario).serve().seen()


ROWS = [(40_000 * (i // 3), 200 + 310 * (i % 7), 3 + 17 * (i % 5)) for i in range(40)]
MIXED = [pool("m", "mixed", instances=2)]
DISAGGREGATED = [pool("p", "prefill"), pool("d", "decode")]


@pytest.mark.parametrize(
    ("pools", "sections"),
    [
        (MIXED, {"engine": {"num_kv_blocks": 260}}),
        (MIXED, {"engine": {"num_kv_blocks": 300, "prefix_caching": True, "max_batched_tokens": 512}}),
        (MIXED, {"engine": {"num_kv_blocks": 260, "prefix_caching": True, "async_scheduling": True}}),
        (MIXED, {"engine": {"speculative": {"drafts": 2}, "weights": "fp8"}, "model": "deepseek-v3"}),
        ([pool("m", "mixed", pp=2)], {"engine": {"num_kv_blocks": 400, "long_prefill_token_threshold": 256}}),
        (DISAGGREGATED, {"kv_transfer": {"mode": "pull"}, "engine": {"num_kv_blocks": 400}}),
        (DISAGGREGATED, {"engine": {"num_kv_blocks": 400, "async_scheduling": True}}),
        (DISAGGREGATED, {"kv_transfer": {"mode": "layerwise", "first_token": "decode_recompute"}}),
        (
            DISAGGREGATED,
            {"faults": [{"kind": "instance", "instance": "d-0", "at_s": 0.15, "for_s": 0.2}]},
        ),
    ],
)
def test_whole_simulations_are_equal(pools: list[dict[str, Any]], sections: dict[str, Any]) -> None:
    if sections.get("model") == "deepseek-v3":
        pools = [pool("m", "mixed", tp=8, ep=8)]
        sections = sections | {"topology": {"kind": "rail_optimized", "gpus_per_node": 8}}
    found = []
    engine = {"async_scheduling": False} | sections.get("engine", {})
    for policy in ("vllm_v1", TWIN):
        tree = {**sections, "engine": engine | {"policy": policy}}
        result = simulate(config(pools, **tree), requests(ROWS))
        summary = replace(result.summary, simulator=Effort())
        found.append(("".join(requests_csv(result.table)), summary))
    assert found[0] == found[1]
