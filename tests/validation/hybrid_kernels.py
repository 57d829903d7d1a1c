#!/usr/bin/env python3
"""Compares prices of vLLM's kernels in models with gated delta rules with what they took alone on an H100.

    python -m tests.validation.hybrid_kernels

Of Qwen3-Next-80B-A3B, TP 1 to 8 (``tests/data/engine/vllm-h100-hybrid-kernels.json.gz``). The prices are those of an
H100, transferred from what the same kernels took inside an engine on an H200, at the clock of an H100 that nothing
slows down; none of these measurements is in them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from aicb.estimators.estimator import Estimator
from aicb.estimators.selection import select_estimator
from aicb.kernels.gated_delta import GatedDeltaDecode
from aicb.kernels.kernel import Kernel
from aicb.measurements.clock import clocked_share
from aicb.measurements.gpu import get_gpu
from aicb.model.architecture import GatedDeltaNet
from aicb.model.catalog import load_model
from aicb.model.partition import Partition
from aicb.model.precision import Precision
from aicb.operators.batch import Batch
from aicb.operators.lists import attention_operators, expert_operators, token_operators
from tests.validation.engine_figures import read_measurement

H100, CLOCK_MHZ = get_gpu("h100"), 1980.0
FP32_STATE = Precision(state="fp32")
MODEL = load_model("qwen3-next-80b-a3b")
DELTA = next(kind.attention for kind in MODEL.kinds if isinstance(kind.attention, GatedDeltaNet))
OPERATORS = {
    "delta_prepare": ("gdn_prepare",),
    "delta_conv": ("gdn_conv",),
    "gdn_prefill_vllm": ("gdn_prefill", "gdn_results"),
    "gdn_decode_packed": ("gdn_decode",),
    "gated_head_norm": ("gated_head_norm",),
    "output_gate": ("output_gate",),
    "gate_mul": ("shared_gate_sigmoid", "shared_gate_mul"),
    "copy": ("moe_output",),
}
"""By what was measured: what is priced."""


MANY = 1024
"""Tokens from which on bytes decide."""


def priced_us(names: tuple[str, ...], tokens: int, tp: int, requests: int = 1, *, is_decode: bool = False) -> float:
    """Of one layer."""
    found = _operators(tokens, tp, requests, is_decode=is_decode)
    return sum(_price_us(found[name]) for name in names)


def compare() -> Iterator[tuple[str, int, int, int, float, float]]:
    """(what was measured, tokens, requests, TP, measured us, priced us)."""
    for row in measurement()["kernels"]:
        if row["op"] not in OPERATORS:
            continue
        tokens, requests, tp = row["tokens"], row.get("requests", 1), row["tp"]
        is_decode = row["op"] == "gdn_decode_packed"
        priced = priced_us(OPERATORS[row["op"]], tokens, tp, requests, is_decode=is_decode)
        yield row["op"], tokens, requests, tp, row["us"], priced


def compare_pieces() -> Iterator[tuple[str, int, int, float, float]]:
    """(step, tokens, TP, measured us, priced us) of what is compiled, by its place between products."""
    for row in measurement()["pieces"]:
        tokens, tp, kernels = row["tokens"], row["tp"], row["kernels"]
        products = [place for place, (name, _) in enumerate(kernels) if name.startswith("nvjet")]
        norms = [time_us for name, time_us in kernels if name.startswith("triton_red")]
        measured = {
            "gdn_clear": kernels[0][1],
            "gdn_norm_sums gdn_gated_norm": sum(time_us for _, time_us in kernels[1 : products[0]]),
            "post_attention_norm": norms[0],
            "input_norm": norms[1],
            "gdn_split gdn_join": sum(time_us for _, time_us in kernels[products[-1] + 1 :]),
        }
        for step, time_us in measured.items():
            yield step, tokens, tp, time_us, priced_us(tuple(step.split()), tokens, tp)


def other_decode_us(requests: int, tp: int) -> float:
    """Of the kernel of flash-linear-attention, which the H200's table has, at the reference clock."""
    kernel = GatedDeltaDecode(requests, DELTA.key_heads // tp, DELTA.value_heads // tp, DELTA.head_dim)
    return _estimator().price(kernel).time_us


def measurement() -> dict[str, Any]:
    return read_measurement("vllm-h100-hybrid-kernels")


def _price_us(kernel: Kernel) -> float:
    """At ``CLOCK_MHZ``, which short replays leave the SMs at."""
    assert H100.clock is not None
    time_us = _estimator().price(kernel).time_us
    share = clocked_share(time_us, kernel.cost(FP32_STATE).moved_bytes, H100.hbm_bytes_per_s)
    return float(time_us * (H100.clock.reference_mhz / CLOCK_MHZ) ** share)


@lru_cache
def _estimator() -> Estimator:
    return select_estimator("auto", H100, FP32_STATE)


@lru_cache(maxsize=1024)
def _operators(tokens: int, tp: int, requests: int, *, is_decode: bool) -> dict[str, Kernel]:
    parallel = (MODEL, Partition(tp=tp), FP32_STATE)
    batch = Batch.decode([2] * requests) if is_decode else Batch.prefill([tokens // requests] * requests)
    listed = [
        *token_operators(*parallel, tokens=tokens, hybrid_kernels="compiled"),
        *attention_operators(*parallel, batch, hybrid_kernels="compiled"),
        *expert_operators(*parallel, tokens=tokens, group_tokens=tokens, is_decode=is_decode, moe_kernels="vllm"),
    ]
    return {each.name: each.kernel for each in listed if isinstance(each.kernel, Kernel)}


def main() -> None:
    rows = list(compare())
    for operation in OPERATORS:
        for kind, least, most in (("below 256 tokens", 1, 255), ("256 to 16,384", 256, 16384)):
            ratios = [row[5] / row[4] for row in rows if row[0] == operation and least <= row[1] <= most]
            if ratios:
                spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
                print(f"{operation:20s} {kind:18s} median {np.median(ratios) - 1:+.0%}, {spread}")
    pieces = list(compare_pieces())
    for step, tp in sorted({(row[0], row[2]) for row in pieces}):
        ratios = [row[4] / row[3] for row in pieces if row[0] == step and row[2] == tp and row[1] >= MANY]
        print(f"{step:28s} TP {tp}, from {MANY} tokens on: {min(ratios):.2f} to {max(ratios):.2f}")
    for _, _, requests, tp, measured, priced in (row for row in rows if row[0] == "gdn_decode_packed"):
        print(f"{requests:4d} decodes, TP {tp}: measured {measured:6.1f} us, priced {priced:6.1f}")


if __name__ == "__main__":
    main()
