#!/usr/bin/env python3
"""All-reduces between nodes by NCCL's constants against published outputs of nccl-tests.

    python -m tests.simccl.between_nodes

Nodes of eight GPUs with a 400 Gbit/s NIC each. Nothing was fitted to these times, nor to others between nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from netsim import rail_optimized
from simccl import Communicator, collective_time

KIB, MIB, GIB = 2**10, 2**20, 2**30


@dataclass(frozen=True, slots=True)
class Published:
    """In-place times of ``all_reduce_perf`` in fp32 [us], by bytes."""

    gpu: str
    nodes: int
    source: str
    times_us: Mapping[int, float]


ISSUE = "github.com/NVIDIA/nccl-tests/issues/309"
CLUSTERS = {
    "A, 2 nodes": Published(
        "h100",
        2,
        f"{ISSUE}, XE9680, ConnectX-7, NCCL 2.26.2",
        {
            **{8: 24.70, 64: 25.21, 512: 26.31, KIB: 26.65, 4 * KIB: 29.72, 16 * KIB: 32.24, 64 * KIB: 33.08},
            **{128 * KIB: 38.12, 256 * KIB: 46.79, 512 * KIB: 70.33, MIB: 71.47, 2 * MIB: 76.62, 4 * MIB: 94.22},
            **{8 * MIB: 131.4, 16 * MIB: 183.8, 32 * MIB: 267.7, 64 * MIB: 466.3, 128 * MIB: 749.2, 256 * MIB: 1276.0},
            **{512 * MIB: 2355.1, GIB: 4470.2, 2 * GIB: 8717.2, 4 * GIB: 17284.0, 8 * GIB: 34365.0, 16 * GIB: 68668.0},
        },
    ),
    "A, 4 nodes": Published(
        "h100",
        4,
        f"{ISSUE}, virtual machines on XE9680, NCCL 2.26.2",
        {
            **{8: 34.75, 64: 34.92, 512: 36.72, KIB: 37.10, 4 * KIB: 41.42, 16 * KIB: 46.39, 64 * KIB: 47.60},
            **{128 * KIB: 55.06, 256 * KIB: 66.86, 512 * KIB: 72.78, MIB: 82.21, 2 * MIB: 132.2, 4 * MIB: 154.0},
            **{8 * MIB: 202.4, 16 * MIB: 258.3, 32 * MIB: 370.3, 64 * MIB: 574.4, 128 * MIB: 1013.1, 256 * MIB: 1772.4},
            **{512 * MIB: 3111.7, GIB: 5802.8, 2 * GIB: 11501.0, 4 * GIB: 22874.0, 8 * GIB: 45573.0, 16 * GIB: 91081.0},
        },
    ),
    "B, 2 nodes": Published(
        "h100",
        2,
        f"{ISSUE}, comment of 2025-06-18",
        {
            **{MIB: 82.98, 2 * MIB: 93.52, 4 * MIB: 111.9, 8 * MIB: 150.5, 16 * MIB: 202.7, 32 * MIB: 269.7},
            **{64 * MIB: 469.6, 128 * MIB: 751.2, 256 * MIB: 1290.4, 512 * MIB: 2371.3, GIB: 4503.5},
            **{2 * GIB: 8777.6, 4 * GIB: 17341.0, 8 * GIB: 34514.0},
        },
    ),
    "B, 8 nodes": Published(
        "h100",
        8,
        f"{ISSUE}, comment of 2025-06-18",
        {
            **{MIB: 115.7, 2 * MIB: 143.3, 4 * MIB: 203.8, 8 * MIB: 321.4, 16 * MIB: 373.5, 32 * MIB: 508.2},
            **{64 * MIB: 709.2, 128 * MIB: 1149.5, 256 * MIB: 2028.1, 512 * MIB: 3509.4, GIB: 7414.5},
            **{2 * GIB: 13300.0, 4 * GIB: 26340.0, 8 * GIB: 52754.0},
        },
    ),
    "C, 2 nodes": Published(
        "h200",
        2,
        "a public cloud's example of its Slurm clusters, RoCE, NCCL 2.27.5",
        {GIB: 4382.1, 2 * GIB: 8500.0, 4 * GIB: 16759.0, 8 * GIB: 33228.0, 16 * GIB: 66226.0},
    ),
}
RANGES = {"to 1 KiB": (0, KIB), "4 KiB to 512 KiB": (KIB, 512 * KIB), "1 to 256 MiB": (512 * KIB, 256 * MIB)}
RANGES["from 512 MiB"] = (256 * MIB, 2**40)
"""Bytes above the first and up to the second."""


def errors(name: str) -> Iterator[tuple[int, float]]:
    """(bytes, simulated over measured - 1)."""
    published = CLUSTERS[name]
    communicator = Communicator(tuple(range(8 * published.nodes)), rail_optimized(published.nodes, 8), published.gpu)
    for size, time_us in published.times_us.items():
        yield size, collective_time("all_reduce", size, communicator).time_ps / 1e6 / time_us - 1.0


def within(name: str, least: int, most: int) -> list[float]:
    return [error for size, error in errors(name) if least < size <= most]


def main() -> None:
    for name in CLUSTERS:
        cells = []
        for title, limits in RANGES.items():
            if found := within(name, *limits):
                cells.append(f"{title}: {min(found):+.0%} to {max(found):+.0%}, median {np.median(np.abs(found)):.1%}")
        print(f"{name}: " + "; ".join(cells))
    every = [abs(error) for name in CLUSTERS for _, error in errors(name)]
    print(f"all {len(every)}: median {np.median(every):.1%}, p90 {np.quantile(every, 0.9):.1%}")


if __name__ == "__main__":
    main()
