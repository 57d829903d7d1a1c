"""Quantities as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netsim import InputError
from netsim.units import format_rate_bps, format_time_ps, parse_rate_bps, parse_size_bytes, parse_time_ps


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("400Gbps", 400_000_000_000),
        ("370.8GB/s", 2_966_400_000_000),
        ("2966.4Gbps", 2_966_400_000_000),
        ("2880 Gb/s", 2_880_000_000_000),
        ("1.6Tbit/s", 1_600_000_000_000),
        ("1GBps", 8_000_000_000),
        ("1GiB/s", 8 * 2**30),
        ("7bps", 7),
        (400_000_000_000, 400_000_000_000),
    ],
)
def test_rates_are_bits_per_second_with_exact_prefixes(text: str | int, expected: int) -> None:
    assert parse_rate_bps(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("16KiB", 16_384), ("1GB", 10**9), ("1.5kB", 1_500), ("0B", 0), ("2TiB", 2**41), ("1e3B", 1_000), (5, 5)],
)
def test_sizes_tell_binary_from_decimal_prefixes(text: str | int, expected: int) -> None:
    assert parse_size_bytes(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("500ns", 500_000),
        ("0.5us", 500_000),
        ("0.5µs", 500_000),
        ("0.000025ms", 25_000),
        ("2s", 2 * 10**12),
        ("3ps", 3),
    ],
)
def test_times_are_picoseconds(text: str, expected: int) -> None:
    assert parse_time_ps(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "400", "Gbps", "-4Gbps", "4gbps", "4GHz", "0bps", "0.3bps", "4 G bps", "1,5Gbps", 0, -1, True, 1.5, None],
)
def test_what_is_no_positive_whole_rate_is_refused_with_its_place(text: object) -> None:
    with pytest.raises(InputError, match=r"^T\.yaml nic: found .*expected a positive rate such as 400Gbps"):
        parse_rate_bps(text, "T.yaml nic")  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["1.5B", "1kb", "GB", "-1B"])
def test_what_is_no_whole_size_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="expected a size"):
        parse_size_bytes(text)


@pytest.mark.parametrize("text", ["0.5ps", "1h", "5", "-1ns"])
def test_what_is_no_whole_time_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="expected a time"):
        parse_time_ps(text)


@given(st.integers(1, 10**15))
def test_written_rates_are_read_back_exactly(rate_bps: int) -> None:
    assert parse_rate_bps(format_rate_bps(rate_bps)) == rate_bps


@given(st.integers(0, 10**18))
def test_written_times_are_read_back_exactly(time_ps: int) -> None:
    assert parse_time_ps(format_time_ps(time_ps)) == time_ps


def test_values_are_written_in_the_largest_unit_that_keeps_them_whole() -> None:
    assert [format_rate_bps(x) for x in (400 * 10**9, 2_966_400_000_000, 7)] == ["400Gbps", "2966400Mbps", "7bps"]
    assert [format_time_ps(x) for x in (500_000, 25_001, 0, 10**12)] == ["500ns", "25001ps", "0ps", "1s"]
