"""Which requests of a run met a full cluster."""

from __future__ import annotations

import numpy as np
import pytest

from vidur_pd.metrics.quantities import PS_PER_S
from vidur_pd.metrics.steady import LEAST_STAYS, steady_part


def test_a_stay_is_that_of_a_request_that_is_met() -> None:
    """Three of 1 s and one of 5 s: (3 · 1 + 25) / 8 = 3.5 s. Of arrivals at 0, 1, …, 9 s those from 4 to 5 s have as
    long before and behind them."""
    arrived_ps = np.arange(10, dtype=np.int64) * PS_PER_S
    found = steady_part(arrived_ps, np.array([1, 1, 1, 5]) * PS_PER_S)
    assert found.stays == pytest.approx(9 / 3.5)
    assert np.flatnonzero(found.is_within).tolist() == [4, 5]
    assert (found.batches, found.is_long) == (0, False)


def test_batches_are_two_stays_long() -> None:
    """Stays of 1 s: arrivals over 13 s hold 11 s between one to fill and one to empty."""
    arrived_ps = np.arange(14, dtype=np.int64) * PS_PER_S
    found = steady_part(arrived_ps, np.full(14, PS_PER_S))
    assert (found.batches, found.is_long) == (5, True)
    assert steady_part(arrived_ps[: int(LEAST_STAYS)], np.full(12, PS_PER_S)).batches == 4


def test_nothing_that_completed_is_no_time() -> None:
    found = steady_part(np.array([0, PS_PER_S]), np.empty(0, dtype=np.int64))
    assert (found.stays, found.is_long, found.batches) == (0.0, False, 0)
