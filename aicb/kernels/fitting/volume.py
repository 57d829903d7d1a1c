"""Times as piecewise-linear functions of a volume, such as the bytes of the KV cache or of state.

Attention of decodes is bound by reading the cache, so its time is nearly a line in the volume. For a geometry and batch
size the line is bent through measured points, and through the kriged reference model between them, once; then a vector
of volumes costs a look-up. Only comparisons, additions and multiplications are used, so that a vector gives the same
bits as the volumes one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

import aicb._core as _core
from aicb.kernels.fitting.kriging import Floats
from aicb.kernels.fitting.surface import Surface

_KNOTS_PER_OCTAVE = 4
_KNOTS_PER_ERROR = 8


def linear_through(knots: Iterable[tuple[float, float]], last_slope: float) -> _core.VolumeFunction:
    """Linear between knots (volume, time); ``last_slope`` continues to the right."""
    volume, time = (np.array(column, dtype=np.float64) for column in zip(*sorted(knots), strict=True))
    return _core.VolumeFunction(volume, time, np.append(np.diff(time) / np.diff(volume), last_slope))


@dataclass(frozen=True, slots=True)
class PricedVolume:
    """A time function of one batch size with its provenance."""

    time: _core.VolumeFunction
    volume_range: tuple[float, float]
    """Volumes outside are estimates."""
    is_estimate: bool
    source: str
    error_of: Callable[[], float]
    """Relative (68 %), mean over the knots; worked out when asked for, as in ``Estimate``."""


def through_lengths(
    surface: Surface, site: tuple[float, ...], lengths: Floats, volumes: Floats, last_slope: float
) -> tuple[_core.VolumeFunction, Callable[[], float]]:
    """Time of one site as a function of volume, never falling between measured points, and a function of its mean
    error."""
    shapes = np.column_stack([np.broadcast_to(site, (len(lengths), len(site))), lengths])
    times, is_measured = surface.times_and_hits(shapes)
    below = np.maximum.accumulate(np.where(is_measured, times, 0.0))
    above = np.minimum.accumulate(np.where(is_measured, times, np.inf)[::-1])[::-1]
    rising = np.maximum.accumulate(np.clip(times, below, np.maximum(above, below)))
    knots = np.where(is_measured, times, rising)
    start = [] if volumes[0] == 0.0 else [(0.0, float(knots[0]))]
    first = np.unique(volumes[order := np.lexsort((~is_measured, volumes))], return_index=True)[1]
    kept = order[first]
    function = linear_through([*start, *zip(volumes[kept], knots[kept], strict=True)], last_slope)
    return function, lambda: float(surface.errors(shapes[::_KNOTS_PER_ERROR]).mean())


def lengths_between(low: float, high: float, step: int, measured: Iterable[float]) -> Floats:
    """Increasing lengths from ``low`` to ``high`` in multiples of ``step``, the measured ones among them."""
    count = max(int(math.log2(max(high / low, 2.0)) * _KNOTS_PER_OCTAVE), 1) + 1
    grid = np.ceil(np.geomspace(low, max(high, 2.0 * low), count) / step) * step
    return np.unique(np.concatenate([grid, list(measured)]))


def nearest(value: int, known: list[int]) -> int:
    """The known value fewest octaves away; the value itself where nothing is known."""
    return min(known, key=lambda other: abs(math.log2(other / value))) if known else value
