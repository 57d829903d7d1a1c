"""Rates that a planner plans with, against what instances do in runs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.vidur_pd.planner.planned_runs import configuration
from vidur_pd import simulate
from vidur_pd.cluster.planner.rates import PricedRates
from vidur_pd.config import SimulationConfig
from vidur_pd.execution.promise.promise import ALLOWANCE
from vidur_pd.simulation.plan import plan_simulation

PROMPT, OUTPUT = 8192, 200


def tree(**workload: Any) -> dict[str, Any]:
    """Prompts that fill an iteration, so that one is computed after another."""
    found = configuration(None)
    lengths = {"kind": "fixed", "prefill": PROMPT, "decode": OUTPUT}
    found["workload"] = {"kind": "synthetic", "lengths": lengths, **workload}
    return found


@pytest.fixture(scope="module")
def rates() -> PricedRates:
    one = tree(requests=1, arrivals={"kind": "static"})
    return PricedRates(plan_simulation(SimulationConfig.model_validate(one)))


def test_a_prefill_instance_at_its_planned_rate_has_the_mean_ttft_that_was_asked_for(rates: PricedRates) -> None:
    """An M/D/1 queue is what Poisson arrivals of such prompts meet; 800 of them leave some 10 % to chance."""
    ttft_s = 0.6
    rate = rates.prefill_per_s("prefill", PROMPT, 0.0, ttft_s)
    run = tree(requests=800, arrivals={"kind": "poisson", "qps": rate})
    run["cluster"]["pools"][0]["instances"] = 1
    run["kv_transfer"]["first_token"] = "prefill"
    result = simulate(run)
    assert result.summary.ttft_s.mean == pytest.approx(ttft_s, rel=0.2)


def test_a_decode_instance_at_its_planned_rate_keeps_the_tpot_and_at_a_half_more_does_not(rates: PricedRates) -> None:
    """Within what promises allow for means that stand for distributions."""
    tpot_s = 0.015
    rate = rates.decode_per_s("decode", PROMPT, OUTPUT, tpot_s)
    found = []
    for factor in (1.0, 1.5):
        run = tree(requests=400, arrivals={"kind": "poisson", "qps": rate * factor})
        run["cluster"]["pools"] = [
            {"name": "prefill", "role": "prefill", "instances": 8},
            {"name": "decode", "role": "decode", "instances": 1},
        ]
        found.append(simulate(run).summary.tpot_s.p50)
    at_rate, above = found
    assert at_rate is not None
    assert above is not None
    assert at_rate <= tpot_s * ALLOWANCE < above


def test_less_to_compute_and_more_time_make_an_instance_faster(rates: PricedRates) -> None:
    plain = rates.prefill_per_s("prefill", PROMPT, 0.0, 0.6)
    assert rates.prefill_per_s("prefill", PROMPT, 4096.0, 0.6) > plain
    assert rates.prefill_per_s("prefill", PROMPT, 0.0, 1.2) > plain
    assert rates.decode_per_s("decode", PROMPT, OUTPUT, 0.03) > rates.decode_per_s("decode", PROMPT, OUTPUT, 0.01)
