#!/usr/bin/env python3
"""Compares an idle and a decoding engine with vLLM 0.24.0 running Qwen3-8B, stamped inside, on one H200.

    python -m tests.validation.idle_engine

Host times are those of ``xeon-vm-16-traced``, parts of the same trace; when tokens come is not fitted to anything.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from aicb.iteration.host import load_host
from aicb.iteration.model import IterationModel
from aicb.iteration.pricing import PS_PER_US
from aicb.operators.batch import Batch
from tests.validation.engine_figures import Comparison, read_measurement
from tests.validation.iteration_vs_engine import first_token_ms, iteration_model

HOST = "xeon-vm-16-traced"
MIDDLE = 36
"""Tokens after the prompt in the middle of a measured decode, of 70."""


def measurement() -> dict[str, Any]:
    return read_measurement("vllm-idle-qwen3-8b")


def model() -> IterationModel:
    return iteration_model("qwen3-8b", load_host(HOST))


def first_tokens() -> list[Comparison]:
    """Of prompts alone, medians of twelve."""
    found, priced = measurement()["alone"], model()
    lengths = sorted({row["tokens"] for row in found})
    measured = {
        length: np.median([time for row in found if row["tokens"] == length for time in row["all_ttft"]])
        for length in lengths
    }
    return [
        Comparison(f"first token of {length}", float(measured[length]) * 1e3, first_token_ms(priced, length))
        for length in lengths
    ]


def decodes() -> list[Comparison]:
    """Steps of equal requests."""
    priced, listed = model(), []
    for row in measurement()["steps"]:
        if row["experiment"] != f"decode {row['requests']}":
            continue
        requests = row["requests"]
        context = (512 if requests < 200 else 256) + MIDDLE
        step_ms = priced.price([Batch.decode([context] * requests)]).compute_ps / PS_PER_US / 1e3
        listed.append(Comparison(f"decode of {requests}", row["period"] * 1e3, step_ms))
    return listed


def main() -> int:
    for row in [*first_tokens(), *decodes()]:
        times = f"measured {row.measured_ms:8.2f} ms  simulated {row.simulated_ms:8.2f} ms"
        print(f"{row.name:24s} {times}  {row.error:+6.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
