"""NCCL 2.30.7's tuning table, as its own code computes it."""

from itertools import pairwise

import numpy as np
import pytest

from simccl import Algorithm, Collective, Protocol
from simccl.collective import PROTOCOLS
from simccl.communicator.shape import Cpu, NicLayout
from simccl.planning.cost_model import algorithm_costs, cost_model
from tests.simccl.arrangements import arranged

AR, AG, RS = Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER
RING, TREE, NVLS, NVLS_TREE, PAT = (
    Algorithm.RING,
    Algorithm.TREE,
    Algorithm.NVLS,
    Algorithm.NVLS_TREE,
    Algorithm.PAT,
)
SHARED = {"nic_layout": NicLayout.SHARED_SWITCH}
GEN6 = {"nic_gbytes_per_s": 100}
AMD = {"cpu": Cpu.AMD}
Pairs = list[tuple[float, float]]


def check(
    op: Collective, gpu: str, nodes: int, per_node: int, algorithm: Algorithm, pairs: Pairs, **at: object
) -> None:
    """Compares (latency µs, algorithm bandwidth GB/s) of each protocol, or of Simple if that is the only one."""
    costs = algorithm_costs(op, arranged(gpu, nodes, per_node, **at), algorithm)
    assert costs is not None
    latency, bandwidth = np.array(pairs).T
    np.testing.assert_allclose(costs.latency_us[-len(pairs) :], latency, atol=0.051)
    np.testing.assert_allclose(costs.algorithm_gbytes_per_s[-len(pairs) :], bandwidth, atol=0.0051)


ONE_NODE_RINGS = [
    (AR, "h100", 8, [(15.0, 80.57), (40.6, 189.26), (56.0, 205.71)]),
    (AG, "h100", 8, [(10.8, 161.14), (27.3, 378.51), (32.2, 411.43)]),
    (RS, "h100", 8, [(10.8, 161.14), (27.3, 378.51), (32.2, 411.43)]),
    (AR, "h100", 4, [(10.2, 94.00), (25.4, 220.80), (28.8, 240.00)]),
    (AR, "h100", 2, [(7.8, 141.00), (17.8, 331.20), (15.2, 360.00)]),
    (AR, "b200", 8, [(15.0, 161.14), (40.6, 365.71), (56.0, 411.43)]),
    (AG, "b200", 8, [(10.8, 322.29), (27.3, 731.43), (32.2, 822.86)]),
    (AR, "a100", 8, [(15.0, 50.11), (40.6, 126.17), (56.0, 137.14)]),
    (AR, "h800", 8, [(15.0, 45.71), (40.6, 84.11), (56.0, 91.43)]),
]


@pytest.mark.parametrize(("op", "gpu", "gpus", "pairs"), ONE_NODE_RINGS)
def test_rings_of_one_node_cost_what_nccl_says(op: Collective, gpu: str, gpus: int, pairs: Pairs) -> None:
    check(op, gpu, 1, gpus, RING, pairs)


@pytest.mark.parametrize(
    ("gpu", "gpus", "pairs"),
    [
        ("h100", 8, [(15.2, 43.58), (31.5, 128.80), (64.4, 165.60)]),
        ("h100", 4, [(10.4, 43.58), (21.5, 128.80), (32.4, 165.60)]),
        ("h100", 2, [(8.0, 61.11), (16.5, 180.60), (16.4, 232.20)]),
        ("b200", 8, [(15.2, 87.16), (31.5, 257.60), (64.4, 331.20)]),
        ("a100", 8, [(15.2, 29.05), (31.5, 85.87), (64.4, 110.40)]),
        ("h800", 8, [(15.2, 19.37), (31.5, 57.24), (64.4, 73.60)]),
    ],
)
def test_trees_of_one_node_cost_what_nccl_says(gpu: str, gpus: int, pairs: Pairs) -> None:
    check(AR, gpu, 1, gpus, TREE, pairs)


@pytest.mark.parametrize(
    ("op", "gpu", "gpus", "bandwidth"),
    [
        (AR, "h100", 8, 272.00),
        (AG, "h100", 8, 208.25),
        (AR, "h100", 4, 160.00),
        (AR, "h100", 2, 102.00),
        (AR, "b200", 8, 411.43),
        (RS, "b200", 8, 362.60),
        (AR, "h800", 8, 102.00),
    ],
)
def test_nvls_costs_what_nccl_says(op: Collective, gpu: str, gpus: int, bandwidth: float) -> None:
    check(op, gpu, 1, gpus, NVLS, [(25.0, bandwidth)])


