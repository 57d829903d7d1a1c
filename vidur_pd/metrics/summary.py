"""The figures of ``summary.json``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vidur_pd.config import SloConfig
from vidur_pd.metrics.iterations import IterationLog
from vidur_pd.metrics.quantities import PS_PER_S, distribution, to_seconds
from vidur_pd.request import Request, RequestStatus

ITL_HISTOGRAM_BINS = 60


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """Times of one completed request, in picoseconds; ``tpot_ps`` needs two tokens."""

    ttft_ps: int
    e2e_ps: int
    tpot_ps: int | None


def times_of(request: Request) -> RequestTimes:
    """TTFT, E2E and TPOT of a completed request; TPOT is rounded to the picosecond."""
    assert request.first_token_ps is not None
    assert request.completed_ps is not None
    assert request.last_token_ps is not None
    gaps = request.output_tokens - 1
    tpot_ps = (2 * (request.last_token_ps - request.first_token_ps) + gaps) // (2 * gaps) if gaps else None
    return RequestTimes(request.first_token_ps - request.arrived_ps, request.completed_ps - request.arrived_ps, tpot_ps)


def summarise(requests: Sequence[Request], log: IterationLog, slo: SloConfig) -> dict[str, Any]:
    """Counts, throughput, latency distributions, goodput and the share of time on estimates.

    The makespan runs from the first arrival to the last completion. Goodput counts completed requests that meet every
    objective; a request of one token meets the TPOT objective. Rates are ``None`` where nothing completed.
    """
    completed = [request for request in requests if request.status is RequestStatus.COMPLETED]
    times = [times_of(request) for request in completed]
    first_ps = min((request.arrived_ps for request in requests), default=0)
    last_ps = max((request.completed_ps or 0 for request in completed), default=first_ps)
    makespan_s = to_seconds(last_ps - first_ps)
    met = sum(meets(time, slo) for time in times)
    gap_s, gap_count = log.gaps()
    return {
        "requests": len(requests),
        "completed": len(completed),
        "rejected": sum(request.status is RequestStatus.REJECTED for request in requests),
        "failed": sum(request.status is RequestStatus.FAILED for request in requests),
        "makespan_s": makespan_s,
        "throughput": {
            "requests_per_s": _rate(len(completed), makespan_s),
            "input_tokens_per_s": _rate(sum(request.prompt_tokens for request in completed), makespan_s),
            "output_tokens_per_s": _rate(sum(request.output_tokens for request in completed), makespan_s),
        },
        "ttft_s": distribution(_seconds(time.ttft_ps for time in times)),
        "tpot_s": distribution(_seconds(time.tpot_ps for time in times if time.tpot_ps is not None)),
        "itl_s": distribution(gap_s, gap_count),
        "e2e_s": distribution(_seconds(time.e2e_ps for time in times)),
        "slo": slo.model_dump(),
        "goodput": _rate(met, makespan_s),
        "goodput_share": met / len(requests) if requests else None,
        "estimates": log.estimated_ps / log.compute_ps if log.compute_ps else 0.0,
        "preemptions": sum(request.preemptions for request in requests),
        "itl_histogram": _histogram(gap_s, gap_count),
    }


def meets(time: RequestTimes, slo: SloConfig) -> bool:
    """Whether a completed request meets every objective; one of a single token meets that of TPOT."""
    tpot_s = 0.0 if time.tpot_ps is None else to_seconds(time.tpot_ps)
    return to_seconds(time.ttft_ps) <= slo.ttft_s and tpot_s <= slo.tpot_s


def _rate(count: int, duration_s: float) -> float | None:
    return count / duration_s if duration_s > 0 else None


def _seconds(values_ps: Iterable[int]) -> NDArray[np.float64]:
    return np.array(list(values_ps), dtype=np.float64) / PS_PER_S


def _histogram(values_s: NDArray[np.float64], counts: NDArray[np.int64]) -> dict[str, list[float] | list[int]]:
    """Counts in bins of equal ratio from the smallest to the largest positive gap."""
    positive = values_s > 0
    if not positive.any():
        return {"edges_s": [], "counts": []}
    low, high = float(values_s[positive].min()), float(values_s[positive].max())
    edges = np.geomspace(low * 0.999, high * 1.001, ITL_HISTOGRAM_BINS + 1)
    binned, _ = np.histogram(values_s[positive], bins=edges, weights=counts[positive])
    return {"edges_s": edges.tolist(), "counts": np.rint(binned).astype(int).tolist()}
