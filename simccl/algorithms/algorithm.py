"""Contracts of algorithms: everything that planning, timing, proofs and files need from one.

A module of this folder states an algorithm as one class; `simccl.algorithms.registry` lists them. Nothing else knows
them by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from simccl.algorithms.chunks import Chunks
from simccl.algorithms.flow_rates import FlowRates
from simccl.collective import PROTOCOLS, Algorithm, Collective, Protocol
from simccl.communicator.communicator import Communicator
from simccl.communicator.shape import CommunicatorShape
from simccl.nccl.costs import AlgorithmCosts, Choice, Latencies
from simccl.nccl.search import Channels, Graph, search
from simccl.nccl.work_split import (
    BYTES_PER_THREAD,
    GRAIN_BYTES,
    LEAST_THREADS,
    STEP_BYTES,
    fewer_threads,
    most_threads,
)
from simccl.plan.flows import PlannedFlows
from simccl.plan.plan import Plan
from simccl.plan.postcondition import BufferPostcondition, Postcondition

PerProtocol = tuple[float, float, float]
"""One number each for LL, LL128 and Simple, as in `PROTOCOLS`."""


class CollectiveAlgorithm(ABC):
    """Algorithm of a collective: its name, and what proofs and flow lists need."""

    name: ClassVar[Algorithm]
    flow_model_code: ClassVar[int] = -1
    """NCCL's number of the algorithm, in SimCCL's flow lists; -1 where NCCL has none."""
    flow_model_connection: ClassVar[str] = "PTP"
    """Kind of connection, in SimCCL's flow lists."""

    def payload_bytes(self, plan: Plan) -> int | None:
        """User bytes that all ranks together must send; None where that depends on the matrix of messages."""
        return None

    def check_sent(self, plan: Plan, postcondition: Postcondition) -> None:  # noqa: B027 - most have nothing to add
        """Refuses a plan in which some rank sends a wrong number of bytes.

        Raises:
            PlanError: naming what was found and expected.
        """

    def postcondition(self, op: Collective, size_bytes: int, ranks: int, root: int) -> Postcondition:
        """Data that a plan of a collective on one buffer must deliver."""
        return BufferPostcondition(op, size_bytes, ranks, root)


@dataclass(frozen=True, slots=True)
class FlowRequest:
    """Request for the flows of a collective, with NCCL's choice for it."""

    op: Collective
    size_bytes: int
    communicator: Communicator
    choice: Choice
    rates: FlowRates
    root: int
    """Rank of a broadcast or reduce."""
    coarsen: int | None
    """NCCL's loops merged into one; None: all of them."""

    def chunks(self, *, pass_on_parts: bool = False) -> Chunks | None:
        """Chunks into which pipelined flows are cut; None: uncut. LL and LL128 always pass on parts of one."""
        if self.coarsen is None:
            return None
        passes_on_parts = pass_on_parts or self.choice.protocol is not Protocol.SIMPLE
        return Chunks(self.choice.chunk_bytes * self.coarsen, self.choice.channels, passes_on_parts)


