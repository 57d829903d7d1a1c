"""Integer picoseconds as figures: seconds, sums, quantiles."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from vidur_pd.metrics.summary import Distribution

PS_PER_S = 10**12
MOST_DIGITS: Final = 8
"""After the point of a percentage: one of ten billion requests."""


def to_seconds(duration_ps: int) -> float:
    return duration_ps / PS_PER_S


def exact_sum(values: NDArray[np.int64]) -> int:
    """The sum, which may need more than 64 bits: 10^6 times of ten seconds do."""
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFF_FFFF).sum())


def distribution(values_s: NDArray[np.float64], weights: NDArray[np.int64] | None = None) -> Distribution:
    """mean, p50, p90 and p99 of values that occur ``weights`` times each; ``None`` where there are none.

    Quantiles interpolate linearly between order statistics, as if each value stood ``weights`` times in the list.
    """
    counts = np.ones(len(values_s), dtype=np.int64) if weights is None else weights
    total = int(counts.sum())
    if total == 0:
        return Distribution()
    order = np.argsort(values_s, kind="stable")
    ordered, last_position = values_s[order], np.cumsum(counts[order]) - 1

    def at(position: int) -> float:
        return float(ordered[np.searchsorted(last_position, position)])

    def quantile(share: float) -> float:
        exact = share * (total - 1)
        below = int(exact)
        above = min(below + 1, total - 1)
        return at(below) + (exact - below) * (at(above) - at(below))

    mean = float(np.dot(values_s, counts) / total)
    return Distribution(mean=mean, p50=quantile(0.5), p90=quantile(0.9), p99=quantile(0.99))


def milliseconds_text(value_s: float) -> str:
    """A time in milliseconds: four digits, and those before the point at least."""
    value = 1e3 * value_s
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"


def share_text(share: float | None, *others: float) -> str:
    """A share in percent with one digit after the point, or with as many as tell it from all, from none and from
    ``others``."""
    if share is None:
        return "?"
    apart = [other for other in (0.0, 1.0, *others) if other != share]
    texts = ([f"{100 * each:.{digits}f}" for each in (share, *apart)] for digits in range(1, MOST_DIGITS + 1))
    return next((own for own, *of_others in texts if own not in of_others), f"{100 * share}") + " %"


def rate_text(per_s: float) -> str:
    """A rate with two digits after the point, or with two digits that are not 0."""
    return f"{per_s:.2f}" if per_s >= 0.1 or per_s == 0 else f"{per_s:.2g}"
