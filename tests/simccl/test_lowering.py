"""Plans on a network: they take the cost model's time when it is idle, and its own time when it is slower."""

import numpy as np
import pytest

from netsim import rail_optimized
from netsim.topologies.defaults import LinkRates
from simccl import Algorithm, Collective, Communicator, all_to_all_v, collective_time, plan_collective
from simccl.choice import choose
from tests.simccl.communicators import run_on_idle_fluid, spread

SIZES = [1 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20, 1 << 30]


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize(
    ("gpu", "nodes", "per_node"),
    [("h100", 1, 8), ("h200", 1, 8), ("h100", 1, 3), ("h100", 2, 8), ("h800", 2, 8), ("a100", 4, 8), ("b200", 3, 8)],
)
def test_ring_plans_take_the_time_of_the_cost_model_on_an_idle_network(
    op: str, gpu: str, nodes: int, per_node: int
) -> None:
    """Within 1 %: only LL's last lines, and one of 16 NICs where a small operation uses one channel, may differ."""
    communicator = spread(nodes, per_node, gpu)
    for size in SIZES:
        executed = run_on_idle_fluid(plan_collective(op, size, communicator))
        ring = choose(Collective(op), size, communicator, algorithm=Algorithm.RING)
        assert executed == pytest.approx(ring.time_us * 1e6, rel=0.01), size


@pytest.mark.parametrize(("nodes", "per_node"), [(1, 8), (2, 8), (8, 8), (4, 2)])
@pytest.mark.parametrize("op", ["all_to_all", "send_recv"])
def test_message_plans_take_the_closed_form_time_on_an_idle_network(op: str, nodes: int, per_node: int) -> None:
    """The closed form leaves out the fill of the PXN pipeline: the first of four pieces on NVLink, at most 5 %."""
    communicator = spread(nodes, per_node)
    for size in SIZES:
        executed = run_on_idle_fluid(plan_collective(op, size, communicator))
        assert executed == pytest.approx(collective_time(op, size, communicator).time_ps, rel=0.05), size


def test_the_base_latency_delays_the_start_and_hops_do_not_pay_it_again() -> None:
    """8 GPUs, LL, 8 bytes: 6.6 µs, then 14 hops of 0.6 µs, of which the network contributes 50 ns each."""
    graph = plan_collective("all_reduce", 8, spread(1, 8)).graph()
    first = np.diff(graph.dep_offsets) == 0
    assert set(graph.ready_ps[first].tolist()) == {6_600_000}
    assert set(graph.delay_ps.tolist()) == {550_000}
    assert run_on_idle_fluid(plan_collective("all_reduce", 8, spread(1, 8))) == pytest.approx(15.0e6, rel=0.001)


def test_a_network_slower_than_the_model_decides_by_its_own_capacity() -> None:
    """64 MiB over an NVLink of 100 GB/s: 14/8 · 64 MiB / 100 GB/s = 1174.4 µs, and 56 µs of latency."""
    topology = rail_optimized(1, 8, rates=LinkRates(nvlink_bps=800_000_000_000))
    plan = plan_collective("all_reduce", 64 << 20, Communicator(tuple(range(8)), topology, "h100"), protocol="simple")
    assert run_on_idle_fluid(plan) == pytest.approx((1174.4 + 56.0) * 1e6, rel=0.001)


def test_hops_longer_than_the_hardware_latency_take_their_propagation() -> None:
    """NVLinks of 1 µs each: a hop of LL takes 2 µs instead of 0.6, none of it added twice."""
    topology = rail_optimized(1, 2, rates=LinkRates(nvlink_latency_ps=1_000_000))
    plan = plan_collective("all_reduce", 8, Communicator((0, 1), topology, "h100"))
    assert plan.graph().delay_ps.tolist() == [0] * 4
    assert run_on_idle_fluid(plan) == pytest.approx(6.6e6 + 2 * 2e6, rel=0.001)


def test_flow_labels_tell_channels_apart_and_gpus_are_those_of_the_communicator() -> None:
    communicator = Communicator(tuple(range(8, 24)), rail_optimized(3, 8), "h100")
    plan = plan_collective("all_gather", 1 << 24, communicator)
    graph = plan.graph()
    assert set(graph.flow_label.tolist()) == set(range(8))
    assert (graph.flow_label == plan.flows.channel).all()
    assert (graph.src == plan.flows.src + 8).all()
    assert (graph.dst == plan.flows.dst + 8).all()


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"])
def test_more_bytes_never_take_less_time_within_a_protocol(op: str) -> None:
    communicator = spread(2, 4)
    times = [run_on_idle_fluid(plan_collective(op, 1 << k, communicator, protocol="simple")) for k in range(8, 28, 2)]
    assert times == sorted(times)


def test_an_uneven_all_to_all_waits_for_its_busiest_port() -> None:
    """Seven ranks send 10 MB each to rank 0: 70 MB into one NVLink port at 315 GB/s, after 8.4 + 3.4 µs."""
    matrix = np.zeros((8, 8), dtype=np.int64)
    matrix[1:, 0] = 10_000_000
    executed = run_on_idle_fluid(all_to_all_v(matrix, spread(1, 8)))
    assert executed == pytest.approx((11.8 + 70e6 / 315e3) * 1e6, rel=0.001)
