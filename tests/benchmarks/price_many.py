#!/usr/bin/env python3
"""Rates of pricing on one core, with the machine: operators from arrays, and iterations of a serving simulation.

    python tests/benchmarks/price_many.py

Rows are 500,000 random shapes: GEMMs of 40 (n, k) with any m up to 16384, prompts of any lengths at 4 geometries,
decode batches of up to 256 sequences. Nothing is priced before the clock starts. Iterations are priced again and again
as an event loop asks for them once their parts are known: a chunk of 480 and a prompt of 13 tokens beside 18 decodes on
one A100, and decodes of 32 requests on each of 32 ranks. Prints; does not gate.
"""

from __future__ import annotations

import os
import platform
import time

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np

from aicb import IterationModel, Partition, Precision, RankBatches, load_model
from aicb.estimators.interpolation import InterpolationEstimator
from aicb.estimators.price_many import Kind, price_many
from aicb.measurements.gpu import get_gpu

ROWS = 500_000
REPETITIONS = 5000
PYTHON_PER_S = {"llama-2-7b a100 mixed": 1260, "deepseek-v3 32 ranks": 3890}
"""Iterations/s of the Python arithmetic of commit 9f2aa16, on one core of an AMD EPYC server (796 and 257 µs each)."""


def columns(kind: Kind, rng: np.random.Generator) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    """Random rows of one kind."""
    if kind.startswith("gemm"):
        sites = rng.integers(4, 128, (40, 2)) * 128
        n, k = sites[rng.integers(0, len(sites), ROWS)].T
        return {"n": n, "k": k, "m": rng.integers(1, 16384, ROWS)}
    geometry = np.array([[64, 4, 128, 128], [32, 8, 128, 128], [16, 16, 192, 128], [128, 128, 192, 128]])
    heads, kv_heads, d_qk, d_v = geometry[rng.integers(0, len(geometry), ROWS)].T
    common = {"heads": heads, "kv_heads": kv_heads, "d_qk": d_qk}
    if kind == "decode_attention":
        return {**common, "batch": rng.integers(1, 257, ROWS), "kv_len": rng.integers(1, 32768, ROWS)}
    new = rng.integers(16, 8192, ROWS)
    return {**common, "d_v": d_v, "q_len": new, "kv_len": new + rng.integers(0, 8192, ROWS)}


def iterations() -> dict[str, tuple[IterationModel, RankBatches]]:
    """Models with the iteration to price."""
    rng = np.random.default_rng(0)
    kv, new = rng.integers(100, 3000, 20), np.ones(20, dtype=np.int64)
    kv[:2], new[:2] = (900, 13), (480, 13)
    chunked = IterationModel(load_model("llama-2-7b"), Partition(), Precision(), get_gpu("a100"))
    wide = IterationModel(load_model("deepseek-v3"), Partition(dp=32, ep=32), Precision("fp8"), get_gpu("h200"))
    decodes = RankBatches.decode(rng.integers(100, 8000, 32 * 32), [32] * 32)
    mixed = RankBatches(new, kv, [20], [19])
    return {"llama-2-7b a100 mixed": (chunked, mixed), "deepseek-v3 32 ranks": (wide, decodes)}


def iterations_per_s(model: IterationModel, batches: RankBatches) -> float:
    """Iterations per second of CPU time, the call from Python included."""
    model.price(batches)
    pricing, requests, rows = model.core_pricing(), np.array(batches.requests), np.array(batches.logit_rows)
    assert pricing is not None
    start = time.process_time()
    for _ in range(REPETITIONS):
        pricing.price(batches.new_tokens, batches.kv_tokens, requests, rows)
    return REPETITIONS / (time.process_time() - start)


def main() -> None:
    kinds: tuple[Kind, ...] = ("gemm_fp8", "gemm_bf16", "prefill_attention", "decode_attention")
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, numpy {np.__version__}")
    for kind in kinds:
        estimator = InterpolationEstimator(get_gpu("h200"))
        rows = columns(kind, np.random.default_rng(1))
        start = time.process_time()
        price_many(estimator, kind, rows)
        print(f"{kind:18s} {ROWS / (time.process_time() - start):10,.0f} rows/s of CPU time")
    for name, (model, batches) in iterations().items():
        rate = iterations_per_s(model, batches)
        print(f"{name:22s} {rate:10,.0f} iterations/s of CPU time, {rate / PYTHON_PER_S[name]:.0f} times Python's")


if __name__ == "__main__":
    main()