class NcclAlgorithm(CollectiveAlgorithm):
    """Algorithm among which NCCL chooses by its cost model (NCCL 2.30.7, src/graph/tuning.cc, src/enqueue.cc).

    A subclass states its constants and overrides the rules that differ for it.
    """

    ops: ClassVar[frozenset[Collective]]
    """Collectives that it can carry out."""
    base_us: ClassVar[PerProtocol] = (0.0, 0.0, 0.0)
    """[protocols] base latency in µs, paid once per collective."""
    inside_us: ClassVar[PerProtocol]
    """[protocols] latency of a step over NVLink, in µs."""
    between_us: ClassVar[PerProtocol]
    """[protocols] latency of a step over the network, in µs."""
    lone_rank_between_us: ClassVar[PerProtocol] = (5.0, 8.5, 14.0)
    """[protocols] latency of a step over the network where every node has one rank, in µs; by default that of trees."""

    @abstractmethod
    def graph(self, channels: Channels) -> Graph | None:
        """Channels that the algorithm runs on; None where the search found none."""

    @abstractmethod
    def is_enabled(self, at: CommunicatorShape, graph: Graph) -> NDArray[np.bool_]:
        """[protocols] whether NCCL would use the algorithm."""

    @abstractmethod
    def steps(self, op: Collective, at: CommunicatorShape) -> tuple[int, int]:
        """Number of consecutive steps, and how many of them cross between nodes."""

    @abstractmethod
    def bus_gbytes_per_s(self, op: Collective, at: CommunicatorShape, graph: Graph) -> NDArray[np.float64]:
        """[protocols] bus bandwidth: user bytes that all channels together carry over one hop, 10⁹ B/s."""

    @abstractmethod
    def flows(self, request: FlowRequest) -> PlannedFlows:
        """The flows of a collective over two or more ranks.

        Raises:
            InputError: where the algorithm cannot be laid over these ranks.
        """

    def latencies_us(self, op: Collective, at: CommunicatorShape) -> Latencies:
        """[protocols] base latency, and latency of a step inside a node and between nodes."""
        between = self.lone_rank_between_us if at.ranks == at.nodes else self.between_us
        return Latencies(np.array(self.base_us), np.array(self.inside_us), np.array(between))

    def algorithm_share(self, op: Collective, at: CommunicatorShape) -> float:
        """Algorithm bandwidth over bus bandwidth."""
        return 0.5 if op is Collective.ALL_REDUCE else 1.0

    def slow_start_factor(self, op: Collective, at: CommunicatorShape) -> float:
        """Factor on the latency of Simple from 64 bytes per channel and rank on."""
        return 1.0

    def bandwidth_factors(self, op: Collective, at: CommunicatorShape) -> tuple[tuple[float, ...], ...] | None:
        """Per protocol, factors on the bandwidth by size, at index ⌊log2⌊B/64⌋⌋ (beyond the end 1); None: all are 1."""
        return None

    def channels_and_threads(
        self, size_bytes: NDArray[np.int64], costs: AlgorithmCosts, protocol: Protocol, at: CommunicatorShape
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """[sizes] channels and threads per channel; fewer for small sizes, so that each thread has enough bytes."""
        channels = np.full_like(size_bytes, costs.executed)
        threads = fewer_threads(size_bytes, channels, most_threads(protocol), BYTES_PER_THREAD[protocol])
        return channels, np.maximum(threads, LEAST_THREADS)

    def largest_chunk(
        self, op: Collective, channel_bytes: int, costs: AlgorithmCosts, protocol: Protocol, at: CommunicatorShape
    ) -> int:
        """Bytes that one channel handles at a time, before alignment."""
        return STEP_BYTES[protocol]

    def chunk_bytes(
        self, op: Collective, channel_bytes: int, costs: AlgorithmCosts, protocol: Protocol, at: CommunicatorShape
    ) -> int:
        """Largest piece that one channel handles at a time.

        ``channel_bytes`` is what one channel carries, for all_gather and reduce_scatter of all ranks' blocks together.
        """
        chunk = self.largest_chunk(op, channel_bytes, costs, protocol, at)
        return chunk // GRAIN_BYTES[protocol] * GRAIN_BYTES[protocol]

    def can_be_laid_over(self, communicator: Communicator) -> bool:
        """Whether the placement of the ranks, which the cost model ignores, allows it; if not, NCCL takes rings."""
        return True

    def unplanned_us(self, rates: FlowRates) -> float:
        """Latency in µs that neither the base latency nor any flow contains."""
        return 0.0

    def costs(self, op: Collective, at: CommunicatorShape) -> AlgorithmCosts | None:
        """Costs for a collective over two or more ranks, None where NCCL has no channels or does not use it."""
        channels = search(at)
        graph = self.graph(channels)
        if graph is None:
            return None
        is_enabled = self.is_enabled(at, graph)
        if not is_enabled.any():
            return None
        bus, latencies = self.bus_gbytes_per_s(op, at, graph), self.latencies_us(op, at)
        steps, network_steps = self.steps(op, at)
        return AlgorithmCosts(
            algorithm=self.name,
            graph=graph,
            executed=channels.executed,
            ranks=at.ranks,
            base_latency_us=latencies.base,
            nvlink_step_us=latencies.inside,
            network_step_us=latencies.between,
            steps=steps,
            network_steps=network_steps,
            algorithm_gbytes_per_s=bus * self.algorithm_share(op, at),
            bus_gbytes_per_s=bus,
            is_enabled=is_enabled & (bus > 0),
            slow_start_factor=self.slow_start_factor(op, at),
            bandwidth_factors=self.bandwidth_factors(op, at),
        )


class EngineKernel(CollectiveAlgorithm):
    """All-reduce kernel of inference engines on one node; `simccl.engines.all_reduce` has when it runs and how fast."""

    @abstractmethod
    def traffic(self, ranks: int) -> float:
        """Bytes into, and out of, each GPU over the size of the buffer."""

    @abstractmethod
    def flows(self, size_bytes: int, communicator: Communicator, bytes_per_s: float) -> PlannedFlows:
        """Flows that carry ``bytes_per_s`` into, and out of, each GPU."""


def simple_only(is_usable: bool) -> NDArray[np.bool_]:
    """[protocols] an algorithm without LL and LL128."""
    return np.array([is_usable and protocol is Protocol.SIMPLE for protocol in PROTOCOLS])


def simple_rate(gbytes_per_s: float) -> NDArray[np.float64]:
    """[protocols] the bandwidth of an algorithm without LL and LL128."""
    return np.array([gbytes_per_s if protocol is Protocol.SIMPLE else 0.0 for protocol in PROTOCOLS])


def passes(op: Collective) -> int:
    """Number of times that every byte goes around the ring: twice in all_reduce (reduce, then gather)."""
    return 2 if op is Collective.ALL_REDUCE else 1


def nodes_column(at: CommunicatorShape) -> int:
    """Index in tables with entries for one, two, and three or more nodes."""
    return min(at.nodes, 3) - 1


def channel_gbytes_per_s(at: CommunicatorShape, graph: Graph) -> float:
    """Bandwidth of one channel that limits rings, trees and PAT, 10⁹ B/s."""
    return graph.intra_gbytes_per_s if at.nodes <= 2 else graph.inter_gbytes_per_s
