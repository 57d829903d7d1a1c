"""``vidur-pd run --seeds N``: figures over seeds, with intervals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy.stats import t

from tests.forked_commands import run_forked
from vidur_pd.metrics.seeds import interval


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
    """All at once, of one length, on one instance."""
    path = write_config(tmp_path, "static")
    printed = run_forked("vidur_pd", "run", str(path), "-o", str(tmp_path / "out"), "--seeds", "2", "--json")
    of = json.loads(printed.stdout)["seeds"]["figures"]["ttft_s.p90"]
    assert of["low"] == of["mean"] == of["high"]
    told = run_forked("vidur_pd", "run", str(path), "-o", str(tmp_path / "told"), "--seeds", "2").stdout
    assert "2 seeds gave the same figures: nothing of this run is drawn" in " ".join(told.split())


def test_seeds_do_not_go_with_a_stream(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    found = run_forked("vidur_pd", "run", str(path), "-o", str(tmp_path / "out"), "--seeds", "2", "--stream")
    assert found.returncode == 2
    assert "--seeds: found 2 with --stream, expected 1" in found.stderr
