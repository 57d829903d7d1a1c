"""Published times between tokens (docs/accuracy/published.md, "Servers on one and two nodes")."""

from __future__ import annotations

import pytest

from tests.validation.published_sweeps import SWEEPS, simulated

OFF_BY = {
    "DeepSeek-R1, SGLang, 8 H200": [0.02, 0.05, -0.01, -0.01],
    "gpt-oss-120b, vLLM, 8 H100": [-0.02, 0.04, 0.08, 0.16, 0.21],
    "the same, long prompts": [-0.02, 0.03],
    "the same, long answers": [-0.01, 0.05, 0.13, 0.16],
    "gpt-oss-120b, vLLM, 1 H200": [0.01],
    "gpt-oss-120b, vLLM, 2 H200": [-0.02, 0.06, 0.12, 0.17, 0.13],
    "gpt-oss-120b, vLLM, 4 H200": [-0.03, 0.02, 0.13, 0.12],
    "gpt-oss-120b, vLLM, 8 H200": [-0.06, -0.01, 0.02, 0.1, 0.14],
    "gpt-oss-120b, vLLM, 1 H200, 8,000 + 1,000": [-0.03, -0.02, -0.01, 0.07, 0.14, 0.19, 0.12, -0.02, -0.05],
    "DeepSeek-R1, SGLang, 16 H100, prompts of 128": [-0.52],
    "the same, prompts of 8,192": [-0.51],
    "MiniMax-M2.5, vLLM, 4 H100": [-0.25],
    "MiniMax-M2.5, vLLM, 8 H100": [-0.06],
    "Qwen2.5-72B, 2 H100, prompts of 128": [-0.11],
    "Qwen2.5-72B, 2 H100, prompts of 8,192": [-0.10],
    "Qwen3-30B-A3B, 1 A100, prompts of 128": [-0.28],
    "Qwen3-30B-A3B, 1 A100, prompts of 8,192": [-0.29],
}
"""As the page has them."""


@pytest.mark.parametrize("name", SWEEPS)
def test_times_between_tokens_are_as_far_from_the_published_as_the_page_says(name: str) -> None:
    sweep = SWEEPS[name]
    errors = [found / sweep.tpot_ms[clients] - 1 for clients, found in simulated(sweep)]
    assert errors == pytest.approx(OFF_BY[name], abs=0.011)
