"""Hierarchical dispatch and combine, DeepEP's "normal" mode: one copy per token and distinct node.

A rank sends one copy of a token to every other node that has an expert for it, to the rank in its own place there,
which passes it on over NVLink to every rank of the node that wants it, while it arrives; inside its own node it sends
directly. Combine goes the other way: results are added up at that rank first, so that again one copy per node crosses
the network. DeepEP V1, csrc/kernels/internode.cu.

Assumed: messages that share a port advance in proportion to their bytes; in-node reductions stream like forwards.
Ignored: the counts that are exchanged first, queue and buffer limits, and the SMs that are taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError
from simccl.algorithms.flow_rates import Lanes, fair_rates
from simccl.collective import Algorithm, Protocol
from simccl.communicator.communicator import Communicator
from simccl.communicator.shape import CommunicatorShape
from simccl.engines.expert_choice import ExpertChoice
from simccl.engines.expert_mode import NO_LIMIT, ExpertKernel, ExpertMode, Phase, values_bytes
from simccl.engines.expert_routing import TokenPostcondition, TokenRouting, Wanted
from simccl.plan.edges import Edges
from simccl.plan.flows import Operation, Pieces, PlannedFlows
from simccl.plan.lowering import PortRates
from simccl.plan.postcondition import Postcondition

_NO_LATENCY = 0


class Hierarchical(ExpertMode):
    """One copy of a token per node, fanned out over NVLink to distinct GPUs."""

    name = Algorithm.HIERARCHICAL
    # Fitted to DeepEP kernel times of aiconfigurator 095f58a (Apache-2.0; its tables 0.5.12 for one node, 0.5.6.post2
    # for several), H100; H200 on one node differs by 5 %. Median and p90 of the absolute error with 128 experts and
    # more, 4 per token and more: one node, 24 SMs, 2.6 / 7 % and 5 / 18 % (dispatch, combine; combines of few tokens
    # are up to 23 % too fast); 2 and 4 nodes, 20 SMs, 2.0 / 5 % and 2.8 / 8 %. Not fitted, and met within 6 %: DeepEP's
    # own figures for H800 (`tests.simccl.expert_agreement`).
    on_one_node: ClassVar[Mapping[Phase, ExpertKernel]] = {
        Phase.DISPATCH: ExpertKernel(24.85, 0.0, 343.1, NO_LIMIT, 0.80),
        Phase.COMBINE: ExpertKernel(36.75, 0.0, 359.2, NO_LIMIT, 0.79),
    }
    on_several_nodes: ClassVar[Mapping[Phase, ExpertKernel]] = {
        Phase.DISPATCH: ExpertKernel(16.90, 8.81, 250.6, 48.9, 0.77),
        Phase.COMBINE: ExpertKernel(39.08, 5.74, 205.3, 48.6, 0.69),
    }

    def dispatch_bytes(self, hidden: int, top_k: int, *, fp8: bool) -> int:
        """Values, scales, 8 bytes of source, expert ids and weights, up to whole 16 bytes."""
        return -(-(values_bytes(hidden, fp8=fp8) + 8 + 4 * top_k + 4 * top_k) // 16) * 16

    def combine_bytes(self, hidden: int, top_k: int) -> int:
        """Values in BF16, with the source, expert ids and weights of a dispatch."""
        return self.dispatch_bytes(hidden, top_k, fp8=False)

    def copies(self, choice: ExpertChoice, at: CommunicatorShape) -> tuple[float, float]:
        """One per distinct GPU, and per distinct node elsewhere."""
        away = (at.nodes - 1) / at.nodes
        on_nodes = np.arange(at.nodes)[:, None] == np.arange(at.ranks) * at.nodes // at.ranks
        distinct = (choice.reached(np.eye(at.ranks, dtype=np.bool_)).sum(), choice.reached(on_nodes).sum())
        return float(distinct[0]), float(distinct[1]) * away

    def planned(
        self,
        routing: TokenRouting,
        communicator: Communicator,
        rates: PortRates,
        token_bytes: int,
        *,
        is_combine: bool,
    ) -> tuple[Postcondition, PlannedFlows]:
        wanted = tuple(routing.wanted(rank, token_bytes) for rank in range(routing.ranks))
        flows = hierarchical_flows(wanted, communicator, rates, is_combine=is_combine)
        return TokenPostcondition(wanted, is_combine), flows


def hierarchical_flows(
    wanted: tuple[Wanted, ...],
    communicator: Communicator,
    rates: PortRates,
    *,
    is_combine: bool,
    entries: Sequence[Sequence[int]] | None = None,
) -> PlannedFlows:
    """One flow per (rank, node) over the network and one per (rank, node, rank there) over NVLink.

    ``entries`` [nodes]: ranks to which those of other nodes send, by their places in turn; by default all of the node.

    Raises:
        InputError: nodes with unequal numbers of ranks, where no entries are given.
    """
    moves = _moves(wanted, communicator, _equal_nodes(communicator) if entries is None else entries)
    src, dst = (moves.dst, moves.src) if is_combine else (moves.src, moves.dst)
    edges = (moves.edges[1], moves.edges[0]) if is_combine else moves.edges
    pieces = _pieces(moves, wanted)
    node = communicator.node_of_rank()
    crosses = node[src] != node[dst]
    payload = np.add.reduceat(pieces.size_bytes, pieces.offsets[:-1]) if len(src) else np.zeros(0, dtype=np.int64)
    return Lanes(
        src=src,
        dst=dst,
        payload_bytes=payload,
        channel=np.zeros(len(src), dtype=np.int64),
        step=np.where(crosses, 0, 1) if not is_combine else np.where(crosses, 1, 0),
        origin=moves.origin,
        offset=pieces.begin[pieces.offsets[:-1]],
        operation=Operation.REDUCE if is_combine else Operation.COPY,
        latency_ps=np.full(len(src), _NO_LATENCY, dtype=np.int64),
        wire_rate=fair_rates((src, dst), payload, crosses, np.zeros(len(src), dtype=np.int64), rates),
        edges=edges,
        streams=True,
        pieces=pieces,
    ).flows(Protocol.SIMPLE)


class _Moves(NamedTuple):
    """Moves of a dispatch; a combine has the same the other way."""

    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    origin: NDArray[np.int64]
    """Rank whose tokens they are."""
    parts: list[NDArray[np.int64]]
    """Per move, parts of its origin's tokens."""
    edges: Edges
    """Forwarding waits for what is forwarded."""


