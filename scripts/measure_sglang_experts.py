#!/usr/bin/env python3
"""Measures SGLang's kernel of experts on this machine's GPU, at the sites of models that SGLang serves.

    python scripts/measure_sglang_experts.py -o DIRECTORY [--only fp8,bf16,bf16-shared,fp8-shared] [--compile 120]
    python scripts/build_part.py sglang_experts DIRECTORY

Needs SGLang 0.5.17 (`aicb.profiling.libraries.sglang_fused_moe`). The directory gets what `aicb profile` writes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from aicb.kernels.expert_points import sglang_points, sglang_shared_points
from aicb.kernels.point import Point
from aicb.model.architecture import Model, MoeFfn
from aicb.model.catalog import load_model
from aicb.model.precision import GemmDtype

TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
BETWEEN = (24, 48, 96, 1536, 3072)
"""Besides, where a rank has all experts: for these SGLang's files have entries, too."""

WHOLE: Mapping[GemmDtype, Mapping[str, Sequence[int]]] = {
    "fp8": {
        "deepseek-v3": (1, 2, 4, 8, 16),
        "kimi-k2": (8, 16),
        "qwen3-30b-a3b": (1, 2),
        "qwen3-235b-a22b": (1, 2, 4),
        "qwen3-next-80b-a3b": (1, 2),
        "minimax-m2": (1, 2, 4),
        "glm-4.5": (2, 4),
    },
    "bf16": {
        "qwen3-30b-a3b": (1, 2, 4),
        "qwen3-235b-a22b": (1, 2, 4),
        "qwen3-next-80b-a3b": (1, 2, 4),
        "mixtral-8x7b": (1, 2, 4),
        "glm-4.5-air": (1, 2, 4),
    },
}
"""Slices of each expert, by model."""
FUSED = ("deepseek-v3", "glm-4.5", "glm-4.5-air")
"""Whose shared expert is one of the routed ones (`aicb.operators.fused_shared_expert`)."""
SHARING: Mapping[GemmDtype, Mapping[str, Sequence[int]]] = {
    "fp8": {
        "deepseek-v3": (8, 16),
        "qwen3-30b-a3b": (2, 4),
        "qwen3-235b-a22b": (2, 4, 8),
        "qwen3-next-80b-a3b": (2, 4),
        "minimax-m2": (4, 8),
    },
    "bf16": {
        "qwen3-30b-a3b": (2, 4, 8),
        "qwen3-235b-a22b": (4, 8),
        "qwen3-next-80b-a3b": (2, 4),
        "mixtral-8x7b": (2,),
        "glm-4.5-air": (2, 4),
    },
}
"""Ranks that share the experts, by model."""
KINDS = ("fp8", "bf16", "bf16-shared", "fp8-shared")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--only", default=",".join(KINDS))
    parser.add_argument("--budget", type=float, default=500.0, help="seconds of measuring")
    parser.add_argument("--compile", type=float, default=0.0, help="at most so many seconds of compiling before")
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--resume", action="store_true")
    arguments = parser.parse_args()
    points = [found for kind in arguments.only.split(",") for found in points_of(kind)]

    from aicb.profiling.compile_ahead import compile_ahead
    from aicb.profiling.libraries.sglang_fused_moe import SglangFusedMoe
    from aicb.profiling.runner import Settings, run_plan

    if arguments.compile:
        print(f"{compile_ahead(points, arguments.workers, arguments.compile)} groups of points ran once")
    settings = Settings("cuda", arguments.budget, 0.2, resume=arguments.resume)
    report = run_plan(points, [SglangFusedMoe()], arguments.output, settings)
    print(f"{sum(report.measured.values())} of {len(points)} points in {report.seconds:.0f} s, {report.left} left")
    for what in (report.failed, report.missing, report.unserved):
        if what:
            print(dict(what))


def points_of(kind: str) -> Iterator[Point]:
    dtype: GemmDtype = "fp8" if kind.startswith("fp8") else "bf16"
    if kind.endswith("shared"):
        for name, sizes in SHARING[dtype].items():
            model = load_model(name)
            for ranks in sizes:
                yield from sglang_shared_points(_experts(model), model.hidden, dtype, TOKENS[1:], ranks=ranks)
        return
    for name, sizes in WHOLE[dtype].items():
        model = load_model(name)
        for slices in sizes:
            yield from sglang_points(
                _experts(model),
                model.hidden,
                dtype,
                sorted((*TOKENS, *BETWEEN)),
                slices=slices,
                is_fused=name in FUSED,
            )


def _experts(model: Model) -> MoeFfn:
    return next(kind.ffn for kind in model.kinds if isinstance(kind.ffn, MoeFfn))


if __name__ == "__main__":
    main()
