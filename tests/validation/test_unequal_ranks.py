"""Gathers of ranks with different numbers of tokens take what vLLM's take on two H200s."""

from __future__ import annotations

from statistics import mean

from tests.validation.unequal_ranks import compare

MANY = 1024


def test_one_ranks_tokens_reach_an_idle_one_as_fast_as_measured() -> None:
    errors = [abs(row.error) for row in compare() if row.fewest == 1 and row.most >= MANY]
    assert len(errors) == 12
    assert mean(errors) <= 0.04
    assert max(errors) <= 0.11


def test_gathers_of_unequal_ranks_take_what_was_measured_in_the_mean() -> None:
    rows = [row for row in compare() if row.most >= MANY]
    assert {row.name for row in rows} == {"broadcast", "reduce", "all_gather", "reduce_scatter"}
    assert mean(abs(row.error) for row in rows) <= 0.09
    assert max(abs(row.error) for row in rows) <= 0.34
