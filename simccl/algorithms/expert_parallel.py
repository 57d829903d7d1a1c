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

import numpy as np
from numpy.typing import NDArray

from simccl.algorithms.pace import Lanes, fair_rates
from simccl.collective import Protocol
from simccl.communicator import Communicator
from simccl.edges import Edges, joined
from simccl.errors import InputError
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
    nodes = np.array(_equal_nodes(communicator))
    node_of, place_of = communicator.node_of_rank(), np.empty(communicator.size, dtype=np.int64)
    place_of[nodes] = np.arange(nodes.shape[1])
    src: list[NDArray[np.int64]] = []
    dst: list[NDArray[np.int64]] = []
    origin: list[NDArray[np.int64]] = []
    tokens: list[NDArray[np.int64]] = []
    edges: list[Edges] = []
    flows = 0
    for rank in range(communicator.size):
        needs = routing.needs(rank)
        for node, members in enumerate(nodes):
            entry = rank if node == node_of[rank] else int(members[place_of[rank]])
            onward = [int(r) for r in members if r != entry and needs[:, r].any()]
            of_node = np.flatnonzero(needs[:, members].any(axis=1))
            crosses = entry != rank and len(of_node) > 0
            src.append(np.array([rank] * crosses + [entry] * len(onward)))
            dst.append(np.array([entry] * crosses + onward))
            tokens += [of_node] * crosses + [np.flatnonzero(needs[:, r]) for r in onward]
            if crosses:
                first, rest = np.full(len(onward), flows), flows + 1 + np.arange(len(onward))
                edges.append((first, rest) if is_combine else (rest, first))
            flows += crosses + len(onward)
            origin.append(np.full(crosses + len(onward), rank))
    ends = (np.concatenate(dst), np.concatenate(src)) if is_combine else (np.concatenate(src), np.concatenate(dst))
    return _token_flows(
        tuple(end.astype(np.int64) for end in ends), np.concatenate(origin).astype(np.int64), tokens, joined(edges),
        communicator, rates, token_bytes, is_combine=is_combine,
    )  # fmt: skip


def _token_flows(
    ends: tuple[NDArray[np.int64], ...],
    origin: NDArray[np.int64],
    tokens: list[NDArray[np.int64]],
    edges: Edges,
    communicator: Communicator,
    rates: PortRates,
    token_bytes: int,
    *,
    is_combine: bool,
) -> PlannedFlows:
    """Flows that carry the given tokens of their origins."""
    counts = np.array([len(t) for t in tokens], dtype=np.int64)
    begin = np.concatenate([*tokens, np.zeros(0, dtype=np.int64)]) * token_bytes
    offsets = np.concatenate(([0], np.cumsum(counts)))
    src, dst = ends
    node = communicator.node_of_rank()
    crosses = node[src] != node[dst]
    payload = counts * token_bytes
    return Lanes(
        src=src,
        dst=dst,
        payload_bytes=payload,
        channel=np.zeros(len(src), dtype=np.int64),
        step=np.where(crosses, 0, 1) if not is_combine else np.where(crosses, 1, 0),
        origin=origin,
        offset=begin[offsets[:-1]],
        operation=Operation.REDUCE if is_combine else Operation.COPY,
        latency_ps=np.full(len(src), _NO_LATENCY, dtype=np.int64),
        wire_rate=fair_rates((src, dst), payload, crosses, np.zeros(len(src), dtype=np.int64), rates),
        edges=edges,
        streams=True,
        pieces=Pieces(offsets, begin, np.full(len(begin), token_bytes, dtype=np.int64)),
    ).flows(Protocol.SIMPLE)


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
