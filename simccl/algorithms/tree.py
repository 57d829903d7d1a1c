"""Tree all_reduce: NCCL's double binary tree over nodes, chains inside them (NCCL 2.30.7, src/graph/trees.cc).

Data is reduced up a tree and broadcast down again, pipelined by chunk. Two trees carry half of the data each, such that
with an even number of nodes no node is inside both. Inside a node ranks form a chain; the first one, or the second one
for a left child of a balanced tree, exchanges with other nodes.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from simccl.algorithms.chunks import Chunks, chunked
from simccl.algorithms.pace import Lanes, Pace
from simccl.collective import shares
from simccl.communicator import Communicator
from simccl.edges import Edges, joined
from simccl.plan import PARTIAL_SUM, Operation, PlannedFlows

NO_PARENT = -1


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
    size_bytes: int, communicator: Communicator, pace: Pace, *, lanes: int, is_balanced: bool, chunks: Chunks | None
) -> PlannedFlows:
    """The flows of a tree all_reduce over two or more ranks.

    ``lanes`` is how many channels of the search have trees of their own; each runs both trees. ``is_balanced``: other
    nodes are reached by the first two ranks of a chain instead of the first one.
    """
    parents = tree_parents(communicator, lanes, is_balanced=is_balanced)
    bounds = shares(size_bytes, len(parents))
    whole = _up_and_down(parents, bounds, communicator, pace)
    return (whole if chunks is None else chunked(whole, chunks)).flows(pace.protocol)


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
    parents: NDArray[np.int64], bounds: NDArray[np.int64], communicator: Communicator, pace: Pace
) -> Lanes:
    """Per tree one flow up and one down on every edge; a rank sends up what its children sent, and down after that."""
    used = np.flatnonzero(np.diff(bounds))
    tree, child = np.nonzero(parents[used] != NO_PARENT)
    parent = parents[used][tree, child]
    edges_of_tree = len(child)
    up = np.full(parents[used].shape, -1, dtype=np.int64)
    up[tree, child] = np.arange(edges_of_tree)
    node = communicator.node_of_rank()
    latency_ps = pace.hop_latency_ps(node[child] != node[parent])
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
        wire_rate=pace.wire_rate(1 / len(parents)),
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
