"""Tokens split by the expectation of their choice: what arrives, how much crosses links, and DeepEP's times."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simccl import (
    Algorithm,
    ExpectedRouting,
    ExpertChoice,
    ExpertRouting,
    InputError,
    Phase,
    Plan,
    RankPopularity,
    expert_combine,
    expert_dispatch,
    expert_times_us,
    verify_plan,
)
from simccl.engines.deepep import expert_mode
from tests.simccl.communicators import run_on_idle, spread

NORMAL, LOW = Algorithm.HIERARCHICAL, Algorithm.LOW_LATENCY
EVEN = ExpertChoice(experts=256, top_k=8)
V3 = ExpertChoice(experts=256, top_k=8, groups=8, most_groups=4)
"""DeepSeek-V3 (n_routed_experts, num_experts_per_tok, n_group, topk_group of its config.json)."""


def exchange(
    nodes: int, tokens: float, choice: ExpertChoice, mode: Algorithm = NORMAL, gpu: str = "h100"
) -> tuple[Plan, Plan]:
    """Dispatch and combine of eight GPUs per node, hidden 7168."""
    communicator = spread(nodes, 8, gpu)
    routing = ExpectedRouting(tokens, choice, communicator)
    return (
        expert_dispatch(routing, communicator, hidden=7168, mode=mode),
        expert_combine(routing, communicator, hidden=7168, mode=mode),
    )


@settings(max_examples=40)
@given(
    st.sampled_from([(1, 8), (2, 4), (4, 2), (3, 1), (1, 2), (2, 3)]),
    st.one_of(st.integers(1, 40), st.floats(0.1, 5)),
    st.sampled_from([NORMAL, LOW]),
    st.data(),
)
def test_every_part_of_the_tokens_reaches_its_ranks_and_comes_back(
    shape: tuple[int, int], tokens: float, mode: Algorithm, data: st.DataObject
) -> None:
    communicator = spread(*shape)
    ranks = communicator.size
    groups = data.draw(st.sampled_from([1, 2, 4]))
    popularity = st.builds(RankPopularity, st.floats(0, 3), st.floats(0, 3))
    skewed = data.draw(st.none() | st.lists(popularity, min_size=ranks, max_size=ranks).map(tuple))
    choice = ExpertChoice(8 * ranks, 2, groups, data.draw(st.integers(1, groups)), skewed)
    routing = ExpectedRouting(tokens, choice, communicator)
    verify_plan(expert_dispatch(routing, communicator, hidden=128, mode=mode))
    verify_plan(expert_combine(routing, communicator, hidden=128, mode=mode))


@pytest.mark.parametrize("choice", [EVEN, V3, ExpertChoice(64, 6, 8, 3)])
def test_expectations_are_the_means_of_sampled_tokens(choice: ExpertChoice) -> None:
    """20,000 tokens: means over ranks and over nodes have deviations below 0.005."""
    rng = np.random.default_rng(3)
    routing = ExpertRouting.sampled(
        rng,
        ranks=16,
        tokens=1250,
        experts=choice.experts,
        top_k=choice.top_k,
        groups=choice.groups,
        most_groups=choice.most_groups,
    )
    needs = np.concatenate([routing.needs(rank) for rank in range(16)])
    on_ranks, on_nodes = np.eye(16, dtype=np.bool_), np.repeat(np.eye(2, dtype=np.bool_), 8, axis=1)
    assert choice.reached(on_ranks).mean() == pytest.approx(needs.mean(), abs=0.005)
    found = needs.reshape(-1, 2, 8).any(axis=2).mean(axis=0)
    np.testing.assert_allclose(choice.reached(on_nodes), found, atol=0.01)


def test_ranks_with_shares_of_experts_are_reached_as_often_as_these_shares_say() -> None:
    """4 experts on 8 ranks, one per token: each rank has half an expert, and an eighth of the tokens."""
    np.testing.assert_allclose(ExpertChoice(4, 1).reached(np.eye(8, dtype=np.bool_)), 1 / 8)


@pytest.mark.parametrize("choice", [EVEN, V3])
@pytest.mark.parametrize(("mode", "within"), [(NORMAL, 0.01), (LOW, 0.04)])
@pytest.mark.parametrize("nodes", [1, 2, 4, 8])
def test_expected_plans_take_the_closed_form(choice: ExpertChoice, mode: Algorithm, within: float, nodes: int) -> None:
    """But for what chance does to the hashed paths of low-latency messages across rails."""
    for tokens in (128, 4096) if mode is NORMAL else (16, 128):
        for plan, phase in zip(exchange(nodes, tokens, choice, mode), Phase, strict=True):
            at = plan.communicator.shape()
            (expected,) = expert_times_us(mode, phase, np.array([tokens]), hidden=7168, choice=choice, at=at)
            assert -0.01 < run_on_idle(plan) / 1e6 / expected - 1 < within


def test_one_copy_per_node_crosses_the_network_to_the_gpu_in_the_same_place() -> None:
    """8 of 256 experts on 4 nodes: of 4 · (1 − C(192, 8) / C(256, 8)) = 3.6142 nodes 3/4 are others; 32 ranks of 1,000
    tokens of 7,472 bytes."""
    flows = (plan := exchange(4, 1000, EVEN)[0]).flows
    node, rail = plan.communicator.node_of_rank(), plan.communicator.rail_of_rank()
    crosses = node[flows.src] != node[flows.dst]
    assert flows.payload_bytes[crosses].sum() == pytest.approx(32 * 1000 * 7472 * 3.614214 * 3 / 4, rel=1e-5)
    assert (rail[flows.src] == rail[flows.dst])[crosses].all()


def test_node_limited_tokens_cross_to_fewer_nodes() -> None:
    """8 of 256 experts within 4 of 8 groups, one per node: 4 · (1 − C(96, 8) / C(128, 8)) = 3.6290 nodes instead of
    8 · (1 − C(224, 8) / C(256, 8)) = 5.2947, 7/8 of them others."""
    for choice, distinct in ((V3, 3.629011), (EVEN, 5.294652)):
        flows = (plan := exchange(8, 1000, choice)[0]).flows
        node = plan.communicator.node_of_rank()
        crosses = node[flows.src] != node[flows.dst]
        assert flows.payload_bytes[crosses].sum() == pytest.approx(64 * 1000 * 7472 * distinct * 7 / 8, rel=1e-5)


def test_a_rank_with_an_expert_that_all_tokens_choose_receives_all_tokens() -> None:
    """Rank 5 of 8 with a pull of 1,000 even ones; its port takes 7 · 1,000 tokens, and the dispatch as much longer."""
    skewed = tuple(RankPopularity(2.0, 1000.0) if rank == 5 else RankPopularity(6 / 7, 6 / 7) for rank in range(8))
    even, hot = (exchange(1, 1000, ExpertChoice(256, 8, ranks=ranks))[0] for ranks in (None, skewed))
    assert hot.received_bytes()[5] == 7 * 1000 * 7472
    times = [run_on_idle(plan) - plan.base_latency_ps for plan in (even, hot)]
    assert times[1] / times[0] == pytest.approx(7 * 1000 * 7472 / int(even.received_bytes()[5]), rel=0.01)


def test_skewed_loads_are_the_bytes_of_low_latency_messages() -> None:
    """16 ranks, load 3 on rank 2 and 13/15 elsewhere: 3 · 8/16 messages per token come from each other rank."""
    skewed = tuple(RankPopularity(3.0 if rank == 2 else 13 / 15) for rank in range(16))
    dispatch = exchange(2, 64, ExpertChoice(256, 8, ranks=skewed), LOW)[0]
    assert dispatch.received_bytes()[2] == pytest.approx(15 * 64 * 7408 * 3 * 8 / 16, rel=1e-6)


# DeepEP's README (V1): H800 with 400 Gbit/s NICs, hidden 7168, 4,096 tokens, top-8 within 4 groups, FP8 dispatch, BF16
# combine; GB/s over RDMA (one node: NVLink), which count every distinct node (rank) of a token, its own too, with
# values and scales alone.
@pytest.mark.parametrize(("nodes", "dispatch", "combine"), [(1, 153, 158), (2, 43, 43), (4, 58, 57), (8, 51, 50)])
def test_normal_mode_is_near_deepeps_own_figures(nodes: int, dispatch: float, combine: float) -> None:
    """Nothing is fitted to them: the fits are to others' tables of H100 on 1, 2 and 4 nodes."""
    groups = 8 if nodes == 1 else nodes
    choice, ranks = ExpertChoice(256, 8, groups, min(groups, 4)), np.eye(8 * nodes, dtype=np.bool_)
    places = ranks if nodes == 1 else np.repeat(np.eye(nodes, dtype=np.bool_), 8, axis=1)
    plans = exchange(nodes, 4096, choice, gpu="h800")
    for plan, published, token_bytes in zip(plans, (dispatch, combine), (7392, 14336), strict=True):
        carried = 4096 * choice.reached(places).sum() * token_bytes
        assert carried / (run_on_idle(plan) / 1e3) == pytest.approx(published, rel=0.065)


