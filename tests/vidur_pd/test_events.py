from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidur_pd.events import EventQueue, Priority


def test_completions_run_before_arrivals_before_dispatch_at_one_instant() -> None:
    queue, order = EventQueue(), []
    queue.schedule(5, Priority.DISPATCH, lambda: order.append("dispatch"))
    queue.schedule(5, Priority.ARRIVAL, lambda: order.append("arrival"))
    queue.schedule(5, Priority.COMPLETION, lambda: order.append("completion"))
    queue.schedule(4, Priority.DISPATCH, lambda: order.append("earlier"))
    while queue.next_event_ps() is not None:
        queue.run_next()
    assert order == ["earlier", "completion", "arrival", "dispatch"]


def test_a_cancelled_event_does_not_run_and_does_not_count() -> None:
    queue, order = EventQueue(), []
    queue.schedule(1, Priority.ARRIVAL, lambda: order.append("cancelled")).cancel()
    queue.schedule(2, Priority.ARRIVAL, lambda: order.append("kept"))
    assert queue.next_event_ps() == 2
    queue.run_next()
    assert order == ["kept"]
    assert queue.executed == 1


def test_scheduling_in_the_past_is_refused() -> None:
    queue = EventQueue()
    queue.move_to(10)
    with pytest.raises(AssertionError, match="past"):
        queue.schedule(9, Priority.ARRIVAL, lambda: None)


@given(st.lists(st.tuples(st.integers(0, 20), st.sampled_from(list(Priority))), max_size=60))
def test_events_run_in_order_of_time_priority_and_scheduling(events: list[tuple[int, Priority]]) -> None:
    queue, ran = EventQueue(), []
    for serial, (at_ps, priority) in enumerate(events):
        queue.schedule(at_ps, priority, lambda key=(at_ps, priority, serial): ran.append(key))
    while queue.next_event_ps() is not None:
        queue.run_next()
    assert ran == sorted(ran)
    assert len(ran) == len(events)
