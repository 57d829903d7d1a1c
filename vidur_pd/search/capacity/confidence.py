"""How sure a finite run is of its targets: an interval for the share of requests beyond a limit.

Requests that meet the same queue are late together, so that n of them say less than n independent ones. The variance
of the share is taken from batches of consecutive requests, each at least as long as a request stays, and the number of
independent requests that would have that variance replaces n in Wilson's interval of a binomial share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

BATCHES: Final = 20
"""Of each run at most: enough for a variance, and each long against the time for which a queue lasts (Law, Simulation
Modeling and Analysis, 9.5.3: 20 to 30)."""
CONFIDENCE: Final = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A share with its confidence interval."""

    share: float
    low: float
    high: float
    independent: float
    """Independent requests that would tell as much."""


def share_interval(
    runs: Sequence[NDArray[np.bool_]], batches: int = BATCHES, confidence: float = CONFIDENCE
) -> Interval:
    """The interval of the share of requests beyond a limit, [requests in order of arrival] of each run of its own
    seed, in so many batches each."""
    beyond = np.concatenate(runs)
    requests, share = len(beyond), float(beyond.mean())
    means = np.concatenate([_batch_means(run, batches) for run in runs])
    degrees = len(means) - 1
    independent = float(requests)
    if degrees > 0 and 0 < share < 1:
        variance = float(means.var(ddof=1)) / len(means)
        if variance > 0:
            independent = float(np.clip(share * (1 - share) / variance, 1.0, requests))
    quantile = _quantile(degrees, confidence)
    low, high = wilson(share, independent, quantile)
    return Interval(share, low, high, independent)


def fewest_requests(allowed: float, seeds: int, confidence: float = CONFIDENCE) -> int:
    """Requests of which none beyond a limit, in so many runs of all batches, puts the interval's upper end at what is
    allowed: of Wilson's interval of none among n, q²/(n + q²)."""
    quantile = _quantile(BATCHES * seeds - 1, confidence)
    return math.ceil(quantile**2 * (1 - allowed) / allowed)


def _quantile(degrees: int, confidence: float) -> float:
    """Student's."""
    from scipy.stats import t

    return float(t.ppf((1 + confidence) / 2, max(degrees, 1)))


def wilson(share: float, number: float, quantile: float) -> tuple[float, float]:
    """Wilson's score interval of a binomial share among ``number`` (E. B. Wilson, JASA 22, 1927)."""
    squared = quantile**2 / number
    center = (share + squared / 2) / (1 + squared)
    half = quantile / (1 + squared) * math.sqrt(share * (1 - share) / number + squared / (4 * number))
    low = center - half if share > 0 else 0.0  # as it is, but for rounding
    high = center + half if share < 1 else 1.0
    return max(0.0, low), min(1.0, high)


def _batch_means(run: NDArray[np.bool_], batches: int) -> NDArray[np.float64]:
    """[batches] of consecutive requests."""
    return np.array([part.mean() for part in np.array_split(run, min(batches, len(run)))])
