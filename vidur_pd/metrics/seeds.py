"""Headline figures over several seeds: their means, and intervals in which the mean over all seeds lies.

Arrivals and lengths of synthetic workloads, random routing, how tokens choose experts, and which drafts are accepted
follow the seed. The interval is Student's, 95 %: it says how far a run with another seed may be from this one by
chance, not how far the model is from a cluster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from vidur_pd.metrics.summary import Interval, SeedsSummary, Summary

FIGURES: Final[Mapping[str, Callable[[Summary], float | None]]] = {
    "ttft_s.mean": lambda summary: summary.ttft_s.mean,
    "ttft_s.p50": lambda summary: summary.ttft_s.p50,
    "ttft_s.p90": lambda summary: summary.ttft_s.p90,
    "ttft_s.p99": lambda summary: summary.ttft_s.p99,
    "tpot_s.mean": lambda summary: summary.tpot_s.mean,
    "tpot_s.p50": lambda summary: summary.tpot_s.p50,
    "tpot_s.p90": lambda summary: summary.tpot_s.p90,
    "tpot_s.p99": lambda summary: summary.tpot_s.p99,
    "itl_s.p99": lambda summary: summary.itl_s.p99,
    "e2e_s.mean": lambda summary: summary.e2e_s.mean,
    "e2e_s.p50": lambda summary: summary.e2e_s.p50,
    "e2e_s.p99": lambda summary: summary.e2e_s.p99,
    "throughput.requests_per_s": lambda summary: summary.throughput.requests_per_s,
    "throughput.output_tokens_per_s": lambda summary: summary.throughput.output_tokens_per_s,
    "goodput": lambda summary: summary.goodput,
    "goodput_share": lambda summary: summary.goodput_share,
}
"""By their path in ``summary.json``."""
CONFIDENCE: Final = 0.95


def seeds_summary(seeds: Sequence[int], summaries: Sequence[Summary]) -> SeedsSummary:
    """Figures of runs that differ in their seed alone; one that a run lacks is left out."""
    found = {name: [figure(summary) for summary in summaries] for name, figure in FIGURES.items()}
    known = {name: [value for value in values if value is not None] for name, values in found.items()}
    return SeedsSummary(
        seeds=tuple(seeds),
        confidence=CONFIDENCE,
        has_own_requests=len({summary.workload.digest for summary in summaries}) > 1,
        met=sum(summary.slo.is_met for summary in summaries),
        figures={name: interval(values) for name, values in known.items() if len(values) == len(seeds)},
    )


def interval(values: Sequence[float]) -> Interval:
    """Student's interval of the mean of at least two values that are independent of each other."""
    from scipy.stats import t

    count, above = len(values), np.asarray(values) - min(values)  # exactly 0 where all are equal
    mean = min(values) + float(np.mean(above))
    reach = float(t.ppf((1 + CONFIDENCE) / 2, count - 1)) * float(np.std(above, ddof=1)) / math.sqrt(count)
    return Interval(mean=mean, low=mean - reach, high=mean + reach, least=min(values), most=max(values))
