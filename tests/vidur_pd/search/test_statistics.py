"""Bisection, intervals and closed forms, against hand calculations and brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vidur_pd.execution.promise.promise import InstancePromise, _full_batches
from vidur_pd.search.capacity.bisection import Bracket, bisect_load
from vidur_pd.search.capacity.confidence import fewest_requests, share_interval, wilson


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.sampled_from((0.01, 0.02, 0.2)))
def test_bisection_brackets_the_limit_and_runs_each_load_once(limit: float, start: float, tolerance: float) -> None:
    tried: list[float] = []

    def holds(load: float) -> bool:
        tried.append(load)
        return load <= limit

    found = bisect_load(holds, start, tolerance)
    assert found.highest_met is not None
    assert found.lowest_missed is not None
    assert found.highest_met <= limit < found.lowest_missed <= found.highest_met * (1 + tolerance)
    assert len(set(tried)) == len(tried)


@given(st.integers(1, 300), st.floats(1, 500))
def test_bisection_of_clients_ends_at_neighbours(limit: int, start: float) -> None:
    found = bisect_load(lambda load: load <= limit, start, 1e-9, whole=True)
    assert (found.highest_met, found.lowest_missed) == (limit, limit + 1)


def test_a_limit_that_no_load_keeps_ends_the_search_at_the_least_load() -> None:
    tried: list[float] = []

    def holds(load: float) -> bool:
        tried.append(load)
        return False

    assert bisect_load(holds, 8.0, 0.01, least=0.01) == Bracket(None, 8.0 / 512)
    assert tried == [8.0 / 2**halvings for halvings in range(10)]


def test_bisection_says_where_a_side_was_not_found() -> None:
    assert bisect_load(lambda load: False, 8, 0.1, whole=True).highest_met is None
    always = bisect_load(lambda load: True, 1.0, 0.1)
    assert (always.lowest_missed, always.highest_met) == (None, 2.0**29)


def test_wilson_is_the_published_interval() -> None:
    """Of 10 in 100 at z = 1.96: (0.0552, 0.1744), as in R's prop.test without correction."""
    assert wilson(0.1, 100, 1.959964) == pytest.approx((0.0552, 0.1744), abs=1e-4)
    assert wilson(0.0, 50, 1.959964) == pytest.approx((0.0, 0.0713), abs=1e-4)


def test_requests_that_are_late_together_count_as_few() -> None:
    """The last tenth of 2,000 is late: batches are all or nothing, and tell as much as some twenty requests."""
    together = np.arange(2000) >= 1800
    apart = np.arange(2000) % 10 == 0
    clumped, spread = share_interval([together]), share_interval([apart])
    assert clumped.share == spread.share == 0.1
    assert clumped.independent < 30
    assert spread.independent == 2000
    assert clumped.low < spread.low < 0.1 < spread.high < clumped.high


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 2**31))
def test_intervals_hold_the_true_share_of_correlated_requests_as_often_as_they_say(seed: int) -> None:
    """Lateness comes in spells of 25 requests in the mean (a two-state chain with a share of 0.1): of 40 runs of 5,000
    the 95 % interval may miss 0.1 in at most 7, which 5 % of misses exceed once in 1,000 (binomial tail)."""
    rng = np.random.default_rng(seed)
    missed = 0
    for _ in range(40):
        late, state = np.zeros(5000, dtype=bool), False
        for place, draw in enumerate(rng.random(5000)):
            state = draw > 1 / 25 if state else draw < 1 / 25 / 9
            late[place] = state
        found = share_interval([late])
        missed += not found.low <= 0.1 <= found.high
    assert missed <= 7


def test_batches_of_a_promise_are_full_and_hold_every_token() -> None:
    """Prompts of 5, 9 and 4 tokens, 2 of the second cached, at 8 tokens per iteration: 5 + 3, 4 + 4."""
    batches = _full_batches(np.array([5, 9, 4]), np.array([0, 2, 0]), 8)
    assert [batch.new_tokens.tolist() for batch in batches] == [[5, 3], [4, 4]]
    assert [batch.kv_tokens.tolist() for batch in batches] == [[5, 5], [9, 4]]


def test_the_decode_rate_is_that_of_the_largest_step_within_the_limit() -> None:
    """Steps of 10, 12 and 20 ms with 1, 4 and 16 requests, 100 tokens each: 16 / (20 ms · 100) = 8 requests/s; at 16,
    half way from 4 to 16, it is 10 / 1.6 s."""
    pool = InstancePromise(0.0, 0.0, np.array([1.0, 4.0, 16.0]), np.array([0.010, 0.012, 0.020]))
    assert pool.decode_rate(100, 0.05) == pytest.approx(8)
    assert pool.decode_rate(100, 0.016) == pytest.approx(10 / 1.6)
    assert pool.decode_rate(100, 0.009) == 0
    assert pool.step_at(8, 100) == pytest.approx(0.020)
    assert pool.step_at(4 / 1.2, 100) == pytest.approx(0.012)
    assert math.isclose(pool.step_at(100, 100), 0.020)


@pytest.mark.parametrize(("allowed", "seeds", "least"), [(0.01, 1, 434), (0.1, 1, 40), (0.01, 3, 397)])
def test_so_many_requests_are_needed_to_be_sure(allowed: float, seeds: int, least: int) -> None:
    """Of none beyond a limit: the interval's upper end is at most what is allowed from that many on."""
    assert fewest_requests(allowed, seeds) == least

    def highest(requests: int) -> float:
        return share_interval([part.astype(bool) for part in np.array_split(np.zeros(requests), seeds)]).high

    assert highest(least) <= allowed < highest(least - 1)
