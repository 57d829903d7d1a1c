"""Experts that drift and are rebalanced in whole runs: what it costs, and what it must not change."""

from __future__ import annotations

from typing import Any

import pytest

from aicb import Partition, ZipfLoad
from aicb.experts.placed import PlacedExperts
from boundary.errors import InputError
from netsim.units import PS_PER_S
from tests.integration.small_runs import NO_HOST, config, pool, simulate
from vidur_pd.metrics.result import Result
from vidur_pd.metrics.summary import RebalancingSummary
from vidur_pd.simulation.plan import plan_simulation

EXPERT_BYTES = 3 * 2048 * 768 * 2
"""Qwen3-30B-A3B in bf16: gate, up and down of 2048 × 768."""
LAYERS = 48
DECODES = [(0, 40, 60)] * 8
FAST = {"correlation_s": 0.2, "step_s": 0.2}
"""Far faster than at any server, as runs last half a second."""


def tree(pools: list[dict[str, Any]] | None = None, *, coupling: str = "fluid", seed: int = 0, **engine: Any) -> Any:
    """Four GPUs in two nodes, EP 4."""
    return config(
        pools or [pool("m", "mixed", dp=4, ep=4)],
        model="qwen3-30b-a3b",
        topology={"kind": "rail_optimized", "gpus_per_node": 2},
        engine={"expert_load": "zipf:1", "max_seqs": 64, **engine},
        network={"coupling": coupling},
        seed=seed,
    )


def run(rows: list[tuple[int, int, int]] = DECODES, **options: Any) -> Result:
    return simulate(tree(**options), rows)


def ends(result: Result) -> list[int | None]:
    return [request.completed_ps for request in result.requests]


def rebalancing(result: Result) -> RebalancingSummary:
    assert result.summary.rebalancing is not None
    return result.summary.rebalancing


@pytest.fixture(scope="module")
def still() -> Result:
    return run()


def test_a_period_longer_than_the_run_changes_nothing(still: Result) -> None:
    """Of 60 iterations the last follows 59: a quarter of 236, and one less than a quarter of 240."""
    never = run(eplb={"period_steps": 240})
    assert ends(never) == ends(still)
    assert rebalancing(never) == RebalancingSummary()
    assert rebalancing(run(eplb={"period_steps": 236})).rebalances == 1
    assert still.summary.rebalancing is None


def test_weights_that_a_gpu_lacks_travel_once_and_slow_collectives_down(still: Result) -> None:
    """The load stays, so that the second rebalancing, 40 iterations after the first, moves nothing."""
    result = run(eplb={"window_steps": 5, "period_steps": 40})
    placed = PlacedExperts(ZipfLoad(1.0), (128, 8), Partition(dp=4, ep=4))
    placed.count(8)
    moves = placed.moves(placed.balanced())
    found = rebalancing(result)
    assert found.moved_bytes == EXPERT_BYTES * sum(len(layer) for layer in moves[:LAYERS])
    assert (found.rebalances, found.given_up) == (2, 0)
    assert found.moving_s > found.moved_bytes / 4 / 450e9  # four GPUs send at NVLink's rate at most
    assert still.summary.communication.contention_s == 0.0
    assert result.summary.communication.contention_s is not None
    assert result.summary.communication.contention_s > 0.0


def test_drift_costs_what_rebalancing_takes_back() -> None:
    """Prompts of 4,000 tokens keep every expert busy. Copies fit the load at the beginning; from 2 to 4 s it is another
    one. Weights leave with the second prompt, and are there before the third."""
    pools = [pool("m", "mixed", dp=4, ep=4, redundant_experts=32)]
    rows = [(2_100_000 + 300_000 * index, 4000, 1) for index in range(6)]

    def last_s(**engine: Any) -> float:
        found = run(rows, pools=pools, **NO_HOST, **engine).requests[-1]
        return (found.completed_ps - found.arrived_ps) / PS_PER_S

    drift = {"correlation_s": 0.1, "step_s": 2.0}
    fit, gone = last_s(), last_s(expert_drift=drift)
    followed = last_s(expert_drift=drift, eplb={"window_steps": 1, "period_steps": 4})
    assert fit < gone
    assert followed == pytest.approx(fit, rel=0.02)


@pytest.mark.parametrize(
    "options",
    [
        {"coupling": "exact"},
        {"coupling": "isolated", "async_scheduling": True},
        {"pools": [pool("m", "mixed", tp=2, ep=2, pp=2)]},
        {"pools": [pool("p", "prefill", tp=2, ep=2), pool("d", "decode", dp=2, ep=2)], "policy": "sarathi"},
        {"speculative": {}},
    ],
)
def test_every_request_gets_its_tokens_while_experts_move(options: dict[str, Any]) -> None:
    result = run(
        [(500 * n, 30 + n, 16) for n in range(6)],
        expert_drift=FAST,
        eplb={"window_steps": 5, "period_steps": 12},
        **options,
    )
    assert all(request.generated_tokens == request.output_tokens for request in result.requests)
    assert rebalancing(result).rebalances > 0
    assert rebalancing(result).moved_bytes % EXPERT_BYTES == 0


def test_runs_repeat_with_the_seed() -> None:
    def once(seed: int) -> tuple[list[int | None], RebalancingSummary]:
        result = run(expert_drift=FAST, eplb={"window_steps": 5, "period_steps": 12}, seed=seed)
        return ends(result), rebalancing(result)

    assert once(1) == once(1) != once(2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"expert_drift": {}}, r"engine\.expert_drift\.correlation_s"),
        ({"expert_drift": {"correlation_s": 0}}, r"engine\.expert_drift\.correlation_s"),
        ({"expert_drift": {"correlation_s": 9, "step_s": -1}}, r"engine\.expert_drift\.step_s"),
        ({"eplb": {"period_steps": 0}}, r"engine\.eplb\.period_steps"),
        ({"eplb": {"window_steps": 10**6}}, r"engine\.eplb\.window_steps"),
        ({"expert_drift": FAST, "expert_load": "uniform"}, r"engine\.expert_drift: found one with expert_load uniform"),
        (
            {"eplb": {}, "expert_load": "balanced"},
            r"engine\.eplb: found one with expert_load balanced, expected another",
        ),
        ({"eplb": {}, "pools": [pool("m", "mixed", tp=4)]}, r"engine\.eplb: found one, expected none where ep is 1"),
    ],
)
def test_bad_values_are_refused_in_one_line(fields: dict[str, Any], message: str) -> None:
    with pytest.raises((InputError, ValueError), match=message):
        plan_simulation(tree(**fields))


def test_a_dense_model_has_no_experts_to_move() -> None:
    dense = config([pool("m", "mixed")], engine={"eplb": {}})
    with pytest.raises(InputError, match=r"engine\.eplb: found one, expected none, as qwen3-8b has no routed experts"):
        plan_simulation(dense)
