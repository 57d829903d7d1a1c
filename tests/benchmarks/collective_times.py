#!/usr/bin/env python3
"""Rate of closed-form collective times on one core: calls per second, with the machine.

    python tests/benchmarks/collective_times.py

Rows are 500,000 random collectives: six operations, 1 B to 1 GiB, 1 to 64 ranks on 1 to 8 nodes, four GPU types, with
and without corrections; then one operation on one communicator. Prints; does not gate.
"""

from __future__ import annotations

import os
import platform
import time

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np

from simccl import time_table
from simccl.planning.calibration import Calibrated

ROWS = 500_000
OPS = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"]


def main() -> None:
    rng = np.random.default_rng(1)
    sizes = np.exp2(rng.uniform(0, 30, ROWS)).astype(np.int64)
    nodes = rng.choice([1, 1, 1, 2, 4, 8], ROWS)
    ranks = nodes * rng.choice([1, 2, 4, 8], ROWS)
    ops, gpus = rng.choice(OPS, ROWS), rng.choice(["a100", "h100", "h200", "b200"], ROWS)
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, numpy {np.__version__}")
    modes: tuple[Calibrated, ...] = ("shipped", "none")
    for calibration in modes:
        start = time.process_time()
        time_table(ops, sizes, ranks, nodes, gpus, calibration=calibration)
        rate = ROWS / (time.process_time() - start)
        print(f"mixed table, calibration {calibration:8s} {rate:12,.0f} calls/s of CPU time")
    start = time.process_time()
    time_table(["all_reduce"] * ROWS, sizes, [8] * ROWS, [1] * ROWS, "h100")
    print(f"one communicator                 {ROWS / (time.process_time() - start):12,.0f} calls/s of CPU time")


if __name__ == "__main__":
    main()
