"""PAT: parallel aggregated trees, NCCL's all_gather and reduce_scatter with one rank per node.

Rank r sends a block whose owner is s places further (mod n) along a tree over the offsets s: offset s is linked with
s − lowbit(s) over dimension log₂ lowbit(s), that is between ranks 2^d apart. All_gather goes away from offset 0, from
the largest dimension to the smallest; reduce_scatter the other way round. So every rank sends and receives n−1 blocks,
in as few as ⌈log₂ n⌉ messages. NCCL 2.30.7, src/include/collectives.h (PatAGAlgorithm, PatRSAlgorithm).

A message takes up to so many blocks of one dimension. NCCL's generator orders messages more finely, and for some n that
are no power of two makes one or two more of them (5 ranks: 4 instead of 3); bytes, tree and depth are the same.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from netsim.flow import NO_FLOW
from simccl.algorithms.algorithm import (
    FlowRequest,
    NcclAlgorithm,
    channel_gbytes_per_s,
    passes,
    simple_only,
    simple_rate,
)
from simccl.algorithms.flow_rates import FlowRates, Lanes
from simccl.collective import Algorithm, Collective, Protocol, check_flows, shares
from simccl.communicator.shape import CommunicatorShape
from simccl.nccl.costs import AlgorithmCosts, Latencies
from simccl.nccl.search import Channels, Graph
from simccl.nccl.work_split import BYTES_PER_THREAD, KIB, MOST_THREADS, STEP_BYTES, fewer_channels
from simccl.plan.edges import Edges, joined, without_duplicates
from simccl.plan.flows import PARTIAL_SUM, Operation, Pieces, PlannedFlows
from simccl.plan.plan import Plan


class Pat(NcclAlgorithm):
    """Parallel aggregated trees, one rank per node."""

    name = Algorithm.PAT
    flow_model_code = 6
    flow_model_connection = "PAT"
    ops = frozenset({Collective.ALL_GATHER, Collective.REDUCE_SCATTER})
    base_us = (8.0, 8.0, 8.0)
    inside_us = (0.0, 0.0, 4.0)
    between_us = (0.0, 0.0, 14.0)

    def graph(self, channels: Channels) -> Graph:
        return channels.tree

    def is_enabled(self, at: CommunicatorShape, graph: Graph) -> NDArray[np.bool_]:
        return simple_only(at.nodes == at.ranks > 1)

    def steps(self, op: Collective, at: CommunicatorShape) -> tuple[int, int]:
        doublings = at.nodes.bit_length() - 1
        return doublings, doublings

    def latencies_us(self, op: Collective, at: CommunicatorShape) -> Latencies:
        """The base grows with the ranks."""
        base, inside, between = super().latencies_us(op, at)
        return Latencies(base + 2.8 * at.ranks, inside, between / 3.5)

    def bus_gbytes_per_s(self, op: Collective, at: CommunicatorShape, graph: Graph) -> NDArray[np.float64]:
        total = graph.channels * channel_gbytes_per_s(at, graph)
        return simple_rate(0.75 * total)

    def channels_and_threads(
        self, size_bytes: NDArray[np.int64], costs: AlgorithmCosts, protocol: Protocol, at: CommunicatorShape
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """All threads, whatever the size."""
        channels = fewer_channels(size_bytes, MOST_THREADS * BYTES_PER_THREAD[protocol], costs.executed)
        return channels, np.full_like(size_bytes, MOST_THREADS)

    def largest_chunk(
        self, op: Collective, channel_bytes: int, costs: AlgorithmCosts, protocol: Protocol, at: CommunicatorShape
    ) -> int:
        chunk, times = STEP_BYTES[protocol], 32 if op is Collective.ALL_GATHER else 16
        while times * chunk > channel_bytes and chunk > 64 * KIB:
            chunk //= 2
        return chunk

    def flows(self, request: FlowRequest) -> PlannedFlows:
        op, size_bytes, choice, ranks = request.op, request.size_bytes, request.choice, request.communicator.size
        block_bytes = -(-size_bytes // ranks // choice.channels)
        aggregation = blocks_per_message(block_bytes, choice.chunk_bytes, ranks)
        return pat_flows(op, size_bytes, ranks, request.rates, aggregation=aggregation)

    def payload_bytes(self, plan: Plan) -> int:
        """Every block n−1 times."""
        return passes(plan.op) * (plan.communicator.size - 1) * plan.size_bytes


class Message(NamedTuple):
    """Message that every rank sends at its turn: blocks of the same offsets, to the rank at the same distance."""

    distance: int
    """2^d: reduce_scatter sends to the rank so far ahead, all_gather to the one so far behind."""
    offsets: tuple[int, ...]
    """Of the owners of its blocks, seen from the sender."""


def pat_messages(op: Collective, ranks: int, blocks_per_message: int) -> list[Message]:
    """The messages of one rank in the order of sending."""
    gathers = op is Collective.ALL_GATHER
    distances = [1 << d for d in range((ranks - 1).bit_length())]
    found = []
    for distance in reversed(distances) if gathers else distances:
        parents = range(0, ranks - distance, 2 * distance)
        offsets = [parent if gathers else parent + distance for parent in parents]
        for first in range(0, len(offsets), blocks_per_message):
            found.append(Message(distance, tuple(offsets[first : first + blocks_per_message])))
    return found


def blocks_per_message(block_bytes: int, chunk_bytes: int, ranks: int) -> int:
    """NCCL's aggregation: as many blocks as fit into a chunk, a power of two, up to half of the ranks."""
    blocks = 1
    while chunk_bytes // max(1, block_bytes * blocks) >= 2 and blocks < ranks / 2:
        blocks *= 2
    return blocks


