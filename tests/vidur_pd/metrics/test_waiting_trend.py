"""Overload is told from chance on queues whose load is known."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import kendalltau

from vidur_pd.metrics.overload import _p_value, trend_of

RUNS = 40


def queue(load: float, servers: int, requests: int, random: np.random.Generator) -> tuple[NDArray[np.float64], ...]:
    """(arrivals, waits) of first come, first served, exponential gaps and services of mean 1: Lindley's recursion."""
    arrived = np.cumsum(random.exponential(1 / (load * servers), requests))
    services, free, waits = random.exponential(1.0, requests), [0.0] * servers, np.empty(requests)
    for place, at in enumerate(arrived.tolist()):
        server = min(range(servers), key=free.__getitem__)
        waits[place] = max(free[server] - at, 0.0)
        free[server] = max(free[server], at) + services[place]
    return arrived, waits


def overloads(load: float, servers: int, requests: int) -> float:
    random = np.random.default_rng(round(100 * load) + servers + requests)
    found = [trend_of(*queue(load, servers, requests, random)) for _ in range(RUNS)]
    return float(np.mean([trend is not None and trend.is_overload for trend in found]))


@pytest.mark.parametrize("servers", [1, 16])
def test_stable_queues_are_hardly_ever_called_overloaded(servers: int) -> None:
    """Of 40 runs each at 80 and 90 % of what the queue can serve at most two: one in twenty."""
    assert overloads(0.8, servers, 1000) <= 0.05
    assert overloads(0.9, servers, 1000) <= 0.05


@pytest.mark.parametrize("servers", [1, 16])
def test_overloaded_queues_are_nearly_always_found(servers: int) -> None:
    assert overloads(1.3, servers, 1000) >= 0.95
    assert overloads(1.1, servers, 3000) >= 0.9


def test_growth_is_what_the_load_exceeds() -> None:
    """At a load ρ each second of arrivals brings ρ seconds of work per server, so waits grow by ρ − 1."""
    trend = trend_of(*queue(2.0, 4, 4000, np.random.default_rng(3)))
    assert trend is not None
    assert trend.growth == pytest.approx(2.0 - 1.0, rel=0.1)  # of 3,200 gaps and services: 3 %


def test_the_p_value_is_that_of_kendalls_correlation() -> None:
    """Scipy's with the normal limit, whose one-sided value lacks the correction for continuity: they agree within
    it."""
    random = np.random.default_rng(5)
    for slope in (0.0, 0.1, 0.3):
        values = random.normal(size=16) + slope * np.arange(16)
        expected = kendalltau(np.arange(16), values, method="asymptotic", alternative="greater").pvalue
        assert _p_value(values) == pytest.approx(expected, abs=0.02)
