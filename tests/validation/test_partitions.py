"""The simulator against engines on two H100s, measured after the model was frozen (docs/accuracy.md)."""

from __future__ import annotations

import numpy as np
import pytest

from tests.validation.partitions_vs_engine import MODELS, RUNS, compare_decodes, compare_prompts, compare_serving

LIMITS = {"ttft": 0.15, "tpot": 0.06, "e2e": 0.06}
"""Wanted relative errors of means and of P90."""
MISSES = {
    **{("qwen3-30b-a3b", run, latency): ("mean", "P90") for run in RUNS for latency in LIMITS},
    ("qwen3-8b", "serve_prefix", "ttft"): ("mean", "P90"),
}
"""Beyond their limits: that host was slower than the default, one run stood still for 1.6 s, bursts are unexplained."""
PROMPT_MISSES = {("qwen3-30b-a3b", 1024), ("qwen3-30b-a3b", 3000), ("qwen3-8b", 256), ("qwen3-8b", 1024)}
"""Bound by the host, likewise."""


@pytest.mark.parametrize("model", MODELS)
def test_batches_decode_as_measured(model: str) -> None:
    """Single requests are 9.0 and 5.6 % slow."""
    errors = [abs(row.error) for row in compare_decodes(model)]
    assert len(errors) == 7
    assert max(errors[1:]) <= 0.06
    assert np.mean(errors) <= 0.06


@pytest.mark.parametrize("model", MODELS)
def test_prompts_take_as_long_as_measured_unless_the_host_holds_them_up(model: str) -> None:
    rows = compare_prompts(model)
    assert len(rows) == 6
    for row in rows:
        is_met = abs(row.error) <= 0.06
        assert is_met != ((model, int(row.name.split()[-1])) in PROMPT_MISSES), f"{row.name}: {row.error:+.1%}"


@pytest.mark.xfail(strict=True, reason="7.2 and 6.2 %: prompts that the host holds up")
@pytest.mark.parametrize("model", MODELS)
def test_prompts_and_decodes_are_as_measured_in_the_mean(model: str) -> None:
    assert np.mean([abs(row.error) for row in (*compare_prompts(model), *compare_decodes(model))]) <= 0.06


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("model", MODELS)
def test_servers_have_the_measured_latencies(model: str, run: str) -> None:
    rows = compare_serving(model, run)
    assert len(rows) == 6
    for row in rows:
        _, latency, figure = row.name.split()
        is_met = abs(row.error) <= LIMITS[latency]
        assert is_met != (figure in MISSES.get((model, run, latency), ())), f"{row.name}: {row.error:+.1%}"