def pat_flows(op: Collective, size_bytes: int, ranks: int, rates: FlowRates, *, aggregation: int) -> PlannedFlows:
    """The flows of an all_gather or reduce_scatter over two or more ranks, message by message."""
    check_flows(ranks * ranks, f"{op} of {ranks} ranks")
    messages = pat_messages(op, ranks, aggregation)
    gathers = op is Collective.ALL_GATHER
    count = len(messages)
    rank = np.repeat(np.arange(ranks), count)
    turn = np.tile(np.arange(count), ranks)
    distance = np.array([m.distance for m in messages])[turn]
    dst = (rank + np.where(gathers, -distance, distance)) % ranks
    pieces = _pieces(size_bytes, ranks, messages)
    payload_bytes = np.add.reduceat(np.concatenate((pieces.size_bytes, [0])), pieces.offsets[:-1])
    payload_bytes[pieces.offsets[1:] == pieces.offsets[:-1]] = 0
    used = payload_bytes > 0
    number = np.cumsum(used) - 1
    waiting, awaited = _edges(messages, ranks, gathers=gathers)
    both = used[waiting] & used[awaited]
    kept = np.flatnonzero(used)
    previous = np.where(rank[kept] == np.roll(rank[kept], 1), np.arange(len(kept)) - 1, NO_FLOW)
    previous[:1] = NO_FLOW
    sizes = np.diff(pieces.offsets)[kept]
    return Lanes(
        src=rank[kept],
        dst=dst[kept],
        payload_bytes=payload_bytes[kept],
        channel=np.zeros(len(kept), dtype=np.int64),
        step=turn[kept],
        origin=PARTIAL_SUM,
        offset=pieces.begin[pieces.offsets[kept]],
        operation=Operation.COPY if gathers else Operation.REDUCE,
        latency_ps=rates.hop_latency_ps(np.ones(len(kept), dtype=np.bool_)),
        wire_rate=rates.wire_rate((ranks - 1) / ranks),
        edges=(number[waiting[both]], number[awaited[both]]),
        order=previous,
        pieces=Pieces(np.concatenate(([0], np.cumsum(sizes))), pieces.begin, pieces.size_bytes),
    ).flows(rates.protocol)


def _pieces(size_bytes: int, ranks: int, messages: list[Message]) -> Pieces:
    """Ranges of the blocks of every rank's messages; blocks without bytes left out."""
    bounds = shares(size_bytes, ranks)
    offsets = np.array([offset for message in messages for offset in message.offsets])
    owner = (np.arange(ranks)[:, None] + offsets) % ranks
    size = np.diff(bounds)[owner]
    message = np.repeat(np.arange(len(messages)), [len(m.offsets) for m in messages])
    number = np.arange(ranks)[:, None] * len(messages) + message
    kept = size > 0
    counts = np.bincount(number[kept], minlength=ranks * len(messages))
    return Pieces(np.concatenate(([0], np.cumsum(counts))), bounds[owner][kept], size[kept])


def _edges(messages: list[Message], ranks: int, *, gathers: bool) -> Edges:
    """A block is passed on when it is there: gathered from its parent, or added up from its children."""
    carrier = {(m.distance, offset): k for k, m in enumerate(messages) for offset in m.offsets}
    count = len(messages)
    rank = np.arange(ranks)
    found: list[Edges] = []
    for k, message in enumerate(messages):
        sources = set()
        for offset in message.offsets:
            if gathers and offset:
                step = offset & -offset
                sources.add((step, carrier[step, offset - step]))
            elif not gathers:
                steps = [1 << e for e in range(message.distance.bit_length() - 1)]
                sources |= {(step, carrier[step, offset + step]) for step in steps if offset + step < ranks}
        for step, before in sorted(sources):
            sender = (rank + (step if gathers else -step)) % ranks
            found.append((rank * count + k, sender * count + before))
    return without_duplicates(joined(found))
