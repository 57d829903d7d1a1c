"""When running iterations end, and what happens to those in progress when communication gets slower.

Collectives are one flow that needs its link for all of its time; beside a transfer of n flows they take 1 + n times as
long. Times are microseconds unless they say otherwise.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vidur_pd.fluid_rig import US, Rig, StagePrice, price


def stage(compute_us: int, communication_us: int) -> StagePrice:
    return price(0, compute_us=compute_us, communication_us=communication_us, drain_us=communication_us)


def run_of(steps: int) -> Rig:
    """A prompt from 0 to 200, a run of decodes and one for the last token, each 100 compute and 100 communication."""
    rig = Rig(stage(100, 100), tokens=2 + steps, has_runs=True)
    rig.launch()
    return rig


def ends_us(rig: Rig, until_us: int) -> list[float]:
    rig.advance(until_us * US)
    return [end_ps / US for end_ps in rig.ends_ps()]


def carry_at(rig: Rig, at_us: int, flows: int) -> None:
    rig.advance(at_us * US)
    rig.carry(0, flows)
    rig.advance(at_us * US)


def test_steps_follow_one_another() -> None:
    rig = run_of(3)
    rig.advance(200 * US)
    assert rig.running().steps == 3
    assert ends_us(rig, 800) == [200, 400, 600, 800]


def test_half_a_step_done_stays_done_and_the_rest_takes_the_new_speed() -> None:
    """At 500 half of the second step of the run is left. At a slowdown of 3 a step takes 400: 200 are left of it."""
    rig = run_of(3)
    carry_at(rig, 500, flows=2)
    assert rig.running().communication_ps == 300 * US
    assert ends_us(rig, 1100) == [200, 400, 700, 1100]


def test_a_step_that_ends_at_this_instant_is_not_touched() -> None:
    rig = run_of(2)
    carry_at(rig, 400, flows=2)
    assert ends_us(rig, 800) == [200, 400, 800]


def test_a_transfer_that_passes_costs_only_the_time_it_lasted() -> None:
    """From 50 to 150 at half the speed (400 for a step of 200): 50 of 200 are done in that time, not 100."""
    rig = run_of(1)
    rig.advance(50 * US)
    passing = rig.carry(0, flows=2)
    rig.advance(150 * US)
    rig.drop(passing)
    assert ends_us(rig, 250) == [250]


@pytest.mark.parametrize(("at_us", "left"), [(399, 1), (400, 1), (401, 2), (799, 3)])
def test_a_run_cut_at_an_instant_keeps_the_step_in_progress_or_the_one_that_ends_then(at_us: int, left: int) -> None:
    """Something new on the instance cuts it."""
    rig = run_of(3)
    rig.advance(at_us * US)
    assert rig.running().steps == 3
    rig.instances[0].wake()
    assert rig.running().steps == left


def test_a_run_cut_after_a_new_slowdown_ends_with_the_slower_step() -> None:
    rig = run_of(3)
    carry_at(rig, 500, flows=2)
    rig.instances[0].wake()
    assert rig.running().ends_ps.tolist() == [400 * US, 700 * US]


def test_a_slower_stage_holds_up_the_iterations_behind_it() -> None:
    """Two stages of 100 compute, the first with 100 communication. Undisturbed, iterations end at 300 and 500.

    At 100 communication triples: the first iteration is half way through stage 0, of now 400: it leaves at 300, ends at
    400. The second has to wait for it: stage 0 from 300 to 700, end at 800.
    """
    pipeline = [stage(100, 100), stage(100, 0)]
    for flows, ends in ((0, [300, 500]), (2, [400, 800])):
        rig = Rig(pipeline, tokens=1, requests=2)
        rig.launch()
        if flows:
            carry_at(rig, 100, flows)
        assert ends_us(rig, 800) == ends


def test_a_stage_that_waited_for_an_iteration_that_ends_now_begins_now() -> None:
    """Stages of 100 and 200 + 100: the second iteration has left stage 0 at 200 and waits for the first, which ends at
    400. Stage 1 takes 500 from then on, and not as if it had begun at 200."""
    rig = Rig([stage(100, 0), stage(200, 100)], tokens=1, requests=2)
    rig.launch()
    carry_at(rig, 400, flows=2)
    assert ends_us(rig, 900) == [400, 900]


COMPUTE_US = st.integers(5, 500)
CHANGES = st.dictionaries(st.integers(0, 3000), st.integers(0, 4), max_size=5).map(lambda found: sorted(found.items()))
"""(instant, flows of the transfer from then on)"""


def end_ps(begin_ps: int, price: StagePrice, changes: list[tuple[int, int]]) -> float:
    """When a stage ends whose work goes on at the speed of each instant."""
    instants = [*(at_us * US for at_us, _ in changes), 10**18]
    slowdowns = [1, *(1 + flows for _, flows in changes)]
    left, at_ps = 1.0, float(begin_ps)
    for until_ps, slowdown in zip(instants, slowdowns, strict=True):
        whole_ps = price.compute_ps + price.exchange.communication_ps * slowdown
        if at_ps < until_ps:
            part = min(left, (until_ps - at_ps) / whole_ps)
            left, at_ps = left - part, at_ps + part * whole_ps
            if left <= 1e-12:
                break
    return at_ps


def under(changes: list[tuple[int, int]], rig: Rig) -> list[int]:
    """Ends of all iterations, in picoseconds, with one transfer at a time."""
    rig.launch()
    passing = None
    for at_us, flows in changes:
        rig.advance(at_us * US)
        if passing is not None:
            rig.drop(passing)
        passing = rig.carry(0, flows) if flows else None
    rig.advance(10**6 * US)
    return rig.ends_ps()


@given(st.lists(st.tuples(COMPUTE_US, st.integers(0, 4)), min_size=2, max_size=4), st.integers(1, 4), CHANGES)
def test_a_pipeline_keeps_its_order_and_its_capacity_whatever_the_slowdowns(
    shapes: list[tuple[int, int]], iterations: int, changes: list[tuple[int, int]]
) -> None:
    """Each stage has one iteration at a time, in order, and each goes on at the speed of the instant. Communication
    takes up to a fifth of the time, so that stages do not fill the link together."""
    pipeline = [stage(compute_us, compute_us * twentieths // 20) for compute_us, twentieths in shapes]
    expected, free_ps = [], [0.0] * len(pipeline)
    for _ in range(iterations):
        at_ps = 0.0
        for number, of_stage in enumerate(pipeline):
            at_ps = free_ps[number] = end_ps(round(max(at_ps, free_ps[number])), of_stage, changes)
        expected.append(at_ps)
    found = under(changes, Rig(pipeline, tokens=1, requests=iterations))
    assert found == pytest.approx(expected, abs=100)


@given(st.tuples(COMPUTE_US, st.integers(0, 500)), st.integers(1, 20), CHANGES)
def test_steps_keep_their_order_and_take_time_whatever_the_slowdowns(
    shape: tuple[int, int], steps: int, changes: list[tuple[int, int]]
) -> None:
    of_step = stage(*shape)
    expected = [0.0]
    for _ in range(1 + steps):
        expected.append(end_ps(round(expected[-1]), of_step, changes))
    found = under(changes, Rig(of_step, tokens=1 + steps, has_runs=True))
    assert found == pytest.approx(expected[1:], abs=100)
    assert all(earlier < later for earlier, later in pairwise(found))


def test_two_batches_hide_communication_until_it_is_longer_than_the_compute_beside_it() -> None:
    """100 + max(80, m) with m = 60 of communication: hidden up to a slowdown of 4/3, then m - 80 beyond compute 180.

    At 90, half of it done, a transfer makes m 120: the other half takes (180 + 40) / 2."""
    exchange = stage(180, 60).exchange
    hiding = StagePrice(180 * US, exchange, not_overlapped_us=100 - 180, overlapped_us=[(80, 60, 1)])
    rig = Rig(hiding, tokens=2)
    rig.launch()
    assert rig.running().communication_ps == 0
    assert rig.running().end_ps == 180 * US
    carry_at(rig, 90, flows=1)
    assert rig.running().communication_ps == 40 * US
    assert ends_us(rig, 200) == [200]