ACROSS_NODES = [  # ring (before the slow start factor), tree, NVLSTree
    ("h100", 2, {}, [(40.0, 20.80), (75.2, 156.59), (131.6, 204.80)], (16.58, 124.78, 140.76), 246.19),
    ("h100", 2, SHARED, [(40.0, 20.80), (75.2, 156.59), (131.6, 204.80)], (19.50, 146.80, 165.60), 246.19),
    ("h100", 2, AMD, [(68.0, 12.00), (78.0, 156.59), (204.4, 204.80)], (9.56, 124.78, 140.76), 246.19),
    ("h100", 4, {}, [(78.8, 10.53), (144.4, 151.54), (282.8, 198.19)], (8.67, 98.60, 122.40), 187.87),
    ("h100", 4, SHARED, [(78.8, 10.53), (144.4, 151.54), (282.8, 198.19)], (10.20, 116.00, 144.00), 187.87),
    ("h100", 16, {}, [(311.6, 10.28), (559.6, 147.96), (1190.0, 193.51)], (8.67, 98.60, 122.40), 183.43),
    ("b200", 2, {}, [(40.0, 20.80), (75.2, 170.67), (131.6, 204.80)], (16.58, 107.68, 145.52), 265.22),
    ("b200 gen6", 2, GEN6, [(40.0, 20.80), (75.2, 341.33), (131.6, 409.60)], (16.58, 215.36, 291.04), 409.60),
    ("a100", 2, SHARED | AMD, [(68.0, 12.00), (78.0, 85.33), (204.4, 102.40)], (11.25, 80.00, 94.40), None),
]
TREE_LATENCIES_US = {2: (25.2, 48.5, 92.4), 4: (35.2, 65.5, 120.4), 16: (55.2, 99.5, 176.4)}
NVLS_TREE_LATENCY_US = {2: 66.8, 4: 108.6, 16: 192.2}


@pytest.mark.parametrize(("gpu", "nodes", "at", "ring", "tree", "nvls_tree"), ACROSS_NODES)
def test_all_reduces_across_nodes_cost_what_nccl_says(
    gpu: str, nodes: int, at: dict[str, object], ring: Pairs, tree: tuple[float, ...], nvls_tree: float | None
) -> None:
    check(AR, gpu, nodes, 8, RING, ring, **at)
    check(AR, gpu, nodes, 8, TREE, list(zip(TREE_LATENCIES_US[nodes], tree, strict=True)), **at)
    if nvls_tree is not None:
        check(AR, gpu, nodes, 8, NVLS_TREE, [(NVLS_TREE_LATENCY_US[nodes], nvls_tree)], **at)
    assert algorithm_costs(AR, arranged(gpu, nodes, 8, **at), NVLS) is None


@pytest.mark.parametrize(
    ("nodes", "per_node", "algorithm", "pairs"),
    [
        (2, 8, RING, [(23.3, 41.60), (44.6, 313.17), (70.0, 409.60)]),
        (4, 8, RING, [(42.7, 21.06), (79.2, 303.07), (145.6, 396.39)]),
        (4, 1, RING, [(21.6, 27.20), (39.5, 58.88), (50.4, 64.00)]),
        (4, 1, PAT, [(27.2, 36.00)]),
        (16, 1, PAT, [(68.8, 36.00)]),
    ],
)
@pytest.mark.parametrize("op", [AG, RS])
def test_gathers_and_scatters_across_nodes_cost_what_nccl_says(
    op: Collective, nodes: int, per_node: int, algorithm: Algorithm, pairs: Pairs
) -> None:
    check(op, "h100", nodes, per_node, algorithm, pairs)


@pytest.mark.parametrize("op", [Collective.BROADCAST, Collective.REDUCE])
def test_broadcast_and_reduce_are_pipelined_rings(op: Collective) -> None:
    """One node: base and one hop (Simple: the tree's 4 µs) at the whole bandwidth of all channels."""
    check(op, "h100", 1, 8, RING, [(7.2, 141.0), (15.9, 331.2), (12.4, 360.0)])
    assert [costs.algorithm for costs in cost_model(op, arranged("h100", 1, 8))] == [RING]


def best(op: Collective, gpu: str, nodes: int, per_node: int, **at: object) -> list[tuple[Algorithm, Protocol]]:
    """The fastest pair for 1 KiB, 2 KiB, … 4 GiB."""
    costs = cost_model(op, arranged(gpu, nodes, per_node, **at))
    sizes = 1 << np.arange(10, 33)
    times = np.concatenate([of_one.times_us(sizes) for of_one in costs])
    pairs = [(of_one.algorithm, protocol) for of_one in costs for protocol in PROTOCOLS]
    return [pairs[k] for k in np.argmin(times, axis=0)]


LL, LL128, SIMPLE = Protocol.LL, Protocol.LL128, Protocol.SIMPLE
RING_STEPS = [(RING, LL), (RING, LL128), (RING, SIMPLE)]
TREE_STEPS = [(TREE, LL), (TREE, LL128), (NVLS_TREE, SIMPLE), (RING, SIMPLE)]


