#!/usr/bin/env python3
"""Compares the simulator with runs of vLLM 0.24.0 that nothing was fitted to: prefix caching, contexts of 16k tokens.

    python -m tests.validation.held_out_vs_engine

Qwen3-30B-A3B in bf16 on one H200 of a virtual machine with 16 cores (``tests/data/engine``); the simulator gets the
engine's profile and the name of the host, ``xeon-vm-16``, whose launches were measured with other prompts.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from aicb.iteration.host import load_host
from aicb.iteration.model import IterationModel
from aicb.iteration.pricing import PS_PER_US
from aicb.measurements.gpu import get_gpu
from aicb.model.catalog import load_model
from aicb.model.partition import Partition
from aicb.model.precision import Precision
from aicb.operators.batch import Batch
from tests.validation.engine_figures import Comparison, read_measurement
from tests.validation.iteration_vs_engine import MAX_REQUESTS, first_token_ms
from vidur_pd.commands.validation.engine import compare_load
from vidur_pd.commands.validation.measured_engine import parse_engine

MODEL, HOST = "qwen3-30b-a3b", "xeon-vm-16"


def measurement() -> dict[str, Any]:
    return read_measurement("vllm-held-out-qwen3-30b-a3b")


def compare_iterations() -> list[Comparison]:
    """Medians of first tokens of prompts alone, and of steps in which all requests decode."""
    model = IterationModel(
        load_model(MODEL),
        Partition(),
        Precision(),
        get_gpu("h200"),
        max_seqs=MAX_REQUESTS,
        host=load_host(HOST),
        gqa_kernel="fa3_captured",
        moe_kernels="vllm",
    )
    found = measurement()
    prompts = [
        Comparison(f"prefill of {tokens}", float(np.median(times)) * 1e3, first_token_ms(model, tokens))
        for tokens, times in found["prefill"]
    ]
    for row in found["steady"]:
        # Within the window of the measurement, its last 80 or so steps, contexts are on average this long.
        tokens = round(row["L"] + row["n_out"] - row["steps"] / 2)
        step_ms = model.price([Batch.decode([tokens] * row["B"])]).compute_ps / PS_PER_US / 1e3
        prompts.append(Comparison(f"decode of {row['B']} x {row['L']}", row["itl_p50"] * 1e3, step_ms))
    return prompts


def compare_serving(run: str) -> list[Comparison]:
    """Means and P90 of a serving run: ``serve_prefix`` or ``serve_long``."""
    return compare_load(parse_engine({**measurement(), "gpu": "h200"}, MODEL), run, HOST)


def main() -> int:
    for row in [*compare_iterations(), *compare_serving("serve_prefix"), *compare_serving("serve_long")]:
        times = f"measured {row.measured_ms:9.2f} ms  simulated {row.simulated_ms:9.2f} ms"
        print(f"{row.name:24s} {times}  {row.error:+6.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
