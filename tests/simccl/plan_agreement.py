"""Plans on a backend against NCCL's closed form, as a table: ``python -m tests.simccl.plan_agreement [packet]``.

One node of eight H100s, NCCL's constants without corrections by measurements. Merged plans, and plans with all of
NCCL's loops, chunks, slices, queues and credits. The backend is ``fluid`` where none is named.
"""

from __future__ import annotations

import sys

from simccl import Algorithm, Collective, plan_collective
from simccl.planning.choice import choose
from tests.simccl.communicators import run_on_idle, spread

NODE_OF_H100 = "h20"
"""NVLinks and NCCL constants of an H100; no corrections are shipped for it."""
SIZES = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20]
CASES = [
    (Collective.ALL_REDUCE, Algorithm.RING),
    (Collective.ALL_GATHER, Algorithm.RING),
    (Collective.ALL_REDUCE, Algorithm.TREE),
    (Collective.ALL_REDUCE, Algorithm.NVLS),
    (Collective.BROADCAST, Algorithm.RING),
]


def deviation(op: Collective, algorithm: Algorithm, size: int, coarsen: int | None, backend: str = "fluid") -> float:
    """Time of the plan over that of the closed form, less one."""
    communicator = spread(1, 8, NODE_OF_H100)
    chosen = choose(op, size, communicator, algorithm=algorithm)
    executed = run_on_idle(plan_collective(op, size, communicator, algorithm=algorithm, coarsen=coarsen), backend)
    return executed / 1e6 / chosen.time_us - 1


def main() -> None:
    backend = sys.argv[1] if len(sys.argv) > 1 else "fluid"
    names = [f"{size >> 10} KiB" if size < 1 << 20 else f"{size >> 20} MiB" for size in SIZES]
    print("| plan |", " | ".join(names), "|")
    print("|---|" + "---|" * len(SIZES))
    for coarsen, kind in ((None, "merged"), (1, "in chunks")):
        for op, algorithm in CASES:
            found = [f"{100 * deviation(op, algorithm, size, coarsen, backend):+.1f}" for size in SIZES]
            print(f"| {op} {algorithm}, {kind} |", " | ".join(found), "|")


if __name__ == "__main__":
    main()