@pytest.mark.parametrize(
    ("op", "gpu", "nodes", "per_node", "at", "pairs", "last"),
    [  # the pairs in the order in which they are best, and log2 of the last size at which each of them is
        (AR, "h100", 1, 8, {}, [(RING, LL), (NVLS, SIMPLE)], [20]),
        (AG, "h100", 1, 8, {}, RING_STEPS, [22, 24]),
        (AR, "h100", 1, 4, {}, RING_STEPS, [21, 23]),
        (AG, "h100", 1, 4, {}, RING_STEPS, [21, 21]),
        (AR, "h100", 1, 2, {}, RING_STEPS, [20, 20]),
        (RS, "h100", 1, 2, {}, RING_STEPS, [21, 21]),
        (AR, "b200", 1, 8, {}, [(RING, LL), (NVLS, SIMPLE)], [21]),
        (AG, "b200", 1, 8, {}, RING_STEPS, [23, 24]),
        (AR, "a100", 1, 8, {}, RING_STEPS, [21, 24]),
        (RS, "a100", 1, 8, {}, RING_STEPS, [21, 23]),
        (AR, "h800", 1, 8, {}, [(RING, LL), (NVLS, SIMPLE)], [19]),
        (AG, "h800", 1, 8, {}, RING_STEPS, [21, 23]),
        (AR, "h100", 2, 8, {}, TREE_STEPS[:3], [17, 20]),
        (AG, "h100", 2, 8, {}, RING_STEPS, [19, 25]),
        (AR, "h100", 2, 8, SHARED, TREE_STEPS[:3], [17, 21]),
        (AR, "h100", 4, 8, {}, TREE_STEPS, [17, 22, 29]),
        (AG, "h100", 4, 8, {}, RING_STEPS, [19, 26]),
        (AR, "h100", 16, 8, {}, TREE_STEPS[:3], [17, 23]),
    ],
)
def test_the_choice_changes_with_size_where_nccls_does(
    op: Collective,
    gpu: str,
    nodes: int,
    per_node: int,
    at: dict[str, object],
    pairs: list[tuple[Algorithm, Protocol]],
    last: list[int],
) -> None:
    ends = [9, *last, 32]
    expected = [pair for pair, (begin, end) in zip(pairs, pairwise(ends), strict=True) for _ in range(begin, end)]
    assert best(op, gpu, nodes, per_node, **at) == expected


@pytest.mark.parametrize(
    ("op", "nodes", "size", "time_us"),
    [
        (AR, 1, 8 << 10, 15.10),
        (AR, 1, 64 << 10, 15.81),
        (AR, 1, 1 << 20, 28.01),
        (AR, 1, 2 << 20, 32.71),
        (AR, 1, 16 << 20, 86.68),
        (AR, 1, 256 << 20, 1011.90),
        (AR, 1, 1 << 30, 3972.58),
        (AG, 1, 8 << 10, 10.85),
        (AG, 1, 1 << 20, 17.31),
        (AG, 1, 8 << 20, 49.46),
        (AG, 1, 32 << 20, 113.76),
        (AG, 1, 1 << 30, 2641.99),
        (AR, 2, 8 << 10, 25.91),
        (AR, 2, 128 << 10, 41.02),
        (AR, 2, 1 << 20, 62.51),
        (AR, 2, 16 << 20, 134.95),
        (AR, 2, 1 << 30, 4428.29),
        (AG, 2, 1 << 20, 47.95),
        (AG, 2, 64 << 20, 233.84),
        (AR, 4, 1 << 20, 83.22),
        (AR, 4, 8 << 20, 153.25),
        (AR, 4, 256 << 20, 1537.43),
        (AR, 4, 1 << 30, 5813.56),
        (AR, 16, 1 << 30, 6045.79),
    ],
)
def test_times_on_h100_nodes_of_eight_are_those_of_nccl(op: Collective, nodes: int, size: int, time_us: float) -> None:
    """1 GiB over 4 nodes has the slow start of Simple rings: 1.4 · 282.8 + 2³⁰ / 198.19e3 = 5813.6 µs."""
    costs = cost_model(op, arranged("h100", nodes, 8))
    fastest = min(of_one.times_us(np.array([size])).min() for of_one in costs)
    assert fastest == pytest.approx(time_us, abs=0.006)


def test_the_base_latency_of_a_ring_is_paid_once_and_not_per_hop() -> None:
    """LL over 8 GPUs: 6.6 + 14 · 0.6 = 15.0 µs; a base latency on each of 14 hops would give 100.8 µs."""
    ring = algorithm_costs(AR, arranged("h100", 1, 8), RING)
    assert ring is not None
    assert ring.latency_us[0] == pytest.approx(15.0)


def test_ll128_is_off_between_ampere_nodes_whose_channels_take_detours() -> None:
    for algorithm in (RING, TREE):
        detour, shared, alone = (
            algorithm_costs(AR, at, algorithm)
            for at in (arranged("a100", 2, 8), arranged("a100", 2, 8, **SHARED), arranged("a100", 2, 1))
        )
        assert detour is not None
        assert shared is not None
        assert alone is not None
        assert not detour.is_enabled[1]
        assert shared.is_enabled.all()
        assert alone.is_enabled.all()


def test_collnet_takes_part_only_where_switches_reduce() -> None:
    without = {costs.algorithm for costs in cost_model(AR, arranged("h100", 4, 8))}
    with_it = {costs.algorithm for costs in cost_model(AR, arranged("h100", 4, 8, has_collnet=True))}
    assert with_it - without == {Algorithm.COLLNET_DIRECT, Algorithm.COLLNET_CHAIN, NVLS}
