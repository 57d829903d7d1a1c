"""Tree all_reduce: NCCL's double binary tree over nodes, chains inside them (NCCL 2.30.7, src/graph/trees.cc).

Data is reduced up a tree and broadcast down again, pipelined by chunk. Two trees carry half of the data each, such that
with an even number of nodes no node is inside both. Inside a node ranks form a chain; the first one, or the second one
for a left child of a balanced tree, exchanges with other nodes.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from simccl.algorithms.algorithm import FlowRequest, NcclAlgorithm, channel_gbytes_per_s, nodes_column
from simccl.algorithms.chunks import Chunks, chunked
from simccl.algorithms.flow_rates import FlowRates, Lanes
from simccl.collective import PROTOCOLS, Algorithm, Collective, Protocol, shares
from simccl.communicator.communicator import Communicator
from simccl.communicator.shape import CommunicatorShape, Cpu
from simccl.nccl.costs import AlgorithmCosts
from simccl.nccl.search import Channels, Graph, PathType, Pattern
from simccl.nccl.work_split import BYTES_PER_THREAD, MOST_THREADS, STEP_BYTES, fewer_channels, most_threads
from simccl.plan.edges import Edges, joined
from simccl.plan.flows import PARTIAL_SUM, Operation, PlannedFlows
from simccl.plan.plan import Plan

NO_PARENT = -1

FACTORS = {
    Protocol.LL: (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1),
    Protocol.LL128: (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7) + 6 * (0.6,) + (0.8, 0.9, 0.9, 0.9, 0.9, 1, 1),
    Protocol.SIMPLE: 7 * (0.9,) + (0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
}
"""Factors on the bandwidth of trees by size: NCCL 2.30.7, src/graph/tuning.cc (treeCorrectionFactor)."""

# Limit of LL across nodes in GB/s, which NCCL indexes by CPU vendor instead of GPU; on 2, 3 and more nodes.
_LL_ACROSS_NODES = {Cpu.AMD: (22.5, 19.0), Cpu.INTEL: (39.0, 20.4), Cpu.ARM: (39.0, 20.4)}


class Tree(NcclAlgorithm):
    """Double binary trees over nodes, chains inside them."""

    name = Algorithm.TREE
    flow_model_code = 0
    flow_model_connection = "TREE_INIT"
    ops = frozenset({Collective.ALL_REDUCE})
    base_us = (6.8, 14.0, 8.4)
    inside_us = (0.6, 1.25, 4.0)
    between_us = NcclAlgorithm.lone_rank_between_us

    def graph(self, channels: Channels) -> Graph:
        return channels.tree

    def is_enabled(self, at: CommunicatorShape, graph: Graph) -> NDArray[np.bool_]:
        return np.array([True, has_ll128(at, graph), True])

    def steps(self, op: Collective, at: CommunicatorShape) -> tuple[int, int]:
        doublings = at.nodes.bit_length() - 1
        return 2 * (at.ranks // at.nodes - 1 + doublings), 2 * doublings

    def bus_gbytes_per_s(self, op: Collective, at: CommunicatorShape, graph: Graph) -> NDArray[np.float64]:
        generation, column, channels = at.gpu.generation, nodes_column(at), graph.channels
        total = channels * channel_gbytes_per_s(at, graph)
        simple = min(0.92 * total, channels * generation.tree_per_channel[column])
        ll128_max = channels * generation.tree_ll128_per_channel[column]
        ll128 = min(simple * (7 / 9 if at.nodes == 1 else 120 / 128), ll128_max)
        factor = 0.85 if graph.pattern is Pattern.TREE else 1.0
        return np.array([min(simple / 3.8, ll_limit_gbytes_per_s(at)), ll128, simple]) * factor

    def bandwidth_factors(self, op: Collective, at: CommunicatorShape) -> tuple[tuple[float, ...], ...]:
        return tuple(FACTORS[protocol] for protocol in PROTOCOLS)

    def channels_and_threads(
        self, size_bytes: NDArray[np.int64], costs: AlgorithmCosts, protocol: Protocol, at: CommunicatorShape
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """All threads, whatever the size."""
        channels = fewer_channels(size_bytes, most_threads(protocol) * BYTES_PER_THREAD[protocol], costs.executed)
        return channels, np.full_like(size_bytes, MOST_THREADS)

    def largest_chunk(
        self, op: Collective, channel_bytes: int, costs: AlgorithmCosts, protocol: Protocol, at: CommunicatorShape
    ) -> int:
        chunk = STEP_BYTES[protocol]
        if protocol is not Protocol.LL128:
            return chunk
        per_node = at.ranks / at.nodes
        steps = 1 + (at.nodes.bit_length() - 1) + 0.1 * per_node
        for times, least in ((64, 131_072), (16, 32_768)):
            while channel_bytes // chunk < times * steps / per_node and chunk > least:
                chunk //= 2
        return chunk

    def flows(self, request: FlowRequest) -> PlannedFlows:
        graph = request.choice.costs.graph
        return tree_flows(
            request.size_bytes, request.communicator, request.rates,
            lanes=graph.channels, is_balanced=graph.pattern is Pattern.BALANCED_TREE, chunks=request.chunks(),
        )  # fmt: skip

    def payload_bytes(self, plan: Plan) -> int:
        """The buffer once up and once down every edge."""
        return 2 * (plan.communicator.size - 1) * plan.size_bytes


def has_ll128(at: CommunicatorShape, graph: Graph) -> bool:
    """Whether rings and trees may use LL128: on one node, or with NICs near enough."""
    farthest = PathType.PXN if at.gpu.compute_capability >= 90 else PathType.PIX
    return at.nodes == 1 or graph.nic_path <= farthest


def ll_limit_gbytes_per_s(at: CommunicatorShape) -> float:
    """Limit of LL, all channels together."""
    return at.gpu.generation.ll_one_node if at.nodes == 1 else _LL_ACROSS_NODES[at.cpu][nodes_column(at) - 1]


def double_binary_tree(nodes: int) -> NDArray[np.int64]:
    """[2, nodes] parent of each node in the two trees, `NO_PARENT` for the roots.

    The second tree is the first one mirrored for an even number of nodes, and shifted by one for an odd number.
    """
    first = np.array([_parent(node, nodes) for node in range(nodes)], dtype=np.int64)
    node = np.arange(nodes)
    image = nodes - 1 - node if nodes % 2 == 0 else (node + 1) % nodes
    second = np.full(nodes, NO_PARENT, dtype=np.int64)
    has_parent = first != NO_PARENT
    second[image[has_parent]] = image[first[has_parent]]
    return np.array([first, second])


def is_left_child(nodes: int, tree: int) -> NDArray[np.bool_]:
    """[nodes] whether each node is the first child of its parent (NCCL's child type 0) in one of the two trees."""
    parents = double_binary_tree(nodes)[0]
    node = np.arange(nodes)
    left: NDArray[np.bool_] = (parents != NO_PARENT) & (node < parents)
    if tree == 0:
        return left
    image = nodes - 1 - node if nodes % 2 == 0 else (node + 1) % nodes
    moved = np.zeros(nodes, dtype=np.bool_)
    moved[image] = left
    return moved


def tree_flows(
    size_bytes: int,
    communicator: Communicator,
    rates: FlowRates,
    *,
    lanes: int,
    is_balanced: bool,
    chunks: Chunks | None,
) -> PlannedFlows:
    """The flows of a tree all_reduce over two or more ranks.

    ``lanes`` is how many channels of the search have trees of their own; each runs both trees. ``is_balanced``: other
    nodes are reached by the first two ranks of a chain instead of the first one.
    """
    parents = tree_parents(communicator, lanes, is_balanced=is_balanced)
    bounds = shares(size_bytes, len(parents))
    whole = _up_and_down(parents, bounds, communicator, rates)
    return (whole if chunks is None else chunked(whole, chunks)).flows(rates.protocol)


@lru_cache(maxsize=64)
def tree_parents(communicator: Communicator, lanes: int, *, is_balanced: bool) -> NDArray[np.int64]:
    """[trees, ranks] parent of each rank in every distinct tree: both trees of a channel, one channel after another.

    The same for every size, so computed once.
    """
    found = [
        _parents_of_lane(communicator, orders, tree, is_balanced)
        for orders in communicator.chain_orders(lanes)
        for tree in range(2)
    ]
    _, first = np.unique(np.array(found), axis=0, return_index=True)
    return np.array(found)[np.sort(first)]


def _parent(node: int, nodes: int) -> int:
    """Parent in the first tree: the lowest set bit of a node moves up by one, unless that leads outside."""
    if node == 0:
        return NO_PARENT
    bit = node & -node
    parent = (node ^ bit) | (bit << 1)
    return parent if parent < nodes else node ^ bit


def _parents_of_lane(
    communicator: Communicator, orders: list[NDArray[np.int32]], tree: int, is_balanced: bool
) -> NDArray[np.int64]:
    """[ranks] parents; ``orders`` are the chains of the nodes."""
    parents = np.full(communicator.size, NO_PARENT, dtype=np.int64)
    node_parent = double_binary_tree(len(orders))[tree]
    is_left = is_left_child(len(orders), tree)
    for node, chain in enumerate(orders):
        parents[chain[1:]] = chain[:-1]
        if node_parent[node] != NO_PARENT:
            above = orders[node_parent[node]]
            parents[chain[0]] = above[1 if is_balanced and is_left[node] and len(above) > 1 else 0]
    return parents


def _up_and_down(
    parents: NDArray[np.int64], bounds: NDArray[np.int64], communicator: Communicator, rates: FlowRates
) -> Lanes:
    """Per tree one flow up and one down on every edge; a rank sends up what its children sent, and down after that."""
    used = np.flatnonzero(np.diff(bounds))
    tree, child = np.nonzero(parents[used] != NO_PARENT)
    parent = parents[used][tree, child]
    edges_of_tree = len(child)
    up = np.full(parents[used].shape, -1, dtype=np.int64)
    up[tree, child] = np.arange(edges_of_tree)
    node = communicator.node_of_rank()
    latency_ps = rates.hop_latency_ps(node[child] != node[parent])
    depth = _depths(parents[used])[tree, child]
    twice = np.tile(used[tree], 2)
    return Lanes(
        src=np.concatenate((child, parent)),
        dst=np.concatenate((parent, child)),
        payload_bytes=np.diff(bounds)[twice],
        channel=twice,
        step=np.concatenate((depth.max() - depth, depth.max() + depth - 1)),
        origin=PARTIAL_SUM,
        offset=bounds[twice],
        operation=np.repeat(np.array([Operation.REDUCE, Operation.COPY]), edges_of_tree),
        latency_ps=np.tile(latency_ps, 2),
        wire_rate=rates.wire_rate(1 / len(parents)),
        edges=_tree_edges(up, tree, parent),
        streams=True,
    )


def _tree_edges(up: NDArray[np.int64], tree: NDArray[np.int64], parent: NDArray[np.int64]) -> Edges:
    """Up flows wait for those of the children; down flows for the one from above, at the root for all that came up."""
    count = len(tree)
    flow = np.arange(count)
    above = up[tree, parent]
    inner = above >= 0
    roots_up = flow[~inner]
    same_tree, below = np.nonzero(tree[roots_up][:, None] == tree[roots_up])
    return joined(
        [
            (above[inner], flow[inner]),
            (count + flow[inner], count + above[inner]),
            (count + roots_up[same_tree], roots_up[below]),
        ]
    )


def _depths(parents: NDArray[np.int64]) -> NDArray[np.int64]:
    """[trees, ranks] edges to the root."""
    depth = np.zeros(parents.shape, dtype=np.int64)
    at = parents
    while (at != NO_PARENT).any():
        depth += at != NO_PARENT
        at = np.where(at != NO_PARENT, np.take_along_axis(parents, np.maximum(at, 0), axis=1), NO_PARENT)
    return depth
