"""Dispatch and combine of expert parallelism as DeepEP does them: hierarchical ("normal") and low-latency.

Hierarchical dispatch: a rank sends one copy of a token to every other node that has an expert for it, to the rank in
its own place there, which passes it on over NVLink to every rank of the node that wants it, while it arrives; inside
its own node it sends directly. Combine goes the other way: results are added up at that rank first, so that again one
copy per node crosses the network. Low-latency: one message per token and expert, straight from rank to rank, without
deduplication. DeepEP V1, csrc/kernels/internode.cu and internode_ll.cu.

Assumed: messages that share a port advance in proportion to their bytes; in-node reductions stream like forwards.
Ignored: the counts that are exchanged first, queue and buffer limits, and the SMs that are taken.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError
from simccl.algorithms.pace import Lanes, fair_rates
from simccl.collective import Protocol
from simccl.communicator import Communicator
from simccl.edges import Edges, joined
from simccl.experts import ExpertRouting, SlotContents
from simccl.lowering import PortRates
from simccl.plan import Operation, Pieces, PlannedFlows

_NO_LATENCY = 0


def hierarchical_flows(
    routing: ExpertRouting, communicator: Communicator, rates: PortRates, token_bytes: int, *, is_combine: bool
) -> PlannedFlows:
    """One flow per (rank, node) over the network and one per (rank, node, rank there) over NVLink.

    Raises:
        InputError: nodes with unequal numbers of ranks.
    """
    moves = _moves(routing, communicator)
    src, dst = (moves.dst, moves.src) if is_combine else (moves.src, moves.dst)
    edges = (moves.edges[1], moves.edges[0]) if is_combine else moves.edges
    counts = np.array([len(tokens) for tokens in moves.tokens], dtype=np.int64)
    begin = np.concatenate([*moves.tokens, np.zeros(0, dtype=np.int64)]) * token_bytes
    offsets = np.concatenate(([0], np.cumsum(counts)))
    node = communicator.node_of_rank()
    crosses = node[src] != node[dst]
    payload = counts * token_bytes
    return Lanes(
        src=src,
        dst=dst,
        payload_bytes=payload,
        channel=np.zeros(len(src), dtype=np.int64),
        step=np.where(crosses, 0, 1) if not is_combine else np.where(crosses, 1, 0),
        origin=moves.origin,
        offset=begin[offsets[:-1]],
        operation=Operation.REDUCE if is_combine else Operation.COPY,
        latency_ps=np.full(len(src), _NO_LATENCY, dtype=np.int64),
        wire_rate=fair_rates((src, dst), payload, crosses, np.zeros(len(src), dtype=np.int64), rates),
        edges=edges,
        streams=True,
        pieces=Pieces(offsets, begin, np.full(len(begin), token_bytes, dtype=np.int64)),
    ).flows(Protocol.SIMPLE)


class _Moves(NamedTuple):
    """What a dispatch moves; a combine moves the same the other way."""

    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    origin: NDArray[np.int64]
    """Rank whose tokens they are."""
    tokens: list[NDArray[np.int64]]
    """Per move, the tokens of its origin."""
    edges: Edges
    """Forwarding waits for what is forwarded."""


def _moves(routing: ExpertRouting, communicator: Communicator) -> _Moves:
    """Of every rank to every node, and from there to the ranks that want something."""
    nodes, node_of = np.array(_equal_nodes(communicator)), communicator.node_of_rank()
    place_of = np.empty(communicator.size, dtype=np.int64)
    place_of[nodes] = np.arange(nodes.shape[1])
    ends: list[tuple[int, int, int]] = []
    tokens: list[NDArray[np.int64]] = []
    edges: list[tuple[int, int]] = []
    for rank in range(communicator.size):
        needs = routing.needs(rank)
        for node, members in enumerate(nodes):
            entry = rank if node == node_of[rank] else int(members[place_of[rank]])
            of_node = np.flatnonzero(needs[:, members].any(axis=1))
            first = len(ends)
            crosses = entry != rank and len(of_node) > 0
            if crosses:
                ends.append((rank, entry, rank))
                tokens.append(of_node)
            for member in members.tolist():
                if member != entry and needs[:, member].any():
                    edges += [(len(ends), first)] if crosses else []
                    ends.append((entry, member, rank))
                    tokens.append(np.flatnonzero(needs[:, member]))
    src, dst, origin = np.array(ends, dtype=np.int64).reshape(-1, 3).T
    waiting, awaited = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    return _Moves(src, dst, origin, tokens, (waiting, awaited))


def low_latency_flows(
    contents: SlotContents, communicator: Communicator, rates: PortRates, message_bytes: int
) -> PlannedFlows:
    """One stream of messages per (rank, expert), as many bytes as it has messages."""
    sizes = np.diff(contents.bounds, axis=1)
    rank, expert = np.nonzero((sizes > 0) & (contents.rank_of_expert != np.arange(len(sizes))[:, None]))
    host = contents.rank_of_expert[expert]
    src, dst = (host, rank) if contents.is_combine else (rank, host)
    node = communicator.node_of_rank()
    payload = sizes[rank, expert]
    assert (payload % message_bytes == 0).all()
    return Lanes(
        src=src,
        dst=dst,
        payload_bytes=payload,
        channel=expert,
        step=np.zeros(len(src), dtype=np.int64),
        origin=rank,
        offset=contents.bounds[rank, expert],
        operation=Operation.COPY,
        latency_ps=np.full(len(src), _NO_LATENCY, dtype=np.int64),
        wire_rate=fair_rates((src, dst), payload, node[src] != node[dst], np.zeros(len(src), dtype=np.int64), rates),
        edges=joined([]),
    ).flows(Protocol.SIMPLE)


def _equal_nodes(communicator: Communicator) -> tuple[tuple[int, ...], ...]:
    counts = {len(ranks) for ranks in communicator.ranks_of_node}
    if len(counts) > 1:
        raise InputError(f"gpus: found nodes with {sorted(counts)} ranks, expected equal counts for a dispatch")
    return communicator.ranks_of_node
