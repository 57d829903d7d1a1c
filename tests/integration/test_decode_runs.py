"""Runs of decode iterations are an optimisation: whole simulations are the same as with one iteration at a time."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.integration.small_runs import config, pool, simulate
from tests.integration.test_invariants import SLOW
from vidur_pd.metrics.request_rows import requests_csv
from vidur_pd.metrics.result import Result

ROWS = st.lists(st.tuples(st.integers(0, 400_000), st.integers(1, 2_000), st.integers(1, 120)), min_size=1, max_size=14)
"""(arrival in µs, prompt tokens, output tokens)"""

CLUSTERS: list[dict[str, Any]] = [
    {"pools": [pool("m", "mixed")]},
    {"pools": [pool("m", "mixed", instances=2, tp=2)]},
    {"pools": [pool("m", "mixed", dp=3)]},
    {"pools": [pool("m", "mixed", pp=2)]},
    {"pools": [pool("m", "mixed", dp=2, ep=2)], "model": "qwen3-30b-a3b"},
    {"pools": [pool("p", "prefill"), pool("d", "decode")]},
    {"pools": [pool("p", "prefill", instances=2), pool("d", "decode", dp=3)]},
    {"pools": [pool("p", "prefill", pp=2), pool("d", "decode", instances=2), pool("m", "mixed")]},
    {"pools": [pool("p", "prefill", tp=2, ep=2), pool("d", "decode", dp=4, ep=4)], "model": "qwen3-30b-a3b"},
]

SECTIONS = st.sampled_from(CLUSTERS).flatmap(
    lambda cluster: st.fixed_dictionaries(
        {
            **{name: st.just(value) for name, value in cluster.items()},
            "engine": st.fixed_dictionaries(
                {
                    "num_kv_blocks": st.sampled_from([150, 2_000]),
                    "max_batched_tokens": st.sampled_from([64, 2_048]),
                    "max_seqs": st.sampled_from([2, 16]),
                    "cuda_graphs": st.booleans(),
                    "prefix_caching": st.booleans(),
                    "async_scheduling": st.sampled_from(
                        [False, True] if all(p.get("pp", 1) == 1 for p in cluster["pools"]) else [False]
                    ),
                }
            ),
            "kv_transfer": st.fixed_dictionaries(
                {
                    "mode": st.sampled_from(["pull", "push", "layerwise"]),
                    "first_token": st.sampled_from(["prefill", "decode_after_transfer", "decode_recompute"]),
                }
            ),
            "network": st.just({"coupling": "isolated"}),
        }
    )
)


def one_iteration_at_a_time(sections: dict[str, Any]) -> dict[str, Any]:
    """The same sections without runs."""
    return sections | {"engine": sections.get("engine", {}) | {"fast_forward": False}}


@SLOW
@given(SECTIONS, ROWS)
def test_runs_of_decode_iterations_give_the_same_requests_as_single_ones(
    sections: dict[str, Any], rows: list[tuple[int, int, int]]
) -> None:
    with_runs = simulate(config(**sections), rows)
    single = simulate(config(**one_iteration_at_a_time(sections)), rows)
    assert list(requests_csv(with_runs.table)) == list(requests_csv(single.table))
    assert with_runs.summary.simulator.iterations == single.summary.simulator.iterations
    assert gaps(with_runs) == gaps(single)


EXPERTS = {
    "model": "qwen3-30b-a3b",
    "pools": [pool("p", "prefill", instances=2), pool("d", "decode", instances=2, dp=4, ep=4)],
}
TENSORS = {"pools": [pool("p", "prefill", tp=4), pool("d", "decode", tp=4)]}
PIPELINE = {"pools": [pool("p", "prefill", pp=2, tp=2), pool("d", "decode", tp=4)]}


@pytest.mark.parametrize(
    ("cluster", "mode"),
    [(EXPERTS, "pull"), (EXPERTS, "layerwise"), (TENSORS, "push"), (TENSORS, "layerwise"), (PIPELINE, "layerwise")],
)
def test_runs_in_a_contended_fabric_stay_within_a_thousandth_of_single_iterations(
    cluster: dict[str, Any], mode: str
) -> None:
    """Bursts of prompts send their KV, whole or layer by layer, through 50 Gbit/s NICs that carry the collectives of
    both sides."""
    sections = cluster | {
        "topology": {"kind": "rail_optimized", "gpus_per_node": 2, "nic": "50Gbps"},
        "network": {"coupling": "fluid"},
        "kv_transfer": {"mode": mode},
    }
    rows = [(400_000 * (i // 6) + 1_000 * i, 700 + 331 * (i % 7), 40 + 17 * (i % 5)) for i in range(36)]
    with_runs = simulate(config(**sections), rows)
    single = simulate(config(**one_iteration_at_a_time(sections)), rows)
    assert len(with_runs.iterations.runs) < len(single.iterations.runs) / 2
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        for figure, value in asdict(getattr(single.summary, name)).items():
            assert getattr(getattr(with_runs.summary, name), figure) == pytest.approx(value, rel=1e-3), (name, figure)
    for fast, slow in zip(with_runs.requests, single.requests, strict=True):
        assert fast.completed_ps == pytest.approx(slow.completed_ps, rel=1e-3)


def gaps(result: Result) -> dict[int, int]:
    """How often each gap between tokens occurs, by picoseconds."""
    gap_s, counts = result.iterations.gaps()
    found: dict[int, int] = {}
    for gap_ps, count in zip(np.rint(gap_s * 1e12).astype(np.int64).tolist(), counts.tolist(), strict=True):
        found[gap_ps] = found.get(gap_ps, 0) + count
    return {gap_ps: count for gap_ps, count in found.items() if count}
