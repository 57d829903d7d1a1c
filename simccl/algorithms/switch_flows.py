"""Flows through NVSwitches that reduce and multicast (NCCL 2.30.7, src/device/all_reduce.h).

Every rank of a node is head of a share of the buffer. For all_reduce a head loads its share from the switch, which adds
up the n copies (every GPU sends its own), and stores the result to the switch, which copies it to all: every GPU sends
and receives S(1 + 1/n) bytes. For reduce_scatter and all_gather it is one half of that. Load and store are one
pass over registers, so that everything streams. Across nodes (all_reduce only) heads of equal place form the double
binary trees of `simccl.algorithms.tree` between the two halves, so that every hop stays on one rail.

NCCL's model has one latency for all that happens inside nodes; it belongs to the base latency of the plan, and hops
inside nodes have none. Switch k is endpoint n + k of a flow. Engines' multimem kernels move
the same on one node. Assumed: buffers are registered, so that the copies to and
from NCCL's own buffers on each GPU are left out (they cross no link).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError
from simccl.algorithms.chunks import Chunks, chunked
from simccl.algorithms.flow_rates import FlowRates, Lanes
from simccl.algorithms.tree import NO_PARENT, double_binary_tree
from simccl.collective import Collective, shares
from simccl.communicator.communicator import Communicator
from simccl.plan.edges import Edges, joined
from simccl.plan.flows import PARTIAL_SUM, Operation, PlannedFlows
from simccl.plan.lowering import nvswitches
from simccl.plan.plan import Plan


def has_equal_nvlink_nodes(communicator: Communicator) -> bool:
    """Whether every node has an NVSwitch and as many ranks as every other, at least two."""
    counts = {len(ranks) for ranks in communicator.ranks_of_node}
    return len(counts) == 1 and min(counts) >= 2 and bool((nvswitches(communicator) >= 0).all())


def switch_flows(
    op: Collective, size_bytes: int, communicator: Communicator, rates: FlowRates, *, chunks: Chunks | None
) -> PlannedFlows:
    """The flows of an all_reduce, reduce_scatter or all_gather in one NVSwitch, or of an all_reduce over several.

    Raises:
        InputError: another op, one rank on some node, nodes with unequal counts, or blocks across nodes.
    """
    nodes = communicator.ranks_of_node
    heads = len(nodes[0])
    if not has_equal_nvlink_nodes(communicator):
        raise InputError(
            f"algorithm: found {sorted({len(ranks) for ranks in nodes})} ranks per node, expected equal counts from 2, "
            "and an NVSwitch in every node, for NVLS"
        )
    reduces_blocks = op in (Collective.REDUCE_SCATTER, Collective.ALL_GATHER)
    if op is not Collective.ALL_REDUCE and not (reduces_blocks and len(nodes) == 1):
        raise InputError(f"algorithm: found NVLS for {op} over {len(nodes)} nodes, expected all_reduce, or one node")
    parts = _Parts.of(op, size_bytes, communicator)
    stages = _Stages.of(op, len(parts.head), len(nodes), heads)
    whole = _lanes(communicator, rates, parts, stages)
    return (whole if chunks is None else chunked(whole, chunks)).flows(rates.protocol)


def switch_payload_bytes(plan: Plan) -> int:
    """User bytes that all ranks together send: S(1 + 1/n) per rank (all_gather S/n, reduce_scatter S) and trees."""
    size, nodes = plan.size_bytes, plan.communicator.nodes
    loads = size * plan.communicator.size if plan.op is not Collective.ALL_GATHER else 0
    stores = size * nodes if plan.op is not Collective.REDUCE_SCATTER else 0
    return loads + stores + 2 * (nodes - 1) * size


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """Shares of the buffer, one per head and tree; empty ones left out."""

    head: NDArray[np.int64]
    """[parts] place of the head in its node."""
    tree: NDArray[np.int64]
    """[parts] 0 or 1; always 0 on one node."""
    bounds: NDArray[np.int64]
    """[parts, 2] first byte and the one after the last."""
    share: float
    """Of the buffer, when it divides."""

    @classmethod
    def of(cls, op: Collective, size_bytes: int, communicator: Communicator) -> _Parts:
        ranks = np.array(communicator.ranks_of_node[0])
        trees = 1 if communicator.nodes == 1 else 2
        cuts = shares(size_bytes, len(ranks) * trees)
        head, tree = np.divmod(np.arange(len(ranks) * trees), trees)
        place = head if op is Collective.ALL_REDUCE else ranks[head]
        bounds = np.stack((cuts[place * trees + tree], cuts[place * trees + tree + 1]), axis=1)
        used = bounds[:, 1] > bounds[:, 0]
        return cls(head[used], tree[used], bounds[used], 1 / (len(ranks) * trees))


@dataclass(frozen=True, slots=True, eq=False)
class _Stages:
    """Numbers of the flows; a stage that the op does not have is empty."""

    load: NDArray[np.int64]
    """[parts, nodes, ranks of a node] GPU to switch, added up there"""
    total: NDArray[np.int64]
    """[parts, nodes] switch to head"""
    up: NDArray[np.int64]
    """[parts, nodes] head to the head of the parent node, added up there; unused for roots"""
    down: NDArray[np.int64]
    """[parts, nodes] head of the parent node to head; unused for roots"""
    store: NDArray[np.int64]
    """[parts, nodes] head to switch"""
    copies: NDArray[np.int64]
    """[parts, nodes, ranks of a node] switch to GPU"""

    @classmethod
    def of(cls, op: Collective, parts: int, nodes: int, heads: int) -> _Stages:
        loads, stores, crosses = op is not Collective.ALL_GATHER, op is not Collective.REDUCE_SCATTER, nodes > 1
        shapes = [
            (parts * loads, nodes, heads),
            (parts * loads, nodes),
            (parts * crosses, nodes),
            (parts * crosses, nodes),
            (parts * stores, nodes),
            (parts * stores, nodes, heads),
        ]
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
        return cls(*(np.arange(e - np.prod(s), e).reshape(s) for s, e in zip(shapes, ends, strict=True)))


def _lanes(communicator: Communicator, rates: FlowRates, parts: _Parts, stages: _Stages) -> Lanes:
    ranks, size = np.array(communicator.ranks_of_node), communicator.size
    head = ranks[:, parts.head].T  # [parts, nodes]
    switch = np.broadcast_to(size + np.arange(len(ranks)), head.shape)
    everyone = np.broadcast_to(ranks, (*head.shape[:1], *ranks.shape))
    of_everyone = np.broadcast_to(switch[..., None], everyone.shape)
    parents = double_binary_tree(len(ranks))[parts.tree]
    above = np.take_along_axis(head, np.maximum(parents, 0), axis=1)
    between_ps = int(rates.hop_latency_ps(np.array(True)))
    columns = [
        _stage(stages.load, everyone, of_everyone, Operation.REDUCE, 0),
        _stage(stages.total, switch, head, Operation.COPY, 0),
        _stage(stages.up, head, above, Operation.REDUCE, between_ps),
        _stage(stages.down, above, head, Operation.COPY, between_ps),
        _stage(stages.store, head, switch, Operation.COPY, 0),
        _stage(stages.copies, of_everyone, everyone, Operation.COPY, 0),
    ]
    src, dst, part, operation, latency_ps = (np.concatenate(c) for c in zip(*columns, strict=True))
    step = np.repeat(np.arange(len(columns)), [len(stage[0]) for stage in columns])
    used = np.ones(len(src), dtype=np.bool_)
    if stages.up.size:
        used[stages.up[parents == NO_PARENT]] = used[stages.down[parents == NO_PARENT]] = False
    waiting, awaited = _edges(stages, parents)
    number = np.cumsum(used) - 1
    length = (parts.bounds[:, 1] - parts.bounds[:, 0])[part]
    return Lanes(
        src=src[used],
        dst=dst[used],
        payload_bytes=length[used],
        channel=parts.head[part][used],
        step=step[used],
        origin=PARTIAL_SUM,
        offset=parts.bounds[part, 0][used],
        operation=operation[used],
        latency_ps=latency_ps[used],
        wire_rate=rates.wire_rate(parts.share),
        edges=(number[waiting], number[awaited]),
        streams=True,
    )


def _stage(
    flows: NDArray[np.int64], src: NDArray[np.int64], dst: NDArray[np.int64], operation: Operation, latency_ps: int
) -> tuple[NDArray[np.int64], ...]:
    """Source, destination, part, operation and latency of one stage's flows."""
    if not flows.size:
        return tuple(np.zeros(0, dtype=np.int64) for _ in range(5))
    part = np.broadcast_to(np.arange(len(flows)).reshape(-1, *[1] * (flows.ndim - 1)), flows.shape)
    constants = (np.full(flows.size, value, dtype=np.int64) for value in (operation, latency_ps))
    return src.ravel(), dst.ravel(), part.ravel(), *constants


