"""Rates while requests arrive, of requests made by hand."""

from __future__ import annotations

import pytest

from tests.vidur_pd.metrics.hand_made_requests import Served, tally_of
from vidur_pd.config import SloConfig
from vidur_pd.metrics.under_load import under_load

SLO = SloConfig(ttft_s=1.0, tpot_s=1.0)


def test_the_window_leaves_out_the_warm_up_and_the_drain() -> None:
    """E2E is 2 s for all, so the window goes from 2 to 8 s: requests that ended in (2, 8] are those of 2, 4 and 6 s,
    but for the first of them, which ended at its edge."""
    rates = under_load(tally_of(*(Served(at, at + 1, at + 2, 100, 11) for at in (0, 2, 4, 6, 8))), SLO)
    assert rates is not None
    assert (rates.from_s, rates.until_s) == (2.0, 8.0)
    assert rates.arrivals_per_s == pytest.approx(3 / 6)  # of 4, 6 and 8 s
    assert rates.requests_per_s == pytest.approx(3 / 6)  # ended at 4, 6 and 8 s
    assert rates.input_tokens_per_s == pytest.approx(3 * 100 / 6)  # first tokens at 3, 5 and 7 s
    assert rates.output_tokens_per_s == pytest.approx(3 * 11 / 6)
    assert rates.goodput == pytest.approx(3 / 6)


def test_the_window_is_at_least_half_of_the_time_of_arrivals() -> None:
    rates = under_load(tally_of(Served(0, 1, 100, 10, 2), Served(10, 11, 110, 10, 2)), SLO)
    assert rates is not None
    assert (rates.from_s, rates.until_s) == (5.0, 10.0)


def test_tokens_of_a_request_that_is_cut_by_the_window_count_in_part() -> None:
    """Of 10 gaps from 4 to 14 s the window from 5 to 10 s has 5; the prompt came before it."""
    rates = under_load(tally_of(Served(0, 4, 14, 10, 11), Served(10, 12, 15, 10, 1)), SLO)
    assert rates is not None
    assert rates.output_tokens_per_s == pytest.approx(5 / 5)
    assert rates.input_tokens_per_s == 0


def test_what_was_not_completed_or_too_late_is_not_served() -> None:
    rows = [Served(0, 0.5, 1, 10, 2), Served(1, 3, 4, 10, 2), Served(2, 0, None, 10, 2), Served(9, 9.5, 10, 10, 2)]
    rates = under_load(tally_of(*rows), SLO)
    assert rates is not None
    assert rates.requests_per_s * (rates.until_s - rates.from_s) == pytest.approx(1)
    assert rates.goodput == 0  # its TTFT was 2 s


def test_there_is_no_load_over_time_where_all_arrive_at_once_or_none_completes() -> None:
    assert under_load(tally_of(Served(3, 4, 5, 10, 2), Served(3, 4, 6, 10, 2)), SLO) is None
    assert under_load(tally_of(Served(3, 4, None, 10, 2), Served(5, 6, None, 10, 2)), SLO) is None
