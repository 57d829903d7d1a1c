"""``vidur-pd run --seeds N``: figures over seeds, with intervals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy.stats import t

from tests.forked_commands import run_forked
from vidur_pd.metrics.console import uncertainty
from vidur_pd.metrics.seeds import interval
from vidur_pd.metrics.summary import SeedsSummary, Summary


def write_config(folder: Path, arrivals: str = "poisson") -> Path:
    tree = {
        "model": "qwen3-8b",
        "hardware": "h200",
        "seed": 5,
        "workload": {
            "kind": "synthetic",
            "requests": 30,
            "arrivals": {"kind": arrivals} | ({"qps": 20} if arrivals == "poisson" else {}),
            "lengths": {"kind": "fixed", "prefill": 700, "decode": 12},
        },
        "cluster": {"topology": {"kind": "single_switch"}, "pools": [{"name": "m", "role": "mixed"}]},
        "engine": {"estimator": "roofline"},
    }
    path = folder / "c.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def test_the_interval_is_students() -> None:
    values = [1.0, 1.5, 0.5, 2.0]
    found = interval(values)
    low, high = t.interval(0.95, 3, loc=np.mean(values), scale=np.std(values, ddof=1) / 2)
    assert (found.mean, found.low, found.high) == pytest.approx((1.25, low, high))
    assert (found.least, found.most) == (0.5, 2.0)


def test_figures_over_seeds_are_those_of_the_runs(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    finished = run_forked("vidur_pd", "run", str(path), "-o", str(tmp_path / "out"), "--seeds", "3")
    assert finished.returncode == 0, finished.stderr
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["seeds"]["seeds"] == [5, 6, 7]
    alone = []
    for seed in (5, 6, 7):
        printed = run_forked(
            "vidur_pd", "run", str(path), "-o", str(tmp_path / "one"), "--set", f"seed={seed}", "--json"
        )
        alone.append(json.loads(printed.stdout))
    means = [each["ttft_s"]["mean"] for each in alone]
    assert summary["ttft_s"]["mean"] == means[0]
    of = summary["seeds"]["figures"]["ttft_s.mean"]
    assert of["mean"] == pytest.approx(np.mean(means))
    assert (of["least"], of["most"]) == pytest.approx((min(means), max(means)))
    assert of["low"] < of["mean"] < of["high"]
    assert "over 3 seeds, 3 of which meet the SLO: TTFT p90" in " ".join(finished.stdout.split())


def test_what_the_seed_does_not_touch_has_no_interval(tmp_path: Path) -> None:
    """All at once, of one length, on one instance; the sum of three equal numbers, over three, is often another."""
    path = write_config(tmp_path, "static")
    finished = run_forked("vidur_pd", "run", str(path), "-o", str(tmp_path / "out"), "--seeds", "3")
    seeds = json.loads((tmp_path / "out" / "summary.json").read_text())["seeds"]
    assert not seeds["has_own_requests"]
    assert all(len(set(each.values())) == 1 for each in seeds["figures"].values())
    printed = " ".join(finished.stdout.split())
    assert "3 seeds gave the same figures: nothing of this run is drawn" in printed
    assert "over 3 seeds" not in printed


def test_seeds_of_the_same_requests_say_what_else_they_change(tmp_path: Path) -> None:
    """Tokens choose experts anew."""
    path = write_config(tmp_path, "static")
    words = ("-o", str(tmp_path / "out"), "--seeds", "2", "--set", "model=qwen3-30b-a3b")
    finished = run_forked("vidur_pd", "run", str(path), *words)
    figures = json.loads((tmp_path / "out" / "summary.json").read_text())["seeds"]["figures"]
    assert figures["ttft_s.p90"]["least"] < figures["ttft_s.p90"]["most"]
    told = "over 2 seeds of the same requests (random routes, choices of experts and accepted drafts differ)"
    assert told in " ".join(finished.stdout.split())


def test_an_interval_narrower_than_its_digits_is_not_printed_as_one() -> None:
    figures = {
        "ttft_s.p90": interval([0.100001, 0.100002]),
        "tpot_s.p90": interval([0.01, 0.02]),
    }
    seeds = SeedsSummary(seeds=(0, 1), figures=figures)
    (line,) = uncertainty(Summary(requests=1, completed=1, rejected=0, failed=0, seeds=seeds))
    assert "TTFT p90 100 ms (equal to four digits), TPOT p90 15 ms (-48.53 to 78.53)" in line


def test_seeds_do_not_go_with_a_stream(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    found = run_forked("vidur_pd", "run", str(path), "-o", str(tmp_path / "out"), "--seeds", "2", "--stream")
    assert found.returncode == 2
    assert "--seeds: found 2 with --stream, expected 1" in found.stderr
