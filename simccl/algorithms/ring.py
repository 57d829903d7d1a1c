"""Rings: every rank sends to the next one (NCCL 2.30.7, ring kernels of src/device).

All_reduce, all_gather and reduce_scatter run in merged loops (`simccl.algorithms.merged_ring`) or NCCL's own
(`simccl.algorithms.ring_loops`); broadcast and reduce are pipelined (`simccl.algorithms.pipelined_ring`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simccl.algorithms.algorithm import FlowRequest, NcclAlgorithm, channel_gbytes_per_s, nodes_column, passes
from simccl.algorithms.merged_ring import RingHops, ring_flows
from simccl.algorithms.pipelined_ring import pipelined_ring_flows
from simccl.algorithms.ring_loops import Loops, ring_loop_flows
from simccl.algorithms.tree import Tree, has_ll128, ll_limit_gbytes_per_s
from simccl.collective import Algorithm, Collective, Protocol
from simccl.communicator.shape import CommunicatorShape, Cpu
from simccl.nccl.costs import AlgorithmCosts, Latencies
from simccl.nccl.search import Channels, Graph
from simccl.nccl.work_split import (
    BYTES_PER_THREAD,
    LEAST_THREADS,
    STEP_BYTES,
    fewer_channels,
    fewer_threads,
    most_threads,
)
from simccl.plan.flows import PlannedFlows
from simccl.plan.plan import Plan
from simccl.plan.postcondition import PlanError, Postcondition

_PIPELINED = (Collective.BROADCAST, Collective.REDUCE)
_HOST_OVERHEAD_US = {Cpu.INTEL: 1.0, Cpu.AMD: 2.0, Cpu.ARM: 1.0}
_HOST_OVERHEAD_FACTOR = np.array([1.0, 1.0, 3.0])
_SIMPLE_NETWORK_LATENCY_FACTOR = 1.4


class Ring(NcclAlgorithm):
    """Rings, which every collective with a cost model can use."""

    name = Algorithm.RING
    flow_model_code = 1
    flow_model_connection = "RING"
    ops = frozenset(op for op in Collective if op.has_ring)
    base_us = (6.6, 14.0, 8.4)
    inside_us = (0.6, 1.9, 3.4)
    between_us = (2.7, 4.0, 14.0)

    def graph(self, channels: Channels) -> Graph:
        return channels.ring

    def is_enabled(self, at: CommunicatorShape, graph: Graph) -> NDArray[np.bool_]:
        return np.array([True, has_ll128(at, graph), True])

    def steps(self, op: Collective, at: CommunicatorShape) -> tuple[int, int]:
        if op in _PIPELINED:
            return (1, 0) if at.nodes == 1 else (at.ranks, at.ranks)
        return passes(op) * (at.ranks - 1), passes(op) * (at.nodes - 1)

    def latencies_us(self, op: Collective, at: CommunicatorShape) -> Latencies:
        """Pipelined rings have the Simple latencies of trees; the host takes part between nodes."""
        base, inside, between = super().latencies_us(op, at)
        if op in _PIPELINED:
            between = np.array(self.between_us)
            inside[2], between[2] = Tree.inside_us[2], Tree.between_us[2]
        elif at.nodes > 1:
            inside = np.maximum(inside, _HOST_OVERHEAD_US[at.cpu] * _HOST_OVERHEAD_FACTOR)
        return Latencies(base, inside, between)

    def bus_gbytes_per_s(self, op: Collective, at: CommunicatorShape, graph: Graph) -> NDArray[np.float64]:
        total = graph.channels * channel_gbytes_per_s(at, graph)
        ll128_max = graph.channels * at.gpu.generation.ring_ll128_per_channel[nodes_column(at)]
        return np.array([min(ll_limit_gbytes_per_s(at), 0.5 * total), min(0.92 * total, ll128_max), total])

    def algorithm_share(self, op: Collective, at: CommunicatorShape) -> float:
        """Broadcast and reduce are pipelined, their bandwidth is not cut."""
        return at.ranks / (at.ranks if op in _PIPELINED else passes(op) * (at.ranks - 1))

    def slow_start_factor(self, op: Collective, at: CommunicatorShape) -> float:
        """Simple all_reduce between nodes starts more slowly."""
        return _SIMPLE_NETWORK_LATENCY_FACTOR if op is Collective.ALL_REDUCE and at.nodes > 1 else 1.0

    def channels_and_threads(
        self, size_bytes: NDArray[np.int64], costs: AlgorithmCosts, protocol: Protocol, at: CommunicatorShape
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Threads of LL need bytes of every rank; Simple has a warp more for synchronisation."""
        is_slow = costs.graph.channels * costs.graph.intra_gbytes_per_s <= 12
        most = 256 if protocol is Protocol.SIMPLE and is_slow else most_threads(protocol)
        thread_bytes = BYTES_PER_THREAD[protocol] * (costs.ranks if protocol is Protocol.LL else 1)
        channels = fewer_channels(size_bytes, most * thread_bytes, costs.executed)
        threads = fewer_threads(size_bytes, channels, most, thread_bytes)
        return channels, np.maximum(threads + (32 if protocol is Protocol.SIMPLE else 0), LEAST_THREADS)

    def largest_chunk(
        self, op: Collective, channel_bytes: int, costs: AlgorithmCosts, protocol: Protocol, at: CommunicatorShape
    ) -> int:
        is_long = protocol is Protocol.SIMPLE and op not in _PIPELINED
        return (4 if is_long else 1) * STEP_BYTES[protocol]

    def flows(self, request: FlowRequest) -> PlannedFlows:
        op, size_bytes, choice, rates = request.op, request.size_bytes, request.choice, request.rates
        network_steps = choice.costs.network_steps
        if request.coarsen is not None and op not in _PIPELINED:
            hops = RingHops.every(request.communicator, choice.channels)
            loops = Loops.of(choice.protocol, choice.chunk_bytes, request.coarsen)
            return ring_loop_flows(op, size_bytes, hops, rates, loops, network_steps=network_steps)
        hops = RingHops.over(request.communicator, choice.channels)
        if op not in _PIPELINED:
            return ring_flows(op, size_bytes, hops, rates, network_steps)
        return pipelined_ring_flows(
            op, size_bytes, hops.orders, rates,
            root=request.root, hops_us=choice.latency_us - rates.base_latency_us, chunks=request.chunks(),
        )  # fmt: skip

    def payload_bytes(self, plan: Plan) -> int:
        """Every block n−1 times per pass."""
        return passes(plan.op) * (plan.communicator.size - 1) * plan.size_bytes

    def check_sent(self, plan: Plan, postcondition: Postcondition) -> None:
        """Merged rings send evenly: per pass a rank leaves out one share per ring, together about a block."""
        if plan.flows.order is not None or plan.op in _PIPELINED:
            return
        sent, size = plan.sent_bytes(), plan.size_bytes
        rings = int(plan.flows.channel.max()) + 1  # each rounds its share by up to one byte
        low = passes(plan.op) * (size - -(-size // plan.communicator.size) - rings)
        high = passes(plan.op) * size
        if sent.min() < low or sent.max() > high:
            raise PlanError(f"{plan.op}: found {sent.min()}…{sent.max()} bytes sent per rank, expected {low}…{high}")
