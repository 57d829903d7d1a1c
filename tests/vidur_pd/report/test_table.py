"""What is taken of rows by what they belong to."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.vidur_pd.report.report_table import table_of, words_of
from vidur_pd.report.table import distinct, greatest, sums

AMOUNTS = st.lists(st.tuples(st.integers(0, 3), st.floats(0.0, 1e18, allow_subnormal=True)), max_size=40)


@given(AMOUNTS, st.randoms(use_true_random=False))
def test_sums_are_rounded_once_and_the_order_of_rows_does_not_matter(rows: list, random) -> None:
    """As of fsum within one unit in the last place, whatever the order: links that carry the same are equally full."""
    found = sums(*(np.array([row[of] for row in rows], dtype=kind) for of, kind in ((0, int), (1, float))), 4)
    exact = [math.fsum(amount for group, amount in rows if group == wanted) for wanted in range(4)]
    np.testing.assert_array_almost_equal_nulp(found, np.array(exact), 1)
    random.shuffle(rows)
    again = sums(*(np.array([row[of] for row in rows], dtype=kind) for of, kind in ((0, int), (1, float))), 4)
    assert again.tolist() == found.tolist()


def test_a_sum_keeps_what_is_small_beside_the_largest() -> None:
    """10¹⁶ + 1 + 1: one by one each 1 is lost, as floats lie 2 apart there. Ten tenths, one by one, are less than 1."""
    assert sum([0.1] * 10) < 1
    groups = np.array([0, 0, 0, *[1] * 10])
    assert sums(groups, np.array([1e16, 1.0, 1.0, *[0.1] * 10]), 3).tolist() == [1e16 + 2, 1.0, 0.0]


def test_empty_cells_count_nothing() -> None:
    groups, values = np.array([0, 0, 1, 1]), np.array([1.0, np.nan, np.nan, np.nan])
    assert sums(groups, values, 3).tolist() == [1.0, 0.0, 0.0]
    np.testing.assert_array_equal(greatest(groups, values, 3), [1.0, np.nan, np.nan])


def test_groups_are_numbered_as_rows_come() -> None:
    first, groups = distinct(np.array([7, 3, 7, 9, 3]))
    assert first.tolist() == [0, 1, 3]
    assert groups.tolist() == [0, 1, 0, 2, 1]


def test_words_are_picked_by_name() -> None:
    words = words_of(["nic", "fabric", "nic", "nvlink"])
    assert words.are("nic").tolist() == [True, False, True, False]
    assert words.are("nic", "nvlink", "unknown").tolist() == [True, False, True, True]
    assert words.are("unknown").tolist() == [False] * 4
    assert [words.names[code] for code in words.rows(slice(1, 3)).present()] == ["fabric", "nic"]


def test_rows_of_a_table_keep_their_cells_together() -> None:
    table = table_of({"size": [3.0, np.nan, 1.0], "name": ["c", "b", "a"]}, ["name"])
    assert table.known("size").tolist() == [True, False, True]
    last, first = (table.rows(np.array([2, 0])).row(place) for place in (0, 1))
    assert (last, first) == ({"name": "a", "size": 1.0}, {"name": "c", "size": 3.0})
