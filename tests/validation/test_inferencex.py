"""Runs of DeepSeek-R1 that InferenceX published (docs/accuracy/published.md, "InferenceX")."""

from __future__ import annotations

from statistics import mean

import pytest

from tests.validation.inferencex import DEPLOYMENTS, errors, simulated

OFF_BY = {
    "SGLang, TP 8, 1,024 + 1,024": {
        4: (-0.02, -0.08, -0.03),
        8: (0.05, -0.02, 0.02),
        16: (0.08, -0.02, 0.07),
        32: (0.09, -0.04, 0.08),
        64: (0.04, -0.08, 0.03),
    },
    "SGLang, TP 8, 8,192 + 1,024": {
        4: (-0.01, -0.13, -0.02),
        8: (0.05, -0.1, 0.03),
        16: (0.08, -0.08, 0.07),
        32: (0.07, -0.1, 0.06),
        64: (0.05, -0.29, 0.03),
    },
    "TensorRT-LLM, TP 8, 1,024 + 1,024": {
        4: (-0.1, 0.42, -0.1),
        8: (-0.06, 0.62, -0.08),
        16: (0.07, 0.37, 0.06),
        32: (0.15, 0.48, 0.13),
        64: (0.18, 0.29, 0.16),
    },
    "TensorRT-LLM, TP 8, 8,192 + 1,024": {
        4: (-0.11, -0.25, -0.12),
        8: (-0.09, -0.24, -0.11),
        16: (-0.01, -0.24, -0.02),
        32: (0.02, -0.19, 0.01),
        64: (0.12, -0.9, 0.03),
    },
    "TensorRT-LLM, TP 8 and EP 8, 1,024 + 1,024": {
        4: (-0.07, 0.37, -0.08),
        8: (-0.04, 0.63, -0.06),
        16: (0.02, 0.56, 0.0),
        32: (0.08, 0.46, 0.06),
        64: (0.1, 0.35, 0.07),
    },
    "TensorRT-LLM, TP 8 and EP 8, 8,192 + 1,024": {
        4: (-0.1, -0.44, -0.12),
        8: (-0.1, -0.42, -0.12),
        16: (-0.09, -0.4, -0.1),
        32: (-0.09, -0.35, -0.11),
    },
    "SGLang, 1 x TP 8 and 9 x TP 8, 1,024 + 1,024": {
        1: (-0.08, 0.03, -0.13),
        4: (-0.14, 0.01, -0.16),
        8: (-0.13, 0.04, -0.15),
        16: (-0.13, -0.05, -0.14),
        32: (-0.12, -0.17, -0.13),
        64: (-0.02, -0.46, -0.05),
    },
    "SGLang, 1 x DP 8 + EP 8 and 6 x DP 8 + EP 8, 1,024 + 1,024": {
        128: (0.08, -0.26, 0.06),
    },
    "SGLang, 1 x TP 8 and 7 x TP 8, 8,192 + 1,024": {
        1: (-0.09, -0.49, -0.15),
        4: (-0.12, 0.05, -0.14),
        8: (-0.16, -0.08, -0.17),
    },
    "SGLang, 1 x TP 8 and 6 x TP 8, 8,192 + 1,024": {
        4: (-0.13, -0.01, -0.15),
        8: (-0.14, 0.09, -0.15),
        16: (-0.1, -0.24, -0.12),
    },
    "SGLang, 1 x TP 8 and 3 x TP 8, 8,192 + 1,024": {
        8: (-0.08, -0.11, -0.1),
        16: (0.01, -0.17, -0.01),
        32: (0.13, -0.36, 0.07),
    },
    "SGLang, 2 x TP 8 and 3 x TP 8, 8,192 + 1,024": {
        32: (0.12, -0.33, 0.08),
        64: (0.03, -0.3, 0.0),
        128: (0.01, -0.3, -0.01),
    },
    "SGLang, 1 x TP 8 and 1 x DP 8 + EP 8, 8,192 + 1,024": {
        64: (0.05, 0.0, 0.04),
        128: (0.03, -0.25, 0.01),
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
