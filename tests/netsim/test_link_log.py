"""Bytes on links in windows: nothing is lost when windows double, and bytes lie where their time does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boundary.errors import InputError
from vidur_pd._core import LinkLog
from vidur_pd.metrics.quantities import PS_PER_S

WINDOW_PS = PS_PER_S // 64

ENTRIES = st.lists(
    st.tuples(st.integers(0, 10 * PS_PER_S), st.integers(0, 3 * PS_PER_S), st.sets(st.integers(0, 9), min_size=1)),
    max_size=20,
)
"""(start, duration, links)"""


def test_bytes_are_spread_over_the_windows_of_their_time() -> None:
    """A quarter of the time in the first window, half in the second, a quarter in the third."""
    log = LinkLog(3, 8)
    log.add("kv", np.array([2]), np.array([400.0]), (3 * WINDOW_PS // 2, 7 * WINDOW_PS // 2))
    traffic, window, link, carried = log.rows()
    assert traffic.tolist() == [0, 0, 0]
    assert window.tolist() == [1, 2, 3]
    assert link.tolist() == [2, 2, 2]
    assert carried.tolist() == [100.0, 200.0, 100.0]


def test_bytes_without_duration_are_those_of_their_instant() -> None:
    log = LinkLog(3, 8)
    log.add("collective", np.array([0, 1]), np.array([5.0, 7.0]), (WINDOW_PS, WINDOW_PS))
    traffic, window, link, carried = log.rows()
    assert (traffic.tolist(), window.tolist(), link.tolist()) == ([1, 1], [1, 1], [0, 1])
    assert carried.tolist() == [5.0, 7.0]


def test_windows_double_when_time_outgrows_them() -> None:
    log = LinkLog(1, 4)
    log.add("kv", np.array([0]), np.array([8.0]), (0, 4 * WINDOW_PS - 1))
    assert log.window_ps == WINDOW_PS
    log.add("kv", np.array([0]), np.array([1.0]), (5 * WINDOW_PS, 5 * WINDOW_PS))
    assert log.window_ps == 2 * WINDOW_PS
    _, window, _, carried = log.rows()
    assert window.tolist() == [0, 1, 2]
    assert carried == pytest.approx([4.0, 4.0, 1.0])


@given(ENTRIES)
def test_totals_are_what_was_added_whatever_the_windows(entries: list[tuple[int, int, set[int]]]) -> None:
    log, expected = LinkLog(10, 6), np.zeros(10)
    for start_ps, duration_ps, links in entries:
        chosen = np.array(sorted(links))
        log.add("kv", chosen, 10.0 + chosen, (start_ps, start_ps + duration_ps))
        expected[chosen] += 10.0 + chosen
    assert log.total_bytes("kv") == pytest.approx(expected)
    assert not log.total_bytes("collective").any()
    _, window, link, carried = log.rows()
    assert (window < 6).all()
    assert np.bincount(link, carried, minlength=10) == pytest.approx(expected)


def test_traffic_of_an_unknown_class_is_refused() -> None:
    with pytest.raises(InputError, match="traffic: found 'tcp', expected kv or collective"):
        LinkLog(1, 2).add("tcp", np.array([0]), np.array([1.0]), (0, 1))
