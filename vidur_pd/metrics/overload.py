"""Whether waiting grows with the time for which a cluster has been loaded: it then has more to do than it can.

What a request waits is its queue, its wait for KV room, its KV on shared links, and its stalls
(`attribution.WAITING`): work done for it does not count, so that batches which fill up at the beginning, and outputs
that take long, are no overload. In a stable system waiting does not depend on when a request arrives; in an overloaded
one it grows by a constant part of the time.

The trend is that of `BATCHES` batches of arrivals, after a warm-up. It is an overload where their means rise by
Kendall's rank correlation, and by more than a queue drifts by chance (Student's t over their differences: neighbours
depend on each other where load is high), and where no request of the last quarter waited as little as half of those of
the first did. On queues with one and with sixteen servers and Poisson arrivals
(``tests/vidur_pd/metrics/test_waiting_trend.py``) that is said of hardly any run at 90 % of what they can serve, and of
nearly all with 3,000 requests at 110 %.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vidur_pd.metrics.quantities import PS_PER_S
from vidur_pd.metrics.tally import RequestTally

BATCHES: Final = 16
LEAST_REQUESTS: Final = 10 * BATCHES
"""After the warm-up: with fewer nothing can be said."""
WARM_UP: Final = 0.2
"""Share of the arrivals that are left out."""
BEFORE_THE_END: Final = 0.6
"""Share of the arrivals that hardly any leaves the sooner for the end of the others. Our choice."""
SIGNIFICANCE: Final = 0.01
LARGE_DRIFT: Final = 1.761
"""Of Student's t: 5 % of drifts by chance are larger (one-sided, 14 degrees of freedom)."""
LEAST_GROWTH: Final = 0.01
"""Seconds of waiting that each second of arrivals adds: at 1 % too much load, and what a significant trend has to
reach to be more than a drift that nobody would notice."""

Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class WaitingTrend:
    """How waiting changes with the time of arrival."""

    growth: float
    """Seconds of waiting that each second of arrivals adds: close to ρ − 1 at a load ρ above 1."""
    p_value: float
    """Probability of such a rank correlation, or of a higher one, without any trend."""
    drift: float = 0.0
    """Student's t of the differences between batches."""
    drains: bool = False
    """Whether some request of the last quarter waited no more than half of those of the first did."""

    @property
    def is_overload(self) -> bool:
        grows = self.p_value < SIGNIFICANCE and self.growth > LEAST_GROWTH and self.drift > LARGE_DRIFT
        return grows and not self.drains


def waiting_trend(tally: RequestTally) -> WaitingTrend | None:
    """The trend of waiting; ``None`` for too few requests, or all at one instant.

    Those who share a link leave it sooner once nobody comes any more, the last the soonest, so that waiting falls at
    the end of an overload as well. Then it is that of the arrivals before, if there are more requests in the cluster
    at the last arrival than when these ended.
    """
    arrived_s = tally.arrived_ps[tally.is_completed] / PS_PER_S
    waited_s, e2e_s = tally.waited_ps / PS_PER_S, tally.e2e_ps / PS_PER_S
    whole = trend_of(arrived_s, waited_s)
    if whole is None or whole.is_overload:
        return whole
    before = slice(0, int(BEFORE_THE_END * len(arrived_s)))
    first = trend_of(arrived_s[before], waited_s[before])
    if first is None or not first.is_overload:
        return whole
    then_s, last_s = arrived_s[before][-1], arrived_s[-1]
    there = [np.count_nonzero((arrived_s <= at_s) & (arrived_s + e2e_s > at_s)) for at_s in (then_s, last_s)]
    return first if there[1] > there[0] else whole


def trend_of(arrived_s: Seconds, waited_s: Seconds) -> WaitingTrend | None:
    """The same of requests in the order of their arrival."""
    later = slice(int(WARM_UP * len(arrived_s)), None)
    arrived_s, waited_s = arrived_s[later], waited_s[later]
    if len(arrived_s) < LEAST_REQUESTS or arrived_s[0] == arrived_s[-1]:
        return None
    parts = np.array_split(np.arange(len(arrived_s)), BATCHES)
    when, waiting = (np.array([values[part].mean() for part in parts]) for values in (arrived_s, waited_s))
    if np.ptp(waiting) == 0 or np.ptp(when) == 0:
        return WaitingTrend(0.0, 1.0)
    growth = float(np.polyfit(when - when[0], waiting, 1)[0])
    steps = np.diff(waiting)
    spread = float(steps.std(ddof=1)) / math.sqrt(len(steps))
    drift = float(steps.mean()) / spread if spread > 0 else math.copysign(math.inf, growth)
    first, last = (waited_s[np.concatenate(few)] for few in (parts[: BATCHES // 4], parts[-BATCHES // 4 :]))
    return WaitingTrend(growth, _p_value(waiting), drift, bool(last.min() <= np.median(first)))


def _p_value(values: Seconds) -> float:
    """Of Kendall's rank correlation with the order (Mann, 1945; Kendall, 1975), one-sided, by its normal limit.

    By hand, as importing ``scipy.stats`` takes longer than many a simulation.
    """
    count = len(values)
    rising = float(np.sign(values[None, :] - values[:, None])[np.triu_indices(count, 1)].sum())
    deviation = math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    return 0.5 * math.erfc((rising - math.copysign(1.0, rising)) / deviation / math.sqrt(2))
