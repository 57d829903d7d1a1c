"""Arrival processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError
from vidur_pd.config.arrivals import (
    Arrivals,
    ClosedArrivals,
    ConstantArrivals,
    ConstantTime,
    ExponentialTime,
    GammaArrivals,
    LogNormalTime,
    PoissonArrivals,
    RampArrivals,
    StaticArrivals,
    ThinkTime,
    VaryingArrivals,
)
from vidur_pd.workload.pacing import NOBODY, Clients, Pacing
from vidur_pd.workload.rates import Curve
from vidur_pd.workload.workload import MAX_ARRIVAL_S, PS_PER_S


def sample_arrivals(
    arrivals: Arrivals, requests: int, random: np.random.Generator, base_dir: Path
) -> NDArray[np.int64]:
    """Arrival times of ``requests`` requests in ps, non-decreasing. Files are relative to ``base_dir``.

    Renewal processes (Poisson, gamma, ramp) begin at time zero with a gap, so that n requests take n mean gaps.

    Raises:
        InputError: the last arrival lies beyond what simulated time can express.
    """
    match arrivals:
        case PoissonArrivals(qps=qps):
            gaps_s = random.standard_exponential(requests) / qps
        case GammaArrivals(qps=qps, cv=cv):
            gaps_s = _unit_gaps(cv, requests, random) / qps
        case VaryingArrivals(rate=rate, cv=cv):
            unit_times = np.cumsum(_unit_gaps(cv, requests, random))
            return to_ps(Curve.of(rate, base_dir).times_s(unit_times))
        case ConstantArrivals(qps=qps):
            return to_ps(np.arange(requests) / qps)
        case StaticArrivals() | ClosedArrivals():  # what clients send later is not known yet
            return np.zeros(requests, dtype=np.int64)
        case RampArrivals():
            gaps_s = random.standard_exponential(requests) / _rates(arrivals, requests)
    return to_ps(np.cumsum(gaps_s))


def sample_think_times(think_time: ThinkTime, count: int, random: np.random.Generator) -> NDArray[np.int64]:
    """``count`` times in ps. Raises `InputError` beyond `MAX_ARRIVAL_S`."""
    match think_time:
        case ConstantTime(s=time_s):
            times_s = np.full(count, time_s)
        case ExponentialTime(mean_s=mean_s):
            times_s = random.standard_exponential(count) * mean_s
        case LogNormalTime(mean_s=mean_s, cv=cv):
            variance = np.log1p(cv * cv)
            times_s = mean_s * np.exp(np.sqrt(variance) * random.standard_normal(count) - variance / 2)
    return to_ps(times_s, "think_time: found a time of")


def clients_pacing(arrivals: Arrivals, requests: int, random: np.random.Generator) -> Pacing | None:
    """Requests of which each client sends one after another; ``None`` where arrivals wait for nothing."""
    if not isinstance(arrivals, ClosedArrivals):
        return None
    return Pacing(
        follows=np.full(requests, NOBODY),
        think_ps=sample_think_times(arrivals.think_time, requests, random),
        population=np.zeros(requests, dtype=np.int64),
        populations=(population_of(arrivals),),
    )


def population_of(arrivals: ClosedArrivals) -> Clients:
    until_ps = None if arrivals.duration_s is None else round(arrivals.duration_s * PS_PER_S)
    return Clients(arrivals.clients, until_ps)


def to_ps(times_s: NDArray[np.float64], found: str = "arrivals: found a last arrival at") -> NDArray[np.int64]:
    """Seconds, in any order, rounded to the nearest picosecond. Raises `InputError` beyond `MAX_ARRIVAL_S`."""
    if len(times_s) and not times_s.max() <= MAX_ARRIVAL_S:
        raise InputError(f"{found} {times_s.max():g} s, expected at most {MAX_ARRIVAL_S} s")
    return np.rint(times_s * PS_PER_S).astype(np.int64)


def _unit_gaps(cv: float, requests: int, random: np.random.Generator) -> NDArray[np.float64]:
    """[requests] gamma gaps of mean 1."""
    shape = cv**-2
    return random.standard_gamma(shape, requests) / shape


def _rates(ramp: RampArrivals, requests: int) -> NDArray[np.float64]:
    """[requests] rate in force when each request is awaited, in requests/s."""
    if ramp.shape == "exponential":
        return np.geomspace(ramp.from_qps, ramp.to_qps, requests)
    return np.linspace(ramp.from_qps, ramp.to_qps, requests)
