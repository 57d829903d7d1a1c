import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simccl import Collective, InputError, Protocol
from simccl.collective import shares, wire_bytes


def test_protocols_put_flags_and_padding_on_the_wire() -> None:
    """LL: 8 data bytes per 16-byte line; LL128: 120 per 128; the last line is padded."""
    payload = np.array([0, 1, 8, 9, 120, 121, 32_768, 576_000])
    assert wire_bytes(payload, Protocol.SIMPLE).tolist() == payload.tolist()
    assert wire_bytes(payload, Protocol.LL).tolist() == [0, 16, 16, 32, 240, 256, 65_536, 1_152_000]
    assert wire_bytes(payload, Protocol.LL128).tolist() == [0, 128, 128, 128, 128, 256, 35_072, 614_400]


def test_shares_of_a_petabyte_among_a_million_do_not_overflow() -> None:
    """The product of place and total, 2^70, does not fit 64 bits."""
    offsets = shares(2**50, 10**6)
    places = (0, 1, 500_000, 999_999, 10**6)
    assert [int(offsets[i]) for i in places] == [-(-i * 2**50 // 10**6) for i in places]


@given(st.integers(0, 1 << 50), st.integers(1, 1_000))
def test_shares_lose_no_byte_and_differ_by_at_most_one(total: int, parts: int) -> None:
    lengths = np.diff(shares(total, parts))
    assert lengths.sum() == total
    assert lengths.min() >= 0
    assert lengths.max() - lengths.min() <= 1


def test_the_first_share_of_one_byte_has_it() -> None:
    assert np.diff(shares(1, 4)).tolist() == [1, 0, 0, 0]


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"op: found 'allreduce', expected one of all_reduce, all_gather"):
        Collective.parse("allreduce")
    with pytest.raises(InputError, match=r"protocol: found 'LL', expected one of ll, ll128, simple"):
        Protocol.parse("LL")
