"""The workload value: what it refuses and what it guarantees."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boundary.errors import InputError
from tests.vidur_pd.workload_cases import workload
from vidur_pd.workload import BlockHashes, Workload


def build(arrived: list[float], prefill: list[float], decode: list[float], ids: list[str] | None = None) -> Workload:
    names = tuple(ids) if ids is not None else tuple(map(str, range(len(arrived))))
    return Workload(names, np.array(arrived), np.array(prefill), np.array(decode), name="w")


tokens = st.integers(-2, 2**31 + 1)
times = st.integers(-3, 10**18)


@given(st.lists(st.tuples(times, tokens, tokens), min_size=1, max_size=8))
def test_a_workload_is_accepted_exactly_when_it_is_ordered_and_its_lengths_are_positive(
    rows: list[tuple[int, int, int]],
) -> None:
    arrived, prefill, decode = (list(column) for column in zip(*rows, strict=True))
    is_valid = (
        arrived == sorted(arrived) and arrived[0] >= 0 and all(1 <= value <= 2**31 - 1 for value in [*prefill, *decode])
    )
    if is_valid:
        assert len(build(arrived, prefill, decode)) == len(rows)
    else:
        with pytest.raises(InputError, match="expected") as refused:
            build(arrived, prefill, decode)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("arrived", "prefill", "decode", "said"),
    [
        ([], [], [], "found no request"),
        ([0, 1], [1], [1, 1], "prefill_tokens: found 1 entries, expected 2"),
        ([0, 1], [1, 0], [1, 1], "prefill_tokens of request 1: found 0, expected 1 to"),
        ([0, 1], [1, 1], [-4, 1], "decode_tokens of request 0: found -4"),
        ([2, 1], [1, 1], [1, 1], "arrived_ps of request 1: found 1, expected at least 2"),
        ([-1, 1], [1, 1], [1, 1], "arrived_ps: found -1, expected no negative time"),
        ([0, float("nan")], [1, 1], [1, 1], "found NaN or infinity"),
        ([0, 1], [1, 1.5], [1, 1], "found a fraction"),
    ],
)
def test_a_wrong_value_is_named_with_its_request_and_field(
    arrived: list[float], prefill: list[float], decode: list[float], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        build(arrived, prefill, decode)


def test_an_arrival_so_late_that_the_clock_may_end_while_it_is_served_is_refused() -> None:
    """Built by any means: here two requests 5 · 10⁶ s apart, beyond the 2⁶² ps of the network's clock."""
    with pytest.raises(InputError, match="arrived_ps of request b: found 5000000 s, expected at most 4000000 s"):
        Workload(("a", "b"), np.array([0, 5 * 10**18]), np.array([1, 1]), np.array([1, 1]))


def test_a_request_id_may_occur_once_only() -> None:
    with pytest.raises(InputError, match="request_id: found 'a' twice"):
        build([0, 1, 2], [1, 1, 1], [1, 1, 1], ["a", "b", "a"])


def test_text_in_place_of_numbers_is_refused() -> None:
    with pytest.raises(InputError, match="found values of type <U1"):
        Workload(("a",), np.array(["0"]), np.array([1]), np.array([1]))


def test_arrays_are_copies_that_cannot_be_written_to() -> None:
    given_times = np.array([0, 5])
    made = Workload(("a", "b"), given_times, np.array([1, 1]), np.array([1, 1]))
    given_times[1] = 7
    assert made.arrived_ps.tolist() == [0, 5]
    with pytest.raises(ValueError, match="read-only"):
        made.arrived_ps[0] = 1


def test_a_digest_tells_requests_apart_and_not_their_names() -> None:
    first = build([0, 10], [5, 7], [1, 2])
    assert first.digest == build([0, 10], [5, 7], [1, 2], ["x", "y"]).digest
    others = [
        build([0, 11], [5, 7], [1, 2]),
        build([0, 10], [6, 7], [1, 2]),
        build([0, 10], [5, 7], [1, 3]),
        build([0, 10, 10], [5, 7, 1], [1, 2, 1]),
        workload([5, 7], [[0], [1]]),
        workload([5, 7], [[0], [0]]),
    ]
    assert len({first.digest, *(each.digest for each in others)}) == 7


def test_block_hashes_must_cover_every_prompt_exactly() -> None:
    """1025 tokens are two whole blocks of 512 and one token: three ids."""
    assert workload([1024, 1025], [[0, 1], [0, 1, 2]]).block_hashes is not None
    with pytest.raises(InputError, match=r"hash_ids of request r1: found 2 ids, expected 3 \(1025 tokens"):
        workload([1024, 1025], [[0, 1], [0, 2]])


@pytest.mark.parametrize(
    ("offsets", "ids", "said"),
    [
        ([], [], "offsets"),
        ([0, 2], [1], "offsets"),
        ([1, 1], [1], "offsets"),
        ([0, 2, 1], [1], "offsets"),
        ([0, 1], [-1], "no negative id"),
    ],
)
def test_block_hashes_refuse_what_is_not_csr(offsets: list[int], ids: list[int], said: str) -> None:
    with pytest.raises(InputError, match=said):
        BlockHashes(np.array(offsets, dtype=np.int64), np.array(ids, dtype=np.int64), 512)


def test_hash_blocks_become_the_engine_blocks_that_the_prompt_fills() -> None:
    """A prompt of 1200 tokens has hash blocks 7, 9 and 4 (the last holds 176 tokens). In blocks of 256, each hash
    block is two engine blocks, numbered 2·id and 2·id + 1; 1200 // 256 = 4 are full: those of 7 and 9."""
    requests = workload([1200], [[7, 9, 4]])
    assert requests.engine_block_ids(0, 256).tolist() == [14, 15, 18, 19]
    assert requests.engine_block_ids(0, 512).tolist() == [7, 9]
    assert len(requests.engine_block_ids(0, 16)) == 75
    assert workload([1200]).engine_block_ids(0, 16).tolist() == []


def test_an_engine_block_must_divide_the_hash_block() -> None:
    with pytest.raises(InputError, match=r"block_tokens: found 48, expected a divisor of the hash block \(512\)"):
        workload([1200], [[7, 9, 4]]).engine_block_ids(0, 48)


@given(st.integers(1, 4000), st.sampled_from([1, 16, 64, 128, 512]))
def test_engine_blocks_are_distinct_and_cover_the_whole_blocks_of_any_prompt(prompt: int, block_tokens: int) -> None:
    ids = workload([prompt], [list(range(-(-prompt // 512)))]).engine_block_ids(0, block_tokens)
    assert len(set(ids.tolist())) == len(ids) == prompt // block_tokens
