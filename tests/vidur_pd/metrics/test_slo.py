"""Targets of percentiles, judged on requests made by hand, and what a configuration may say about them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vidur_pd.metrics.hand_made_requests import Served, tally_of
from vidur_pd.config import SloConfig
from vidur_pd.config.file import describe
from vidur_pd.metrics.quantities import distribution, rate_text, share_text
from vidur_pd.metrics.slo import is_beyond, judge, quantile
from vidur_pd.metrics.verdict.verdict import _target
from vidur_pd.workload.workload import NOBODY, Classes


def objectives(**fields: object) -> SloConfig:
    return SloConfig.model_validate(fields)


def test_a_percentile_is_judged_between_order_statistics() -> None:
    """TTFTs of 1 to 5 s: p90 lies at place 3.6, so at 4.6 s; two of five are beyond 3.5 s."""
    tally = tally_of(*(Served(0, ttft, 10, 10, 2) for ttft in (1, 2, 3, 4, 5)))
    (met,) = judge(tally, objectives(ttft={"p90": 4.6}))
    assert (met.name, met.found, met.is_met, met.beyond, met.requests) == ("TTFT p90", pytest.approx(4.6), True, 1, 5)
    assert met.margin == pytest.approx(0)
    (missed,) = judge(tally, objectives(ttft={"p90": 3.5}))
    assert (missed.is_met, missed.beyond, missed.beyond_allowed) == (False, 2, pytest.approx(0.1))
    assert missed.margin == pytest.approx(1 - 4.6 / 3.5)


def test_a_request_that_was_not_served_has_waited_for_ever() -> None:
    """One of four failed: p50 lies between the second and the third, p90 beyond all."""
    tally = tally_of(*(Served(0, ttft, 10, 10, 2) for ttft in (1, 2, 3)), Served(0, 0, None, 10, 2))
    median, most, mean = judge(tally, objectives(ttft={"p50": 2.5, "p90": 100, "mean": 100}))
    assert (median.found, median.is_met) == (2.5, True)
    assert (most.found, most.margin, most.is_met, most.beyond) == (None, None, False, 1)
    assert (mean.found, mean.is_met, mean.beyond_allowed) == (None, False, None)


def test_requests_of_one_token_have_no_tpot() -> None:
    tally = tally_of(Served(0, 1, 1, 10, 1), Served(0, 1, 3, 10, 3))
    (target,) = judge(tally, objectives(tpot={"p99": 1.0}))
    assert (target.requests, target.found, target.is_met) == (1, 1.0, True)
    (nothing,) = judge(tally_of(Served(0, 1, 1, 10, 1)), objectives(tpot={"p99": 1.0}))
    assert (nothing.requests, nothing.found, nothing.is_met) == (0, None, True)


def test_without_percentiles_a_share_of_all_requests_has_to_meet_the_limits_of_each() -> None:
    """Three of four are in time: 0.75 is reached, 0.8 missed by 0.05."""
    tally = tally_of(*(Served(0, ttft, ttft, 10, 2) for ttft in (1, 1, 1, 3)))
    (met,) = judge(tally, objectives(attainment=0.75))
    assert (met.is_met, met.found, met.margin, met.latency) == (True, 0.75, 0.0, "")
    (missed,) = judge(tally, objectives(attainment=0.8))
    assert (missed.is_met, missed.beyond, missed.margin) == (False, 1, pytest.approx(-0.05))


def test_requests_have_the_limit_of_the_highest_percentile_unless_they_have_their_own() -> None:
    assert objectives(ttft={"p50": 0.5, "p99": 3.0}).ttft_s == 3.0
    assert objectives(ttft={"p50": 0.5, "p99": 3.0}, ttft_s=1.0).ttft_s == 1.0
    assert objectives(ttft={"mean": 0.5}).ttft_s == 2.0
    assert objectives(e2e={"p90": 30.0}).e2e_s == 30.0
    tally = tally_of(Served(0, 1, 2, 10, 2), Served(0, 1, 40, 10, 50))
    assert tally.is_served(objectives(e2e={"p90": 30.0}, tpot_s=9.0)).tolist() == [True, False]


def test_targets_may_be_text_as_on_the_command_line() -> None:
    assert objectives(ttft="p90:2.0, p99:3") == objectives(ttft={"p90": 2.0, "p99": 3.0})
    assert objectives(tpot="mean:0.02", classes={"chat": {"e2e": "p50:30"}}).classes is not None


def test_what_is_looked_at_may_be_a_part_of_a_class_too() -> None:
    """Four requests of a class and two others, of which the later three are asked for."""
    chat = Classes(("chat",), np.array([0, NOBODY, 0, 0, NOBODY, 0]))
    tally = tally_of(
        *(Served(at, at + ttft, at + 10, 10, 2) for at, ttft in enumerate((9, 1, 1, 3, 1, 1))), classes=chat
    )
    slo = objectives(ttft={"p90": 2.0}, classes={"chat": {"ttft": {"p90": 2.0}}})
    later = np.arange(6) >= 3
    found = {target.class_name: is_beyond(tally, slo, target, later).tolist() for target in slo.targets}
    assert found == {None: [False], "chat": [True, False]}


def test_what_is_written_reads_as_it_was() -> None:
    slo = objectives(ttft={"p90": 2.0}, classes={"chat": {"tpot": {"p99.9": 0.1}}})
    assert SloConfig.model_validate(slo.model_dump(mode="json", exclude_none=True)) == slo
    assert [(each.latency, each.statistic, each.class_name) for each in slo.targets] == [
        ("ttft", "p90", None),
        ("tpot", "p99.9", "chat"),
    ]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"ttft": {"q90": 1}}, "ttft.q90: found 'q90', expected mean or a percentile, as p50, p90 or p99.9"),
        ({"ttft": {"p100": 1}}, "ttft.p100: found 'p100', expected mean or a percentile, as p50, p90 or p99.9"),
        ({"tpot": {"p0": 1}}, "tpot.p0: found 'p0', expected mean or a percentile, as p50, p90 or p99.9"),
        ({"ttft": "q90:1"}, "ttft.q90: found 'q90', expected mean or a percentile, as p50, p90 or p99.9"),
        ({"ttft": "p90:soon"}, "ttft.p90: found 'soon', expected a number"),
        ({"ttft": "p90"}, "ttft: found 'p90', expected seconds by percentile, as {p90: 2.0}"),
        ({"ttft": {"p90": -1}}, "ttft.p90: found -1, expected at least 1e-09"),
        ({"ttft": 2.0}, "ttft: found 2.0, expected a mapping of fields"),
        ({"e2e": {}}, "e2e: found an empty list, expected at least one item"),
        ({"ttf": {"p90": 1}}, "ttf: unknown field; did you mean 'ttft'?"),
    ],
)
def test_what_no_percentile_is_called_is_refused(fields: dict[str, object], expected: str) -> None:
    from pydantic import ValidationError

    with pytest.raises(ValidationError) as caught:
        objectives(**fields)
    assert describe(caught.value, SloConfig) == expected


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=40), st.sampled_from((0.5, 0.9, 0.99)), st.integers(0, 5))
def test_quantiles_are_those_of_the_table_and_rise_with_requests_that_were_not_served(
    values: list[float], share: float, lost: int
) -> None:
    array = np.array(values)
    assert quantile(array, share) == pytest.approx(getattr(distribution(array), f"p{round(100 * share)}"))
    assert quantile(np.append(array, np.full(lost, np.inf)), share) >= quantile(array, share)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.integers(1, 9))
def test_as_many_are_beyond_as_are_named_one_by_one(ttfts: list[int], limit: int) -> None:
    slo, tally = objectives(ttft={"p90": limit}), tally_of(*(Served(0, ttft, 20, 10, 2) for ttft in ttfts))
    (target,) = judge(tally, slo)
    assert is_beyond(tally, slo, slo.targets[0]).sum() == target.beyond == sum(ttft > limit for ttft in ttfts)


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (4.58, "(0.4 % over)"),
        (4.599, "(0.02 % over)"),
        (4.59999, "(less than 0.01 % over)"),
        (4.6, "(0 % to spare)"),
        (4.60001, "(less than 0.01 % to spare)"),
        (3.5, "(31 % over)"),
        (2.0, "(2.3 times)"),
        (5.0, "(8.0 % to spare)"),
    ],
)
def test_the_verdict_says_by_how_much_a_latency_is_beyond_its_limit(limit: float, text: str) -> None:
    """4.6 s; small excesses as shares, as 1.0 times says nothing of them."""
    tally = tally_of(*(Served(0, ttft, 10, 10, 2) for ttft in (1, 2, 3, 4, 5)))
    (target,) = judge(tally, objectives(ttft={"p90": limit}))
    assert _target(target).endswith(text)


@pytest.mark.parametrize(
    ("share", "limit", "text"),
    [
        (0.9896, 0.99, "98.96 %"),
        (0.99, 0.99, "99.0 %"),
        (0.99997, 0.99, "99.997 %"),
        (1.0, 0.99, "100.0 %"),
        (0.0, 0.99, "0.0 %"),
        (0.00001, 0.99, "0.001 %"),
        (1 - 1e-12, 0.99, "99.9999999999 %"),
        (None, 0.99, "?"),
    ],
)
def test_a_share_is_not_rounded_to_its_limit_nor_to_all_or_none(share: float | None, limit: float, text: str) -> None:
    assert share_text(share, limit) == text


def test_a_rate_is_not_rounded_to_none() -> None:
    assert [rate_text(per_s) for per_s in (12.345, 0.1, 0.0034, 0.0)] == ["12.35", "0.10", "0.0034", "0.00"]


def test_a_share_that_misses_its_limit_by_little_does_not_read_as_if_it_met_it() -> None:
    """One of 96 is late, and 99 % are wanted."""
    tally = tally_of(*(Served(0, 3 if place == 0 else 1, 10, 10, 2) for place in range(96)))
    (target,) = judge(tally, SloConfig(ttft_s=2.0, tpot_s=20.0))
    assert _target(target) == "98.96 % of the requests within their limits, wanted 99.0 %"
