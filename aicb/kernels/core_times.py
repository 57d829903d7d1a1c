"""Decode attention as functions that the C++ core evaluates."""

from __future__ import annotations

from aicb import _core
from aicb.kernels.fitting.estimate import VolumeTimes
from aicb.kernels.fitting.volume import PricedVolume
from aicb.kernels.kernel import KernelCost
from aicb.measurements.timing import MeasuredTimes


def volume_times(
    priced: PricedVolume, volume_of: float | _core.SplitKv, one: KernelCost, measured: MeasuredTimes
) -> VolumeTimes:
    """Times held to the roofline of the GPU.

    Args:
        priced: time as a function of the volume.
        volume_of: volume per KV token, or a schedule.
        one: cost of one KV token.
        measured: whose GPU bounds the times; replays of a graph keep the cache in L2.
    """
    gpu = measured.gpu
    memory_s = 0.0 if measured.timing == "graph" else one.moved_bytes / gpu.hbm_bytes_per_s
    times = _core.DecodeTimes(
        priced.time,
        volume_of=volume_of,
        bound_us=max(memory_s, one.flops / gpu.peak_flops["bf16"]) * 1e6,
        volume_range=priced.volume_range,
        is_estimate=priced.is_estimate,
    )
    return VolumeTimes(times, priced.source, priced.error_of)
