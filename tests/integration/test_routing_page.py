"""What docs/routing.md claims, on smaller runs of its examples."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from vidur_pd.metrics.result import Result
from vidur_pd.simulation.api import simulate

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "routing"


def transfer_ms(result: Result) -> float:
    table = result.table
    return float((table.kv_arrived_ps - table.kv_sent_ps).mean() / 1e9)


def test_choosing_by_links_keeps_kv_in_its_rack() -> None:
    settings = ["workload.requests=80", "cluster.topology.oversubscription=16"]
    example = EXAMPLES / "oversubscribed.yaml"
    aware = simulate(example, settings=settings)
    other = simulate(example, settings=[*settings, "routing.decode_policy=kv_aware"])
    assert transfer_ms(aware) < 0.5 * transfer_ms(other)
    assert (aware.summary.ttft_s.p99 or 0) < 0.8 * (other.summary.ttft_s.p99 or 0)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Forty conversations of eight turns in Mooncake's format; each turn adds 1,024 tokens."""
    rng = np.random.default_rng(1)
    starts_s = np.sort(rng.uniform(0, 60, 40))
    rows = [
        {
            "timestamp": round(1e3 * (start_s + 6 * turn)),
            "input_length": 1024 * (turn + 1),
            "output_length": 40,
            "hash_ids": [100 * talk + block for block in range(2 * (turn + 1))],
        }
        for talk, start_s in enumerate(starts_s)
        for turn in range(8)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in sorted(rows, key=lambda row: row["timestamp"])))
    return path


def test_routers_that_know_caches_hit_more(trace: Path) -> None:
    """Turn k finds the 1,024 · (k − 1) tokens before it where it comes back to: 7/9 of all tokens at most."""
    hits = {}
    for policy in ("round_robin", "prefix_affine", "kv_aware"):
        settings = [f"workload.path={trace}", f"routing.policy={policy}"]
        table = simulate(EXAMPLES / "conversations.yaml", settings=settings).table
        hits[policy] = table.cached_tokens.sum() / table.prompt_tokens.sum()
    assert hits["round_robin"] < 0.3
    assert hits["prefix_affine"] == pytest.approx(7 / 9, abs=0.01)
    assert 0.7 < hits["kv_aware"] <= 7 / 9


def test_short_prompts_stay_on_decode_instances(trace: Path) -> None:
    table = simulate(EXAMPLES / "disaggregated.yaml", settings=[f"workload.path={trace}"]).table
    is_local = table.prefill_instance == table.decode_instance
    assert is_local.any()
    assert not is_local.all()
    assert (table.prompt_tokens - table.cached_tokens)[is_local].max() < 2048
