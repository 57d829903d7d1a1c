#!/usr/bin/env python3
"""Compares layers of one rank of several, decoding, with what they took inside vLLM 0.24.0 on one H200.

    python -m tests.validation.ranks_layers_vs_engine

Of Qwen3-Next-80B-A3B three layers with the delta rule and one with attention, of DeepSeek-V3 (fp8) and GLM-4.5-Air one
with experts, each with as many heads and columns as a rank of the stated TP has, without collectives
(``tests/data/engine/vllm-h200-layers.json.gz``). Kernels around the delta rule, the experts of TP 8, scores of
GLM's experts and what two streams make of each other are from these steps; dense products, attention and all other
experts are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from aicb.iteration.host import HostModel
from aicb.iteration.model import IterationModel
from aicb.measurements.gpu import get_gpu
from aicb.model.catalog import load_model
from aicb.model.partition import Partition
from aicb.model.precision import Precision
from aicb.operators.batch import Batch
from tests.validation.engine_figures import Comparison
from tests.validation.engine_steps import engine
from tests.validation.layers_vs_engine import ENGINE_KERNELS, ENGINE_OVERLAP

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


def compare(name: str) -> Iterator[Comparison]:
    """Decodes of 1 to 256 requests."""
    ran = engine(name)
    twice, once = _models(ran.model, ran.tp)
    for requests, kernels in ran.decodes.items():
        norms_us = [kernel.start_us for kernel in kernels if _begins_layer(kernel.name)]
        measured_us = sum(norms_us[end] - norms_us[begin] for begin, end in COMPARED[ran.model])
        batch = [Batch.decode([CONTEXT] * requests)]
        priced_ps = twice.price_device(batch).compute_ps - once.price_device(batch).compute_ps
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
            overlap=ENGINE_OVERLAP,
            **ENGINE_KERNELS,  # type: ignore[arg-type]
        )
        for pattern in (layers * 2, layers)
    )
    twice, once = made
    return twice, once


def main() -> None:
    for name in ENGINES:
        for row in compare(name):
            times = f"measured {row.measured_ms * 1e3:7.1f} us  simulated {row.simulated_ms * 1e3:7.1f} us"
            print(f"{name:24s} {row.name:14s} {times}  {row.error:+.1%}")


if __name__ == "__main__":
    main()
