from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidur_pd._core import Loop
from vidur_pd.execution.clock import EventQueue, Priority


def empty_loop() -> tuple[Loop, EventQueue]:
    loop = Loop(0, keeps_runs=False, links=None)
    return loop, EventQueue(loop)


def run_all(loop: Loop, queue: EventQueue) -> None:
    while (notice := loop.run(2**62)) is not None:
        queue.call(notice.number)


def test_completions_run_before_arrivals_before_dispatch_at_one_instant() -> None:
    (loop, queue), order = empty_loop(), []
    queue.schedule(5, Priority.DISPATCH, lambda: order.append("dispatch"))
    queue.schedule(5, Priority.ARRIVAL, lambda: order.append("arrival"))
    queue.schedule(5, Priority.COMPLETION, lambda: order.append("completion"))
    queue.schedule(4, Priority.DISPATCH, lambda: order.append("earlier"))
    run_all(loop, queue)
    assert order == ["earlier", "completion", "arrival", "dispatch"]


def test_a_cancelled_event_does_not_run() -> None:
    (loop, queue), order = empty_loop(), []
    queue.schedule(1, Priority.ARRIVAL, lambda: order.append("cancelled")).cancel()
    queue.schedule(2, Priority.ARRIVAL, lambda: order.append("kept"))
    run_all(loop, queue)
    assert order == ["kept"]
    assert queue.now_ps == 2


def test_the_loop_stops_before_a_given_instant() -> None:
    (loop, queue), order = empty_loop(), []
    queue.schedule(3, Priority.ARRIVAL, lambda: order.append("event"))
    assert loop.run(3) is None
    assert loop.next_event_ps() == 3
    assert queue.now_ps == 0
    notice = loop.run(4)
    assert notice is not None
    queue.call(notice.number)
    assert order == ["event"]
    assert loop.next_event_ps() is None


def test_scheduling_in_the_past_is_refused_and_so_is_a_clock_that_goes_back() -> None:
    loop, queue = empty_loop()
    loop.arrive(10, [])
    with pytest.raises(AssertionError, match="past"):
        queue.schedule(9, Priority.ARRIVAL, lambda: None)
    with pytest.raises(AssertionError, match="back"):
        loop.arrive(9, [])


@given(st.lists(st.tuples(st.integers(0, 20), st.sampled_from(list(Priority))), max_size=60))
def test_events_run_in_order_of_time_priority_and_scheduling(events: list[tuple[int, Priority]]) -> None:
    (loop, queue), ran = empty_loop(), []
    for serial, (at_ps, priority) in enumerate(events):
        queue.schedule(at_ps, priority, lambda key=(at_ps, priority, serial): ran.append(key))
    run_all(loop, queue)
    assert ran == sorted(ran)
    assert len(ran) == len(events)
