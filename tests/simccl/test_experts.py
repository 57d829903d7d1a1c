"""Dispatch and combine of experts: what arrives, how many copies cross which link, and DeepEP's message sizes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simccl import Algorithm, ExpertRouting, InputError, PlanError, expert_combine, expert_dispatch, verify_plan
from simccl.engines.deepep import expert_mode, expert_times_us
from simccl.engines.expert_mode import Phase
from simccl.nccl.point_to_point import message_port_rates
from simccl.plan.lowering import path_latencies_ps
from tests.simccl.communicators import run_on_idle, spread

NORMAL, LOW = Algorithm.HIERARCHICAL, Algorithm.LOW_LATENCY


def routed(nodes: int, per_node: int, tokens: int, *, most_nodes: int | None = None, seed: int = 0) -> ExpertRouting:
    ranks = nodes * per_node
    return ExpertRouting.sampled(
        np.random.default_rng(seed),
        ranks=ranks,
        tokens=tokens,
        experts=4 * ranks,
        top_k=min(8, 4 * ranks // nodes),
        groups=nodes,
        most_groups=most_nodes,
    )


@settings(max_examples=30)
@given(
    st.sampled_from([(1, 8), (2, 4), (4, 2), (3, 1), (1, 2)]),
    st.integers(0, 12),
    st.sampled_from([NORMAL, LOW]),
    st.integers(0, 1000),
)
def test_every_token_reaches_its_experts_and_comes_back(
    shape: tuple[int, int], tokens: int, mode: Algorithm, seed: int
) -> None:
    routing = routed(*shape, tokens, seed=seed)
    for plan in (
        expert_dispatch(routing, spread(*shape), hidden=128, mode=mode),
        expert_combine(routing, spread(*shape), hidden=128, mode=mode),
    ):
        verify_plan(plan)


def test_messages_have_deepeps_sizes() -> None:
    """Hidden 7168: 16 + 7168 + 4 · 56 = 7,408 bytes in FP8, 16 + 14,336 in BF16. Hierarchical with 8 experts: 7168 +
    224 + 8 + 32 + 32 = 7,464, up to 7,472."""
    assert expert_mode(LOW).dispatch_bytes(7168, 8, fp8=True) == 7408
    assert expert_mode(LOW).dispatch_bytes(7168, 8, fp8=False) == 14352
    assert expert_mode(NORMAL).dispatch_bytes(7168, 8, fp8=True) == 7472


def test_one_copy_per_token_and_distinct_node_crosses_the_network() -> None:
    """Counted from the routing directly; combine sends the same copies back, in BF16."""
    nodes, per_node = 4, 4
    routing, communicator = routed(nodes, per_node, 50), spread(nodes, per_node)
    node = communicator.node_of_rank()
    copies = 0
    for rank, chosen in enumerate(routing.chosen):
        for experts in chosen:
            copies += len({int(node[r]) for r in routing.rank_of_expert(experts)} - {int(node[rank])})
    token = expert_mode(NORMAL).dispatch_bytes(256, routing.top_k, fp8=True)
    for plan, size in (
        (expert_dispatch(routing, communicator, hidden=256), token),
        (expert_combine(routing, communicator, hidden=256), expert_mode(NORMAL).combine_bytes(256, routing.top_k)),
    ):
        flows = plan.flows
        crosses = node[flows.src] != node[flows.dst]
        assert flows.payload_bytes[crosses].sum() == copies * size
        rail = communicator.rail_of_rank()
        assert (rail[flows.src] == rail[flows.dst])[crosses].all()


def test_low_latency_sends_a_message_per_token_and_expert() -> None:
    """All but those of a rank's own experts; no deduplication."""
    routing, communicator = routed(2, 4, 30), spread(2, 4)
    plan = expert_dispatch(routing, communicator, hidden=7168, mode=LOW)
    messages = sum(int((routing.rank_of_expert(c) != r).sum()) for r, c in enumerate(routing.chosen))
    assert plan.flows.payload_bytes.sum() == messages * 7408


def test_node_limited_routing_keeps_tokens_within_so_many_nodes() -> None:
    routing = routed(8, 2, 40, most_nodes=3)
    for chosen in routing.chosen:
        nodes = routing.rank_of_expert(chosen) // 2
        assert max(len(set(row)) for row in nodes.tolist()) == 3


@pytest.mark.parametrize(("nodes", "tokens", "mode"), [(1, 4096, NORMAL), (1, 128, LOW), (2, 512, NORMAL)])
def test_expert_plans_take_the_closed_form_and_what_chance_adds_to_the_busiest_port(
    nodes: int, tokens: int, mode: Algorithm
) -> None:
    """Even routing is the closed form; of random routings the busiest of 2 · 8 or 2 · 16 ports has a few % more."""
    communicator = spread(nodes, 8)
    routing = ExpertRouting.sampled(np.random.default_rng(7), ranks=8 * nodes, tokens=tokens, experts=256, top_k=8)
    at = communicator.shape()
    for plan, phase in (
        (expert_dispatch(routing, communicator, hidden=7168, mode=mode), Phase.DISPATCH),
        (expert_combine(routing, communicator, hidden=7168, mode=mode), Phase.COMBINE),
    ):
        expected = float(expert_times_us(mode, phase, np.array([tokens]), hidden=7168, choice=routing.choice, at=at)[0])
        assert 1 <= run_on_idle(plan) / 1e6 / expected < 1.05


