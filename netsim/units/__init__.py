"""Quantities as text: the only place where rates, sizes and times are parsed and written.

Everything is integer inside: bit/s, bytes, picoseconds. Prefixes are exact (``k M G T P`` decimal, ``Ki Mi Gi Ti``
binary; ``b`` is bit, ``B`` is byte), and a text that does not come to a whole number of the base unit is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from boundary.errors import InputError
from boundary.quoting import quoted

PS_PER_NS: Final = 1_000
PS_PER_US: Final = 1_000_000
PS_PER_MS: Final = 1_000_000_000
PS_PER_S: Final = 1_000_000_000_000
LAST_INSTANT_PS: Final = 2**63 - 2
"""Clocks are signed 64-bit integers, and 2⁶³ − 1 means never; about 106 days."""
BITS_PER_BYTE: Final = 8
MOST_RATE_BPS: Final = 10**15
"""1 Pbit/s; beyond it, rates would not fit the integers of the core."""
MOST_TIME_PS: Final = 1_000 * PS_PER_S
"""Of a latency, interval or timeout, so that sums of a few still fit the clock."""
MOST_LATENCY_PS: Final = PS_PER_S
"""Of a link: four times around the earth in glass; paths of many links stay far from the end of the clock."""
MOST_BYTES: Final = 2**63 - 1

_DECIMAL: Final = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY: Final = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_PREFIXES: Final = _DECIMAL | _BINARY

_SIZE_UNITS: Final = {prefix + "B": factor for prefix, factor in _PREFIXES.items()}
_RATE_UNITS: Final = {
    prefix + unit + per_second: factor * bits
    for prefix, factor in _PREFIXES.items()
    for unit, bits in (("b", 1), ("bit", 1), ("B", BITS_PER_BYTE))
    for per_second in ("ps", "/s")
}
_TIME_UNITS: Final = {
    "ps": 1,
    "ns": PS_PER_NS,
    "us": PS_PER_US,
    "µs": PS_PER_US,  # micro sign
    "μs": PS_PER_US,  # Greek mu
    "ms": PS_PER_MS,
    "s": PS_PER_S,
}

_MOST_CHARACTERS: Final = 60
_QUANTITY: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,2})?|\.[0-9]+)\s*([A-Za-zµμ/]+)\s*")
_BARE_NUMBER: Final = re.compile(r"\s*[\d.]+\s*")


def parse_rate_bps(value: str | int, where: str = "rate") -> int:
    """Bit/s of ``400Gbps``, ``370.8GB/s``, or an integer that already is bit/s.

    Raises:
        InputError: naming ``where``, if the text is no rate, does not come to a whole number of bit/s, or is not in
            1 bit/s … 1 Pbit/s.
    """
    expected = "a positive rate such as 400Gbps or 370.8GB/s, whole in bit/s, at most 1Pbps"
    return _parse(value, _RATE_UNITS, where, expected, (1, MOST_RATE_BPS))


def parse_size_bytes(value: str | int, where: str = "size") -> int:
    """Bytes of ``16KiB``, ``1GB``, or an integer that already is bytes.

    Raises:
        InputError: naming ``where``, if the text is no size, does not come to a whole number of bytes, or is above
            2⁶³ − 1.
    """
    return _parse(value, _SIZE_UNITS, where, "a size such as 16KiB or 1GB, whole in bytes, below 2^63", (0, MOST_BYTES))


def parse_time_ps(value: str | int, where: str = "time") -> int:
    """Picoseconds of ``500ns``, ``0.5us``, or an integer that already is picoseconds.

    Raises:
        InputError: naming ``where``, if the text is no time, does not come to a whole number of picoseconds, or is
            beyond the end of the clock.
    """
    expected = "a time such as 500ns or 0.5us, whole in ps, below 106 days"
    return _parse(value, _TIME_UNITS, where, expected, (0, LAST_INSTANT_PS))


def read_rate_bps(value: object, where: str = "rate") -> int:
    """`parse_rate_bps` of a document, where a number without a unit would leave open what it means.

    Raises:
        InputError: also for a bare number.
    """
    return parse_rate_bps(_with_unit(value, where, "a rate with a unit such as 400Gbps"), where)


def read_time_ps(value: object, where: str = "time") -> int:
    """`parse_time_ps` of a document, where a number without a unit would leave open what it means.

    Raises:
        InputError: also for a bare number.
    """
    return parse_time_ps(_with_unit(value, where, "a time with a unit such as 500ns"), where)


def format_rate_bps(rate_bps: int) -> str:
    """``400Gbps`` for 400·10⁹; `parse_rate_bps` gives the integer back."""
    return _format(rate_bps, {prefix + "bps": factor for prefix, factor in _DECIMAL.items() if prefix != "K"})


def format_time_ps(time_ps: int) -> str:
    """``500ns`` for 500,000; `parse_time_ps` gives the integer back."""
    return _format(time_ps, {unit: factor for unit, factor in _TIME_UNITS.items() if unit.isascii()})


def _with_unit(value: object, where: str, expected: str) -> str:
    if not isinstance(value, str) or _BARE_NUMBER.fullmatch(value):
        raise InputError(f"{where}: found {quoted(value)}, expected {expected}")
    return value


def _parse(value: str | int, units: Mapping[str, int], where: str, expected: str, limits: tuple[int, int]) -> int:
    least, most = limits
    amount = _amount(value, units)
    if amount is None or amount.denominator != 1 or not least <= amount <= most:
        raise InputError(f"{where}: found {quoted(value)}, expected {expected}")
    return amount.numerator


def _amount(value: str | int, units: Mapping[str, int]) -> Fraction | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return Fraction(value)
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) and len(value) <= _MOST_CHARACTERS else None
    if match is None or match[2] not in units:
        return None
    return Fraction(match[1]) * units[match[2]]


def _format(amount: int, units: Mapping[str, int]) -> str:
    """In the largest unit that leaves a whole number."""
    factor, unit = max(
        (factor, unit) for unit, factor in units.items() if amount % factor == 0 and (amount or factor == 1)
    )
    return f"{amount // factor}{unit}"
