"""PAT: messages of NCCL's generator, offset trees, bytes and depth."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simccl import Collective, plan_collective, verify_plan
from simccl.algorithms.pat import blocks_per_message, pat_messages
from tests.simccl.communicators import spread

GATHER, SCATTER = Collective.ALL_GATHER, Collective.REDUCE_SCATTER


@pytest.mark.parametrize(("ranks", "messages"), [(2, 1), (3, 2), (4, 2), (8, 3), (16, 4)])
@pytest.mark.parametrize("op", [GATHER, SCATTER])
def test_fully_aggregated_messages_are_as_few_as_in_nccl(op: Collective, ranks: int, messages: int) -> None:
    """Values of NCCL 2.30.7's own generator."""
    assert len(pat_messages(op, ranks, ranks)) == messages


def test_eight_ranks_double_or_halve_their_blocks_from_message_to_message() -> None:
    """NCCL 2.30.7: reduce_scatter 4 blocks to distance 1, 2 to 2, 1 to 4; all_gather the other way round."""
    scatter = [(m.distance, len(m.offsets)) for m in pat_messages(SCATTER, 8, 8)]
    gather = [(m.distance, len(m.offsets)) for m in pat_messages(GATHER, 8, 8)]
    assert scatter == [(1, 4), (2, 2), (4, 1)]
    assert gather == [(4, 1), (2, 2), (1, 4)]


@given(st.integers(2, 200), st.integers(1, 64), st.sampled_from([GATHER, SCATTER]))
def test_every_rank_sends_every_offset_once_and_each_block_hops_as_often_as_its_offset_has_bits(
    ranks: int, aggregation: int, op: Collective
) -> None:
    """All_gather hands on to offset + distance, reduce_scatter from the offset itself."""
    arrivals = {0: 0}
    sent = []
    for message in pat_messages(op, ranks, aggregation):
        for offset in message.offsets:
            child = offset + message.distance if op is GATHER else offset
            sent.append(child)
            if op is GATHER:
                arrivals[child] = arrivals[offset] + 1
    assert sorted(sent) == list(range(1, ranks))
    if op is GATHER:
        assert all(hops == offset.bit_count() for offset, hops in arrivals.items())


def test_aggregation_follows_the_chunk() -> None:
    """512 KiB chunks: one block of 300 KiB, two of 256 KiB, 8 of 64 KiB; half of the ranks at most."""
    assert blocks_per_message(300 << 10, 512 << 10, 64) == 1
    assert blocks_per_message(256 << 10, 512 << 10, 64) == 2
    assert blocks_per_message(64 << 10, 512 << 10, 64) == 8
    assert blocks_per_message(1, 512 << 10, 64) == 32


@settings(max_examples=40)
@given(st.integers(2, 40), st.sampled_from(["all_gather", "reduce_scatter"]), st.integers(1, 1 << 26))
def test_plans_send_n_minus_1_blocks_per_rank_and_are_right(ranks: int, op: str, size: int) -> None:
    plan = plan_collective(op, size, spread(ranks, 1), algorithm="pat")
    verify_plan(plan)
    sent = plan.sent_bytes()
    assert sent.sum() == (ranks - 1) * size
    assert abs(sent - (ranks - 1) * size / ranks).max() <= ranks


def test_all_gather_goes_to_the_rank_behind_and_reduce_scatter_to_the_one_ahead() -> None:
    communicator = spread(8, 1)
    for op, sign in (("all_gather", -1), ("reduce_scatter", 1)):
        flows = plan_collective(op, 8 << 10, communicator, algorithm="pat").flows
        distances = set(((flows.dst - flows.src) * sign % 8).tolist())
        assert distances == {1, 2, 4}
