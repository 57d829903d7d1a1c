"""What every builder asks of its numbers."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from fractions import Fraction
from math import floor, isfinite

from boundary.errors import InputError
from netsim.units import MOST_RATE_BPS

MAX_CABLES = 2**20
"""A million, those of a quarter of a million GPUs; a simulation on them takes 2 GB. A mistyped number ends in a message
rather than in the memory of the machine."""


def check_counts(builder: str, **counts: int) -> None:
    """Refuses a count below 1.

    Raises:
        InputError: naming the builder, the field and what was found.
    """
    for name, value in counts.items():
        if value < 1:
            raise InputError(f"{builder} {name}: found {value}, expected at least 1")


def check_size(builder: str, nodes: int, cables: int) -> None:
    """Refuses a topology of more than `MAX_CABLES` nodes or cables, before anything of that size is made.

    Raises:
        InputError: naming the builder and what was found.
    """
    for name, value in (("nodes", nodes), ("cables", cables)):
        if value > MAX_CABLES:
            raise InputError(f"{builder}: found {value} {name} in all, expected at most {MAX_CABLES}")


def least(suffices: Callable[[int], bool]) -> int:
    """The smallest number from 1 on that suffices, where every larger one does too."""
    most = 1
    while not suffices(most):
        most *= 2
    return bisect.bisect_left(range(most + 1), True, lo=most // 2 + 1 if most > 1 else 1, key=suffices)


def exact_ratio(builder: str, oversubscription: float) -> Fraction:
    """The ratio as it is written: 1.1 is 11/10, not the nearest binary fraction.

    Raises:
        InputError: naming the builder, where it is not a finite number above 0.
    """
    if not (isfinite(oversubscription) and oversubscription > 0):
        raise InputError(f"{builder} oversubscription: found {oversubscription}, expected a number above 0")
    return Fraction(str(oversubscription))


def uplink_rate_bps(builder: str, ports_bps: int, uplinks: int, oversubscription: float) -> int:
    """Bit/s of each of ``uplinks`` that together carry ``ports_bps`` over the oversubscription, rounded down.

    Raises:
        InputError: as `exact_ratio`, or where it is below 1 bit/s or above 1 Pbit/s.
    """
    rate_bps = floor(ports_bps / (exact_ratio(builder, oversubscription) * uplinks))
    if not 1 <= rate_bps <= MOST_RATE_BPS:
        raise InputError(
            f"{builder} oversubscription: found {oversubscription:g}, by which each of {uplinks} uplinks has "
            f"{rate_bps} bit/s; expected 1 to {MOST_RATE_BPS}"
        )
    return rate_bps
