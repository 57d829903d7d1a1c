"""Channels as NCCL 2.30.7's own search code found them."""

import pytest

from simccl import UnsupportedTopology
from simccl.communicator.shape import NicLayout
from simccl.nccl.search import PathType, Pattern, search
from tests.simccl.arrangements import arranged

BALANCED, TREE = Pattern.BALANCED_TREE, Pattern.TREE


@pytest.mark.parametrize(
    ("gpu", "gpus", "ring", "tree", "nvls", "executed"),
    [
        ("h100", 8, (12, 30), (12, 30), (8, 40, 60), 24),
        ("h200", 8, (12, 30), (12, 30), (8, 40, 60), 24),
        ("h20", 8, (12, 30), (12, 30), (8, 40, 60), 24),
        ("h100", 4, (12, 30), (12, 30), (4, 60, 60), 24),
        ("h100", 2, (12, 30), (12, 60), (2, 60, 60), 24),
        ("b200", 8, (16, 45), (16, 45), (8, 80, 90), 32),
        ("b200", 4, (16, 45), (16, 50), (4, 90, 90), 32),
        ("b200", 2, (16, 45), (16, 90), (2, 90, 90), 32),
        ("a100", 8, (12, 20), (12, 20), None, 24),
        ("a100", 4, (12, 20), (12, 20), None, 24),
        ("a100", 2, (12, 20), (12, 40), None, 24),
        ("h800", 8, (8, 20), (8, 20), (8, 15, 30), 16),
        ("a800", 8, (8, 20), (8, 20), None, 16),
    ],
)
def test_channels_of_one_node_are_those_of_the_search(
    gpu: str,
    gpus: int,
    ring: tuple[int, float],
    tree: tuple[int, float],
    nvls: tuple[int, float, float] | None,
    executed: int,
) -> None:
    """Trees of four B200s are the only ones of pattern 3 among these."""
    found = search(arranged(gpu, 1, gpus))
    assert (found.ring.channels, found.ring.intra_gbytes_per_s) == ring
    assert (found.tree.channels, found.tree.intra_gbytes_per_s) == tree
    assert found.tree.pattern is (TREE if (gpu, gpus) == ("b200", 4) else BALANCED)
    graph = found.nvls
    assert (graph and (graph.channels, graph.intra_gbytes_per_s, graph.inter_gbytes_per_s)) == nvls
    assert found.executed == executed


SHARED = NicLayout.SHARED_SWITCH
MANY = [  # gpu, GPUs per node, arrangement; ring (channels, bandwidth, crosses, path); tree; NVLS; executed channels
    ("h100", 8, {}, (8, 48, True, "PIX"), (TREE, 48, 48), (8, 40, 48), 16),
    ("h100", 8, {"nic_layout": SHARED}, (8, 48, False, "PIX"), (BALANCED, 48, 48), (8, 40, 48), 16),
    ("h100", 8, {"may_cross_nics": False}, (8, 45, False, "PXN"), (TREE, 48, 48), (8, 40, 48), 16),
    ("h100", 8, {"nics_per_node": 4}, (8, 24, False, "PXN"), (TREE, 45, 24), (4, 48, 48), 16),
    (
        "h100",
        8,
        {"nics_per_node": 4, "nic_layout": SHARED},
        (8, 24, False, "PIX"),
        (BALANCED, 48, 24),
        (4, 48, 48),
        16,
    ),
    ("h100", 8, {"nic_gbytes_per_s": 25}, (8, 24, False, "PXN"), (TREE, 48, 24), (8, 24, 24), 16),
    ("b200", 8, {}, (8, 48, False, "PXN"), (TREE, 96, 48), (8, 48, 48), 16),
    ("b200 gen6", 8, {"nic_gbytes_per_s": 100}, (16, 48, True, "PIX"), (TREE, 48, 48), (8, 80, 96), 32),
    ("h800", 8, {}, (8, 22, True, "PIX"), (TREE, 22, 22), (8, 17.5, 40), 16),
    ("a100", 8, {}, (8, 24, False, "PXN"), (BALANCED, 24, 24), None, 16),
    ("a100", 8, {"nic_layout": SHARED}, (8, 24, False, "PIX"), (BALANCED, 30, 24), None, 16),
    ("h100", 4, {}, (8, 24, False, "PXN"), (TREE, 48, 24), (4, 48, 48), 16),
    ("h100", 2, {}, (4, 24, False, "PXN"), (TREE, 48, 24), (2, 48, 48), 8),
    ("h100", 1, {}, (2, 24, False, "PIX"), (TREE, 48, 24), None, 4),
]


@pytest.mark.parametrize(("gpu", "per_node", "options", "ring", "tree", "nvls", "executed"), MANY)
@pytest.mark.parametrize("nodes", [2, 4, 64])
def test_channels_across_nodes_are_those_of_the_search(
    nodes: int,
    gpu: str,
    per_node: int,
    options: dict[str, object],
    ring: tuple[int, float, bool, str],
    tree: tuple[Pattern, float, float],
    nvls: tuple[int, float, float] | None,
    executed: int,
) -> None:
    """They do not depend on the number of nodes."""
    found = search(arranged(gpu, nodes, per_node, **options))
    of_ring = found.ring
    assert (of_ring.channels, of_ring.intra_gbytes_per_s, of_ring.crosses_nics, of_ring.nic_path.name) == ring
    assert found.tree.channels == of_ring.channels
    assert (found.tree.pattern, found.tree.intra_gbytes_per_s, found.tree.inter_gbytes_per_s) == tree
    graph = found.nvls
    assert (graph and (graph.channels, graph.intra_gbytes_per_s, graph.inter_gbytes_per_s)) == nvls
    assert found.executed == executed


def test_balanced_trees_of_ampere_reach_a_nic_through_the_cpu_unless_switches_are_shared() -> None:
    assert search(arranged("a100", 2, 8)).tree.nic_path is PathType.PHB
    assert search(arranged("a100", 2, 8, nic_layout=SHARED)).tree.nic_path is PathType.PIX


def test_collnet_channels_exist_only_with_switches_that_reduce() -> None:
    assert search(arranged("h100", 2, 8)).collnet is None
    assert search(arranged("h100", 1, 8, has_collnet=True)).collnet is None
    assert search(arranged("h100", 2, 8, has_collnet=True)).collnet is not None


def test_nics_below_any_speed_that_nccl_tries_are_refused() -> None:
    with pytest.raises(UnsupportedTopology, match=r"nic: found 0\.1 GB/s per NIC"):
        search(arranged("h100", 2, 8, nic_gbytes_per_s=0.1))


def test_a_nic_counts_with_what_pcie_lets_through() -> None:
    """B200 on PCIe gen5: 48 of 100 GB/s."""
    assert search(arranged("b200", 2, 8, nic_gbytes_per_s=100)).ring.intra_gbytes_per_s == 48
