"""One test per fault found in earlier generators of collective flows (SimAI 1.7 with SimCCL, LLMServingSim, ASTRA-sim).

Each says what went wrong there and shows that it cannot happen here.
"""

from __future__ import annotations

import numpy as np
import pytest

from netsim import rail_optimized
from simccl import (
    Algorithm,
    Collective,
    Communicator,
    Operation,
    Plan,
    Protocol,
    all_to_all_v,
    collective_time,
    plan_collective,
    verify_plan,
)
from simccl.algorithms.pairwise import rounds_of
from simccl.nccl.point_to_point import message_channels
from tests.simccl.communicators import run_on_idle, spread

UNCALIBRATED = "h20"
"""An H100's links and constants of NCCL, without corrections by measurements."""


def test_the_base_latency_is_not_charged_on_every_hop() -> None:
    """Fault: 14 hops of 7.2 µs, 100.8 µs, for a ring LL all_reduce of 8 GPUs, where NCCL's model has 15.0 µs."""
    plan = plan_collective("all_reduce", 8, spread(1, 8, UNCALIBRATED), algorithm="ring", protocol="ll")
    assert run_on_idle(plan) / 1e6 == pytest.approx(15.0, rel=0.001)


def test_ring_steps_have_loops_slices_and_credits() -> None:
    """Fault: one chunk per ring step, whatever the size."""
    plan = plan_collective("all_reduce", 1 << 30, spread(1, 8), algorithm="ring", protocol="simple", coarsen=1)
    assert plan.flows.order is not None
    assert plan.flows.credit is not None
    assert plan.flows.payload_bytes.max() <= 1 << 20


def test_a_broadcast_is_pipelined() -> None:
    """Fault: n−1 transfers of the whole buffer one after the other. Here 1 GiB takes about S/bandwidth."""
    eight, two = (run_on_idle(plan_collective("broadcast", 1 << 30, spread(1, n), root=0)) for n in (8, 2))
    assert eight < 1.3 * two


@pytest.mark.parametrize("op", [op for op in Collective if op is not Collective.ALL_TO_ALL])
@pytest.mark.parametrize("size", [1, 7, 13, 1_000_003])
def test_no_byte_is_lost_and_no_plan_is_empty_when_sizes_do_not_divide(op: Collective, size: int) -> None:
    """Fault: integer division dropped remainders, fewer bytes than ranks times rings gave no flows, and an empty set
    of flows made the packet simulation wait for ever."""
    plan = plan_collective(op, size, spread(2, 8))
    assert len(plan) > 0
    verify_plan(plan)
    assert run_on_idle(plan) > 0


def test_trees_are_chosen_between_nodes() -> None:
    """Fault: never."""
    assert plan_collective("all_reduce", 64 << 10, spread(2, 8)).algorithm is Algorithm.TREE


def test_nvls_tree_has_flows_between_nodes() -> None:
    """Fault: none were returned."""
    communicator = spread(4, 8)
    plan = plan_collective("all_reduce", 64 << 20, communicator)
    assert plan.algorithm is Algorithm.NVLS_TREE
    verify_plan(plan)
    assert run_on_idle(plan) > 100e6


def test_channels_are_nccls_and_not_the_local_ranks() -> None:
    """Fault: as many channels as GPUs per node. NCCL runs 24 on one H100 node of 8 and of 4."""
    for per_node in (8, 4):
        plan = plan_collective("all_gather", 1 << 30, spread(1, per_node))
        assert plan.channels == 24


def test_the_protocol_follows_the_cost_model_and_not_fixed_sizes() -> None:
    """Fault: three thresholds for all machines. All_gather of 4 MiB is LL on 8 H100s and Simple on 4."""
    protocols = [plan_collective("all_gather", 4 << 20, spread(1, n, UNCALIBRATED)).protocol for n in (8, 4)]
    assert protocols == [Protocol.LL, Protocol.SIMPLE]


def test_protocols_change_what_links_carry() -> None:
    """Fault: LL counted once on the wire. It is twice, LL128 16/15."""
    wire = {
        protocol: int(
            plan_collective("all_gather", 15 << 20, spread(1, 8), algorithm="ring", protocol=protocol)
            .graph()
            .size_bytes.sum()
        )
        for protocol in ("simple", "ll", "ll128")
    }
    assert wire["ll"] == 2 * wire["simple"]
    assert wire["ll128"] == pytest.approx(wire["simple"] * 16 / 15, rel=1e-3)


