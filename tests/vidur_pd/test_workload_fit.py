"""Generators fitted to traces: parameters that are known come back, and what does not fit is said."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from tests.vidur_pd.workload_cases import load, real_trace, synthetic
from vidur_pd.commands.workload import app
from vidur_pd.workload import Workload, read_trace
from vidur_pd.workload.fit_quality import FitQuality, ks_distance, measure_fit
from vidur_pd.workload.fitting import fit_section, rank_correlation
from vidur_pd.workload.writing import write_trace

LOGNORMAL = {
    "kind": "lognormal",
    "prefill": {"mu": 6.5, "sigma": 0.9},
    "decode": {"mu": 5.0, "sigma": 0.6},
    "correlation": -0.4,
}
REQUESTS = 20_000


def fitted(made: Workload, form: Any = "quantiles", *, with_prefixes: bool = True) -> tuple[dict[str, Any], FitQuality]:
    section = fit_section(made, form, with_prefixes=with_prefixes)
    return section, measure_fit(made, load(section))


def test_log_normal_lengths_come_back_with_their_correlation() -> None:
    """Standard errors: σ/√n of mu, σ/√(2n) of sigma, some (1 − ρ²)/√n of the correlation; the bounds are five of them,
    and for rounding to whole tokens 0.002."""
    found = fit_section(load(synthetic(REQUESTS, lengths=LOGNORMAL)), "lognormal", with_prefixes=False)["lengths"]
    for side in ("prefill", "decode"):
        sigma = LOGNORMAL[side]["sigma"]  # type: ignore[index]
        assert found[side]["mu"] == pytest.approx(LOGNORMAL[side]["mu"], abs=5 * sigma / math.sqrt(REQUESTS) + 0.002)  # type: ignore[index]
        assert found[side]["sigma"] == pytest.approx(sigma, abs=5 * sigma / math.sqrt(2 * REQUESTS) + 0.002)
    assert found["correlation"] == pytest.approx(-0.4, abs=5 * (1 - 0.16) / math.sqrt(REQUESTS) + 0.002)


@pytest.mark.parametrize("form", ["quantiles", "lognormal"])
def test_a_sample_of_the_fit_has_the_distribution_it_was_fitted_to(form: str) -> None:
    """Two samples of n differ by more than 1.95·√(2/n) in one of 1,000 pairs; percentiles add at most 0.01."""
    _, quality = fitted(load(synthetic(REQUESTS, lengths=LOGNORMAL), seed=3), form)
    bound = 1.95 * math.sqrt(2 / REQUESTS) + (0.01 if form == "quantiles" else 0)
    assert quality.prefill_ks < bound
    assert quality.decode_ks < bound
    correlation = quality.rank_correlation
    assert correlation.trace is not None
    assert correlation.generated == pytest.approx(correlation.trace, abs=5 * math.sqrt(2 / REQUESTS))


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.5])
def test_a_gamma_process_comes_back(cv: float) -> None:
    """The rate has the standard error cv/√n, the CV some cv·√((1 + 2cv²)/n); the bounds are five of them."""
    arrivals = {"kind": "gamma", "qps": 7.0, "cv": cv}
    found = fit_section(load(synthetic(REQUESTS, arrivals=arrivals)), "quantiles", with_prefixes=False)["arrivals"]
    assert found["kind"] == "gamma"
    assert found["qps"] == pytest.approx(7.0, rel=5 * cv / math.sqrt(REQUESTS))
    assert found["cv"] == pytest.approx(cv, rel=5 * math.sqrt((1 + 2 * cv**2) / REQUESTS))


def test_a_rate_that_varies_comes_back_as_steps() -> None:
    """2 and 20 requests/s for ten minutes each, again and again; windows inside a step have its rate to 5 standard
    errors of its count."""
    rate = {"kind": "steps", "steps": [[600, 2], [600, 20]], "repeats": True}
    made = load(synthetic(REQUESTS, arrivals={"kind": "varying", "rate": rate}))
    section, quality = fitted(made)
    found = section["arrivals"]
    assert found["kind"] == "varying"
    assert found["cv"] == pytest.approx(1, abs=0.1)
    ends = np.cumsum([seconds for seconds, _ in found["rate"]["steps"]])
    for end, (seconds, qps) in zip(ends, found["rate"]["steps"], strict=True):
        if end // 600 == (end - seconds) // 600:
            expected = 20 if end // 600 % 2 else 2
            assert qps == pytest.approx(expected, abs=5 * math.sqrt(expected / seconds))
    assert quality.rate_qps.trace is not None
    assert quality.rate_qps.generated == pytest.approx(quality.rate_qps.trace, rel=5 * math.sqrt(2 / REQUESTS))


def test_conversations_come_back() -> None:
    """8,000 turns of four on average: the mean has the standard error √12/√2000 = 0.08; think times 60/√6000 = 0.8 s
    and what waiting for the next arrival adds, which is 1/qps at most once per turn."""
    prefixes = {"system_tokens": 640, "turns": 4, "think_time_s": 60, "hash_block_tokens": 16, "system_prompts": 1}
    lengths = {
        "kind": "lognormal",
        "prefill": {"mean": 100, "cv": 1, "min": 17},
        "decode": {"mean": 60, "cv": 1, "min": 17},
    }
    made = load(synthetic(8000, prefixes=prefixes, lengths=lengths))
    section, quality = fitted(made)
    found = section["prefixes"]
    assert found["turns"] == pytest.approx(4, abs=0.4)
    assert found["think_time_s"] == pytest.approx(60, abs=5)
    assert found["system_prompts"] == 1
    assert found["system_tokens"] == pytest.approx(640, abs=16)
    share = quality.cacheable_share
    assert share.trace is not None
    assert share.generated == pytest.approx(share.trace, abs=0.03)
    assert quality.prefill_ks < 0.05


def test_ks_distance_of_two_samples_by_hand() -> None:
    """Of [1, 2] and [2, 3] at most 1: 0.5 against 0; at most 2: 1 against 0.5."""
    assert ks_distance(np.array([1, 2]), np.array([2, 3])) == 0.5
    assert ks_distance(np.array([1, 2]), np.array([2, 1])) == 0


def test_rank_correlation_by_hand() -> None:
    """Ranks 1, 2, 3 against 1, 3, 2: 1 − 6·2/(3·8) = 0.5; ties share their rank."""
    assert rank_correlation(np.array([5, 7, 900]), np.array([1, 30, 20])) == pytest.approx(0.5)
    assert rank_correlation(np.array([5, 5, 5]), np.array([1, 2, 3])) == 0


@pytest.mark.parametrize("rows", ["0,5,5\n", "0,5,5\n0,6,6\n", "0,1,1\n0.000000001,1,1\n", "0,1,1\n3999999,1,1\n"])
def test_tiny_traces_are_fitted(tmp_path: Path, rows: str) -> None:
    (tmp_path / "t.csv").write_text("arrived_at_s,prefill_tokens,decode_tokens\n" + rows)
    section, quality = fitted(read_trace(tmp_path / "t.csv").workload)
    assert section["requests"] == rows.count("\n")
    assert 0 <= quality.prefill_ks <= 1


def test_the_command_writes_a_workload_and_how_well_it_fits(tmp_path: Path) -> None:
    write_trace(load(synthetic(500, lengths=LOGNORMAL)), tmp_path / "t.csv")
    out = tmp_path / "fit.yaml"
    shown = CliRunner().invoke(app, ["fit", str(tmp_path / "t.csv"), "-o", str(out)])
    assert shown.exit_code == 0
    notes = [line for line in out.read_text().splitlines() if line.startswith("#")]
    assert notes[0] == "# fitted to t.csv"
    assert all(note.removeprefix("# ") in shown.stdout for note in notes)
    assert "KS distance of prompt lengths" in shown.stdout
    made = CliRunner().invoke(app, ["generate", str(out), "-o", str(tmp_path / "again.csv"), "--json"])
    assert made.exit_code == 0
    assert json.loads(made.stdout)["requests"] == 500
    assert yaml.safe_load(out.read_text())["workload"]["kind"] == "synthetic"


@pytest.mark.parametrize(
    ("name", "worst_ks", "worst_share"),
    [
        ("AzureLLMInferenceTrace_conv.csv", 0.02, None),
        ("mooncake_conversation_trace.jsonl.gz", 0.16, 0.05),
    ],
)
def test_published_traces_are_fitted_as_well_as_stated(name: str, worst_ks: float, worst_share: float | None) -> None:
    """As in the README: prompts of conversations come out of a model of turns, so that they fit less well."""
    section, quality = fitted(read_trace(real_trace(name)).workload)
    assert quality.prefill_ks < worst_ks
    assert quality.decode_ks < 0.02
    share = quality.cacheable_share
    assert ("prefixes" in section) == (worst_share is not None)
    if worst_share is not None:
        assert share.trace is not None
        assert share.generated == pytest.approx(share.trace, abs=worst_share)
