"""Published runs of servers (docs/accuracy/published.md, "Whole runs of servers")."""

from __future__ import annotations

import pytest

from tests.validation.performance_lab import DEPLOYMENTS, simulated

OFF_BY = {
    "Qwen3-235B-A22B, vLLM, TP 8, H100": [0.0, -0.03, 0.05, -0.54],
    "Qwen3-235B-A22B in fp8, vLLM, TP 4, H100": [-0.05, -0.04, 0.01, -0.2],
    "DeepSeek-R1, vLLM, TP 8, H200": [-0.12, -0.21, -0.19, -0.76, -0.39],
    "DeepSeek-R1, SGLang, TP 8, H200": [-0.14, -0.08, -0.23, -0.32],
    "DeepSeek-V3.2, vLLM, TP 8, H200": [-0.08, -0.29, -0.2, -0.55],
    "GLM-4.6, vLLM, TP 8, H200": [-0.19, -0.26, -0.2, -0.62, -0.2],
    "GLM-4.6 in fp8, SGLang, TP 4, H200": [0.0, 0.01, 0.03, -0.02],
    "Qwen3-8B, vLLM, one H100": [-0.02, -0.05, -0.06, -0.06],
    "Qwen3-8B, SGLang, one H100": [-0.1],
    "Qwen3-8B in fp8, SGLang, one H100": [-0.16],
    "Qwen3-14B, vLLM, one H100": [-0.38, -0.44, -0.41, -0.75],
    "Qwen3-14B in fp8, SGLang, one H100": [-0.44, -0.5, -0.48, -0.57],
    "Qwen3-32B, vLLM, one H100": [-0.38, -0.42, -0.41, -0.6],
    "Qwen3-32B, vLLM, one A100": [-0.05, -0.09, -0.13, -0.27],
    "gpt-oss-20b, vLLM, one H100": [-0.35, -0.45, -0.44, -0.57],
    "gpt-oss-120b, vLLM, one H100": [-0.39, -0.49, -0.45, -0.58, -0.11],
    "gpt-oss-120b, vLLM, TP 2, H100": [-0.35, -0.42, -0.42, -0.5, -0.15],
}
"""Relative errors of durations, in the order of the runs; as the page has them."""


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_durations_are_as_far_from_the_published_as_the_page_says(name: str) -> None:
    runs = DEPLOYMENTS[name].runs
    errors = [found.duration_s / runs[load].duration_s - 1.0 for load, found in simulated(DEPLOYMENTS[name])]
    assert errors == pytest.approx(OFF_BY[name], abs=0.011)


def test_clients_of_a_small_model_get_tokens_as_fast_as_published() -> None:
    deployment = DEPLOYMENTS["Qwen3-8B, vLLM, one H100"]
    errors = [found.tpot_ms / deployment.runs[load].tpot_ms - 1.0 for load, found in simulated(deployment)]
    assert len(errors) == 4
    assert max(abs(error) for error in errors) <= 0.015
