"""Priorities and whole prompts in whole simulations: what is refused, and what a user sees of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from boundary.errors import InputError
from tests.integration.run_checks import check_run
from tests.integration.small_runs import config, pool, requests, simulate
from vidur_pd.simulation import api

PRIORITY = {"scheduling_policy": "priority"}
WHOLE = {"chunked_prefill": False}


@pytest.mark.parametrize(
    ("engine", "own", "line"),
    [
        (
            PRIORITY | {"policy": "sarathi"},
            {},
            "engine.scheduling_policy: found priority, expected fcfs with policy sarathi in pool m",
        ),
        (
            {"policy": "vllm_v0"},
            WHOLE,
            "cluster.pools.m.engine.chunked_prefill: found false, expected true with policy vllm_v0 in pool m",
        ),
        (
            WHOLE | {"max_model_len": 8193, "max_batched_tokens": 8192},
            {},
            "engine.max_batched_tokens: found 8192, expected at least the 8193 of engine.max_model_len "
            "without engine.chunked_prefill",
        ),
    ],
)
def test_what_an_engine_cannot_do_is_refused(engine: dict[str, Any], own: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError) as refused:
        simulate(config([pool("m", "mixed", engine=own)], engine=engine), [(0, 10, 2)])
    assert str(refused.value) == line


def test_a_prompt_of_the_whole_window_is_served_whole() -> None:
    engine = WHOLE | {"max_model_len": 8192}
    result = simulate(config([pool("m", "mixed")], engine=engine), [(0, 8000, 192), (0, 4000, 2)])
    check_run(result)
    assert result.requests[1].scheduled_ps is not None
    assert result.requests[0].first_token_ps is not None
    assert result.requests[1].scheduled_ps >= result.requests[0].first_token_ps


def test_urgent_requests_wait_less_and_the_others_more() -> None:
    """Twelve requests at a time for four places; every third is urgent (the smaller number)."""
    rows = requests([(0, 600, 40)] * 12)
    urgent = np.arange(12) % 3 == 0
    waits = {}
    for policy in ("fcfs", "priority"):
        engine = {"max_seqs": 4, "scheduling_policy": policy}
        result = api.simulate(
            config([pool("m", "mixed")], engine=engine), replace(rows, priority=np.where(urgent, 0, 5))
        )
        check_run(result)
        begins = np.array([request.scheduled_ps for request in result.requests])
        waits[policy] = begins - begins.min()
    assert waits["priority"][urgent].max() == 0 < waits["fcfs"][urgent].max()
    assert waits["priority"][~urgent].sum() > waits["fcfs"][~urgent].sum()


def test_pools_of_decodes_go_by_priority() -> None:
    """Tight blocks on the decode side: all requests end, and the urgent ones are preempted less."""
    rows = requests([(1000 * (row // 4), 300, 120) for row in range(32)])
    engine, output = PRIORITY | {"num_kv_blocks": 120}, {"flows": True}
    pools = [pool("p", "prefill"), pool("d", "decode")]
    urgent = np.arange(32) % 2 == 0
    result = api.simulate(config(pools, engine=engine, output=output), replace(rows, priority=np.where(urgent, 0, 1)))
    check_run(result)
    assert result.summary.completed == 32
    preemptions = np.array([request.preemptions for request in result.requests])
    assert preemptions[~urgent].sum() > preemptions[urgent].sum()
