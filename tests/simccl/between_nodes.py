#!/usr/bin/env python3
"""Collectives between nodes against published outputs of nccl-tests.

    python -m tests.simccl.between_nodes

Nodes of eight GPUs with a 400 Gbit/s NIC each. Nothing was fitted to these times, nor to others between nodes; which
algorithms take the corrections of one node was decided by them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from netsim import rail_optimized
from simccl import Communicator, collective_time
from simccl.planning.calibration import Calibrated

KIB, MIB, GIB = 2**10, 2**20, 2**30


@dataclass(frozen=True, slots=True)
class Published:
    """In-place times of nccl-tests [us], by bytes as nccl-tests counts them: of all ranks together for all_gather and
    reduce_scatter, of one rank for the others."""

    gpu: str
    nodes: int
    source: str
    times_us: Mapping[int, float]
    operation: str = "all_reduce"


REPORT = "a report of acceptance tests of HGX B200 at Vultr of 2026-05-18, ConnectX-7 at 324 to 369 Gbit/s"
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
        "a guide to Slurm clusters of Oracle's oci-hpc, RoCE, NCCL 2.27.5",
        {GIB: 4382.1, 2 * GIB: 8500.0, 4 * GIB: 16759.0, 8 * GIB: 33228.0, 16 * GIB: 66226.0},
    ),
    "D, 2 nodes": Published(
        "h200",
        2,
        "virtual machines on XE9680, BlueField-3 with RoCE, NCCL 2.30.4",
        {
            **{KIB: 43.74, 4 * KIB: 44.16, 16 * KIB: 53.76, 64 * KIB: 65.48, 128 * KIB: 83.01, 256 * KIB: 63.42},
            **{512 * KIB: 79.93, MIB: 77.16, 2 * MIB: 86.03, 4 * MIB: 105.58, 8 * MIB: 149.06, 16 * MIB: 207.61},
            **{32 * MIB: 277.0, 64 * MIB: 460.78, 128 * MIB: 747.72, 256 * MIB: 1278.78, 512 * MIB: 2322.37},
            **{GIB: 4385.35, 2 * GIB: 8501.88, 4 * GIB: 16716.5, 8 * GIB: 33208.0, 16 * GIB: 66345.5},
        },
    ),
    "E, all-gather, 2 nodes": Published(
        "h200",
        2,
        "SkyPilot's examples/gcp_gpu_direct_tcpx, pods on Google's A3 Ultra, RoCE, NCCL 2.26.6",
        {
            **{KIB: 27.82, 4 * KIB: 28.35, 16 * KIB: 31.70, 64 * KIB: 34.58, 128 * KIB: 37.37, 256 * KIB: 37.89},
            **{512 * KIB: 40.59, MIB: 53.14, 2 * MIB: 66.52, 4 * MIB: 71.70, 8 * MIB: 86.18, 16 * MIB: 123.6},
            **{32 * MIB: 176.9, 64 * MIB: 271.8, 128 * MIB: 486.3, 256 * MIB: 870.5, 512 * MIB: 1568.3},
            **{GIB: 3084.1, 2 * GIB: 6097.1, 4 * GIB: 12135.0, 8 * GIB: 24244.0},
        },
        "all_gather",
    ),
    "F, all-gather, 2 nodes": Published(
        "b200",
        2,
        "Google's documentation of NCCL/gIB, two A4 machines, RoCE, NCCL 2.25.1",
        {
            **{4 * KIB: 57.49, 16 * KIB: 59.03, 64 * KIB: 62.17, 128 * KIB: 64.48, 256 * KIB: 67.05, 512 * KIB: 67.83},
            **{MIB: 113.7, 2 * MIB: 118.1, 4 * MIB: 122.6, 8 * MIB: 130.7, 16 * MIB: 139.7, 32 * MIB: 152.1},
            **{64 * MIB: 225.9, 128 * MIB: 438.0, 256 * MIB: 735.9, 512 * MIB: 1418.4, GIB: 2768.9},
            **{2 * GIB: 5418.7, 4 * GIB: 10746.0, 8 * GIB: 21421.0, 16 * GIB: 42792.0},
        },
        "all_gather",
    ),
    "G, all-gather, 2 nodes": Published(
        "b200",
        2,
        f"{REPORT}, all_gather",
        {
            **{256: 34.39, KIB: 34.46, 4 * KIB: 34.93, 16 * KIB: 35.67, 64 * KIB: 39.52, 128 * KIB: 41.79},
            **{256 * KIB: 74.28, 512 * KIB: 76.20, MIB: 77.54, 2 * MIB: 128.68, 4 * MIB: 139.42, 8 * MIB: 149.72},
            **{16 * MIB: 200.08, 32 * MIB: 244.29, 64 * MIB: 489.60, 128 * MIB: 619.92, 256 * MIB: 1012.45},
            **{512 * MIB: 1693.24, GIB: 3321.73, 2 * GIB: 6575.66, 4 * GIB: 13087.2, 8 * GIB: 26131.9},
        },
        "all_gather",
    ),
    "G, reduce-scatter, 2 nodes": Published(
        "b200",
        2,
        f"{REPORT}, reduce_scatter",
        {
            **{256: 33.79, KIB: 34.79, 4 * KIB: 35.43, 16 * KIB: 36.46, 64 * KIB: 39.49, 128 * KIB: 42.12},
            **{256 * KIB: 78.74, 512 * KIB: 80.76, MIB: 82.84, 2 * MIB: 129.45, 4 * MIB: 140.56, 8 * MIB: 151.27},
            **{16 * MIB: 202.30, 32 * MIB: 246.92, 64 * MIB: 487.91, 128 * MIB: 619.36, 256 * MIB: 1014.39},
            **{512 * MIB: 1703.16, GIB: 3329.39, 2 * GIB: 6586.72, 4 * GIB: 13094.5, 8 * GIB: 26239.1},
        },
        "reduce_scatter",
    ),
    "G, all-to-all, 2 nodes": Published(
        "b200",
        2,
        f"{REPORT}, alltoall_v2",
        {
            **{KIB: 36.38, 4 * KIB: 37.27, 16 * KIB: 37.36, 64 * KIB: 40.34, 128 * KIB: 42.85, 256 * KIB: 47.77},
            **{512 * KIB: 59.65, MIB: 77.14, 2 * MIB: 101.09, 4 * MIB: 126.07, 8 * MIB: 196.61, 16 * MIB: 305.59},
            **{32 * MIB: 536.66, 64 * MIB: 1001.40, 128 * MIB: 1934.37, 256 * MIB: 3766.50, 512 * MIB: 7439.85},
            **{GIB: 14782.3, 2 * GIB: 29386.2, 4 * GIB: 58508.4, 8 * GIB: 116420.0},
        },
        "all_to_all",
    ),
    "G, 2 nodes": Published(
        "b200",
        2,
        f"{REPORT}, all_reduce",
        {
            **{8: 35.19, 64: 35.51, 512: 37.06, KIB: 37.62, 4 * KIB: 39.34, 16 * KIB: 41.45, 64 * KIB: 43.10},
            **{128 * KIB: 61.23, 256 * KIB: 65.58, 512 * KIB: 77.29, MIB: 93.02, 2 * MIB: 101.33, 4 * MIB: 111.68},
            **{8 * MIB: 133.99, 16 * MIB: 188.98, 32 * MIB: 245.14, 64 * MIB: 343.17, 128 * MIB: 600.90},
            **{256 * MIB: 936.72, 512 * MIB: 1624.59, GIB: 3019.36, 2 * GIB: 5803.56, 4 * GIB: 11383.9},
            **{8 * GIB: 22543.8, 16 * GIB: 44872.3},
        },
    ),
}
RANGES = {"to 1 KiB": (0, KIB), "4 KiB to 512 KiB": (KIB, 512 * KIB), "1 to 256 MiB": (512 * KIB, 256 * MIB)}
RANGES["from 512 MiB"] = (256 * MIB, 2**40)
"""Bytes above the first and up to the second."""
GROUPS = {
    "Hopper": [name for name, published in CLUSTERS.items() if published.gpu != "b200"],
    "B200": [name for name, published in CLUSTERS.items() if published.gpu == "b200"],
}


def errors(name: str, calibration: Calibrated = "shipped") -> Iterator[tuple[int, float]]:
    """(bytes, simulated over measured - 1)."""
    published = CLUSTERS[name]
    communicator = Communicator(tuple(range(8 * published.nodes)), rail_optimized(published.nodes, 8), published.gpu)
    for size, time_us in published.times_us.items():
        time = collective_time(published.operation, size, communicator, calibration=calibration)
        yield size, time.time_ps / 1e6 / time_us - 1.0


def within(name: str, least: int, most: int, calibration: Calibrated = "shipped") -> list[float]:
    """Errors of the sizes above the first and up to the second."""
    return [error for size, error in errors(name, calibration) if least < size <= most]


def absolute(names: Iterable[str], calibration: Calibrated = "shipped") -> list[float]:
    """Absolute errors of all sizes."""
    return [abs(error) for name in names for _, error in errors(name, calibration)]


def report(calibration: Calibrated) -> None:
    for name in CLUSTERS:
        cells = []
        for title, limits in RANGES.items():
            if found := within(name, *limits, calibration):
                cells.append(f"{title}: {min(found):+.0%} to {max(found):+.0%}, median {np.median(np.abs(found)):.1%}")
        print(f"  {name}: " + "; ".join(cells))
    for title, names in GROUPS.items():
        every = absolute(names, calibration)
        print(f"  {title}, {len(every)}: median {np.median(every):.1%}, p90 {np.quantile(every, 0.9):.1%}")


def main() -> None:
    print("NCCL's constants")
    report("none")
    print("corrected as inside a node")
    report("shipped")


if __name__ == "__main__":
    main()
