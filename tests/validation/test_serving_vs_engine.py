"""The simulator against a measured vLLM server."""

from __future__ import annotations

import pytest

from tests.validation.serving_vs_engine import SERVING, compare_serving, print_table

TOLERANCE = 0.15
"""Accepted relative error of the mean TPOT and the mean E2E latency in this version."""


@pytest.mark.skipif(not SERVING.is_dir(), reason="measured serving runs are not beside the repository")
def test_qwen3_8b_server_has_the_measured_mean_tpot_and_e2e(capsys: pytest.CaptureFixture[str]) -> None:
    comparisons = compare_serving(SERVING / "vllm-qwen3-8b-tp1.json.gz", "qwen3-8b")
    with capsys.disabled():
        print()
        print_table("qwen3-8b, one H200, vLLM 0.24.0", comparisons)
    judged = [row for row in comparisons if row.metric in {"tpot", "e2e"}]
    assert len(judged) == 6
    for row in judged:
        assert abs(row.error) <= TOLERANCE, f"{row.load} {row.metric}: {100 * row.error:.1f} %"
