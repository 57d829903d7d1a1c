"""Runs of DeepSeek-R1 that InferenceX published (docs/accuracy/published.md, "InferenceX")."""

from __future__ import annotations

from statistics import mean

import pytest

from tests.validation.inferencex import DEPLOYMENTS, errors, simulated

OFF_BY = {
    "SGLang, TP 8, 1,024 + 1,024": {
        4: (-0.01, -0.08, -0.02),
        8: (0.07, -0.01, 0.04),
        16: (0.13, -0.01, 0.12),
        32: (0.14, -0.03, 0.13),
        64: (0.09, -0.07, 0.09),
    },
    "SGLang, TP 8, 8,192 + 1,024": {
        4: (-0.02, -0.06, -0.02),
        8: (0.07, -0.04, 0.05),
        16: (0.14, -0.01, 0.13),
        32: (0.13, -0.03, 0.12),
        64: (0.11, -0.24, 0.08),
    },
    "TensorRT-LLM, TP 8, 1,024 + 1,024": {
        4: (-0.1, 0.42, -0.11),
        8: (-0.06, 0.62, -0.08),
        16: (0.07, 0.37, 0.06),
        32: (0.15, 0.48, 0.13),
        64: (0.18, 0.29, 0.17),
    },
    "TensorRT-LLM, TP 8, 8,192 + 1,024": {
        4: (-0.11, -0.26, -0.12),
        8: (-0.09, -0.25, -0.11),
        16: (-0.01, -0.25, -0.02),
        32: (0.02, -0.19, 0.01),
        64: (0.11, -0.9, 0.03),
    },
    "TensorRT-LLM, TP 8 and EP 8, 1,024 + 1,024": {
        4: (-0.07, 0.37, -0.08),
        8: (-0.04, 0.63, -0.06),
        16: (0.02, 0.56, 0.0),
        32: (0.08, 0.46, 0.07),
        64: (0.1, 0.35, 0.07),
    },
    "TensorRT-LLM, TP 8 and EP 8, 8,192 + 1,024": {
        4: (-0.11, -0.44, -0.12),
        8: (-0.1, -0.42, -0.12),
        16: (-0.09, -0.41, -0.1),
        32: (-0.09, -0.35, -0.11),
    },
    "SGLang, 1 x TP 8 and 9 x TP 8, 1,024 + 1,024": {
        1: (-0.08, 0.04, -0.12),
        4: (-0.13, 0.01, -0.16),
        8: (-0.13, 0.04, -0.15),
        16: (-0.13, -0.05, -0.14),
        32: (-0.11, -0.17, -0.12),
        64: (0.0, -0.45, -0.03),
    },
    "SGLang, 1 x DP 8 + EP 8 and 6 x DP 8 + EP 8, 1,024 + 1,024": {
        128: (0.03, -0.29, 0.01),
    },
    "SGLang, 1 x TP 8 and 7 x TP 8, 8,192 + 1,024": {
        1: (-0.08, -0.47, -0.15),
        4: (-0.12, 0.1, -0.13),
        8: (-0.16, -0.01, -0.17),
    },
    "SGLang, 1 x TP 8 and 6 x TP 8, 8,192 + 1,024": {
        4: (-0.13, 0.04, -0.14),
        8: (-0.15, 0.14, -0.15),
        16: (-0.12, -0.19, -0.13),
    },
    "SGLang, 1 x TP 8 and 3 x TP 8, 8,192 + 1,024": {
        8: (-0.09, -0.07, -0.11),
        16: (0.01, -0.13, 0.0),
        32: (0.17, -0.33, 0.11),
    },
    "SGLang, 2 x TP 8 and 3 x TP 8, 8,192 + 1,024": {
        32: (0.16, -0.29, 0.12),
        64: (0.03, -0.27, 0.0),
        128: (0.07, -0.25, 0.04),
    },
    "SGLang, 1 x TP 8 and 1 x DP 8 + EP 8, 8,192 + 1,024": {
        64: (0.01, 0.03, 0.0),
        128: (-0.04, 0.01, -0.05),
    },
}
"""Relative errors of TPOT, TTFT and E2E by clients, as the page has them: runs of up to 128 clients, without answers of
8,192 tokens; the others take a minute."""


@pytest.mark.parametrize("name", OFF_BY)
def test_runs_are_as_far_from_the_published_as_the_page_says(name: str) -> None:
    deployment = DEPLOYMENTS[name]
    for clients, documented in OFF_BY[name].items():
        found = errors(simulated(deployment, clients), deployment.runs[clients])
        assert found == pytest.approx(documented, abs=0.011), f"{clients} clients"


def test_first_tokens_of_a_sglang_server_take_as_long_as_published() -> None:
    deployment = DEPLOYMENTS["SGLang, TP 8, 1,024 + 1,024"]
    late = [errors(simulated(deployment, clients), deployment.runs[clients])[1] for clients in deployment.runs]
    assert mean(abs(error) for error in late) <= 0.05