def test_dispatch_on_eight_h100_takes_about_what_was_measured() -> None:
    """DeepEP V1, hidden 7168, 8 of 256 experts (aiconfigurator tables), µs: hierarchical with 24 SMs, 4096 tokens per
    rank, dispatch 498.4 and combine 960.6; low latency, 128 tokens, 36.7 and 67.0."""
    communicator = spread(1, 8)
    cases = ((4096, NORMAL, (498.4, 960.6), (0.08, 0.05)), (128, LOW, (36.7, 67.0), (0.08, 0.08)))
    for tokens, mode, measured, within in cases:
        rng = np.random.default_rng(7)
        routing = ExpertRouting.sampled(rng, ranks=8, tokens=tokens, experts=256, top_k=8)
        dispatch = expert_dispatch(routing, communicator, hidden=7168, mode=mode)
        combine = expert_combine(routing, communicator, hidden=7168, mode=mode)
        assert run_on_idle(dispatch) / 1e6 == pytest.approx(measured[0], rel=within[0])
        assert run_on_idle(combine) / 1e6 == pytest.approx(measured[1], rel=within[1])


def test_experts_on_gpus_without_measured_kernels_use_the_bandwidth_of_large_all_to_alls() -> None:
    """Two B200s, one token of 7,472 bytes to the other: launch of the dispatch, then NVLink at 0.78 of its rate."""
    routing = ExpertRouting((np.array([[1]]), np.zeros((0, 1), dtype=np.int64)), experts=2)
    communicator = spread(1, 2, "b200")
    plan = expert_dispatch(routing, communicator, hidden=7168)
    (propagation_ps,) = path_latencies_ps(communicator.topology, plan.graph().src, plan.graph().dst)
    assert plan.base_latency_ps == 24_850_000 - propagation_ps
    rates = message_port_rates(communicator.shape())
    assert plan.flows.max_rate_bytes_per_s.tolist() == [rates.nvlink_bytes_per_s]


def test_the_proof_finds_a_token_that_is_not_forwarded_and_one_that_is_added_twice() -> None:
    routing, communicator = routed(2, 2, 5), spread(2, 2)
    plan = expert_dispatch(routing, communicator, hidden=128)
    node = communicator.node_of_rank()
    onward = int(np.flatnonzero(np.diff(plan.flows.dep_offsets) > 0)[0])
    astray = plan.flows.dst.copy()
    astray[onward] = next(r for r in range(4) if node[r] != node[plan.flows.dst[onward]])
    with pytest.raises(PlanError, match=r"ends with contributions|meet at rank"):
        verify_plan(dataclasses.replace(plan, flows=dataclasses.replace(plan.flows, dst=astray)))
    combine = expert_combine(routing, communicator, hidden=128)
    twice = dataclasses.replace(combine.flows, operation=np.zeros_like(combine.flows.operation))
    with pytest.raises(PlanError, match=r"ends with contributions|meet at rank"):
        verify_plan(dataclasses.replace(combine, flows=twice))


@pytest.mark.parametrize(
    ("chosen", "experts", "message"),
    [
        ([[[0, 1]], [[0, 1]]], 3, "expected a multiple of the 2 ranks"),
        ([[[0, 4]], [[0, 1]]], 4, "found 0…4, expected 0…3"),
        ([[[1, 1]], [[0, 1]]], 4, "found an expert twice"),
        ([[[1, 2]], [[0]]], 4, r"found shape \(1, 1\)"),
    ],
)
def test_bad_routings_are_refused(chosen: list[list[list[int]]], experts: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ExpertRouting(tuple(np.array(c) for c in chosen), experts)


def test_bad_requests_are_refused() -> None:
    with pytest.raises(InputError, match="found 2 ranks, expected 4"):
        expert_dispatch(routed(1, 2, 1), spread(1, 4), hidden=128)
    with pytest.raises(InputError, match="hidden: found 100"):
        expert_dispatch(routed(1, 2, 1), spread(1, 2), hidden=100)
    whole = expert_dispatch(routed(1, 2, 1), spread(1, 2), hidden=100, fp8=False)
    verify_plan(whole)  # without scales, any number of values
    with pytest.raises(InputError, match="mode: found ring"):
        expert_dispatch(routed(1, 2, 1), spread(1, 2), hidden=128, mode=Algorithm.RING)
    with pytest.raises(InputError, match="top_k: found 9"):
        ExpertRouting.sampled(np.random.default_rng(0), ranks=2, tokens=1, experts=8, top_k=9)
