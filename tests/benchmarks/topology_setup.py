"""Seconds to build, write, read and draw fabrics of 16,000 GPUs: ``python -m tests.benchmarks.topology_setup``."""

from __future__ import annotations

import os
import platform
import resource
import time
from collections.abc import Callable
from typing import TypeVar

from netsim import (
    DragonflyShape,
    Topology,
    alibaba_hpn,
    create_backend,
    dragonfly,
    fat_tree,
    from_simai,
    from_yaml,
    rail_optimized,
    to_simai,
    to_yaml,
)
from netsim.topologies.picture import to_svg

Result = TypeVar("Result")

CASES: dict[str, Callable[[], Topology]] = {
    "Alibaba HPN, one plane": lambda: alibaba_hpn(1920),
    "rail-optimised": lambda: rail_optimized(2048),
    "fat tree, k = 42": lambda: fat_tree(42, nodes=16384),
    "dragonfly, p = 8": lambda: dragonfly(DragonflyShape.balanced(8)),
}


def best_of_three(work: Callable[[], Result]) -> tuple[Result, float]:
    """What the work gives, and the least seconds it took."""
    best = float("inf")
    for _ in range(3):
        begin = time.perf_counter()
        result = work()
        best = min(best, time.perf_counter() - begin)
    return result, best


def main() -> None:
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    for name, build in CASES.items():
        topology, seconds = best_of_three(build)
        times = {"build": seconds}
        simai, times["to_simai"] = best_of_three(lambda topology=topology: to_simai(topology))
        _, times["from_simai"] = best_of_three(lambda simai=simai: from_simai(simai))
        yaml, times["to_yaml"] = best_of_three(lambda topology=topology: to_yaml(topology))
        _, times["from_yaml"] = best_of_three(lambda yaml=yaml: from_yaml(yaml))
        _, times["networkx"] = best_of_three(topology.to_networkx)
        _, times["picture"] = best_of_three(lambda topology=topology: to_svg(topology))
        _, times["fluid"] = best_of_three(lambda topology=topology: create_backend("fluid", topology).close())
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{name:24} {topology.gpus:>7,} GPUs {topology.links // 2:>8,} cables  peak {peak:,.0f} MiB")
        print("    " + "  ".join(f"{step} {seconds:.3f} s" for step, seconds in times.items()))


if __name__ == "__main__":
    main()
