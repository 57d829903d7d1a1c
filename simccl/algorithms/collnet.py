"""CollNet direct and chain: switches between nodes reduce (SHARP). NCCL's costs, which were not tested; no flows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError
from simccl.algorithms.algorithm import FlowRequest, NcclAlgorithm, simple_only, simple_rate
from simccl.collective import Algorithm, Collective, Protocol
from simccl.communicator.shape import CommunicatorShape
from simccl.nccl.costs import AlgorithmCosts, Latencies
from simccl.nccl.search import Channels, Graph
from simccl.nccl.work_split import LEAST_THREADS, MOST_THREADS, fewer_threads
from simccl.plan.flows import PlannedFlows

_BYTES_PER_THREAD = 512


class _Collnet(NcclAlgorithm):
    """Rules that both share."""

    def graph(self, channels: Channels) -> Graph | None:
        return channels.collnet

    def is_enabled(self, at: CommunicatorShape, graph: Graph) -> NDArray[np.bool_]:
        return simple_only(at.has_collnet and at.nodes > 1)

    def channels_and_threads(
        self, size_bytes: NDArray[np.int64], costs: AlgorithmCosts, protocol: Protocol, at: CommunicatorShape
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """All channels, with fewer threads where one would have too few bytes."""
        channels = np.full_like(size_bytes, costs.executed)
        threads = fewer_threads(size_bytes, channels, MOST_THREADS, _BYTES_PER_THREAD)
        return channels, np.maximum(threads, LEAST_THREADS)

    def flows(self, request: FlowRequest) -> PlannedFlows:
        raise InputError(f"algorithm: found {self.name}, for which there are times but no flows")


class CollnetDirect(_Collnet):
    """Every GPU exchanges shares with all others of its node."""

    name = Algorithm.COLLNET_DIRECT
    flow_model_code = 2
    ops = frozenset({Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER})
    inside_us = (0.0, 0.0, 3.7)
    between_us = (0.0, 0.0, 31.0)

    def steps(self, op: Collective, at: CommunicatorShape) -> tuple[int, int]:
        return (3, 1) if at.gpus_per_node > 1 else (1, 1)

    def latencies_us(self, op: Collective, at: CommunicatorShape) -> Latencies:
        """The base grows with the GPUs of a node."""
        base, inside, between = super().latencies_us(op, at)
        return Latencies(base + 0.8 * (at.gpus_per_node - 1), inside, between)

    def bus_gbytes_per_s(self, op: Collective, at: CommunicatorShape, graph: Graph) -> NDArray[np.float64]:
        per_node = at.ranks / at.nodes
        if op is not Collective.ALL_REDUCE:
            return simple_rate(per_node * min(graph.intra_gbytes_per_s, 0.9 * graph.inter_gbytes_per_s))
        total = graph.channels * graph.intra_gbytes_per_s
        shared = per_node / graph.channels
        is_recent = at.gpu.compute_capability >= 90
        return simple_rate(total / (shared - (shared - 1) / 2) * (0.85 if is_recent else 1.0))


class CollnetChain(_Collnet):
    """A chain inside nodes."""

    name = Algorithm.COLLNET_CHAIN
    flow_model_code = 3
    ops = frozenset({Collective.ALL_REDUCE})
    inside_us = (0.0, 0.0, 2.8)
    between_us = (0.0, 0.0, 30.0)

    def steps(self, op: Collective, at: CommunicatorShape) -> tuple[int, int]:
        return 2 * (at.gpus_per_node - 1) + 1, 1

    def bus_gbytes_per_s(self, op: Collective, at: CommunicatorShape, graph: Graph) -> NDArray[np.float64]:
        return simple_rate(graph.channels * graph.intra_gbytes_per_s)
