#!/usr/bin/env python3
"""Compares the simulator with engines of SGLang 0.5.17 on one and two H200s.

    python -m tests.validation.sglang_served

Qwen3-8B, Qwen3-30B-A3B in bf16 and fp8, and DeepSeek-V3 cut to 8 layers in fp8 (``tests/data/engine/sglang-h200-*``),
measured on 2026-11-30 with ``aicb profile engine --framework sglang`` at SGLang's defaults: prompts alone, steady
decodes, Poisson loads. The simulator was frozen before (``6620773e``) and had seen no engine of SGLang; what it said
then is in docs/accuracy/engines.md. Since then it knows SGLang's graphs of prompts and what launching takes in these
very engines (`aicb.iteration.sglang_host`), so that short prompts are no test of it any more, and has SGLang's kernels
of experts, attention and around both as they were measured without an engine.

On two GPUs, 2026-12-01, frozen at ``e98545e7``: Qwen3-30B-A3B and DeepSeek-V3 of 8 layers with TP 2, without
FlashInfer's all-reduce (which wants NVLink multicast), and Qwen3-30B-A3B with data-parallel attention whose two ranks
share the experts. From the last it has that steps with prompts on one rank and decodes on the other are launched kernel
by kernel.

``then``: on the default host, as fast as the engine launched in the
very phase.
"""

from __future__ import annotations

import sys
from functools import cache

from tests.validation.engine_figures import Comparison, read_measurement
from vidur_pd.commands.validation import engine
from vidur_pd.commands.validation.engine import THEN
from vidur_pd.commands.validation.measured_engine import DECODES, PROMPTS, MeasuredEngine, parse_engine

ONE_GPU = ("tp1-qwen3-8b", "tp1-qwen3-30b-a3b", "tp1-qwen3-30b-a3b-fp8", "tp1-deepseek-v3-l8")
TENSOR_PARALLEL = ("tp2-qwen3-30b-a3b", "tp2-deepseek-v3-l8")
SHARED_EXPERTS = "dp2-ep2-qwen3-30b-a3b"
ENGINES = (*ONE_GPU, *TENSOR_PARALLEL, SHARED_EXPERTS)


@cache
def engine_of(name: str) -> MeasuredEngine:
    """The measurement, checked."""
    return parse_engine(read_measurement(f"sglang-h200-{name}"), name)


@cache
def compare(name: str, phase: str, host: str | None = None) -> list[Comparison]:
    """What was measured in a phase."""
    return engine.compare(engine_of(name), phase, host)


def mean_error(rows: list[Comparison]) -> float:
    """Of absolute errors."""
    return sum(abs(row.error) for row in rows) / len(rows)


def main() -> int:
    """Prints all rows."""
    for name in ENGINES:
        for phase in (PROMPTS, DECODES, *engine_of(name).comparable_loads):
            then = compare(name, phase, THEN)
            default = compare(name, phase)
            print(f"{name}, {phase}: mean {mean_error(default):.1%}, then {mean_error(then):.1%}")
            for row, own in zip(default, then, strict=True):
                print(
                    f"  {row.name:24} {row.measured_ms:9.2f} ms, simulated {row.simulated_ms:9.2f} ({row.error:+.1%}), "
                    f"then {own.simulated_ms:9.2f} ({own.error:+.1%})"
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
