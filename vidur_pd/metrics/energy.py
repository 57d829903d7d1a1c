"""Energy of the GPUs: an estimate from two powers, for GPUs whose powers are known.

A GPU draws its board limit while its instance computes and its idle power otherwise, while it waits for collectives
too. That bounds what a real one draws from above in computation (kernels bound by memory stay below the limit) and is
below it in communication. CPUs, NICs, switches and cooling are not included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vidur_pd.metrics.summary import EnergySummary


@dataclass(frozen=True, slots=True)
class GpuPower:
    """Power of one GPU."""

    limit_w: float
    idle_w: float
    source: str


GPU_POWER = {
    "h200": GpuPower(
        700.0,
        79.7,
        "limit: NVIDIA H200 SXM data sheet, and nvidia-smi; idle: nvidia-smi, driver 580.159, 20 s at 345 MHz, 2026-11",
    ),
}
"""By name of the GPU. Others are left out until somebody has measured their idle power."""


@dataclass(frozen=True, slots=True)
class PoolActivity:
    """What the GPUs of a pool did."""

    name: str
    gpu: str
    gpus: int
    computing_gpu_s: float
    """Time that its GPUs have computed, summed over them."""


def energy_estimate(pools: Sequence[PoolActivity], makespan_s: float, output_tokens: int) -> EnergySummary | None:
    """Joules per pool and in all, flagged as an estimate; ``None`` where the power of some pool's GPU is not known."""
    if any(pool.gpu not in GPU_POWER for pool in pools):
        return None
    joules = {pool.name: _joules(pool, makespan_s) for pool in pools}
    total_j = sum(joules.values())
    return EnergySummary(
        is_estimate=True,
        gpu_j=total_j,
        gpu_j_per_output_token=total_j / output_tokens if output_tokens else None,
        pools_j=joules,
        sources={gpu: GPU_POWER[gpu].source for gpu in sorted({pool.gpu for pool in pools})},
    )


def _joules(pool: PoolActivity, makespan_s: float) -> float:
    power = GPU_POWER[pool.gpu]
    return power.idle_w * pool.gpus * makespan_s + (power.limit_w - power.idle_w) * pool.computing_gpu_s
