#!/usr/bin/env python3
"""Compares layers of four tensor-parallel ranks, decoding, with what they took inside vLLM 0.24.0 on four H200s.

    python -m tests.validation.four_ranks_layers

Qwen3-30B-A3B with TP 4, out of traces of steps that were replayed from CUDA graphs (``decode_kernels`` of
``tests/data/engine/vllm-h200-tp4-qwen3-30b-a3b.json.gz``: medians over ranks, layers and steps). A layer begins with
its experts' first product and ends where the next one's begins.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np

from aicb.iteration.model import IterationModel
from aicb.measurements.gpu import get_gpu
from aicb.model.catalog import load_model
from aicb.model.partition import Partition
from aicb.model.precision import Precision
from aicb.operators.batch import Batch
from simccl.engines.all_reduce import AllReduceKernels, engine_all_reduce
from tests.simccl.arrangements import arranged
from tests.validation.engine_figures import Comparison, read_measurement
from tests.validation.layers_vs_engine import ENGINE_KERNELS

RANKS: Final = 4
ANSWERED: Final = 50
"""Tokens of the answers in the traces: a tenth of a second of steps before them, and those while the profiler began. An
assumption; between none and 100 a layer differs by 1.1 % at most."""
MEASURED: Final = read_measurement("vllm-h200-tp4-qwen3-30b-a3b")["decode_kernels"]


def compare(row: dict[str, Any]) -> tuple[Comparison, Comparison]:
    """A layer, and its two all-reduces with norms."""
    measured_us, batch = row["kernels_us"], Batch.decode([row["context"] + ANSWERED] * row["requests"])
    size_bytes = np.array([row["requests"] * load_model("qwen3-30b-a3b").hidden * 2])
    reduced = engine_all_reduce(AllReduceKernels.FLASHINFER, size_bytes, arranged("h200", 1, RANKS))
    once, twice = (_iterations(layers).price_device([batch]).compute_ps / 1e9 for layers in (1, 2))
    reduced_ms = 2.0 * float(reduced.time_us.item()) / 1e3
    reducing_us = measured_us["all_reduce_norm_ffn"] + measured_us["all_reduce_norm_attention"]
    return (
        Comparison("layer", measured_us["layer"] / 1e3, twice - once + reduced_ms),
        Comparison("all-reduces with norms", reducing_us / 1e3, reduced_ms),
    )


def _iterations(layers: int) -> IterationModel:
    model = load_model("qwen3-30b-a3b")
    return IterationModel(
        replace(model, pattern=model.pattern[:layers]),
        Partition(tp=RANKS),
        Precision(),
        get_gpu("h200"),
        norm_kernel="flashinfer",
        **ENGINE_KERNELS,  # type: ignore[arg-type]
    )


def main() -> None:
    for row in MEASURED:
        for found in compare(row):
            times = f"measured {found.measured_ms * 1e3:7.1f} us  simulated {found.simulated_ms * 1e3:7.1f} us"
            print(f"{row['requests']:4d} x {row['context']:5d}  {found.name:24s} {times}  {found.error:+.1%}")


if __name__ == "__main__":
    main()
