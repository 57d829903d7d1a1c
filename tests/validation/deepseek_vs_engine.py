#!/usr/bin/env python3
"""Compares iteration times with vLLM 0.24.0 running DeepSeek-V3 cut to 8 layers, fp8, on one H200.

    python -m tests.validation.deepseek_vs_engine [--json] [--experts-kernel deep_gemm|triton]
        [--mla-kernel flash_mla|fa3] [--quant-kernel triton|vllm] [--dense-kernel deep_gemm|flashinfer] [--host NAME]

One prompt alone (time to first token), and steady decodes of equal requests (median time between tokens, at the mean
context of the measured window). Weights route tokens as a trained router does. Nothing is fitted to these points.

The host is not known: by its cores it would be xeon-vm-32, but the second token comes 0.8 ms early (0.15 to 0.35 ms in
the session in which that one was measured), as on one twice as slow. Hence xeon-vm-16, whose launches take 2.0 times
as long.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from aicb.iteration.host import load_host
from aicb.iteration.model import IterationModel
from aicb.iteration.pricing import PS_PER_US
from aicb.measurements.gpu import get_gpu
from aicb.model.architecture import Model
from aicb.model.catalog import load_model
from aicb.model.partition import Partition
from aicb.model.precision import Precision
from aicb.operators.batch import Batch
from aicb.operators.dense_kernel import DenseKernel
from aicb.operators.experts_kernel import ExpertsKernel
from aicb.operators.mla import MlaKernel
from aicb.operators.quantisation import QuantKernel
from tests.validation.iteration_vs_engine import MAX_REQUESTS, MEASUREMENTS, first_token_ms

FILE = MEASUREMENTS / "vllm-deepseek-v3-l8-tp1.json.gz"
LAYERS = 8
"""Three dense and five of experts."""
HOST = "xeon-vm-16"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One measured point."""

    table: str
    context: int
    requests: int
    measured_ms: float
    predicted_ms: float

    @property
    def error(self) -> float:
        return self.predicted_ms / self.measured_ms - 1.0


def cut_model(layers: int = LAYERS) -> Model:
    """The first layers of DeepSeek-V3."""
    whole = load_model("deepseek-v3")
    return replace(whole, pattern=whole.pattern[:layers])


def compare(
    experts_kernel: ExpertsKernel,
    mla_kernel: MlaKernel,
    quant_kernel: QuantKernel,
    dense_kernel: DenseKernel,
    host: str = HOST,
) -> list[Comparison]:
    """All points of the measurement."""
    iterations = IterationModel(
        cut_model(),
        Partition(),
        Precision("fp8"),
        get_gpu("h200"),
        max_seqs=MAX_REQUESTS,
        experts_kernel=experts_kernel,
        moe_kernels="vllm",
        mla_kernel=mla_kernel,
        quant_kernel=quant_kernel,
        dense_kernel=dense_kernel,
        rope_kernel="compiled",
        host=load_host(host),
    )
    measured = measurement()
    points = [
        Comparison("prefill", int(row[0]), 1, row[1] * 1e3, first_token_ms(iterations, int(row[0])))
        for row in measured["prefill"]
    ]
    for row in measured["decode_steady"]:
        batch = Batch.decode([round(row["ctx_mid"])] * row["B"])
        step_ms = iterations.price([batch]).compute_ps / PS_PER_US / 1e3
        points.append(Comparison("decode", row["L"], row["B"], row["itl_p50"] * 1e3, step_ms))
    return points


@cache
def measurement() -> dict[str, Any]:
    with gzip.open(FILE, "rt") as file:
        found: dict[str, Any] = json.load(file)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--experts-kernel", choices=("deep_gemm", "triton"), default="triton")
    parser.add_argument("--mla-kernel", choices=("flash_mla", "fa3", "fa3_chunks"), default="fa3_chunks")
    parser.add_argument("--quant-kernel", choices=("triton", "vllm"), default="vllm")
    parser.add_argument("--dense-kernel", choices=("deep_gemm", "flashinfer"), default="flashinfer")
    parser.add_argument("--host", default=HOST)
    arguments = parser.parse_args()
    if not FILE.is_file():
        print(f"skipped: no measurements at {FILE.name}")
        return 0
    chosen = (arguments.experts_kernel, arguments.mla_kernel, arguments.quant_kernel, arguments.dense_kernel)
    points = compare(*chosen, host=arguments.host)
    if arguments.json:
        print(json.dumps([asdict(point) | {"error": point.error} for point in points], indent=1))
        return 0
    for point in points:
        print(
            f"{point.table:8s} context {point.context:6d} requests {point.requests:4d}  measured "
            f"{point.measured_ms:8.2f} ms  predicted {point.predicted_ms:8.2f} ms  {point.error:+7.1%}"
        )
    for table in ("prefill", "decode"):
        errors = [abs(point.error) for point in points if point.table == table]
        print(f"{table:8s} mean {np.mean(errors):.1%}  worst {np.max(errors):.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
