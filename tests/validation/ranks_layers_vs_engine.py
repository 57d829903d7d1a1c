#!/usr/bin/env python3
"""Compares layers of one rank of several, decoding, with what they took inside vLLM 0.24.0 on one H200.

    python -m tests.validation.ranks_layers_vs_engine

Of Qwen3-Next-80B-A3B three layers with the delta rule and one with attention, of DeepSeek-V3 (fp8) and GLM-4.5-Air one
with experts, each with as many heads and columns as a rank of the stated TP has, without collectives
(``tests/data/engine/vllm-h200-layers.json.gz``). Kernels around the delta rule, the experts of TP 8 and what two
streams make of each other are from these steps; dense products, attention and all other experts are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

from aicb.iteration.host import HostModel
from aicb.iteration.model import IterationModel
from aicb.iteration.overlap import Overlap
from aicb.measurements.gpu import get_gpu
from aicb.model.catalog import load_model
from aicb.model.partition import Partition
from aicb.model.precision import Precision
from aicb.operators.batch import Batch
from tests.validation.engine_figures import Comparison, read_measurement
from tests.validation.layers_vs_engine import ENGINE_KERNELS

CONTEXT = 520
LAYERS = {"qwen3-next-80b-a3b": slice(4, 8), "deepseek-v3": slice(3, 4), "glm-4.5-air": slice(1, 2)}
"""Of the whole model: like those that are compared."""
COMPARED = {"qwen3-next-80b-a3b": ((1, 2), (2, 3), (2, 3), (3, 4)), "deepseek-v3": ((2, 3),), "glm-4.5-air": ((2, 3),)}
"""By model: norms between which a layer lies. The first layers have no results of experts to add."""
ENGINES = tuple(
    f"{model}-tp{tp}"
    for model, degrees in (("qwen3-next-80b-a3b", (1, 2, 4, 8)), ("deepseek-v3", (1, 8)), ("glm-4.5-air", (1, 2)))
    for tp in degrees
)


def compare(engine: str) -> Iterator[Comparison]:
    """Decodes of 1 to 256 requests."""
    ran, names = measurement()["engines"][engine], measurement()["names"]
    with_layers, without = _models(ran["model"], ran["tp"])
    for requests, step in ran["decode"].items():
        norms = [start_us for name, _, start_us, _ in step["kernels"] if _begins_layer(names[name])]
        measured_us = sum(norms[end] - norms[begin] for begin, end in COMPARED[ran["model"]])
        batch = [Batch.decode([CONTEXT] * int(requests))]
        priced_ps = with_layers.price_device(batch).compute_ps - without.price_device(batch).compute_ps
        yield Comparison(f"{requests} requests", measured_us / 1e3, priced_ps / 1e9)


def _begins_layer(name: str) -> bool:
    """Whether a kernel is the norm before attention, or the last one: with the embedding or the residual."""
    return name.startswith("triton_red_fused") and any(
        part in name for part in ("embedding", "copy__fused_add", "fused_add_fused_add", "fused_1", "rms_norm_2")
    )


def _models(name: str, tp: int) -> tuple[IterationModel, IterationModel]:
    """With the compared layers twice, and once."""
    model, weights = load_model(name), "fp8" if name == "deepseek-v3" else "bf16"
    layers = model.pattern[LAYERS[name]]
    made = (
        IterationModel(
            replace(model, pattern=pattern),
            Partition(tp=tp),
            Precision(weights),  # type: ignore[arg-type]
            get_gpu("h200"),
            host=replace(HostModel(), gap_us=0.0),
            experts_kernel="triton" if weights == "fp8" else "deep_gemm",
            overlap=Overlap(shared_expert_stream=True, shared_expert_tokens=256),
            **ENGINE_KERNELS,  # type: ignore[arg-type]
        )
        for pattern in (layers * 2, layers)
    )
    with_layers, without = made
    return with_layers, without


@lru_cache
def measurement() -> dict[str, Any]:
    return read_measurement("vllm-h200-layers")


def main() -> None:
    for engine in ENGINES:
        for row in compare(engine):
            times = f"measured {row.measured_ms * 1e3:7.1f} us  simulated {row.simulated_ms * 1e3:7.1f} us"
            print(f"{engine:24s} {row.name:14s} {times}  {row.error:+.1%}")


if __name__ == "__main__":
    main()
