"""Decode attention as functions that the C++ core evaluates."""

from __future__ import annotations

import numpy as np

import aicb._core as _core
from aicb.kernels.fitting.estimate import VolumeTimes
from aicb.kernels.fitting.volume import PricedVolume
from aicb.kernels.kernel import CacheKernel
from aicb.measurements.clock import DENSE_PRODUCTS, PowerLoad
from aicb.measurements.gpu import Gpu
from aicb.measurements.timing import MeasuredTimes
from aicb.model.precision import Precision

SAMPLE_TOKENS = 1024
"""KV length around which FLOPs and bytes of a decode kernel are taken as linear; those of attention to all keys are."""


def volume_times(
    priced: PricedVolume,
    volume_of: _core.SplitKv,
    kernel: CacheKernel,
    precision: Precision,
    batch: int,
    measured: MeasuredTimes,
) -> VolumeTimes:
    """Times of ``batch`` sequences held to the roofline of the measured GPU; replays of a graph keep the cache in L2.

    Args:
        priced: time as a function of the volume.
        volume_of: the volume that lengths make.
        kernel: whose FLOPs and bytes bound the times; its lengths do not matter.
        precision: formats of cache and state.
        batch: sequences.
        measured: whose GPU and timing are meant.
    """
    bandwidth_share = np.inf if measured.timing == "graph" else 1.0
    times = _core.DecodeTimes(
        priced.time,
        volume_of=volume_of,
        bound=kv_cost(kernel, precision, batch, measured.gpu, (1.0, bandwidth_share)),
        volume_range=priced.volume_range,
        is_estimate=priced.is_estimate,
    )
    return VolumeTimes(times, priced.source, priced.error_of)


def kv_cost(
    kernel: CacheKernel,
    precision: Precision,
    batch: int,
    gpu: Gpu,
    shares: tuple[float, float],
    load: PowerLoad = DENSE_PRODUCTS,
) -> _core.KvCost:
    """Times that ``batch`` sequences take at these shares of the GPU's peak and bandwidth, as lines in KV tokens; that
    of the tensor cores as ``load`` counts it."""
    few, many = (kernel.over(np.array([tokens])).cost(precision) for tokens in (SAMPLE_TOKENS, 2 * SAMPLE_TOKENS))
    bytes_per_token = (many.moved_bytes - few.moved_bytes) / SAMPLE_TOKENS
    own_bytes = few.moved_bytes - SAMPLE_TOKENS * bytes_per_token
    flops_per_s, bytes_per_s = shares[0] * gpu.peak_flops[few.dtype], shares[1] * gpu.hbm_bytes_per_s
    tensor_us, memory_us = few.flops / SAMPLE_TOKENS / flops_per_s * 1e6, bytes_per_token / bytes_per_s * 1e6
    return _core.KvCost(
        tensor_us=load.slope * tensor_us + load.memory * memory_us,
        memory_us=memory_us,
        own_memory_us=batch * own_bytes / bytes_per_s * 1e6,
    )
