"""Double binary trees and the tree all_reduce: NCCL's golden trees, their properties, and flows by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simccl import Operation, plan_collective, verify_plan
from simccl.algorithms.tree import NO_PARENT, double_binary_tree, is_left_child, tree_parents
from tests.simccl.communicators import spread

X = NO_PARENT
GOLDEN = {
    2: ([X, 0], [1, X], 1),
    3: ([X, 2, 0], [1, X, 0], 2),
    4: ([X, 2, 0, 2], [1, 3, 1, X], 2),
    5: ([X, 2, 4, 2, 0], [1, X, 3, 0, 3], 3),
    6: ([X, 2, 4, 2, 0, 4], [1, 5, 3, 1, 3, X], 3),
    8: ([X, 2, 4, 2, 0, 6, 4, 6], [1, 3, 1, 7, 5, 3, 5, X], 3),
    16: (
        [X, 2, 4, 2, 8, 6, 4, 6, 0, 10, 12, 10, 8, 14, 12, 14],
        [1, 3, 1, 7, 5, 3, 5, 15, 9, 11, 9, 7, 13, 11, 13, X],
        4,
    ),
}
"""Parents in both trees and depth, from NCCL 2.30.7's ncclGetDtree."""


def depth(parents: np.ndarray) -> int:
    def of(node: int) -> int:
        return 0 if parents[node] == NO_PARENT else 1 + of(int(parents[node]))

    return max(of(node) for node in range(len(parents)))


@pytest.mark.parametrize("nodes", list(GOLDEN))
def test_trees_are_those_of_nccl(nodes: int) -> None:
    first, second, levels = GOLDEN[nodes]
    found = double_binary_tree(nodes)
    assert found.tolist() == [first, second]
    assert depth(found[0]) == depth(found[1]) == levels


@given(st.integers(2, 600))
def test_trees_have_one_root_two_children_at_most_and_logarithmic_depth(nodes: int) -> None:
    """Each node is the first or second child of its parent, and no parent has two first ones. With an even number of
    nodes nobody is inside both trees, with an odd number node 0 alone."""
    inner = []
    for tree, parents in enumerate(double_binary_tree(nodes)):
        assert (parents == NO_PARENT).sum() == 1
        assert depth(parents) == (nodes - 1).bit_length()
        left = is_left_child(nodes, tree)
        slots = [(int(p), bool(s)) for p, s in zip(parents, left, strict=True) if p != NO_PARENT]
        assert len(set(slots)) == len(slots)
        inner.append(set(parents.tolist()) - {NO_PARENT})
    assert inner[0] & inner[1] == (set() if nodes % 2 == 0 else {0})


def test_chains_inside_nodes_hang_below_the_rank_at_the_network() -> None:
    """Two nodes of 4. Channel 0 begins at local GPU 0 on both; in tree 0 node 1 hangs below node 0. Channel 1 begins at
    local GPU 1. In a balanced tree a left child (node 1 in tree 0 is none, node 0 in tree 1 is) uses the second GPU."""
    parents = tree_parents(spread(2, 4), 2, is_balanced=False)
    assert parents[0].tolist() == [-1, 2, 3, 0, 0, 6, 7, 4]
    assert parents[1].tolist() == [4, 2, 3, 0, -1, 6, 7, 4]
    assert parents[2].tolist()[1] == -1
    assert len(parents) == 4
    crossing = tree_parents(spread(2, 4), 1, is_balanced=True)
    assert {int(row[0]) for row in crossing} | {int(row[4]) for row in crossing} >= {-1}


def test_hops_between_nodes_stay_on_one_rail() -> None:
    communicator = spread(5, 8)
    flows = plan_collective("all_reduce", 1 << 20, communicator, algorithm="tree").flows
    node, rail = communicator.node_of_rank(), communicator.rail_of_rank()
    crosses = node[flows.src] != node[flows.dst]
    assert crosses.any()
    assert (rail[flows.src] == rail[flows.dst])[crosses].all()


def test_an_all_reduce_of_three_ranks_by_hand() -> None:
    """One node is a chain 0-1-2 with root 0: 2 sends to 1, 1 to 0, and the sum goes back; all of it streams."""
    flows = plan_collective("all_reduce", 9, spread(1, 3), algorithm="tree").flows
    assert flows.src.tolist() == [1, 2, 0, 1]
    assert flows.dst.tolist() == [0, 1, 1, 2]
    assert flows.operation.tolist() == [Operation.REDUCE] * 2 + [Operation.COPY] * 2
    waits = [flows.deps[a:b].tolist() for a, b in zip(flows.dep_offsets, flows.dep_offsets[1:], strict=False)]
    assert waits == [[1], [], [0], [2]]
    assert flows.streams.tolist() == [True, False, True, True]
    assert flows.payload_bytes.tolist() == [9] * 4


@pytest.mark.parametrize(("nodes", "per_node"), [(2, 8), (3, 4), (8, 2), (7, 1)])
def test_every_edge_carries_its_trees_share_up_and_down(nodes: int, per_node: int) -> None:
    plan = plan_collective("all_reduce", 1 << 20, spread(nodes, per_node), algorithm="tree")
    flows, ranks = plan.flows, nodes * per_node
    trees = int(flows.channel.max()) + 1
    assert len(plan) == trees * 2 * (ranks - 1)
    assert np.abs(flows.payload_bytes - (1 << 20) / trees).max() < 1
    up = flows.operation == Operation.REDUCE
    edges = set(zip(flows.channel[up].tolist(), flows.src[up].tolist(), flows.dst[up].tolist(), strict=True))
    down = set(zip(flows.channel[~up].tolist(), flows.dst[~up].tolist(), flows.src[~up].tolist(), strict=True))
    assert edges == down
    proof = verify_plan(plan)
    levels = (nodes - 1).bit_length()
    assert proof.depth <= 2 * (per_node - 1 + levels)
