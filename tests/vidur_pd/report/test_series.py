"""Aggregation of intervals into bins."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidur_pd.report.series import Intervals, cumulative_curve, spread, thin, time_edges, without_overlap

seconds = st.floats(0.0, 100.0, allow_nan=False)
lengths = st.floats(0.0, 30.0, allow_nan=False)


def one_row(*spans: tuple[float, float]) -> Intervals:
    starts, ends = (np.array(side, dtype=float) for side in zip(*spans, strict=True))
    return Intervals(starts, ends, np.zeros(len(spans), dtype=np.int64), 1)


def test_an_amount_is_spread_in_proportion_to_the_time_in_each_bin() -> None:
    """12 units over 0.5…3.5 s are 4 per second: half a second in the first and last bin, a whole one in two."""
    shares = spread(one_row((0.5, 3.5)), np.array([12.0]), np.arange(5.0))
    assert shares.tolist() == [[2.0, 4.0, 4.0, 2.0]]


def test_an_interval_that_ends_on_an_edge_leaves_the_next_bin_empty() -> None:
    assert spread(one_row((0.0, 2.0)), np.array([6.0]), np.arange(4.0)).tolist() == [[3.0, 3.0, 0.0]]


def test_an_instant_counts_once() -> None:
    assert spread(one_row((1.0, 1.0)), np.array([5.0]), np.arange(4.0)).sum() == 5.0


def test_rows_are_kept_apart() -> None:
    """The same interval in rows 0 and 2 of three: row 1 stays empty."""
    twice = Intervals(np.array([0.0, 0.0]), np.array([3.0, 3.0]), np.array([0, 2]), 3)
    assert spread(twice, np.array([3.0, 6.0]), np.arange(4.0)).tolist() == [[1, 1, 1], [0, 0, 0], [2, 2, 2]]


@given(st.lists(st.tuples(seconds, lengths, st.floats(0.0, 1e6)), min_size=1, max_size=40), st.integers(1, 60))
def test_spreading_keeps_the_sum(items: list[tuple[float, float, float]], bins: int) -> None:
    """Also of what lies beyond the edges, which end at 90 s."""
    amounts = np.array([amount for _, _, amount in items])
    spans = one_row(*((start, start + length) for start, length, _ in items))
    shares = spread(spans, amounts, np.linspace(0.0, 90.0, bins + 1))
    assert shares.sum() == pytest.approx(amounts.sum(), rel=1e-9, abs=1e-9)
    assert shares.min() >= 0.0


def test_overlapping_iterations_are_cut_at_the_next_start() -> None:
    """A pipelined instance: 0…4 and 1…5 overlap, 7…8 comes after a pause; busy are 0…5 and 7…8, six seconds."""
    held = without_overlap(one_row((0.0, 4.0), (1.0, 5.0), (7.0, 8.0)))
    assert list(zip(held.starts_s, held.ends_s, strict=True)) == [(0.0, 1.0), (1.0, 5.0), (7.0, 8.0)]


def test_an_iteration_inside_a_longer_one_does_not_end_it() -> None:
    held = without_overlap(one_row((0.0, 9.0), (1.0, 2.0)))
    assert list(zip(held.starts_s, held.ends_s, strict=True)) == [(0.0, 1.0), (1.0, 9.0)]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50), st.integers(0, 20)), min_size=1, max_size=40))
def test_without_overlap_the_lengths_of_a_row_sum_to_its_busy_time(spans: list[tuple[int, int, int]]) -> None:
    """Busy time by brute force: the unit seconds that some interval of the row covers."""
    ordered = sorted(spans)
    rows, starts, sizes = (np.array(column) for column in zip(*ordered, strict=True))
    held = without_overlap(Intervals(starts.astype(float), (starts + sizes).astype(float), rows, 3))
    for row in range(3):
        covered = {second for at, start, size in ordered if at == row for second in range(start, start + size)}
        assert (held.ends_s - held.starts_s)[rows == row].sum() == pytest.approx(len(covered), abs=1e-9)


@given(seconds, st.floats(1e-6, 1e6), st.integers(1, 300))
def test_time_edges_cover_the_span_in_few_equal_bins(begin: float, length: float, at_most: int) -> None:
    edges = time_edges((begin, begin + length), at_most)
    width = edges[1] - edges[0]
    assert edges[0] <= begin + 1e-6 * width
    assert edges[-1] >= begin + length - 1e-6 * width
    assert len(edges) <= at_most + 4
    assert np.allclose(np.diff(edges), width, rtol=1e-3)


def test_a_span_that_starts_near_zero_is_drawn_from_zero() -> None:
    """0.03…10 s in at most 10 bins: whole seconds from 0."""
    assert time_edges((0.03, 10.0), 10).tolist() == list(range(11))


def test_a_span_that_starts_late_is_not_drawn_from_zero() -> None:
    assert time_edges((1000.0, 1010.0), 10).tolist() == list(range(1000, 1011))


def test_a_small_sample_is_drawn_whole() -> None:
    values, shares = cumulative_curve(np.array([3.0, 1.0, np.nan, 2.0, 2.0]))
    assert values.tolist() == [1.0, 2.0, 2.0, 3.0]
    assert shares.tolist() == [0.25, 0.5, 0.75, 1.0]


@given(st.integers(601, 50_000))
def test_a_thinned_curve_lies_on_the_whole_one_and_keeps_its_ends(n: int) -> None:
    """For 1…n the share at or below v is v/n exactly; the largest values all stay, as the tail matters."""
    values, shares = cumulative_curve(np.arange(1.0, n + 1)[::-1])
    assert len(values) <= 600
    assert np.array_equal(shares, values / n)
    assert values[0] == 1
    assert values[-3:].tolist() == [n - 2, n - 1, n]


@given(st.integers(0, 10_000), st.integers(1, 500))
def test_thinning_keeps_first_and_last(count: int, at_most: int) -> None:
    kept = thin(count, at_most)
    assert len(kept) == min(count, at_most)
    if count > 1 and at_most > 1:
        assert (kept[0], kept[-1]) == (0, count - 1)
