"""What the formats of flow files share: checked numbers and times, and labels of flows without one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, Literal

from boundary.errors import InputError
from netsim.units import LAST_INSTANT_PS, PS_PER_NS, PS_PER_S, parse_time_ps

MAX_INT64: Final = 2**63 - 1
_MOST_DIGITS: Final = 100
_TIMES: Final = {"ns": ("nanoseconds", PS_PER_NS), "s": ("seconds", PS_PER_S)}


def labels_by_pair(pairs: Sequence[tuple[int, int]]) -> list[int]:
    """How many flows of the same pair stand before each, as if each had a queue pair of its own."""
    seen: Counter[tuple[int, int]] = Counter()
    labels = []
    for pair in pairs:
        labels.append(seen[pair])
        seen[pair] += 1
    return labels


def whole_number(text: str, where: str, what: str, limits: tuple[int, int]) -> int:
    """The number that ``text`` is.

    Raises:
        InputError: naming ``where`` and ``what``, if it is none, or outside ``limits`` (both included).
    """
    least, most = limits
    is_number = text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
    if not is_number or not least <= int(text) <= most:
        raise InputError(f"{where}: found {text!r}, expected {what}, {least} to {most}")
    return int(text)


def time_ps(text: str, where: str, unit: Literal["ns", "s"]) -> int:
    """Picoseconds of a number of ``unit``, which may have a fraction.

    Raises:
        InputError: naming ``where``, if it is no number, not whole in ps, or beyond the end of the clock.
    """
    try:
        found_ps = parse_time_ps(f"{text}{unit}")
    except InputError:
        found_ps = LAST_INSTANT_PS + 1
    if found_ps > LAST_INSTANT_PS:
        name, ps_per_unit = _TIMES[unit]
        raise InputError(
            f"{where}: found {text!r}, expected {name}, whole in ps, 0 to {LAST_INSTANT_PS // ps_per_unit}"
        )
    return found_ps
