"""The figures of ``summary.json``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vidur_pd.config import SloConfig
from vidur_pd.metrics.iterations import IterationLog
from vidur_pd.metrics.quantities import distribution, to_seconds
from vidur_pd.metrics.requests import NEVER, seconds
from vidur_pd.metrics.tally import RequestTally
from vidur_pd.metrics.under_load import under_load
from vidur_pd.workload.request import RequestStatus

ITL_HISTOGRAM_BINS = 60
MOST_REASONS = 20
"""Of requests not served, in the summary."""


def summarise(tally: RequestTally, log: IterationLog, slo: SloConfig) -> dict[str, Any]:
    """Counts, throughput, latency distributions, goodput and the share of time on estimates.

    The makespan runs from the first arrival to the last completion: ``throughput`` and ``goodput`` include the drain,
    as those of vLLM's benchmark do (``vllm bench serve`` divides by the duration of the whole run); ``under_load`` does
    not. Latencies are those of completed requests. Goodput counts completed requests that meet every objective, and
    ``goodput_share`` is their part of all requests: those that were rejected or failed have missed. A request of one
    token meets the TPOT objective. Rates are ``None`` where nothing completed.
    """
    completed = tally.count(RequestStatus.COMPLETED)
    makespan_s = to_seconds(tally.makespan_ps)
    ttft_ps, tpot_ps = tally.ttft_ps, tally.tpot_ps
    met = int(np.count_nonzero(tally.is_served(slo)))
    gap_s, gap_count = log.gaps()
    return {
        "requests": len(tally),
        "completed": completed,
        "rejected": tally.count(RequestStatus.REJECTED),
        "failed": tally.count(RequestStatus.FAILED),
        "not_served": [
            {"status": outcome.status, "reason": outcome.reason, "requests": outcome.requests}
            for outcome in tally.not_served.most_frequent()[:MOST_REASONS]
        ],
        "makespan_s": makespan_s,
        "throughput": {
            "requests_per_s": _rate(completed, makespan_s),
            "input_tokens_per_s": _rate(tally.input_tokens, makespan_s),
            "output_tokens_per_s": _rate(tally.output_tokens, makespan_s),
        },
        "under_load": under_load(tally, slo),
        "cached_input_share": tally.cached_tokens / tally.input_tokens if completed else None,
        "ttft_s": distribution(seconds(ttft_ps)),
        "tpot_s": distribution(seconds(tpot_ps[tpot_ps != NEVER])),
        "itl_s": distribution(gap_s, gap_count),
        "e2e_s": distribution(seconds(tally.e2e_ps)),
        "slo": slo.model_dump(),
        "goodput": _rate(met, makespan_s),
        "goodput_share": met / len(tally) if len(tally) else None,
        "estimates": log.estimated_ps / log.compute_ps if log.compute_ps else 0.0,
        "preemptions": tally.preemptions,
        "itl_histogram": _histogram(gap_s, gap_count),
    }


def _rate(count: int, duration_s: float) -> float | None:
    return count / duration_s if duration_s > 0 else None


def _histogram(values_s: NDArray[np.float64], counts: NDArray[np.int64]) -> dict[str, list[float] | list[int]]:
    """Counts in bins of equal ratio from the smallest to the largest positive gap."""
    positive = values_s > 0
    if not positive.any():
        return {"edges_s": [], "counts": []}
    low, high = float(values_s[positive].min()), float(values_s[positive].max())
    edges = np.geomspace(low * 0.999, high * 1.001, ITL_HISTOGRAM_BINS + 1)
    binned, _ = np.histogram(values_s[positive], bins=edges, weights=counts[positive])
    return {"edges_s": edges.tolist(), "counts": np.rint(binned).astype(int).tolist()}
