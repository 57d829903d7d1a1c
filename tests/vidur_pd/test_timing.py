"""When running iterations end, and what happens to those in progress when communication gets slower."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from vidur_pd._core import RunningIteration, Stage, retime_stages, retime_steps, set_end_times, truncate


def stage(compute_ps: int, communication_ps: int) -> Stage:
    return Stage(compute_ps=compute_ps, communication_ps=communication_ps, load=0)


def run(steps: int, compute_ps: int = 100, communication_ps: int = 100, start_ps: int = 0) -> RunningIteration:
    """A run of equal steps on one stage, launched."""
    stages = [stage(compute_ps, communication_ps)]
    iteration = RunningIteration(0, stages, np.full(steps, compute_ps, dtype=np.int64), start_ps)
    set_end_times(iteration, [0])
    return iteration


def micro_batch(stages: list[tuple[int, int]], start_ps: int, free_ps: list[int]) -> RunningIteration:
    """An iteration through stages of (compute, communication), launched; ``free_ps`` is set to what follows from it."""
    compute_ps = np.array([sum(compute for compute, _ in stages)], dtype=np.int64)
    iteration = RunningIteration(0, [stage(*times) for times in stages], compute_ps, start_ps)
    free_ps[:] = set_end_times(iteration, free_ps)
    return iteration


def test_steps_follow_one_another() -> None:
    assert run(3, start_ps=50).ends_ps.tolist() == [250, 450, 650]


def test_half_a_step_done_stays_done_and_the_rest_takes_the_new_speed() -> None:
    """Steps of 100 + 100; at 300 half of the second is left. At slowdown 3 a step takes 400: 200 are left of it."""
    iteration = run(3)
    retime_steps(iteration, 3.0, 300)
    assert iteration.ends_ps.tolist() == [200, 500, 900]
    assert iteration.communication_ps == 300


def test_a_step_that_ends_at_this_instant_is_not_touched() -> None:
    iteration = run(2)
    retime_steps(iteration, 3.0, 200)
    assert iteration.ends_ps.tolist() == [200, 600]
    retime_steps(iteration, 1.0, 600)
    assert iteration.ends_ps.tolist() == [200, 600]


def test_a_stretch_that_passes_costs_only_the_time_it_lasted() -> None:
    """From 50 to 150 at half the speed (400 for a step of 200): 50 of 200 are done in that time, not 100."""
    iteration = run(1)
    retime_steps(iteration, 3.0, 50)
    retime_steps(iteration, 1.0, 150)
    assert iteration.ends_ps.tolist() == [250]


def test_a_run_cut_at_an_instant_keeps_the_step_in_progress_or_the_one_that_ends_then() -> None:
    for now_ps, left in ((199, 1), (200, 1), (201, 2), (599, 3)):
        iteration = run(3)
        assert truncate(iteration, now_ps) == (left < 3)
        assert iteration.steps == left


def test_a_run_cut_after_a_new_stretch_ends_with_the_stretched_step() -> None:
    iteration = run(3)
    retime_steps(iteration, 3.0, 300)
    assert truncate(iteration, 300)
    assert iteration.ends_ps.tolist() == [200, 500]


def test_a_stretched_stage_holds_up_the_flights_behind_it() -> None:
    """Two stages of 100 compute, the first with 100 communication. Flights start at 0 and 200 and end at 300 and 500.

    At 100 communication triples: the first iteration is half way through stage 0, of now 400: it leaves at 300, ends at
    400. The second, not begun, has to wait for it: stage 0 from 300 to 700, end at 800.
    """
    free_ps = [0, 0]
    running_iterations = [micro_batch([(100, 100), (100, 0)], start, free_ps) for start in (0, 200)]
    assert [int(iteration.ends_ps[0]) for iteration in running_iterations] == [300, 500]
    free_ps = retime_stages(running_iterations, [[3.0, 1.0]] * 2, free_ps, 100)
    assert [int(iteration.ends_ps[0]) for iteration in running_iterations] == [400, 800]
    assert free_ps == [700, 800]


def test_a_stage_that_waited_for_an_iteration_that_ends_now_begins_now() -> None:
    """Stages of 100 and 300: the second has left stage 0 at 200 and waits for the first, which ends at 400."""
    free_ps = [0, 0]
    first, second = (micro_batch([(100, 0), (300, 0)], start, free_ps) for start in (0, 100))
    assert [int(iteration.ends_ps[0]) for iteration in (first, second)] == [400, 700]
    assert retime_stages([second], [[1.0, 1.0]], free_ps, 400) == [200, 700]
    assert second.stage_begins_ps == [100, 400]


STAGE = st.tuples(st.integers(1, 500), st.integers(0, 500))


@given(
    st.lists(STAGE, min_size=2, max_size=4),
    st.integers(1, 4),
    st.lists(st.tuples(st.floats(1, 5), st.integers(0, 3000)), min_size=1, max_size=4),
)
def test_a_pipeline_keeps_its_order_and_its_capacity_whatever_the_stretches(
    stages: list[tuple[int, int]], running_iterations: int, changes: list[tuple[float, int]]
) -> None:
    free_ps = [0] * len(stages)
    under_way = [micro_batch(stages, free_ps[0], free_ps) for _ in range(running_iterations)]
    for slowdown, now_ps in sorted(changes, key=lambda change: change[1]):
        waiting = [iteration for iteration in under_way if iteration.start_ps <= now_ps < iteration.ends_ps[0]]
        later = [iteration for iteration in under_way if iteration.start_ps > now_ps]
        if not waiting or later:
            continue
        free_ps = retime_stages(waiting, [[slowdown] * len(stages)] * len(waiting), free_ps, now_ps)
        assert all(iteration.ends_ps[0] > now_ps for iteration in waiting)
    for iteration in under_way:
        assert all(begin < end for begin, end in zip(iteration.stage_begins_ps, iteration.stage_ends_ps, strict=True))
        assert all(
            end <= begin for end, begin in zip(iteration.stage_ends_ps, iteration.stage_begins_ps[1:], strict=False)
        )
    for earlier, following in pairwise(under_way):
        for end_ps, begin_ps in zip(earlier.stage_ends_ps, following.stage_begins_ps, strict=True):
            assert end_ps <= begin_ps


@given(st.integers(1, 20), st.lists(st.tuples(st.floats(1, 4), st.integers(0, 4000)), max_size=5))
def test_steps_keep_their_order_and_take_time_whatever_the_stretches(
    steps: int, changes: list[tuple[float, int]]
) -> None:
    iteration = run(steps)
    for slowdown, now_ps in sorted(changes, key=lambda change: change[1]):
        done = iteration.ends_ps[iteration.ends_ps <= now_ps].tolist()
        retime_steps(iteration, slowdown, now_ps)
        assert iteration.ends_ps[: len(done)].tolist() == done
        assert np.all(np.diff(iteration.ends_ps, prepend=0) > 0)
        assert iteration.ends_ps[-1] <= 400 * 4 * steps


def test_two_batches_hide_communication_until_it_is_longer_than_the_compute_beside_it() -> None:
    """100 + max(80, m) with m = 60 of communication: hidden up to a slowdown of 4/3, then m - 80 beyond compute 180."""
    hiding = Stage(
        compute_ps=180, communication_ps=60, load=0, not_overlapped_ps=100.0 - 180.0, overlapped=[(80.0, 60.0, 1.0)]
    )
    assert hiding.exposed_ps == 0
    iteration = RunningIteration(0, [hiding], np.array([180]))
    set_end_times(iteration, [0])
    assert iteration.ends_ps.tolist() == [180]
    retime_steps(iteration, 2.0, 90)
    assert iteration.communication_ps == 40
    assert iteration.ends_ps.tolist() == [90 + 110]
