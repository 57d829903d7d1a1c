#!/usr/bin/env python3
"""Measures FlashAttention-3's decodes over sliding windows on this machine's GPU, as vLLM captures them.

    python scripts/measure_sliding_decodes.py -o DIRECTORY --fa3 _vllm_fa3_C.abi3.so
    python scripts/build_part.py vllm_fa3_sliding DIRECTORY

gpt-oss's window and, of other geometries, windows of up to 4,096 tokens. The directory gets what `aicb profile` writes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from aicb.kernels.decode_attention import PAGE_TOKENS, SLIDING_BATCHES, SLIDING_CONTEXT, SLIDING_DECODES
from aicb.kernels.point import Point, point
from aicb.model.catalog import load_model
from aicb.profiling.sweep import Plan, plan_points

GEOMETRIES = ((64, 8, 64), (16, 2, 64), (32, 8, 128), (16, 4, 128), (8, 2, 128), (4, 1, 128))
"""(query heads, KV heads, head dimension) of a rank."""
WINDOWS = {64: (512, 1024, 4096), 128: (128, 512, 1024, 4096)}
"""Tokens, by head dimension."""
CACHE_LIMIT_BYTES = 24e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--fa3", type=Path, help="vLLM's module, where vLLM is not installed")
    parser.add_argument("--budget", type=float, default=300.0, help="seconds of measuring")
    arguments = parser.parse_args()
    points = [*points_of_gpt_oss(), *points_of_windows()]

    from aicb.profiling.libraries.flash_attention_unscheduled import FlashAttentionUnscheduled
    from aicb.profiling.runner import Settings, run_plan

    settings = Settings("cuda", arguments.budget, 0.2)
    report = run_plan(points, [FlashAttentionUnscheduled(arguments.fa3)], arguments.output, settings)
    print(f"{sum(report.measured.values())} of {len(points)} points in {report.seconds:.0f} s, {report.left} left")
    for what in (report.failed, report.missing, report.unserved):
        if what:
            print(dict(what))


def points_of_gpt_oss() -> list[Point]:
    """Of its window of 128 tokens, TP 1, 2, 4, 8."""
    only = frozenset({SLIDING_DECODES})
    models = (load_model("gpt-oss-120b"),)
    return plan_points(Plan(models=models, weights=("bf16",), kv=("bf16",), tp=(1, 2, 4, 8), ep=(1,), only=only))


def points_of_windows() -> Iterator[Point]:
    """Of other windows and geometries, as many requests as the limit of their caches allows."""
    for heads, kv_heads, dim in GEOMETRIES:
        shape = {"heads": heads, "kv_heads": kv_heads, "d_qk": dim, "d_v": dim, "q_len": 1, "page_tokens": PAGE_TOKENS}
        for window in WINDOWS[dim]:
            for requests in SLIDING_BATCHES:
                if requests * SLIDING_CONTEXT * window * kv_heads * dim * 4 <= CACHE_LIMIT_BYTES:
                    yield point(
                        SLIDING_DECODES,
                        "bf16",
                        {**shape, "batch": requests, "kv_len": window},
                        lengths=(window,) * requests,
                        queries=(1,) * requests,
                        distribution="equal",
                    )


if __name__ == "__main__":
    main()
