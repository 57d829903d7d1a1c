"""Asynchronous scheduling in whole simulations: what it refuses, and what holds of every run with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from boundary.errors import InputError
from tests.integration.random_configurations import Scenario, random_scenario, with_faults
from tests.integration.run_checks import check_run, run_scenario
from tests.integration.small_runs import config, pool, simulate

ASYNC = {"async_scheduling": True}


def with_async(seed: int) -> Scenario:
    """A random configuration without pipelines, without its drafts."""
    scenario = random_scenario(seed)
    engine = {key: value for key, value in scenario.tree["engine"].items() if key != "speculative"}
    return scenario.with_fields(engine=engine | ASYNC)


@pytest.mark.parametrize("seed", [1, 2, 7, 18, 21, 25])
def test_random_configurations_hold_what_holds_of_every_run(seed: int, tmp_path: Path) -> None:
    """Mixed and disaggregated pools, collectives of flows and of packets, priced ones, and faults (odd seeds)."""
    scenario = with_async(seed)
    if seed % 2:
        scenario = with_faults(scenario, tmp_path / "bare")
    check_run(run_scenario(scenario, tmp_path / "run"))


@pytest.mark.parametrize(
    ("pools", "engine", "line"),
    [
        (
            [pool("m", "mixed", pp=2)],
            ASYNC,
            "engine.async_scheduling: found true, expected false with pp 2 in pool m",
        ),
        (
            [pool("m", "mixed", pp=2, engine=ASYNC)],
            {},
            "cluster.pools.m.engine.async_scheduling: found true, expected false with pp 2 in pool m",
        ),
        (
            [pool("m", "mixed", tp=2)],
            ASYNC | {"speculative": {"method": "ngram", "drafts": 1, "acceptance": 0.5}},
            "engine.async_scheduling: found true, expected false with speculative.method ngram in pool m",
        ),
        (
            [pool("m", "mixed", tp=2)],
            ASYNC | {"framework": "sglang", "speculative": {"drafts": 1}},
            "engine.async_scheduling: found true, expected false with speculative and policy sglang in pool m",
        ),
    ],
)
def test_it_is_refused_with_pipelines_and_drafts(
    pools: list[dict[str, Any]], engine: dict[str, Any], line: str
) -> None:
    model = "deepseek-v3" if "speculative" in engine else "qwen3-8b"
    with pytest.raises(InputError) as refused:
        simulate(config(pools, engine=engine, model=model), [(0, 10, 2)])
    assert str(refused.value) == line


def test_pools_may_have_it_alone() -> None:
    """The pipeline goes on without; requests of the other begin one iteration later."""
    rows = [(0, 4000, 50), (20_000, 500, 5)]
    begins = {}
    for engine in ({"async_scheduling": False}, ASYNC):
        pools = [pool("m", "mixed", engine=engine), pool("n", "mixed", pp=2)]
        result = simulate(config(pools, routing={"policy": "round_robin"}), [*rows[:1], (0, 9, 9), *rows[1:]])
        begins[engine["async_scheduling"]] = [request.scheduled_ps for request in result.requests]
    assert begins[True][0] == begins[False][0]
    assert begins[True][1] == begins[False][1]
    assert begins[True][2] > begins[False][2]
