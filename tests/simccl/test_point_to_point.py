import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simccl.nccl.point_to_point import batch_of_round, group_deltas, group_size, message_channels, send_rounds
from tests.simccl.communicators import spread


@pytest.mark.parametrize(
    ("groups", "deltas"),
    [
        (1, [0]),
        (4, [0, 1, 3, 2]),
        (5, [0, 1, 3, 2, 4]),
        (6, [0, 1, 3, 2, 5, 4]),
        (8, [0, 1, 3, 6, 2, 7, 5, 4]),
        (16, [0, 1, 3, 6, 10, 15, 5, 12, 4, 13, 7, 2, 14, 11, 9, 8]),
    ],
)
def test_groups_turn_to_each_other_in_nccls_order(groups: int, deltas: list[int]) -> None:
    assert group_deltas(groups) == deltas


def test_rounds_of_two_and_four_nodes_are_those_of_nccl() -> None:
    two = send_rounds(16, 8)
    assert two[:, 0].tolist() == list(range(16))
    assert [int(np.flatnonzero(row == 0)[0]) for row in two] == [0, 7, 6, 5, 4, 3, 2, 1, 8, *range(15, 8, -1)]
    expected = [5, 6, 7, *range(5), 13, 14, 15, *range(8, 13), 29, 30, 31, *range(24, 29), 21, 22, 23, *range(16, 21)]
    assert send_rounds(32, 8)[:, 5].tolist() == expected


@given(st.integers(1, 12), st.integers(1, 8))
def test_every_round_is_a_permutation_and_every_pair_meets_once(groups: int, group_ranks: int) -> None:
    rounds = send_rounds(groups * group_ranks, group_ranks)
    everyone = np.arange(groups * group_ranks)
    assert (np.sort(rounds, axis=1) == everyone).all()
    assert (np.sort(rounds, axis=0) == everyone[:, None]).all()


def test_groups_divide_every_node() -> None:
    assert group_size([6]) == 6
    assert group_size([8, 8]) == 8
    assert group_size([6, 4]) == 2
    assert group_size([16, 16]) == 8


@pytest.mark.parametrize(
    ("nodes", "channels", "per_peer"), [(1, 32, 32), (2, 16, 4), (4, 16, 4), (8, 16, 2), (16, 16, 1)]
)
def test_channels_per_peer_on_h100_nodes_of_eight_are_those_of_nccl(nodes: int, channels: int, per_peer: int) -> None:
    found = message_channels(spread(nodes, 8).shape())
    assert (found.channels, found.per_peer) == (channels, per_peer)


def test_base_channels_are_spread_by_bit_reversal() -> None:
    one = message_channels(spread(1, 8).shape())
    assert one.base_channels(8, 8).tolist() == [0, 16, 8, 24, 4, 20, 12, 28]
    two = message_channels(spread(2, 8).shape())
    assert two.base_channels(16, 8).tolist() == [0] * 8 + [8] * 8


def test_rounds_queue_up_only_when_channels_run_out() -> None:
    """16 channels hold 16 blocks of 8 rounds, so 128 ranks go at once and 256 ranks in two batches."""
    large = message_channels(spread(16, 8).shape())
    assert batch_of_round(large, 128, 8).max() == 0
    assert batch_of_round(message_channels(spread(32, 8).shape()), 256, 8).tolist() == [0] * 128 + [1] * 128


def test_messages_are_cut_into_the_parts_that_nccl_cuts() -> None:
    """One node of 8, 512 KiB steps: parts of at least 64 KiB, four at first, more when they exceed 16 MiB."""
    channels = message_channels(spread(1, 8).shape())
    sizes = np.array([1, 64 << 10, (64 << 10) + 1, 1 << 20, 64 << 20, (64 << 20) + 1, 1 << 34])
    assert channels.parts(sizes).tolist() == [1, 1, 2, 4, 4, 8, 32]


def test_small_messages_use_ll_inside_a_node_only() -> None:
    sizes = np.array([16 << 10, (16 << 10) + 1])
    assert message_channels(spread(1, 8).shape()).uses_ll(sizes).tolist() == [True, False]
    assert message_channels(spread(2, 8).shape()).uses_ll(sizes).tolist() == [False, False]