def _pieces(moves: _Moves, wanted: tuple[Wanted, ...]) -> Pieces:
    """Byte ranges of the parts of each move."""
    begin, end = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for origin, parts in zip(moves.origin.tolist(), moves.parts, strict=True):
        begin.append(wanted[origin].bounds[parts])
        end.append(wanted[origin].bounds[parts + 1])
    first = np.concatenate(begin)
    counts = np.array([len(parts) for parts in moves.parts], dtype=np.int64)
    return Pieces(np.concatenate(([0], np.cumsum(counts))), first, np.concatenate(end) - first)


def _moves(wanted: tuple[Wanted, ...], communicator: Communicator, entries: Sequence[Sequence[int]]) -> _Moves:
    """Of every rank to every node, and from there to the ranks that want something."""
    node_of = communicator.node_of_rank()
    place_of = {rank: place for members in communicator.ranks_of_node for place, rank in enumerate(members)}
    ends: list[tuple[int, int, int]] = []
    parts: list[NDArray[np.int64]] = []
    edges: list[tuple[int, int]] = []
    for rank in range(communicator.size):
        needs = wanted[rank].by_rank
        for node, members in enumerate(np.array(ranks) for ranks in communicator.ranks_of_node):
            ways = [rank] if node == node_of[rank] else entries[node]
            if not ways:
                continue
            entry = ways[place_of[rank] % len(ways)]
            of_node = np.flatnonzero(needs[:, members].any(axis=1))
            first = len(ends)
            crosses = entry != rank and len(of_node) > 0
            if crosses:
                ends.append((rank, entry, rank))
                parts.append(of_node)
            for member in members.tolist():
                if member != entry and needs[:, member].any():
                    edges += [(len(ends), first)] if crosses else []
                    ends.append((entry, member, rank))
                    parts.append(np.flatnonzero(needs[:, member]))
    src, dst, origin = np.array(ends, dtype=np.int64).reshape(-1, 3).T
    waiting, awaited = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    return _Moves(src, dst, origin, parts, (waiting, awaited))


def _equal_nodes(communicator: Communicator) -> tuple[tuple[int, ...], ...]:
    counts = {len(ranks) for ranks in communicator.ranks_of_node}
    if len(counts) > 1:
        raise InputError(f"gpus: found nodes with {sorted(counts)} ranks, expected equal counts for a dispatch")
    return communicator.ranks_of_node