def _edges(stages: _Stages, parents: NDArray[np.int64]) -> Edges:
    """Edges to the flows that each passes on; a head adds what its children send to the total of its own node."""
    edges: list[Edges] = []
    if stages.total.size:
        edges.append((np.repeat(stages.total.ravel(), stages.load.shape[2]), stages.load.ravel()))
    if stages.up.size:
        edges += _tree_edges(stages, parents)
    elif stages.total.size and stages.store.size:
        edges.append((stages.store.ravel(), stages.total.ravel()))
    if stages.store.size:
        edges.append((stages.copies.ravel(), np.repeat(stages.store.ravel(), stages.copies.shape[2])))
    return joined(edges)


def _tree_edges(stages: _Stages, parents: NDArray[np.int64]) -> list[Edges]:
    part, child = np.nonzero(parents != NO_PARENT)
    parent = parents[part, child]
    up, down = stages.up[part, child], stages.down[part, child]
    is_inner = parents[part, parent] != NO_PARENT
    under_root = np.flatnonzero(~is_inner)
    one, other = np.nonzero(part[under_root][:, None] == part[under_root])
    return [
        (up, stages.total[part, child]),
        (up, stages.total[part, parent]),
        (stages.up[part, parent][is_inner], up[is_inner]),
        (down[is_inner], stages.down[part, parent][is_inner]),
        (down[under_root[one]], up[under_root[other]]),
        (stages.store[part, child], down),
        (stages.store[part, parent][under_root], up[under_root]),
    ]