def test_slow_links_bind_in_place_of_the_kernels() -> None:
    """Prefills of 10⁵ tokens over two nodes on H800 (NVLink of 164.8 GB/s) take longer than on H100."""
    times = []
    for gpu in ("h100", "h800"):
        communicator = spread(2, 8, gpu)
        routing = ExpectedRouting(100_000, EVEN, communicator)
        plan = expert_dispatch(routing, communicator, hidden=7168)
        at = communicator.shape()
        (expected,) = expert_times_us(NORMAL, Phase.DISPATCH, np.array([100_000]), hidden=7168, choice=EVEN, at=at)
        assert run_on_idle(plan) / 1e6 == pytest.approx(expected, rel=0.001)
        times.append(expected)
    assert times[1] > 1.3 * times[0]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"groups": 3}, "groups: found 3, expected a divisor of 256 experts"),
        ({"groups": 32}, "groups: found 32"),
        ({"groups": 8, "most_groups": 9}, "most_groups: found 9, expected 1 to 8 groups"),
        ({"groups": 8, "top_k": 33}, "top_k: found 33, expected 1 to the 32 experts of 1 groups"),
    ],
)
def test_bad_choices_are_refused(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ExpertChoice(256, wrong.get("top_k", 8), wrong["groups"], wrong.get("most_groups", 1))
    skewed = ExpertChoice(256, 8, ranks=(RankPopularity(),))
    with pytest.raises(InputError, match="found the popularity of 1, expected of 2"):
        skewed.reached(np.eye(2, dtype=np.bool_))


def test_modes_state_the_bytes_of_a_combined_token() -> None:
    """BF16 values; hierarchical with the source, expert ids and weights: 14,336 + 8 + 64, up to 14,416."""
    assert expert_mode(NORMAL).combine_bytes(7168, 8) == 14416
    assert expert_mode(LOW).combine_bytes(7168, 8) == 14336
