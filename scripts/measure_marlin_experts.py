#!/usr/bin/env python3
"""Measures vLLM's Marlin kernel of mxfp4 experts on this machine's GPU, at the sites of gpt-oss.

    python scripts/measure_marlin_experts.py -o DIRECTORY [--moe _moe_C_stable_libtorch.abi3.so]
    python scripts/build_part.py vllm_marlin DIRECTORY

Needs vLLM 0.24, or one of its modules alone (`aicb.profiling.libraries.vllm_marlin`). The directory gets what `aicb
profile` writes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from aicb.kernels.expert_points import ENGINE_TOKENS, marlin_points
from aicb.kernels.point import Point
from aicb.model.architecture import MoeFfn
from aicb.model.catalog import load_model

MODELS = ("gpt-oss-20b", "gpt-oss-120b")
SLICES = (1, 2, 4, 8)
"""Of each expert, one per rank."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--moe", type=Path)
    parser.add_argument("--budget", type=float, default=500.0, help="seconds of measuring")
    parser.add_argument("--resume", action="store_true")
    arguments = parser.parse_args()
    points = list(points_of_models())

    from aicb.profiling.libraries.vllm_marlin import VllmMarlinExperts
    from aicb.profiling.runner import Settings, run_plan

    settings = Settings("cuda", arguments.budget, 0.2, resume=arguments.resume)
    report = run_plan(points, [VllmMarlinExperts(arguments.moe)], arguments.output, settings)
    print(f"{sum(report.measured.values())} of {len(points)} points in {report.seconds:.0f} s, {report.left} left")
    for what in (report.failed, report.missing, report.unserved):
        if what:
            print(dict(what))


def points_of_models() -> Iterator[Point]:
    for name in MODELS:
        model = load_model(name)
        moe = next(kind.ffn for kind in model.kinds if isinstance(kind.ffn, MoeFfn))
        for slices in SLICES:
            yield from marlin_points(moe, model.hidden, ENGINE_TOKENS, slices=slices)


if __name__ == "__main__":
    main()
