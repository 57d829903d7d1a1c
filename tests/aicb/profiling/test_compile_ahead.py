"""Which points are compiled before they are measured, and in which tasks."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from aicb.kernels.point import Point, point
from aicb.profiling.compile_ahead import _tasks


def of(op: str, dtype: str, distribution: str = "", **shape: int) -> Point:
    return point(op, dtype, {"n": 256, "k": 128, **shape}, distribution=distribution)


def test_points_that_share_kernels_are_one_task_and_others_none() -> None:
    compiled = [
        of("gemm", "fp8", m=64),
        of("gemm_swapped", "fp8", m=4),
        of("grouped_gemm_masked", "bf16", "balanced", groups=4, rows=32),
        of("fused_experts", "fp8", "multinomial of 8", groups=4, rows=3, m=8),
        of("fused_experts", "fp8", "multinomial of 8", groups=4, rows=5, m=16),
    ]
    others = [
        of("gemm", "bf16", m=64),
        of("grouped_gemm_masked", "bf16", "zipf1.0", groups=4, rows=32),
        of("grouped_gemm_gathered", "fp8", "multinomial", groups=4, rows=32),
        of("rms_norm", "bf16", m=64),
    ]
    tasks = _tasks([*others, *compiled])
    assert sorted(each.key for task in tasks.values() for each in task) == sorted(each.key for each in compiled)
    assert len(tasks) == 5
    assert len(_tasks([compiled[0], of("gemm", "fp8", m=50)])) == 1
