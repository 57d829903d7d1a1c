"""All_reduce of inference engines by direct reads of peers' buffers over NVLink, one-shot and two-shot.

One-shot: every rank reads the whole buffer of every other rank and adds up for itself, (n−1)·S in and out. Two-shot:
every rank adds up one block of all buffers, then reads the other blocks' sums from their owners, 2(n−1)/n·S in and out.
vLLM csrc/custom_all_reduce.cuh and TensorRT-LLM customAllReduceKernels.cu. Reads are flows from the rank that is read.

``bytes_per_s`` is what a kernel moves into, and out of, one GPU; every rank reads from all others at once, a part of it
each. Flags before, between and after the stages are in the base latency of the plan.
"""

from __future__ import annotations

import numpy as np

from simccl.algorithms.pace import Lanes
from simccl.collective import Protocol, shares
from simccl.plan import PARTIAL_SUM, Operation, PlannedFlows


def one_shot_flows(size_bytes: int, ranks: int, bytes_per_s: float) -> PlannedFlows:
    """Every rank's buffer to every other rank; the origin tells whose contribution a flow is."""
    reader, peer = (g.ravel() for g in np.indices((ranks, ranks)))
    away = reader != peer
    src, dst = peer[away], reader[away]
    return Lanes(
        src=src,
        dst=dst,
        payload_bytes=np.full(len(src), size_bytes, dtype=np.int64),
        channel=(src - dst) % ranks,
        step=np.zeros(len(src), dtype=np.int64),
        origin=src,
        offset=np.zeros(len(src), dtype=np.int64),
        operation=Operation.COPY,
        latency_ps=np.zeros(len(src), dtype=np.int64),
        wire_rate=np.array([bytes_per_s / (ranks - 1)]),
        edges=(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)),
    ).flows(Protocol.SIMPLE)


def two_shot_flows(size_bytes: int, ranks: int, bytes_per_s: float) -> PlannedFlows:
    """Reduce-scatter by reads, then all-gather by reads; a block is read when it is complete."""
    bounds = shares(size_bytes, ranks)
    owner, peer = (g.ravel() for g in np.indices((ranks, ranks)))
    kept = (owner != peer) & (np.diff(bounds)[owner] > 0)
    owner, peer = owner[kept], peer[kept]
    count = len(owner)
    same_owner, before = np.nonzero(owner[:, None] == owner)
    twice = np.tile(owner, 2)
    src = np.concatenate((peer, owner))
    dst = np.concatenate((owner, peer))
    return Lanes(
        src=src,
        dst=dst,
        payload_bytes=np.diff(bounds)[twice],
        channel=(src - dst) % ranks,
        step=np.repeat(np.arange(2), count),
        origin=PARTIAL_SUM,
        offset=bounds[twice],
        operation=np.repeat(np.array([Operation.REDUCE, Operation.COPY]), count),
        latency_ps=np.zeros(2 * count, dtype=np.int64),
        wire_rate=np.array([bytes_per_s / (ranks - 1)]),
        edges=(count + same_owner, before),
    ).flows(Protocol.SIMPLE)
