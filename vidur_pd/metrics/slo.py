"""Whether a run meets its service-level objectives, target by target.

A target is met where its percentile (or mean) is at most its limit. Requests that were rejected or have failed have
waited for ever: they count as beyond every limit. Without targets of percentiles, the share of all requests that meet
the limits of each request has to be ``slo.attainment``.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from vidur_pd.config import SloConfig
from vidur_pd.config.objectives import Target, share_below
from vidur_pd.metrics.summary import TargetSummary
from vidur_pd.metrics.tally import RequestTally

Latencies = NDArray[np.float64]


def judge(tally: RequestTally, slo: SloConfig) -> tuple[TargetSummary, ...]:
    """Each target of a run that has ended, in the order of the configuration."""
    return tuple(_judged(tally, slo, target) for target in slo.targets) or (_attained(tally, slo),)


def is_beyond(
    tally: RequestTally, slo: SloConfig, target: Target | None, among: NDArray[np.bool_] | None = None
) -> NDArray[np.bool_]:
    """[requests that count for the target, in order of arrival] whether each is beyond its limit.

    ``None``: the target of ``slo.attainment``, whose limits are those of each request. ``among`` [requests] says which
    count at all.
    """
    if target is None:
        return (~tally.is_served(slo))[slice(None) if among is None else among]
    return latencies_of(tally, slo, target, among) > target.limit_s


def latencies_of(
    tally: RequestTally, slo: SloConfig, target: Target, among: NDArray[np.bool_] | None = None
) -> Latencies:
    """[requests that count for the target, in order of arrival] seconds, infinite where one was not served."""
    counts = np.ones(len(tally), dtype=bool) if among is None else among.copy()
    if target.class_name is not None:
        counts &= tally.is_of_class(target.class_name)
    else:
        for name in tally.class_names:
            if slo.has_own_targets(name, target.latency):
                counts &= ~tally.is_of_class(name)
    found = tally.latency_s(target.latency)[counts]
    return found[~np.isnan(found)]


def quantile(values: Latencies, share: float) -> float:
    """The quantile between order statistics, as of `quantities.distribution`, of values that may be infinite."""
    ordered = np.sort(values)
    exact = share * (len(ordered) - 1)
    below = int(exact)
    low, high = float(ordered[below]), float(ordered[min(below + 1, len(ordered) - 1)])
    return low if exact == below or low == high else low + (exact - below) * (high - low)


def target_name(target: Target) -> str:
    """The target in words, as ``TTFT p90`` or ``TPOT mean of chat``."""
    of_class = "" if target.class_name is None else f" of {target.class_name}"
    return f"{target.latency.upper()} {target.statistic}{of_class}"


def _judged(tally: RequestTally, slo: SloConfig, target: Target) -> TargetSummary:
    found, share = latencies_of(tally, slo, target), share_below(target.statistic)
    if not len(found):
        return TargetSummary(name=target_name(target), latency=target.latency, limit=target.limit_s, is_met=True)
    value = float(found.mean()) if share is None else quantile(found, share)
    is_known = math.isfinite(value)
    return TargetSummary(
        name=target_name(target),
        latency=target.latency,
        limit=target.limit_s,
        found=value if is_known else None,
        margin=1 - value / target.limit_s if is_known else None,
        is_met=value <= target.limit_s,
        requests=len(found),
        beyond=int(np.count_nonzero(found > target.limit_s)),
        beyond_allowed=None if share is None else 1 - share,
    )


def _attained(tally: RequestTally, slo: SloConfig) -> TargetSummary:
    missed = int(np.count_nonzero(is_beyond(tally, slo, None)))
    share = 1 - missed / len(tally) if len(tally) else 1.0
    return TargetSummary(
        name="share of requests within the limits of each",
        limit=slo.attainment,
        found=share,
        margin=share - slo.attainment,
        is_met=share >= slo.attainment - 1e-12,  # of shares whose difference is a rounding error
        requests=len(tally),
        beyond=missed,
        beyond_allowed=1 - slo.attainment,
    )
