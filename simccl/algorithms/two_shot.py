"""Two-shot all_reduce of inference engines: reduce-scatter, then all-gather, by reads of peers' buffers over NVLink.

Every rank adds up one block of all buffers, then reads the other blocks' sums from their owners: 2(n−1)/n·S go in and
out of every GPU. vLLM csrc/custom_all_reduce.cuh and TensorRT-LLM customAllReduceKernels.cu. Reads are flows from the
rank that is read. Flags before, between and after the stages are in the base latency of the plan.
"""

from __future__ import annotations

import numpy as np

from simccl.algorithms.algorithm import EngineKernel
from simccl.algorithms.flow_rates import Lanes
from simccl.collective import Algorithm, Protocol, shares
from simccl.communicator.communicator import Communicator
from simccl.plan.flows import PARTIAL_SUM, Operation, PlannedFlows
from simccl.plan.plan import Plan


class TwoShot(EngineKernel):
    """Blocks added up by their owners, then read by all."""

    name = Algorithm.TWO_SHOT

    def traffic(self, ranks: int) -> float:
        return 2 * (ranks - 1) / ranks

    def flows(self, size_bytes: int, communicator: Communicator, bytes_per_s: float) -> PlannedFlows:
        return two_shot_flows(size_bytes, communicator.size, bytes_per_s)

    def payload_bytes(self, plan: Plan) -> int:
        """Every block n−1 times to its owner and n−1 times from it."""
        return 2 * (plan.communicator.size - 1) * plan.size_bytes


def two_shot_flows(size_bytes: int, ranks: int, bytes_per_s: float) -> PlannedFlows:
    """Reduce-scatter by reads, then all-gather by reads; a block is read when it is complete.

    ``bytes_per_s`` go into, and out of, one GPU; a rank reads from all others at once, a part of it each.
    """
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
