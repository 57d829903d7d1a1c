"""Aggregation of millions of intervals into the few hundred points that a chart can show; numpy throughout."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MOST_BINS = 160
MOST_CURVE_POINTS = 600
MOST_SCATTER_POINTS = 2500


@dataclass(frozen=True, slots=True)
class Intervals:
    """``n`` intervals of time, each in one of ``n_rows`` rows (instances, links). All arrays have shape ``[n]``."""

    starts_s: Floats
    ends_s: Floats
    rows: Ints
    n_rows: int


def time_edges(span_s: tuple[float, float], at_most: int = MOST_BINS) -> Floats:
    """Edges of at most ``at_most`` + 2 equal bins that cover the span, of a width of 1, 2 or 5 times a power of ten.

    A span that begins near zero is drawn from zero.
    """
    begin, end = span_s
    if end <= begin:
        return np.array([begin, begin + 1.0], dtype=np.float64)
    least = (end - begin) / at_most
    power = 10.0 ** math.floor(math.log10(least))
    width = next(step * power for step in (1, 2, 5, 10) if step * power >= least * (1 - 1e-9))
    first = math.floor(begin / width + 1e-9) if begin > width else 0
    return np.arange(first, math.ceil(end / width - 1e-9) + 1, dtype=np.float64) * width


def middles(edges: Floats) -> Floats:
    return np.asarray((edges[:-1] + edges[1:]) / 2, dtype=np.float64)


class Spreading:
    """Intervals over bins, among which amounts are divided."""

    def __init__(self, intervals: Intervals, edges: Floats):
        bins, rows = len(edges) - 1, intervals.rows
        starts = np.clip(intervals.starts_s, edges[0], edges[-1])
        ends = np.clip(intervals.ends_s, starts, edges[-1])
        first = np.clip(np.searchsorted(edges, starts, side="right") - 1, 0, bins - 1)
        last = np.clip(np.searchsorted(edges, ends, side="left") - 1, first, bins - 1)
        self._inside = first == last
        self._lengths, self._widths = ends - starts, np.diff(edges)
        self._head, self._tail = edges[first + 1] - starts, ends - edges[last]
        self._across = across = last > first + 1
        self._shape = (intervals.n_rows, bins)
        self._places = rows * bins + first, rows * bins + last
        self._switches = tuple(rows[across] * (bins + 1) + place[across] for place in (first + 1, last))

    def of(self, amounts: Floats) -> Floats:
        """Amounts that fall into each bin, shape ``[n_rows, bins]``, when each is spread evenly over its interval.

        An interval of no length puts its amount into one bin. What lies outside the edges goes to the outermost bins,
        so that sums are kept.
        """
        rate = np.divide(amounts, self._lengths, out=np.zeros_like(amounts), where=~self._inside)
        head = np.where(self._inside, amounts, rate * self._head)
        tail = np.where(self._inside, 0.0, rate * self._tail)
        n_rows, bins = self._shape
        (first, last), size = self._places, n_rows * bins
        total = np.bincount(first, head, size) + np.bincount(last, tail, size)

        # Whole bins strictly between the first and the last: the rate is switched on after the first, off at the last.
        (on, off), size = self._switches, n_rows * (bins + 1)
        switched = np.bincount(on, rate[self._across], size)
        switched -= np.bincount(off, rate[self._across], size)
        running = np.cumsum(switched.reshape(n_rows, bins + 1), axis=1)[:, :bins]
        return np.asarray(total.reshape(n_rows, bins) + np.maximum(running, 0.0) * self._widths)


def spread(intervals: Intervals, amounts: Floats, edges: Floats) -> Floats:
    """Amounts of intervals in bins, see `Spreading.of`."""
    return Spreading(intervals, edges).of(amounts)


def without_overlap(intervals: Intervals) -> Intervals:
    """Cuts each interval at the start of the next one of its row, so that a row's lengths sum to its busy time.

    Iterations of a pipelined instance overlap. Rows must be contiguous and sorted by start.
    """
    starts, ends, rows = intervals.starts_s, intervals.ends_s, intervals.rows
    if not len(starts):
        return intervals
    # A running maximum per row in one pass: lift every row above all ends of the rows before it.
    lift = (np.cumsum(np.diff(rows, prepend=rows[0]) != 0)) * (np.ptp(np.concatenate([starts, ends])) + 1.0)
    busy_until = np.maximum.accumulate(ends + lift) - lift
    following = np.append(starts[1:], np.inf)
    following[np.append(np.diff(rows) != 0, True)] = np.inf
    return Intervals(starts, np.maximum(starts, np.minimum(busy_until, following)), rows, intervals.n_rows)


def cumulative_curve(values: Floats, at_most: int = MOST_CURVE_POINTS) -> tuple[Floats, Floats]:
    """The empirical distribution as (values, shares), thinned with more points in the upper tail."""
    ordered = np.sort(values[np.isfinite(values)])
    n = len(ordered)
    if n == 0:
        return np.empty(0), np.empty(0)
    if n <= at_most:
        kept = np.arange(n)
    else:
        body = np.linspace(0, n - 1, at_most // 2)
        tail = n - np.geomspace(1, n, at_most // 2)
        kept = np.unique(np.rint(np.concatenate([body, tail])).astype(np.int64).clip(0, n - 1))
    return ordered[kept], (kept + 1) / n


def thin(count: int, at_most: int = MOST_SCATTER_POINTS) -> Ints:
    """Evenly spaced positions, at most ``at_most`` of ``count``."""
    return np.unique(np.linspace(0, max(count - 1, 0), min(count, at_most)).astype(np.int64))
