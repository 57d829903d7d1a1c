"""What the formats of flow files share: checked numbers and times, and labels of flows without one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, Literal

from boundary.errors import InputError
from netsim.units import LAST_INSTANT_PS, PS_PER_NS, PS_PER_S, parse_time_ps

_TIMES: Final = {"ns": ("nanoseconds", PS_PER_NS), "s": ("seconds", PS_PER_S)}


def labels_by_pair(pairs: Sequence[tuple[int, int]]) -> list[int]:
    """How many flows of the same pair stand before each, as if each had a queue pair of its own."""
    seen: Counter[tuple[int, int]] = Counter()
    labels = []
    for pair in pairs:
        labels.append(seen[pair])
        seen[pair] += 1
    return labels


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
