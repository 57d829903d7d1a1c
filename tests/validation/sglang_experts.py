#!/usr/bin/env python3
"""Compares products of experts with those that engines of SGLang 0.5.17 ran on an H200.

    python -m tests.validation.sglang_experts

From traces of the engines of `tests.validation.sglang_served` (``tests/data/engine/sglang-h200-layers.json.gz``): a
prompt alone, or decodes together. The kernel is priced by its times without an engine; nothing is taken from these.
DeepSeek's shared expert is one more routed one.
"""

from __future__ import annotations

import sys
from functools import cache

from aicb.iteration.model import IterationModel
from aicb.iteration.pricing import price_lists
from aicb.measurements.gpu import get_gpu
from aicb.model.catalog import load_model
from aicb.model.partition import Partition
from aicb.model.precision import Precision
from aicb.operators.fused_shared_expert import is_fused
from tests.validation.engine_figures import Comparison, read_measurement

MODELS = {
    "qwen3-30b-a3b": ("qwen3-30b-a3b", "bf16"),
    "qwen3-30b-a3b-fp8": ("qwen3-30b-a3b", "fp8"),
    "deepseek-v3-l8": ("deepseek-v3", "fp8"),
}
"""Built-in model and format of weights, by the engine's name."""
PRODUCTS = {"up": "moe_gate_up", "down": "moe_down"}


@cache
def compare_products() -> list[Comparison]:
    """Both products of each trace, in ms."""
    engines = read_measurement("sglang-h200-layers")["engines"]
    return [
        row
        for engine in MODELS
        for trace, kernels in engines[engine].items()
        for row in _compare(engine, trace, {name: time_us for name, time_us, _ in kernels})
    ]


def _compare(engine: str, trace: str, kernels: dict[str, float]) -> list[Comparison]:
    name, weights = MODELS[engine]
    tokens = int(trace[1:])
    model = IterationModel(
        load_model(name),
        Partition(),
        Precision(weights),
        get_gpu("h200"),
        experts_kernel="triton_sglang" if weights == "fp8" else "deep_gemm",
        moe_kernels="sglang",
    )
    assert is_fused(model.model, model.partition, model.precision) == (name == "deepseek-v3")
    listed = {each.name: each for each in model._expert_operators(tokens, tokens, 0, trace[0] == "d")}
    rows = []
    for product, operator in PRODUCTS.items():
        priced = price_lists([[listed[operator]]], model._pricing)[0]
        each_us = priced.total_ps / listed[operator].count * 1e-6
        what = f"{engine}, {tokens:,} tokens, {product}"
        rows.append(Comparison(what, kernels[f"fused_moe_kernel ({product})"] * 1e-3, each_us * 1e-3))
    return rows


def main() -> int:
    """Prints all rows."""
    for row in compare_products():
        measured_us, priced_us = row.measured_ms * 1e3, row.simulated_ms * 1e3
        print(f"{row.name:42} {measured_us:8.1f} us, priced {priced_us:8.1f} ({row.error:+.1%})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
