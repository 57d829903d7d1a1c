"""Ring channels against the results of NCCL 2.30.7's own topology search."""

import pytest

from simccl import UnsupportedTopology
from simccl.hardware import gpu_named
from simccl.search import RingChannels, search_rings


@pytest.mark.parametrize(
    ("gpu", "gpus", "expected"),
    [
        ("h100", 8, RingChannels(12, 30, 24)),
        ("h200", 8, RingChannels(12, 30, 24)),
        ("h20", 8, RingChannels(12, 30, 24)),
        ("h100", 4, RingChannels(12, 30, 24)),
        ("h100", 2, RingChannels(12, 30, 24)),
        ("b200", 8, RingChannels(16, 45, 32)),
        ("b200", 2, RingChannels(16, 45, 32)),
        ("a100", 8, RingChannels(12, 20, 24)),
        ("a100", 2, RingChannels(12, 20, 24)),
        ("h800", 8, RingChannels(8, 20, 16)),
        ("a800", 8, RingChannels(8, 20, 16)),
    ],
)
def test_rings_of_one_node_are_those_of_the_search(gpu: str, gpus: int, expected: RingChannels) -> None:
    assert search_rings(gpu_named(gpu), gpus_per_node=gpus, nodes=1) == expected


@pytest.mark.parametrize("nodes", [2, 3, 16])
@pytest.mark.parametrize(
    ("gpu", "gpus", "nic", "expected"),
    [
        ("h100", 8, 50, RingChannels(8, 48, 16)),
        ("h100", 8, 25, RingChannels(8, 24, 16)),
        ("b200", 8, 50, RingChannels(8, 48, 16)),
        ("h800", 8, 50, RingChannels(8, 22, 16)),
        ("a100", 8, 25, RingChannels(8, 24, 16)),
        ("h100", 4, 50, RingChannels(8, 24, 16)),
        ("h100", 2, 50, RingChannels(4, 24, 8)),
        ("h100", 1, 50, RingChannels(2, 24, 4)),
    ],
)
def test_rings_across_nodes_are_those_of_the_search(
    gpu: str, gpus: int, nic: float, expected: RingChannels, nodes: int
) -> None:
    assert search_rings(gpu_named(gpu), gpus_per_node=gpus, nodes=nodes, nic_gbytes_per_s=nic) == expected


def test_unknown_gpus_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedTopology, match=r"gpu: found 'rtx4090', expected one of a100"):
        gpu_named("rtx4090")
