"""The Ring columns of NCCL 2.30.7's tuning table, as its own code computes them."""

import numpy as np
import pytest

from simccl import Collective
from simccl.collective import PROTOCOLS
from simccl.hardware import gpu_named
from simccl.tuning import Arrangement, Cpu, RingCosts, ring_costs

AR, AG, RS = Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER


def costs(op: Collective, gpu: str, nodes: int, per_node: int, cpu: Cpu = Cpu.INTEL) -> RingCosts:
    found = gpu_named(gpu)
    return ring_costs(op, Arrangement(found, nodes * per_node, nodes, per_node, found.nic_gbytes_per_s, cpu))


@pytest.mark.parametrize(
    ("op", "gpu", "nodes", "per_node", "cpu", "expected"),
    [
        (AR, "h100", 1, 8, "intel", [(15.0, 80.57), (40.6, 189.26), (56.0, 205.71)]),
        (AG, "h100", 1, 8, "intel", [(10.8, 161.14), (27.3, 378.51), (32.2, 411.43)]),
        (RS, "h100", 1, 8, "intel", [(10.8, 161.14), (27.3, 378.51), (32.2, 411.43)]),
        (AR, "h100", 1, 4, "intel", [(10.2, 94.00), (25.4, 220.80), (28.8, 240.00)]),
        (AR, "h100", 1, 2, "intel", [(7.8, 141.00), (17.8, 331.20), (15.2, 360.00)]),
        (AR, "b200", 1, 8, "intel", [(15.0, 161.14), (40.6, 365.71), (56.0, 411.43)]),
        (AG, "b200", 1, 8, "intel", [(10.8, 322.29), (27.3, 731.43), (32.2, 822.86)]),
        (AR, "a100", 1, 8, "intel", [(15.0, 50.11), (40.6, 126.17), (56.0, 137.14)]),
        (AR, "h800", 1, 8, "intel", [(15.0, 45.71), (40.6, 84.11), (56.0, 91.43)]),
        (AR, "h100", 2, 8, "intel", [(40.0, 20.80), (75.2, 156.59), (131.6, 204.80)]),
        (AR, "h100", 2, 8, "amd", [(68.0, 12.00), (78.0, 156.59), (204.4, 204.80)]),
        (AR, "h100", 4, 8, "intel", [(78.8, 10.53), (144.4, 151.54), (282.8, 198.19)]),
        (AR, "h100", 16, 8, "intel", [(311.6, 10.28), (559.6, 147.96), (1190.0, 193.51)]),
        (AR, "b200", 2, 8, "intel", [(40.0, 20.80), (75.2, 170.67), (131.6, 204.80)]),
        (AR, "a100", 2, 8, "amd", [(68.0, 12.00), (78.0, 85.33), (204.4, 102.40)]),
        (AG, "h100", 2, 8, "intel", [(23.3, 41.60), (44.6, 313.17), (70.0, 409.60)]),
        (RS, "h100", 4, 8, "intel", [(42.7, 21.06), (79.2, 303.07), (145.6, 396.39)]),
        (AG, "h100", 4, 1, "intel", [(21.6, 27.20), (39.5, 58.88), (50.4, 64.00)]),
    ],
)
def test_latency_and_bandwidth_are_those_of_the_tuning_table(
    op: Collective, gpu: str, nodes: int, per_node: int, cpu: str, expected: list[tuple[float, float]]
) -> None:
    found = costs(op, gpu, nodes, per_node, Cpu(cpu))
    latency, bandwidth = np.array(expected).T
    np.testing.assert_allclose(found.latency_us, latency, atol=0.051)
    np.testing.assert_allclose(found.algorithm_gbytes_per_s, bandwidth, atol=0.0051)


@pytest.mark.parametrize(
    ("op", "gpu", "nodes", "per_node", "last_ll", "last_ll128"),
    [  # largest power of two, log2, that uses LL and LL128; equal where LL128 is never best
        (AG, "h100", 1, 8, 22, 24),
        (AR, "h100", 1, 4, 21, 23),
        (AG, "h100", 1, 4, 21, 21),
        (AR, "h100", 1, 2, 20, 20),
        (AG, "h100", 1, 2, 21, 21),
        (AG, "b200", 1, 8, 23, 24),
        (AR, "a100", 1, 8, 21, 24),
        (AG, "a100", 1, 8, 21, 23),
        (AG, "h800", 1, 8, 21, 23),
        (AG, "h100", 2, 8, 19, 25),
        (AG, "h100", 4, 8, 19, 26),
    ],
)
def test_protocols_change_where_nccl_changes_them(
    op: Collective, gpu: str, nodes: int, per_node: int, last_ll: int, last_ll128: int
) -> None:
    """Only configurations in which NCCL's overall choice is a ring at every size, so that rings decide alone."""
    sizes = 1 << np.arange(10, 33)
    best = np.argmin(costs(op, gpu, nodes, per_node).times_us(sizes), axis=0)
    expected = [0 if k <= last_ll else 1 if k <= last_ll128 else 2 for k in range(10, 33)]
    assert best.tolist() == expected


@pytest.mark.parametrize(
    ("op", "nodes", "size", "time_us"),
    [
        (AR, 1, 8 << 10, 15.10),
        (AR, 1, 64 << 10, 15.81),
        (AR, 1, 1 << 20, 28.01),
        (AG, 1, 8 << 10, 10.85),
        (AG, 1, 1 << 20, 17.31),
        (AG, 1, 8 << 20, 49.46),
        (AG, 1, 32 << 20, 113.76),
        (AG, 1, 1 << 30, 2641.99),
        (AG, 2, 1 << 20, 47.95),
        (AG, 2, 64 << 20, 233.84),
        (AR, 4, 1 << 30, 5813.56),
    ],
)
def test_times_on_h100_nodes_of_eight_are_those_of_nccl(op: Collective, nodes: int, size: int, time_us: float) -> None:
    """The last one has the slow start of Simple between nodes: 1.4 · 282.8 + 2³⁰ / 198.19e3 = 5813.6 µs."""
    assert costs(op, "h100", nodes, 8).times_us(np.array([size])).min() == pytest.approx(time_us, abs=0.006)


@pytest.mark.parametrize(
    ("size", "channels"),
    [(4 << 10, 1), (32 << 10, 1), (64 << 10, 2), (128 << 10, 4), (256 << 10, 8), (512 << 10, 16), (1 << 20, 24)],
)
def test_small_operations_use_fewer_channels(size: int, channels: int) -> None:
    found = costs(AR, "h100", 1, 8).channels(np.array([size]), np.array([PROTOCOLS.index("ll")]))
    assert found.tolist() == [channels]


def test_the_base_latency_of_a_ring_is_paid_once_and_not_per_hop() -> None:
    """LL over 8 GPUs: 6.6 + 14 · 0.6 = 15.0 µs; a base latency on each of 14 hops would give 100.8 µs."""
    assert costs(AR, "h100", 1, 8).latency_us[0] == pytest.approx(15.0)


def test_ll128_is_off_between_ampere_nodes_whose_rings_take_pxn() -> None:
    assert not costs(AR, "a100", 2, 8).is_enabled[1]
    assert costs(AR, "a100", 1, 8).is_enabled.all()
    assert costs(AR, "a100", 2, 1).is_enabled.all()
