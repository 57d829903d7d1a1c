"""Multimem all_reduce of inference engines: symmetric memory, reduced and multicast by the NVSwitch.

S(1 + 1/n) go in and out of every GPU, as with NVLS on one node (`simccl.algorithms.switch_flows`).
"""

from __future__ import annotations

from simccl.algorithms.algorithm import EngineKernel
from simccl.algorithms.flow_rates import FlowRates
from simccl.algorithms.switch_flows import switch_flows, switch_payload_bytes
from simccl.collective import Algorithm, Collective, Protocol
from simccl.communicator.communicator import Communicator
from simccl.plan.flows import PlannedFlows
from simccl.plan.plan import Plan


class Multimem(EngineKernel):
    """Loads and stores of multicast addresses."""

    name = Algorithm.MULTIMEM

    def traffic(self, ranks: int) -> float:
        return 1 + 1 / ranks

    def flows(self, size_bytes: int, communicator: Communicator, bytes_per_s: float) -> PlannedFlows:
        moved = self.traffic(communicator.size) * float(size_bytes)
        rates = FlowRates(
            protocol=Protocol.SIMPLE,
            base_latency_us=0.0,
            nvlink_hop_us=0.0,
            network_hop_us=0.0,
            bytes_per_s=bytes_per_s * size_bytes / moved,
        )
        return switch_flows(Collective.ALL_REDUCE, size_bytes, communicator, rates, chunks=None)

    def payload_bytes(self, plan: Plan) -> int:
        return switch_payload_bytes(plan)
