"""Arrival processes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError
from vidur_pd.config.arrivals import (
    Arrivals,
    ConstantArrivals,
    GammaArrivals,
    PoissonArrivals,
    RampArrivals,
    StaticArrivals,
)
from vidur_pd.workload.workload import MAX_ARRIVAL_S, PS_PER_S


def sample_arrivals(arrivals: Arrivals, requests: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Arrival times of ``requests`` requests in ps, non-decreasing.

    Renewal processes (Poisson, gamma, ramp) begin at time zero with a gap, so that n requests take n mean gaps.

    Raises:
        InputError: the last arrival lies beyond what simulated time can express.
    """
    match arrivals:
        case PoissonArrivals(qps=qps):
            gaps_s = random.standard_exponential(requests) / qps
        case GammaArrivals(qps=qps, cv=cv):
            shape = cv**-2
            gaps_s = random.standard_gamma(shape, requests) / (shape * qps)
        case ConstantArrivals(qps=qps):
            return to_ps(np.arange(requests) / qps)
        case StaticArrivals():
            return np.zeros(requests, dtype=np.int64)
        case RampArrivals():
            gaps_s = random.standard_exponential(requests) / _rates(arrivals, requests)
    return to_ps(np.cumsum(gaps_s))


def to_ps(times_s: NDArray[np.float64]) -> NDArray[np.int64]:
    """Seconds, in any order, rounded to the nearest picosecond. Raises `InputError` beyond `MAX_ARRIVAL_S`."""
    if len(times_s) and not times_s.max() <= MAX_ARRIVAL_S:
        raise InputError(f"arrivals: found a last arrival at {times_s.max():g} s, expected at most {MAX_ARRIVAL_S} s")
    return np.rint(times_s * PS_PER_S).astype(np.int64)


def _rates(ramp: RampArrivals, requests: int) -> NDArray[np.float64]:
    """[requests] rate in force when each request is awaited, in requests/s."""
    if ramp.shape == "exponential":
        return np.geomspace(ramp.from_qps, ramp.to_qps, requests)
    return np.linspace(ramp.from_qps, ramp.to_qps, requests)
