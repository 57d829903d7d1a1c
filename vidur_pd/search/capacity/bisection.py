"""The highest load at which something still holds, where it holds up to some load and not beyond."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

MOST_DOUBLINGS: Final = 30
"""From where the search begins, up or down."""


@dataclass(frozen=True, slots=True)
class Bracket:
    """Loads between which the limit lies."""

    highest_met: float | None
    """``None``: it did not hold at the least load that was tried."""
    lowest_missed: float | None
    """``None``: it still held at the largest one."""


def bisect_load(
    holds: Callable[[float], bool],
    start: float,
    tolerance: float,
    *,
    step: float = 2.0,
    whole: bool = False,
    least: float = 0.0,
) -> Bracket:
    """Brackets the limit by factors of ``step`` from ``start`` on, then halves the ratio to 1 + ``tolerance``.

    Args:
        holds: whether it holds at a load; called once per load.
        start: the first load.
        tolerance: ends where the lowest miss is at most this part above the highest load that is met.
        step: factor between the first loads.
        whole: loads are whole numbers, of clients; the search ends at neighbours.
        least: less load is not tried.
    """

    def rounded(load: float) -> float:
        return max(1.0, float(round(load))) if whole else load

    met: float | None = None
    missed: float | None = None
    load = rounded(start)
    for _ in range(MOST_DOUBLINGS):
        if holds(load):
            met = load
            following = max(rounded(load * step), load + 1) if whole else load * step
        else:
            missed = load
            following = rounded(load / step)
            if following < least:
                break
        if (met is not None and missed is not None) or following == load:
            break
        load = following
    while met is not None and missed is not None and missed > met * (1 + tolerance):
        load = rounded(math.sqrt(met * missed))
        if load in (met, missed):
            break
        if holds(load):
            met = load
        else:
            missed = load
    return Bracket(met, missed)
