"""How NCCL splits one collective: channels, threads, chunks, and the bytes of each channel.

Rules of NCCL 2.30.7 (src/enqueue.cc: algorithm info, work scheduling, chunk sizes); channels and threads of ring LL
are tested against values of its own code.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simccl.arrangement import Arrangement
from simccl.collective import Algorithm, Collective, Protocol
from simccl.search import Channels, PathType, search
from simccl.tuning import AlgorithmCosts

A, P = Algorithm, Protocol
KIB = 1024

# Payload of one FIFO step and its alignment, bytes: LL 524,288 of buffer, half of it flags; LL128 4,915,200, 120 of
# 128 bytes payload; Simple 4 MiB. Eight steps per buffer.
FIFO_STEPS = 8
STEP_BYTES = {P.LL: 32_768, P.LL128: 576_000, P.SIMPLE: 524_288}
GRAIN_BYTES = {P.LL: 16, P.LL128: 1_920, P.SIMPLE: 512}

_BYTES_PER_THREAD = {P.LL: 8, P.LL128: 8, P.SIMPLE: 64}
_COLLNET_BYTES_PER_THREAD = 512
_LEAST_THREADS = 96
_MOST_THREADS = 640
_LEAST_CHANNEL_TRAFFIC_BYTES = 32 * KIB


def channels_and_threads(
    size_bytes: NDArray[np.int64], costs: AlgorithmCosts, protocol: Protocol, at: Arrangement
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """[sizes] channels and threads per channel: fewer than all where a thread would have too few bytes."""
    algorithm = costs.algorithm
    if algorithm in (A.NVLS, A.NVLS_TREE):
        return np.full_like(size_bytes, nvls_channels(at)), np.full_like(size_bytes, _MOST_THREADS)
    most, threshold = _most_threads(costs, protocol), _bytes_per_thread(costs, protocol)
    channels = np.full_like(size_bytes, costs.executed)
    if algorithm in (A.RING, A.TREE, A.PAT):
        channels = np.clip(size_bytes // (most * threshold), 1, costs.executed)
    threads = np.full_like(size_bytes, most)
    while True:
        halved = (size_bytes < channels * threads * threshold) & (threads % 128 == 0)
        if not halved.any():
            break
        threads = np.where(halved, threads // 2, threads)
    if algorithm in (A.TREE, A.PAT):
        threads = np.full_like(size_bytes, _MOST_THREADS)
    elif protocol is P.SIMPLE and algorithm is A.RING:
        threads = threads + 32
    return channels, np.maximum(threads, _LEAST_THREADS)


def nvls_channels(at: Arrangement) -> int:
    """Channels that NVLS and NVLSTree run on, whatever the search found."""
    return _nvls_limits(at)[0]


_NVLS_CHUNKS = ((64, 64 * KIB), (8, 32 * KIB), (2, 16 * KIB))
_NVLS_TREE_CHUNKS = ((32, 256 * KIB), (16, 128 * KIB), (4, 64 * KIB), (1, 32 * KIB))


def chunk_bytes(op: Collective, channel_bytes: int, costs: AlgorithmCosts, protocol: Protocol, at: Arrangement) -> int:
    """Largest piece that one channel handles at a time.

    ``channel_bytes`` is what one channel carries, for all_gather and reduce_scatter of all ranks' blocks together.
    """
    step = STEP_BYTES[protocol]
    match costs.algorithm:
        case A.RING if protocol is P.SIMPLE and op not in (Collective.BROADCAST, Collective.REDUCE):
            chunk = 4 * step
        case A.TREE if protocol is P.LL128:
            chunk = _tree_ll128_chunk(channel_bytes, step, at)
        case A.NVLS:
            chunk = _reduced(min(step, _nvls_limits(at)[1]), channel_bytes, costs.graph.channels, _NVLS_CHUNKS)
        case A.NVLS_TREE:
            chunk = _reduced(min(_nvls_limits(at)[1:]), channel_bytes, costs.graph.channels, _NVLS_TREE_CHUNKS)
        case A.PAT:
            chunk, times = step, 32 if op is Collective.ALL_GATHER else 16
            while times * chunk > channel_bytes and chunk > 64 * KIB:
                chunk //= 2
        case _:
            chunk = step
    return chunk // GRAIN_BYTES[protocol] * GRAIN_BYTES[protocol]


def channel_offsets(
    op: Collective, size_bytes: int, ranks: int, protocol: Protocol, channels: int
) -> NDArray[np.int64]:
    """[used + 1] offsets that cut the buffer into the contiguous parts of the channels that get any.

    For all_gather and reduce_scatter the buffer is one rank's block. A channel gets whole cells of at least 32 KiB of
    traffic, so that small operations use few channels.
    """
    is_blocks = op in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
    buffer = -(-size_bytes // ranks) if is_blocks else size_bytes
    traffic = (2 if op is Collective.ALL_REDUCE else ranks if is_blocks else 1) * (4 if protocol is P.LL else 1)
    cell = _aligned(-(-_LEAST_CHANNEL_TRAFFIC_BYTES // traffic), 16)
    cells = -(-buffer // cell)
    share = _aligned(-(-buffer * traffic // channels), 16)
    per_channel = max(1, min(cells, -(-share // (cell * traffic))))
    used = -(-cells // per_channel)
    return np.minimum(np.arange(used + 1, dtype=np.int64) * per_channel * cell, buffer)


def _most_threads(costs: AlgorithmCosts, protocol: Protocol) -> int:
    if protocol is P.LL128 or costs.algorithm in (A.COLLNET_DIRECT, A.COLLNET_CHAIN, A.PAT):
        return _MOST_THREADS
    graph = costs.graph
    is_slow = graph.channels * graph.intra_gbytes_per_s <= 12
    return 256 if costs.algorithm is A.RING and protocol is P.SIMPLE and is_slow else 512


def _bytes_per_thread(costs: AlgorithmCosts, protocol: Protocol) -> int:
    if costs.algorithm in (A.COLLNET_DIRECT, A.COLLNET_CHAIN):
        return _COLLNET_BYTES_PER_THREAD
    per_rank = costs.ranks if costs.algorithm is A.RING and protocol is P.LL else 1
    return _BYTES_PER_THREAD[protocol] * per_rank


def _nvls_limits(at: Arrangement) -> tuple[int, int, int]:
    """Channels, largest chunk of NVLS and of NVLSTree: Blackwell nodes are tuned by NIC and node count."""
    if at.gpu.compute_capability < 100:
        return 16, 128 * KIB, (64 if at.nodes >= 4 else 128) * KIB
    if at.nodes == 1:
        return 24, 128 * KIB, 128 * KIB
    channels, nvls, tree = _blackwell_nvls_kib(at, search(at))
    return channels, nvls * KIB, tree * KIB


def _blackwell_nvls_kib(at: Arrangement, channels: Channels) -> tuple[int, int, int]:
    nic, per_node = at.network_gbytes_per_s, at.gpus_per_node
    is_near = max(channels.tree.nic_path, channels.ring.nic_path) < PathType.PXN
    if at.nodes == 2 and nic >= 48:
        if per_node <= 4:
            return 32, 256, 256
        return (32, 128, 64) if per_node >= 16 or (per_node <= 8 and is_near and nic < 96) else (32, 128, 128)
    if nic >= 96:
        return (24, 256, 256) if per_node <= 8 else (32, 128, 128 if per_node < 32 else 64)
    if nic >= 48:
        return 24, 128, 64 if is_near else 128
    return 32, 128, 64 if at.nodes >= 4 else 128


def _tree_ll128_chunk(channel_bytes: int, chunk: int, at: Arrangement) -> int:
    per_node = at.ranks / at.nodes
    steps = 1 + (at.nodes.bit_length() - 1) + 0.1 * per_node
    for times, least in ((64, 131_072), (16, 32_768)):
        while channel_bytes // chunk < times * steps / per_node and chunk > least:
            chunk //= 2
    return chunk


def _reduced(chunk: int, channel_bytes: int, heads: int, limits: tuple[tuple[int, int], ...]) -> int:
    for times, smaller in limits:
        if channel_bytes < times * heads * chunk and chunk > smaller:
            chunk = smaller
    return chunk


def _aligned(value: int, to: int) -> int:
    return -(-value // to) * to
