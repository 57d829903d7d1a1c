"""NVLS and NVLSTree: the NVSwitch reduces and multicasts (NCCL 2.30.7); between nodes heads form trees.

The flows are those of `simccl.algorithms.switch_flows`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simccl.algorithms.algorithm import FlowRequest, NcclAlgorithm, nodes_column, simple_only, simple_rate
from simccl.algorithms.flow_rates import FlowRates
from simccl.algorithms.switch_flows import has_equal_nvlink_nodes, switch_flows, switch_payload_bytes
from simccl.algorithms.tree import FACTORS
from simccl.collective import Algorithm, Collective, Protocol
from simccl.communicator.communicator import Communicator
from simccl.communicator.shape import CommunicatorShape, Cpu
from simccl.nccl.costs import AlgorithmCosts
from simccl.nccl.search import Channels, Graph, PathType, search
from simccl.nccl.work_split import KIB, MOST_THREADS, STEP_BYTES, reduced_chunk
from simccl.plan.flows import PlannedFlows
from simccl.plan.plan import Plan

_NVLS_CHUNKS = ((64, 64 * KIB), (8, 32 * KIB), (2, 16 * KIB))
_NVLS_TREE_CHUNKS = ((32, 256 * KIB), (16, 128 * KIB), (4, 64 * KIB), (1, 32 * KIB))
_NVLS_TREE_FACTORS = (*FACTORS[Protocol.SIMPLE], 0.9)


class _OnSwitches(NcclAlgorithm):
    """Rules that NVLS and NVLSTree share."""

    inside_us = (0.0, 0.0, 25.0)

    def graph(self, channels: Channels) -> Graph | None:
        return channels.nvls

    def algorithm_share(self, op: Collective, at: CommunicatorShape) -> float:
        return at.ranks / (2 * (at.ranks - 1)) if op is Collective.ALL_REDUCE else 1.0

    def channels_and_threads(
        self, size_bytes: NDArray[np.int64], costs: AlgorithmCosts, protocol: Protocol, at: CommunicatorShape
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The same for every size."""
        return np.full_like(size_bytes, nvls_channels(at)), np.full_like(size_bytes, MOST_THREADS)

    def can_be_laid_over(self, communicator: Communicator) -> bool:
        return has_equal_nvlink_nodes(communicator)

    def unplanned_us(self, rates: FlowRates) -> float:
        """The one latency of all that happens inside nodes."""
        return rates.nvlink_hop_us

    def flows(self, request: FlowRequest) -> PlannedFlows:
        chunks = request.chunks(pass_on_parts=True)
        return switch_flows(request.op, request.size_bytes, request.communicator, request.rates, chunks=chunks)

    def payload_bytes(self, plan: Plan) -> int:
        return switch_payload_bytes(plan)


class Nvls(_OnSwitches):
    """NVLS: in one NVSwitch, or over several with CollNet."""

    name = Algorithm.NVLS
    flow_model_code = 4
    flow_model_connection = "NVLS"
    ops = frozenset({Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER})
    between_us = (0.0, 0.0, 18.0)

    def is_enabled(self, at: CommunicatorShape, graph: Graph) -> NDArray[np.bool_]:
        return simple_only(at.may_use_nvls and (at.nodes == 1 or at.has_collnet) and graph.channels >= 2)

    def steps(self, op: Collective, at: CommunicatorShape) -> tuple[int, int]:
        return (1, 0) if at.nodes == 1 else (2, 1)

    def bus_gbytes_per_s(self, op: Collective, at: CommunicatorShape, graph: Graph) -> NDArray[np.float64]:
        return simple_rate(graph.channels * min(_intra_gbytes_per_s(op, at, graph), graph.inter_gbytes_per_s))

    def largest_chunk(
        self, op: Collective, channel_bytes: int, costs: AlgorithmCosts, protocol: Protocol, at: CommunicatorShape
    ) -> int:
        most = min(STEP_BYTES[protocol], _limits(at)[1])
        return reduced_chunk(most, channel_bytes, costs.graph.channels, _NVLS_CHUNKS)


class NvlsTree(_OnSwitches):
    """NVLSTree: NVLS inside nodes, trees of heads between them."""

    name = Algorithm.NVLS_TREE
    flow_model_code = 5
    flow_model_connection = "NVLS_TREE"
    ops = frozenset({Collective.ALL_REDUCE})
    between_us = (0.0, 0.0, 20.9)

    def is_enabled(self, at: CommunicatorShape, graph: Graph) -> NDArray[np.bool_]:
        return simple_only(at.may_use_nvls and at.nodes > 1 and graph.channels >= 2)

    def steps(self, op: Collective, at: CommunicatorShape) -> tuple[int, int]:
        doublings = at.nodes.bit_length() - 1
        return 1 + 2 * doublings, 2 * doublings

    def bus_gbytes_per_s(self, op: Collective, at: CommunicatorShape, graph: Graph) -> NDArray[np.float64]:
        inter = graph.inter_gbytes_per_s * (2 if at.nodes <= 2 else 1)
        most = at.gpu.generation.nvls_tree_per_channel[nodes_column(at)]
        return simple_rate(graph.channels * min(_intra_gbytes_per_s(op, at, graph), inter, most))

    def bandwidth_factors(self, op: Collective, at: CommunicatorShape) -> tuple[tuple[float, ...], ...] | None:
        if at.gpu.compute_capability >= 100 and at.cpu is not Cpu.ARM:
            return ((1.0,), (1.0,), _NVLS_TREE_FACTORS)
        return None

    def largest_chunk(
        self, op: Collective, channel_bytes: int, costs: AlgorithmCosts, protocol: Protocol, at: CommunicatorShape
    ) -> int:
        return reduced_chunk(min(_limits(at)[1:]), channel_bytes, costs.graph.channels, _NVLS_TREE_CHUNKS)


def nvls_channels(at: CommunicatorShape) -> int:
    """Channels that NVLS and NVLSTree run on, whatever the search found."""
    return _limits(at)[0]


def _intra_gbytes_per_s(op: Collective, at: CommunicatorShape, graph: Graph) -> float:
    """Rate of one channel inside a node."""
    heads, per_node = graph.channels, at.ranks / at.nodes
    reach = 2.0 if op is Collective.ALL_REDUCE else (per_node - 1) / per_node
    return graph.intra_gbytes_per_s * at.gpu.generation.nvls_efficiency * (heads - 1) / heads * reach


def _limits(at: CommunicatorShape) -> tuple[int, int, int]:
    """Channels, largest chunk of NVLS and of NVLSTree: Blackwell nodes are tuned by NIC and node count."""
    if at.gpu.compute_capability < 100:
        return 16, 128 * KIB, (64 if at.nodes >= 4 else 128) * KIB
    if at.nodes == 1:
        return 24, 128 * KIB, 128 * KIB
    channels, nvls, tree = _blackwell_kib(at, search(at))
    return channels, nvls * KIB, tree * KIB


def _blackwell_kib(at: CommunicatorShape, channels: Channels) -> tuple[int, int, int]:
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