def test_nvls_sends_s_times_1_plus_1_over_n_and_chunks_wait_for_each_other() -> None:
    """Fault: S each way, no dependencies between chunks, sizes in 32 bits."""
    size = 40 << 30
    plan = plan_collective("all_reduce", size, spread(1, 8), algorithm="nvls")
    assert plan.sent_bytes().tolist() == plan.received_bytes().tolist() == [size + size // 8] * 8
    chunks = plan_collective("all_reduce", 16 << 20, spread(1, 8), algorithm="nvls", coarsen=1).flows
    assert chunks.order is not None
    assert (chunks.order >= 0).any()


def test_pat_has_dependencies_directions_and_aggregation() -> None:
    """Fault: no dependencies, all_gather in the direction of reduce_scatter, one block per message always."""
    gather = plan_collective("all_gather", 8 << 10, spread(8, 1), algorithm="pat")
    assert len(gather.flows.deps) > 0
    assert ((gather.flows.src - gather.flows.dst) % 8).max() == 4
    assert len(gather) == 8 * 3
    verify_plan(gather)


def test_rings_and_messages_stay_on_their_rails() -> None:
    """Fault: rings crossed rails, as PXN was off by default."""
    communicator = spread(4, 8)
    node, rail = communicator.node_of_rank(), communicator.rail_of_rank()
    for op in ("all_gather", "all_to_all"):
        flows = plan_collective(op, 64 << 20, communicator).flows
        crosses = node[flows.src] != node[flows.dst]
        assert (rail[flows.src] == rail[flows.dst])[crosses].all()


def test_an_all_to_all_has_rounds_that_are_permutations_and_batches() -> None:
    """Fault: all n(n−1) flows started at once, without rounds or channels."""
    communicator = spread(32, 8)
    schedule = rounds_of(communicator, message_channels(communicator.shape()))
    for receivers in schedule.send_to:
        assert sorted(receivers.tolist()) == list(range(256))
    flows = plan_collective("all_to_all", 256 << 10, communicator).flows
    assert (flows.step[np.diff(flows.dep_offsets) == 0] < 128).all()


def test_proxies_are_ranks_of_the_communicator() -> None:
    """Fault: PXN mixed ranks of the group and of the world. Here GPUs 8…23 of 32 are the group."""
    communicator = Communicator(tuple(range(8, 24)), rail_optimized(4, 8), "h100")
    plan = plan_collective("all_to_all", 16 << 20, communicator)
    assert max(plan.flows.src.max(), plan.flows.dst.max()) == 15
    graph = plan.graph()
    assert {int(graph.src.min()), int(graph.dst.min())} == {8}
    verify_plan(plan)


def test_plans_belong_to_their_group() -> None:
    """Fault: decisions were cached by type, operation and size, without the group."""
    topology = rail_optimized(2, 8)
    near = plan_collective("all_reduce", 1 << 20, Communicator((0, 1), topology, "h100"))
    far = plan_collective("all_reduce", 1 << 20, Communicator((0, 8), topology, "h100"))
    assert run_on_idle(near) < run_on_idle(far)


def test_pipeline_stages_can_send() -> None:
    """Fault: no flows for pipeline parallelism. One stage sends 1 MB to the next."""
    matrix = np.zeros((2, 2), dtype=np.int64)
    matrix[0, 1] = 1_000_000
    plan = all_to_all_v(matrix, Communicator((0, 8), rail_optimized(2, 8), "h100"))
    assert plan.flows.payload_bytes.tolist() == [1_000_000]
    verify_plan(plan)


def test_every_rank_takes_part_whatever_the_ranks_per_node() -> None:
    """Fault: the stand-alone mode ignored the rank count with more than one GPU per node."""
    for nodes, per_node in ((4, 2), (2, 4), (8, 1)):
        flows = plan_collective("all_gather", 1 << 20, spread(nodes, per_node)).flows
        assert set(flows.src.tolist()) == set(flows.dst.tolist()) == set(range(8))


def test_dependencies_are_flows_and_not_ranks() -> None:
    """Fault: the column of previous flows held ranks. Each awaited flow ends where the waiting one begins."""
    flows = plan_collective("all_reduce", 1 << 20, spread(2, 8), algorithm="ring").flows
    waiting, awaited = flows.data_edges()
    assert (flows.dst[awaited] == flows.src[waiting]).all()


def test_times_below_a_mebibyte_depend_on_the_size_and_any_rank_count_has_one() -> None:
    """Fault: between 1 byte and 1 MiB the time was a constant per rank count (2, 4, 8 … 128), and 0 for others."""
    times = [collective_time("all_reduce", size, spread(1, 6)).time_ps for size in (1 << 10, 1 << 16, 1 << 19)]
    assert times[0] > 0
    assert times == sorted(set(times))


def test_sizes_above_16_gib_work() -> None:
    """Fault: they failed."""
    plan = plan_collective("all_reduce", 100 << 30, spread(2, 8))
    verify_plan(plan)
    assert collective_time("all_reduce", 100 << 30, spread(2, 8)).time_ps > 0


def test_all_reduce_and_all_to_all_are_told_apart() -> None:
    """Fault: in workload files the prefix ALLREDUCE hid ALLREDUCEALLTOALL. Operations are whole names here."""
    assert Collective.parse("all_to_all") is Collective.ALL_TO_ALL
    assert [op for op in Collective if op.startswith("all_reduce")] == [Collective.ALL_REDUCE]


def test_one_bandwidth_per_dimension_is_not_enough() -> None:
    """Fault (LLMServingSim, ASTRA-sim analytical): ring only. Here the switch reduces where that is faster."""
    plans: list[Plan] = [plan_collective("all_reduce", 256 << 20, spread(1, 8), algorithm=a) for a in (None, "ring")]
    assert plans[0].algorithm is Algorithm.NVLS
    assert (plans[0].flows.operation == Operation.REDUCE).any()
    assert run_on_idle(plans[0]) < run_on_idle(plans[1])
