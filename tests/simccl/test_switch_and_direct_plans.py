"""NVLS, NVLSTree, one-shot and two-shot: bytes per rank, flows by hand, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsim import LinkKind, NodeKind, Topology
from netsim.topology import DuplexLink
from simccl import (
    Algorithm,
    Communicator,
    InputError,
    Operation,
    Stack,
    collective_time,
    plan_collective,
    verify_plan,
)
from simccl.engines.all_reduce import engine_all_reduce
from tests.simccl.communicators import run_on_idle, spread


def test_nvls_of_two_ranks_by_hand() -> None:
    """2 ranks, 2 bytes, one each. For each byte: both to switch 2, which adds up; the sum to its head; the head stores;
    copies to both. Loads are the only flows that wait for nothing."""
    flows = plan_collective("all_reduce", 2, spread(1, 2), algorithm="nvls").flows
    head0 = flows.channel == 0
    assert flows.src[head0].tolist() == [0, 1, 2, 0, 2, 2]
    assert flows.dst[head0].tolist() == [2, 2, 0, 2, 0, 1]
    assert flows.operation[head0].tolist() == [Operation.REDUCE] * 2 + [Operation.COPY] * 4
    waits = np.diff(flows.dep_offsets)
    assert waits[head0].tolist() == [0, 0, 2, 1, 1, 1]
    assert (flows.streams == (waits > 0)).all()
    assert flows.payload_bytes.tolist() == [1] * 12


@given(st.integers(2, 16), st.integers(1, 1 << 40))
@settings(max_examples=40)
def test_nvls_moves_s_times_1_plus_1_over_n_in_and_out_of_every_rank(ranks: int, size: int) -> None:
    communicator = spread(1, ranks, gpus_per_node=16)
    plan = plan_collective("all_reduce", size, communicator, algorithm="nvls")
    for moved in (plan.sent_bytes(), plan.received_bytes()):
        assert np.abs(moved - size * (1 + 1 / ranks)).max() <= 1
    gather = plan_collective("all_gather", size, communicator, algorithm="nvls")
    scatter = plan_collective("reduce_scatter", size, communicator, algorithm="nvls")
    for plan, is_scatter in ((gather, False), (scatter, True)):
        few, many = plan.sent_bytes(), plan.received_bytes()
        small, large = (many, few) if is_scatter else (few, many)
        assert np.abs(small - size / ranks).max() <= 1
        assert (large == size).all()


def test_nvls_tree_sends_each_heads_share_up_and_down_every_edge_of_its_rail() -> None:
    """4 nodes of 8, 8 MiB: 1 MiB per head over both trees; three edges per tree, each up and down."""
    communicator = spread(4, 8)
    plan = plan_collective("all_reduce", 8 << 20, communicator, algorithm="nvls_tree")
    flows, ranks = plan.flows, communicator.size
    node, rail = communicator.node_of_rank(), communicator.rail_of_rank()
    between = (flows.src < ranks) & (flows.dst < ranks)
    src, dst = flows.src[between], flows.dst[between]
    assert (node[src] != node[dst]).all()
    assert (rail[src] == rail[dst]).all()
    assert between.sum() == 8 * 2 * 3 * 2
    assert set(flows.payload_bytes[between].tolist()) == {1 << 19}
    verify_plan(plan)


def test_nvls_is_not_chosen_and_refused_without_an_nvswitch() -> None:
    nodes = [(NodeKind.GPU, f"gpu{i}") for i in range(8)] + [(NodeKind.SWITCH, "pcie")]
    cables = [DuplexLink(i, 8, 400 * 10**9, 500_000, LinkKind.NIC) for i in range(8)]
    communicator = Communicator(tuple(range(8)), Topology.from_cables(nodes, cables, gpus_per_node=8), "h100")
    assert plan_collective("all_reduce", 1 << 26, communicator).algorithm is Algorithm.RING
    with pytest.raises(InputError, match="an NVSwitch in every node"):
        plan_collective("all_reduce", 1 << 26, communicator, algorithm="nvls")


def test_one_shot_moves_n_minus_1_buffers_and_two_shot_2_times_n_minus_1_over_n() -> None:
    """8 ranks, 80,000 bytes: 560,000 and 140,000 in and out of every rank."""
    for algorithm, each in (("one_shot", 560_000), ("two_shot", 140_000)):
        plan = plan_collective("all_reduce", 80_000, spread(1, 8), algorithm=algorithm)
        assert plan.sent_bytes().tolist() == plan.received_bytes().tolist() == [each] * 8
        verify_plan(plan)


def test_two_shot_reads_a_block_when_all_contributions_are_in() -> None:
    flows = plan_collective("all_reduce", 3, spread(1, 3), algorithm="two_shot").flows
    waits = np.diff(flows.dep_offsets)
    assert waits.tolist() == [0] * 6 + [2] * 6
    for flow in range(6, 12):
        awaited = flows.deps[flows.dep_offsets[flow] : flows.dep_offsets[flow + 1]]
        assert set(flows.dst[awaited].tolist()) == {flows.src[flow]}


@pytest.mark.parametrize(("algorithm", "size"), [("one_shot", 64 << 10), ("two_shot", 1 << 20)])
def test_direct_plans_take_the_time_of_the_engines_kernels(algorithm: str, size: int) -> None:
    """vLLM without symmetric memory on eight H100s: one-shot below 256 KiB, two-shot above. Hops add 50 ns each."""
    plan = plan_collective("all_reduce", size, spread(1, 8), algorithm=algorithm)
    arrangement = plan.communicator.shape()
    kernel = engine_all_reduce(Stack.VLLM, np.array([size]), arrangement, has_symmetric_memory=False)
    assert kernel.algorithm[0] == algorithm
    assert run_on_idle(plan) / 1e6 == pytest.approx(float(kernel.time_us[0]), rel=0.01)


@pytest.mark.parametrize("stack", [Stack.VLLM, Stack.SGLANG, Stack.TRTLLM])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_plans_of_a_stack_run_the_kernel_and_take_the_time_of_its_closed_form(stack: Stack, ranks: int) -> None:
    """One-shot, two-shot, multimem and NCCL, as sizes grow; paths of 50 ns each are all that is added."""
    communicator = spread(1, ranks)
    for size in (1000, 64 << 10, 1 << 20, 8 << 20, 128 << 20):
        plan = plan_collective("all_reduce", size, communicator, stack=stack)
        expected = collective_time("all_reduce", size, communicator, stack=stack)
        assert plan.algorithm is expected.algorithm
        assert run_on_idle(plan) == pytest.approx(expected.time_ps, rel=0.02, abs=150_000)
        verify_plan(plan)


def test_multimem_moves_s_times_1_plus_1_over_n() -> None:
    """vLLM, 8 H100s, 8 MiB: 9 MiB in and out of every GPU."""
    plan = plan_collective("all_reduce", 8 << 20, spread(1, 8), stack=Stack.VLLM)
    assert plan.algorithm is Algorithm.MULTIMEM
    assert plan.sent_bytes()[:8].tolist() == plan.received_bytes()[:8].tolist() == [9 << 20] * 8


def test_other_operations_several_nodes_and_forced_algorithms_are_left_to_nccl() -> None:
    size = 64 << 10
    assert plan_collective("all_gather", size, spread(1, 8), stack=Stack.VLLM).algorithm is Algorithm.RING
    assert plan_collective("all_reduce", size, spread(2, 8), stack=Stack.VLLM).algorithm.startswith(("tree", "nvls"))
    forced = plan_collective("all_reduce", size, spread(1, 8), algorithm="ring", stack=Stack.VLLM)
    assert forced.algorithm is Algorithm.RING


def test_kernels_are_refused_on_gpus_where_they_were_not_measured() -> None:
    with pytest.raises(InputError, match="stack: found vllm on a100, whose kernels were measured on b200, h100, h200"):
        plan_collective("all_reduce", 64 << 10, spread(1, 8, "a100"), stack=Stack.VLLM)


def test_one_shot_wins_for_small_buffers_and_two_shot_for_large_ones() -> None:
    times = {
        (algorithm, size): run_on_idle(plan_collective("all_reduce", size, spread(1, 8), algorithm=algorithm))
        for algorithm in ("one_shot", "two_shot")
        for size in (1 << 10, 1 << 23)
    }
    assert times["one_shot", 1 << 10] < times["two_shot", 1 << 10]
    assert times["one_shot", 1 << 23] > times["two_shot", 1 << 23]


@pytest.mark.parametrize(
    ("op", "algorithm", "nodes", "message"),
    [
        ("all_gather", "one_shot", 1, "found one_shot for all_gather over 1 node,"),
        ("all_reduce", "two_shot", 2, "found two_shot for all_reduce over 2 nodes"),
        ("all_to_all", "ring", 1, "found ring, expected pairwise"),
        ("all_reduce", "nvls", 2, "NCCL disables for all_reduce on 2 nodes"),
        ("all_reduce", "none", 1, "algorithm: found 'none'"),
    ],
)
def test_algorithms_that_cannot_be_are_refused(op: str, algorithm: str, nodes: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan_collective(op, 1000, spread(nodes, 8), algorithm=algorithm)
