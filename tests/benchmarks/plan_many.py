"""Flows planned per second on one core, and what a large plan takes: ``python -m tests.benchmarks.plan_many``."""

from __future__ import annotations

import os
import platform
import resource
import time

from simccl import Communicator, Plan, plan_collective
from tests.simccl.communicators import spread

CASES = [
    ("all_to_all", 1 << 20, 8, 8),
    ("all_to_all", 1 << 30, 128, 8),
    ("all_reduce", 1 << 30, 16, 8),
    ("all_gather", 1 << 30, 32, 8),
]


def timed(op: str, size_bytes: int, communicator: Communicator, **options: object) -> tuple[Plan, float]:
    """The plan and the seconds that it took, the best of three."""
    best = float("inf")
    for _ in range(3):
        begin = time.perf_counter()
        plan = plan_collective(op, size_bytes, communicator, **options)  # type: ignore[arg-type]
        best = min(best, time.perf_counter() - begin)
    return plan, best


def main() -> None:
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    for op, size_bytes, nodes, per_node in CASES:
        for options in ({}, {"coarsen": 1}) if op != "all_to_all" else ({},):
            communicator = spread(nodes, per_node)
            plan, seconds = timed(op, size_bytes, communicator, **options)
            rate = len(plan) / seconds
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            name = f"{op} {size_bytes >> 20} MiB {nodes}x{per_node} {plan.algorithm} {options or ''}"
            print(f"{name:60} {len(plan):>9,} flows {seconds:8.3f} s {rate:12,.0f} flows/s  peak {peak:,.0f} MiB")


if __name__ == "__main__":
    main()
