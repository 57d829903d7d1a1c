"""Fit of α and β to the times of messages of several sizes, in as few ranges of sizes as they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from netsim.backends.calibration import TOLERANCE, Ranges, SizeRange


def fitted(sizes_bytes: Sequence[int], times_ns: Sequence[float]) -> Ranges:
    """The fewest ranges, and of those the closest, whose lines are within `TOLERANCE` of all times.

    α and β are not negative, and relative errors count: a line through µs and seconds would otherwise be that of the
    seconds. A size that is like none next to it is a range alone: the line from the size before to it, whose α is
    negative where the time jumps.

    Args:
        sizes_bytes: rising.
        times_ns: of one message each, above 0.
    """
    sizes, times = np.asarray(sizes_bytes, dtype=np.float64), np.asarray(times_ns, dtype=np.float64)
    best: list[tuple[int, float, Ranges]] = [(0, 0.0, ())]
    for end in range(1, len(sizes) + 1):
        candidates = []
        for first in range(end):
            line, error = _line(sizes[first:end], times[first:end])
            if line.largest_residual <= TOLERANCE:
                count, error_before, ranges = best[first]
                candidates.append((count + 1, error_before + error, (*ranges, line)))
        best.append(min(candidates, key=lambda each: each[:2]))
    return tuple(_from_before(place, each, sizes, times) for place, each in enumerate(best[-1][2]))


def _from_before(place: int, alone: SizeRange, sizes: NDArray[np.float64], times: NDArray[np.float64]) -> SizeRange:
    """A range of one size, but not the first, as a line that begins at the size before."""
    if place == 0 or alone.first_bytes < alone.last_bytes:
        return alone
    at = int(np.searchsorted(sizes, alone.last_bytes))
    slope = max(0.0, float((times[at] - times[at - 1]) / (sizes[at] - sizes[at - 1])))
    return replace(alone, alpha_ns=float(times[at]) - slope * alone.last_bytes, ns_per_byte=slope)


def _line(sizes: NDArray[np.float64], times: NDArray[np.float64]) -> tuple[SizeRange, float]:
    """The line of least squares of relative residuals, and their sum."""
    alpha_ns, ns_per_byte = float(times[0]), 0.0
    if len(sizes) > 1:
        rows = np.column_stack((1 / times, sizes / times))
        scale = rows.max(axis=0)
        alpha_ns, ns_per_byte = (nnls(rows / scale, np.ones(len(times)))[0] / scale).tolist()
    residuals = np.abs(alpha_ns + ns_per_byte * sizes - times) / times
    found = SizeRange(int(sizes[0]), int(sizes[-1]), alpha_ns, ns_per_byte, float(residuals.max()))
    return found, float(np.square(residuals).sum())
