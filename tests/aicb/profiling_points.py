"""Points of profiler tests, from keywords."""

from __future__ import annotations

from aicb.kernels.point import Point, point


def at(
    op: str,
    dtype: str = "bf16",
    *,
    queries: tuple[int, ...] = (),
    lengths: tuple[int, ...] = (),
    tag: str = "",
    priority: int = 0,
    **shape: int,
) -> Point:
    return point(op, dtype, shape, queries=queries, lengths=lengths, tag=tag, priority=priority)
