"""Whether waiting grows with the time for which a cluster has been loaded: it then has more to do than it can.

What a request waits is its queue, its wait for KV room, and its stalls (`attribution`): work done for it does not
count, so that batches which fill up at the beginning, and outputs that take long, are no overload. In a stable system
waiting does not depend on when a request arrives; in an overloaded one it grows by a constant part of the time. The
trend is taken over the second half of the arrivals, in `BATCHES` batches whose means hardly depend on each other, by
Kendall's rank correlation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from vidur_pd.metrics.quantities import PS_PER_S
from vidur_pd.metrics.tally import RequestTally

BATCHES: Final = 12
LEAST_REQUESTS: Final = 10 * BATCHES
"""Of the second half: with fewer nothing can be said."""
SIGNIFICANCE: Final = 0.01
LEAST_GROWTH: Final = 0.01
"""Seconds of waiting that each second of arrivals adds: at 1 % too much load, and what a significant trend has to
reach to be more than a drift that nobody would notice."""


@dataclass(frozen=True, slots=True)
class WaitingTrend:
    """How waiting changes with the time of arrival."""

    growth: float
    """Seconds of waiting that each second of arrivals adds: close to 1 − 1/ρ at a load ρ above 1."""
    p_value: float
    """Probability of such a rank correlation without any trend."""

    @property
    def is_overload(self) -> bool:
        return self.p_value < SIGNIFICANCE and self.growth > LEAST_GROWTH


def waiting_trend(tally: RequestTally) -> WaitingTrend | None:
    """The trend over the second half of the arrivals; ``None`` for too few requests, or all at one instant."""
    from scipy.stats import kendalltau

    arrived_s = tally.arrived_ps[tally.is_completed] / PS_PER_S
    waited_s = tally.waited_ps / PS_PER_S
    later = slice(len(arrived_s) // 2, None)
    arrived_s, waited_s = arrived_s[later], waited_s[later]
    if len(arrived_s) < LEAST_REQUESTS or arrived_s[0] == arrived_s[-1]:
        return None
    parts = np.array_split(np.arange(len(arrived_s)), BATCHES)
    when, waiting = (np.array([values[part].mean() for part in parts]) for values in (arrived_s, waited_s))
    if np.ptp(waiting) == 0 or np.ptp(when) == 0:
        return WaitingTrend(0.0, 1.0)
    growth = float(np.polyfit(when - when[0], waiting, 1)[0])
    return WaitingTrend(growth, float(kendalltau(when, waiting).pvalue))
