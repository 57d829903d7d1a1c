#!/usr/bin/env python3
"""Measures the SM clocks that a GPU gives vLLM's kernel of experts, for ``PowerLoad`` of `aicb`.

    python scripts/measure_expert_clocks.py -o expert_clocks.csv

Needs vLLM 0.24, whose configurations are taken. Both projections of a site in turn, of some each alone too, in bursts
and settled as `scripts.measure_clocks` has them.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from aicb.kernels.expert_points import sglang_points
from aicb.kernels.point import Point
from aicb.model.architecture import MoeFfn
from aicb.model.precision import GemmDtype
from aicb.profiling.cost import flops, moved_bytes
from aicb.profiling.libraries.vllm_fused_moe import VllmFusedMoe
from aicb.profiling.sm_clock import SmClock
from scripts.measure_clocks import MEASURED, Load


@dataclass(frozen=True, slots=True)
class Site:
    """Experts of a layer on one GPU."""

    dtype: GemmDtype
    experts: int
    experts_per_token: int
    intermediate: int
    hidden: int
    has_each_alone: bool = False


SITES = (
    Site("fp8", 256, 8, 2048, 7168, has_each_alone=True),
    Site("fp8", 256, 8, 1024, 7168),
    Site("fp8", 256, 8, 512, 7168),
    Site("fp8", 256, 8, 256, 7168),
    Site("fp8", 128, 8, 768, 2048),
    Site("fp8", 128, 8, 384, 2048),
    Site("fp8", 128, 8, 768, 4096),
    Site("fp8", 256, 8, 384, 3072),
    Site("bf16", 128, 8, 768, 2048, has_each_alone=True),
    Site("bf16", 128, 8, 1408, 4096),
    Site("bf16", 8, 2, 7168, 4096),
    Site("bf16", 512, 10, 512, 2048),
)
TOKENS = (64, 256, 1024, 4096, 16384)
SHAPE = ("dtype", "experts", "experts_per_token", "intermediate", "hidden", "tokens", "product", "block_rows", "padded")


def loads(site: Site, tokens: int) -> Iterator[tuple[str, list[Point]]]:
    """What runs in turn, by name."""
    experts = MoeFfn(
        experts=site.experts,
        experts_per_token=site.experts_per_token,
        intermediate=site.intermediate,
        shared_intermediate=0,
        has_shared_gate=False,
        has_correction_bias=False,
    )
    up, down = (
        replace(each, op="grouped_gemm_gathered") for each in sglang_points(experts, site.hidden, site.dtype, [tokens])
    )
    if site.has_each_alone:
        yield "up", [up]
        yield "down", [down]
    yield "both", [up, down]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    library, clock = VllmFusedMoe(), SmClock()
    if missing := library.missing():
        raise SystemExit(missing)
    with arguments.output.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow((*SHAPE, *MEASURED))
        for site in SITES:
            for tokens in TOKENS:
                for name, points in loads(site, tokens):
                    found = Load([library.kernel(each).run for each in points], clock).clocks()
                    rates = (sum(of(each) for each in points) / found.settled_us / 1e6 for of in (flops, moved_bytes))
                    block = library.configuration(points[0])[0]["BLOCK_SIZE_M"]
                    tiles = sum(-(-rows // block) for rows in points[0].lengths)
                    shape = (site.dtype, site.experts, site.experts_per_token, site.intermediate, site.hidden, tokens)
                    measured = (found.burst_us, found.burst_mhz, found.settled_us, found.settled_mhz, *rates)
                    values = (block * tiles / sum(points[0].lengths), *measured, found.power_w)
                    writer.writerow((*shape, name, block, *(round(value, 3) for value in values)))
                    file.flush()
                    torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
