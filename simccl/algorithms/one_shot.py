"""One-shot all_reduce of inference engines: every rank reads the buffers of all others over NVLink and adds up.

(n−1)·S go in and out of every GPU. vLLM csrc/custom_all_reduce.cuh and TensorRT-LLM customAllReduceKernels.cu. Reads
are flows from the rank that is read. Flags before and after are in the base latency of the plan.
"""

from __future__ import annotations

import numpy as np

from simccl.algorithms.algorithm import EngineKernel
from simccl.algorithms.flow_rates import Lanes
from simccl.collective import Algorithm, Collective, Protocol
from simccl.communicator.communicator import Communicator
from simccl.plan.flows import Operation, PlannedFlows
from simccl.plan.plan import Plan
from simccl.plan.postcondition import BufferPostcondition, Postcondition


class OneShot(EngineKernel):
    """Every rank collects the contributions of all others instead of one sum."""

    name = Algorithm.ONE_SHOT

    def traffic(self, ranks: int) -> float:
        return ranks - 1.0

    def flows(self, size_bytes: int, communicator: Communicator, bytes_per_s: float) -> PlannedFlows:
        return one_shot_flows(size_bytes, communicator.size, bytes_per_s)

    def payload_bytes(self, plan: Plan) -> int:
        """The buffer from everyone to everyone."""
        return plan.communicator.size * (plan.communicator.size - 1) * plan.size_bytes

    def postcondition(self, op: Collective, size_bytes: int, ranks: int, root: int) -> Postcondition:
        return BufferPostcondition(op, size_bytes, ranks, root, keeps_contributions_apart=True)


def one_shot_flows(size_bytes: int, ranks: int, bytes_per_s: float) -> PlannedFlows:
    """Every rank's buffer to every other rank; the origin says whose contribution a flow is.

    ``bytes_per_s`` go into, and out of, one GPU; a rank reads from all others at once, a part of it each.
    """
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
