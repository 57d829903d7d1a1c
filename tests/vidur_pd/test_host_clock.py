"""When the host lets the device begin and end iterations, by hand and in runs of the simulator."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidur_pd._core import HostClock

WORK = (10, 20)
"""Prepares for 10, launches for 20."""


def sequence(
    clock: HostClock, work: tuple[int, int], device: list[int], hand_over: int = 0
) -> tuple[list[int], list[int]]:
    """Of steps that are offered to an idle engine at 0 (how long each takes, when each has been launched)."""
    taken, launched = clock.expose(work, decided_ps=0, start_ps=0, device_ps=np.array(device), hand_over_ps=hand_over)
    return taken.tolist(), launched.tolist()


def test_an_idle_engine_exposes_what_it_prepares_and_a_busy_one_nothing() -> None:
    """The first kernel of the first step is there at 10; the host has launched all by 30 and goes on to the second,
    whose kernels wait from 40 on for the end of the first at 110. The third it begins at 110, long before 210."""
    assert sequence(HostClock(plans_ahead=True), WORK, [100, 100, 100]) == ([110, 100, 100], [30, 60, 140])


def test_without_deciding_ahead_every_step_waits_for_what_the_host_prepares() -> None:
    assert sequence(HostClock(plans_ahead=False), WORK, [100, 100]) == ([110, 110], [30, 140])


def test_a_host_that_takes_longer_than_the_device_sets_the_pace() -> None:
    """Kernels of 5 end when the last of them has been launched, every 30."""
    assert sequence(HostClock(plans_ahead=True), WORK, [5, 5, 5, 5]) == ([30, 30, 30, 30], [30, 60, 90, 120])


def test_after_launching_that_took_longer_than_kernels_the_next_step_is_prepared_in_view() -> None:
    """A prompt is launched from 10 to 1,010, longer than its 400 of kernels; the decode after it is decided at 0, and
    prepared from 1,010 on: its 100 of kernels end at 1,120."""
    clock = HostClock(plans_ahead=True)
    taken, launched = clock.expose((10, 1000), decided_ps=0, start_ps=0, device_ps=np.array([400]))
    assert (taken[0], launched[0]) == (1010, 1010)
    clock.end(launched_ps=1010, began_ps=0, ended_ps=1010)
    taken, launched = clock.expose(WORK, decided_ps=0, start_ps=1010, device_ps=np.array([100]))
    assert (taken[0], launched[0]) == (110, 1040)


def test_workers_get_the_next_step_while_they_launch_the_one_before() -> None:
    """Of 10 that it takes to prepare 6 pass before the workers: the first step is there at 10; of those behind it,
    launched in 20 each, only the 4 in workers are seen. Of an idle engine, or without deciding ahead, all 10 are."""
    ahead = HostClock(plans_ahead=True, launches_apart=True)
    taken, launched = ahead.expose(WORK, decided_ps=0, start_ps=0, device_ps=np.array([5, 5, 5]), hand_over_ps=6)
    assert (taken.tolist(), launched.tolist()) == ([30, 24, 24], [30, 54, 78])
    after = HostClock(plans_ahead=False, launches_apart=True)
    taken, _ = after.expose(WORK, decided_ps=0, start_ps=0, device_ps=np.array([5, 5]), hand_over_ps=6)
    assert taken.tolist() == [30, 30]


def test_communication_follows_the_kernels_and_the_host_hides_behind_both() -> None:
    taken, _ = HostClock(plans_ahead=True).expose(
        (0, 50), decided_ps=0, start_ps=0, device_ps=np.array([20]), communication_ps=10
    )
    assert taken[0] + 10 == 50


times = st.integers(0, 1000)


@given(st.booleans(), st.tuples(times, times), st.lists(times, min_size=1, max_size=8), st.floats(0, 1))
def test_a_run_is_its_steps_one_by_one(
    plans_ahead: bool, work: tuple[int, int], device: list[int], share: float
) -> None:
    """A step is decided when the one before begins, or ends without deciding ahead."""
    hand_over = int(share * work[0])
    whole = sequence(HostClock(plans_ahead=plans_ahead, launches_apart=True), work, device, hand_over)
    clock, start_ps, decided_ps, taken, launched = HostClock(plans_ahead=plans_ahead, launches_apart=True), 0, 0, [], []
    for step_ps in device:
        step, at = clock.expose(
            work, decided_ps=decided_ps, start_ps=start_ps, device_ps=np.array([step_ps]), hand_over_ps=hand_over
        )
        taken.append(int(step[0]))
        launched.append(int(at[0]))
        end_ps = start_ps + taken[-1]
        clock.end(launched_ps=launched[-1], began_ps=start_ps, ended_ps=end_ps)
        decided_ps, start_ps = (start_ps if plans_ahead else end_ps), end_ps
    assert (taken, launched) == whole


@given(st.tuples(times, times), st.lists(times, min_size=1, max_size=8))
def test_deciding_ahead_never_takes_longer_and_both_cover_device_and_host(
    work: tuple[int, int], device: list[int]
) -> None:
    ahead, after = (sum(sequence(HostClock(plans_ahead=flag), work, device)[0]) for flag in (True, False))
    least = max(sum(device) + work[0], len(device) * sum(work))
    assert least <= ahead <= after <= sum(device) + len(device) * sum(work)


@pytest.mark.parametrize("work", [(0, 0), (0, 7)])
def test_without_preparing_a_long_step_takes_what_the_device_takes(work: tuple[int, int]) -> None:
    assert sequence(HostClock(plans_ahead=True), work, [10, 20]) == ([10, 20], [work[1], 2 * work[1]])
