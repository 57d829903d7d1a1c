#!/usr/bin/env python3
"""Rate of array pricing on one core: operators per second, with the machine.

    python tests/benchmarks/price_many.py

Rows are 500,000 random shapes: GEMMs of 40 (n, k) with any m up to 16384, prompts of any lengths at 4 geometries,
decode batches of up to 256 sequences. Nothing is priced before the clock starts. Prints; does not gate.
"""

from __future__ import annotations

import os
import platform
import time

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np

from aicb.estimators import InterpolationEstimator
from aicb.estimators.arrays import Kind, price_many
from aicb.gpu import get_gpu

ROWS = 500_000


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


def main() -> None:
    kinds: tuple[Kind, ...] = ("gemm_fp8", "gemm_bf16", "prefill_attention", "decode_attention")
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, numpy {np.__version__}")
    for kind in kinds:
        estimator = InterpolationEstimator(get_gpu("h200"))
        rows = columns(kind, np.random.default_rng(1))
        start = time.process_time()
        price_many(estimator, kind, rows)
        print(f"{kind:18s} {ROWS / (time.process_time() - start):10,.0f} rows/s of CPU time")


if __name__ == "__main__":
    main()
