"""Rules by which NCCL splits one collective: channels, threads, chunks, and the bytes of each channel.

Rules of NCCL 2.30.7 (src/enqueue.cc: algorithm info, work scheduling, chunk sizes) that several algorithms share;
channels and threads of ring LL are tested against values of its own code.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simccl.collective import Collective, Protocol

KIB = 1024

# Payload of one FIFO step and its alignment, bytes: LL 524,288 of buffer, half of it flags; LL128 4,915,200, 120 of
# 128 bytes payload; Simple 4 MiB. Eight steps per buffer.
FIFO_STEPS = 8
STEP_BYTES = {Protocol.LL: 32_768, Protocol.LL128: 576_000, Protocol.SIMPLE: 524_288}
GRAIN_BYTES = {Protocol.LL: 16, Protocol.LL128: 1_920, Protocol.SIMPLE: 512}

BYTES_PER_THREAD = {Protocol.LL: 8, Protocol.LL128: 8, Protocol.SIMPLE: 64}
"""Below which a thread has too little to do."""
LEAST_THREADS = 96
MOST_THREADS = 640
_LEAST_CHANNEL_TRAFFIC_BYTES = 32 * KIB


def most_threads(protocol: Protocol) -> int:
    """Threads of a channel with enough to do."""
    return MOST_THREADS if protocol is Protocol.LL128 else 512


def fewer_channels(size_bytes: NDArray[np.int64], channel_bytes: int, executed: int) -> NDArray[np.int64]:
    """[sizes] channels, each with ``channel_bytes`` at least, up to ``executed``."""
    return np.clip(size_bytes // channel_bytes, 1, executed)


def fewer_threads(
    size_bytes: NDArray[np.int64], channels: NDArray[np.int64], most: int, thread_bytes: int
) -> NDArray[np.int64]:
    """[sizes] threads per channel, halved from ``most`` on while a thread has less than ``thread_bytes``."""
    threads = np.full_like(size_bytes, most)
    while True:
        halved = (size_bytes < channels * threads * thread_bytes) & (threads % 128 == 0)
        if not halved.any():
            return threads
        threads = np.where(halved, threads // 2, threads)


def channel_offsets(
    op: Collective, size_bytes: int, ranks: int, protocol: Protocol, channels: int
) -> NDArray[np.int64]:
    """[used + 1] offsets that cut the buffer into the contiguous parts of the channels that get any.

    For all_gather and reduce_scatter the buffer is one rank's block. A channel gets whole cells of at least 32 KiB of
    traffic, so that small operations use few channels.
    """
    is_blocks = op in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
    buffer = -(-size_bytes // ranks) if is_blocks else size_bytes
    traffic = (2 if op is Collective.ALL_REDUCE else ranks if is_blocks else 1) * (4 if protocol is Protocol.LL else 1)
    cell = _aligned(-(-_LEAST_CHANNEL_TRAFFIC_BYTES // traffic), 16)
    cells = -(-buffer // cell)
    share = _aligned(-(-buffer * traffic // channels), 16)
    per_channel = max(1, min(cells, -(-share // (cell * traffic))))
    used = -(-cells // per_channel)
    return np.minimum(np.arange(used + 1, dtype=np.int64) * per_channel * cell, buffer)


def reduced_chunk(chunk: int, channel_bytes: int, heads: int, limits: tuple[tuple[int, int], ...]) -> int:
    """A chunk made smaller, limit by limit of (times, smaller chunk), for a channel with few bytes."""
    for times, smaller in limits:
        if channel_bytes < times * heads * chunk and chunk > smaller:
            chunk = smaller
    return chunk


def _aligned(value: int, to: int) -> int:
    return -(-value // to) * to
