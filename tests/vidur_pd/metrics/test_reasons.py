"""Reasons for which requests were not served."""

from __future__ import annotations

from vidur_pd.metrics.reasons import Outcome, Outcomes


def test_reasons_that_differ_in_numbers_alone_are_one_with_the_range() -> None:
    outcomes = Outcomes()
    for index, tokens in enumerate((900, 700, 800)):
        outcomes.add("rejected", f"prompt of {tokens} tokens, expected at most 512", f"r{index}")
    outcomes.add("failed", "instance p-0 is down", "r9")
    assert outcomes.most_frequent() == [
        Outcome("rejected", "prompt of 700 to 900 tokens, expected at most 512", 3, "r0"),
        Outcome("failed", "instance p-0 is down", 1, "r9"),
    ]


def test_the_same_reason_of_another_end_is_another() -> None:
    outcomes = Outcomes()
    outcomes.add("rejected", "no room", "a", requests=2)
    outcomes.add("failed", "no room", "b", requests=2)
    assert [(outcome.status, outcome.requests) for outcome in outcomes.most_frequent()] == [
        ("failed", 2),
        ("rejected", 2),
    ]


def test_a_reason_may_hold_anything() -> None:
    outcomes = Outcomes()
    outcomes.add("failed", "", "a")
    outcomes.add("failed", "9" * 40 + " {0} %s", "b")
    assert {outcome.reason for outcome in outcomes.most_frequent()} == {"", "9" * 40 + " {0} %s"}
