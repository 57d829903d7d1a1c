#!/usr/bin/env python3
"""Measures the SM clock that a GPU sustains under attention alone, for `PowerLoad` of `aicb.measurements.clock`.

    python scripts/measure_attention_clocks.py -o attention_clocks.csv [--fa3 _vllm_fa3_C.abi3.so]

Each kernel runs back to back as `measure_clocks.sustained` has it, two matrix products among them for comparison.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

from aicb.kernels.decode_attention import PAGE_TOKENS
from aicb.kernels.point import Point, point
from aicb.profiling.cost import flops, moved_bytes, operand_sets

PRODUCTS = ((16384, 24576, 4096), (4096, 4096, 12288), (512, 6144, 4096), (2048, 6144, 4096), (64, 24576, 4096))
"""(m, n, k)"""
PROMPTS = (
    (32, 8, 128, 16384, 0, 1),
    (32, 4, 128, 16384, 0, 1),
    (32, 8, 128, 4096, 0, 1),
    (32, 8, 128, 2048, 0, 1),
    (32, 8, 128, 2048, 30720, 1),
    (8, 1, 128, 16384, 0, 1),
    (64, 8, 128, 8192, 24576, 1),
    (64, 8, 64, 16384, 0, 1),
    (16, 2, 256, 16384, 0, 1),
    (32, 8, 128, 512, 0, 16),
)
"""(heads, KV heads, head dimension, new tokens, past tokens, requests)"""
LATENT_PROMPTS = ((128, 4096), (128, 16384), (16, 16384))
"""(heads, new tokens), expanded"""
DECODES = (
    (32, 8, 128, 256, 2048),
    (32, 8, 128, 64, 8192),
    (32, 8, 128, 256, 512),
    (32, 8, 128, 64, 2048),
    (32, 8, 128, 16, 8192),
    (32, 8, 128, 4, 32768),
    (32, 8, 128, 8, 1024),
    (32, 4, 128, 256, 1024),
    (32, 4, 128, 64, 4096),
    (64, 8, 128, 128, 2048),
    (32, 4, 128, 16, 512),
    (16, 2, 128, 128, 4096),
    (8, 1, 128, 256, 4096),
    (32, 32, 128, 64, 2048),
    (64, 8, 64, 128, 4096),
    (16, 2, 256, 128, 4096),
    (64, 4, 128, 64, 8192),
    (96, 8, 128, 64, 4096),
)
"""(heads, KV heads, head dimension, requests, KV tokens of each)"""
LATENT_DECODES = ((128, 64, 4096), (128, 256, 1024), (16, 64, 4096), (16, 256, 4096), (32, 128, 2048), (128, 8, 4096))
"""(heads, requests, KV tokens of each)"""
MOST_SETS = 8
COLUMNS = (
    *("kind", "m", "n", "k", "heads", "kv_heads", "d_qk", "d_v", "batch", "q_len", "kv_len"),
    *("time_us", "sm_clock_mhz", "tflops", "tb_per_s", "power_w"),
)


def points() -> list[tuple[str, Point]]:
    """(kind, point) of all that are measured."""
    found = [("product", point("gemm", "bf16", {"m": m, "n": n, "k": k})) for m, n, k in PRODUCTS]
    for heads, kv_heads, dim, new, past, requests in PROMPTS:
        size = {"d_qk": dim, "d_v": dim, "page_tokens": PAGE_TOKENS}
        found.append(("prompts", _attention("prefill_attention", (heads, kv_heads), size, requests, (new, new + past))))
    for heads, new in LATENT_PROMPTS:
        size = {"d_qk": 192, "d_v": 128}
        found.append(("latent prompts", _attention("prefill_attention", (heads, heads), size, 1, (new, new))))
    for heads, kv_heads, dim, requests, kv in DECODES:
        size = {"d_qk": dim, "d_v": dim, "page_tokens": PAGE_TOKENS}
        found.append(("decodes", _attention("decode_attention", (heads, kv_heads), size, requests, (1, kv))))
    for heads, requests, kv in LATENT_DECODES:
        size = {"d_qk": 576, "d_v": 512, "page_tokens": PAGE_TOKENS}
        found.append(("latent decodes", _attention("mla_decode_fa3", (heads, 1), size, requests, (1, kv))))
    return found


def _attention(op: str, heads: tuple[int, int], size: dict[str, int], requests: int, tokens: tuple[int, int]) -> Point:
    """``heads``: of queries and of keys; ``tokens``: new ones and all, of each request."""
    new, kv = tokens
    shape = {"heads": heads[0], "kv_heads": heads[1], **size, "batch": requests, "q_len": new, "kv_len": kv}
    return point(op, "bf16", shape, lengths=(kv,) * requests, queries=(new,) * requests, distribution="equal")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--fa3", type=Path, help="vLLM's module, where vLLM is not installed")
    arguments = parser.parse_args()

    import torch

    from aicb.profiling.libraries.flash_attention import FlashAttention3
    from aicb.profiling.libraries.flash_attention_mla import FlashAttentionMla
    from aicb.profiling.libraries.torch_native import TorchNative
    from aicb.profiling.sm_clock import SmClock
    from scripts.measure_clocks import sustained

    attention, latent = FlashAttention3(arguments.fa3), FlashAttentionMla(arguments.fa3)
    libraries = {"product": TorchNative("cuda"), "latent decodes": latent}
    clock, rows = SmClock(), []
    for kind, item in points():
        library = libraries.get(kind, attention)
        runs = [library.kernel(item).run for _ in range(min(operand_sets(item), MOST_SETS))]
        time_us, clock_mhz, power_w = sustained(runs, clock)
        del runs
        torch.cuda.empty_cache()
        rates = (flops(item) / time_us / 1e6, moved_bytes(item) / time_us / 1e6)
        shape = dict(item.shape)
        measured = [round(value, 3) for value in (time_us, clock_mhz, *rates, power_w)]
        rows.append([kind, *(shape.get(name, "") for name in COLUMNS[1:11]), *measured])
    with arguments.output.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([COLUMNS, *rows])


if __name__ == "__main__":
    main()
