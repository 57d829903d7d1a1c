"""Runs of decode iterations taken at once against the same iterations one by one. KV blocks have 4 tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.vidur_pd.whole_runs import Scenario, WholeRun, scenario_of, scenarios


def _runs(scenario: Scenario) -> list[int]:
    """Steps of each run; what is seen of it is what is seen of single steps."""
    run = WholeRun(scenario, takes_runs=True).serve()
    assert run.seen() == WholeRun(scenario).serve().seen()
    return run.runs


@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(scenarios(), scenarios(plans_ahead=True)))
def test_runs_equal_their_iterations_one_by_one(scenario: Scenario) -> None:
    _runs(scenario)


def test_a_run_stops_before_the_iteration_in_which_a_request_ends() -> None:
    """After the prefills, 4 and 9 tokens are left: 3 iterations change nothing, the fourth ends the first request.

    Of the 5 tokens that are left then, 4 change nothing.
    """
    assert _runs(scenario_of((0, 5, 5), (0, 6, 10))) == [3, 4]


def test_a_run_stops_before_the_iteration_that_lacks_a_block() -> None:
    """5 blocks. KV of 5 and 6 tokens fills 4 of them; the fifth serves the second request's ninth token, in the
    third iteration; the first request's ninth token, in the fourth, finds none: 3 iterations.
    """
    run = WholeRun(scenario_of((0, 5, 12), (0, 6, 12), usable_blocks=5), takes_runs=True).serve()
    assert run.runs[0] == 3
    first, after_the_run, *_ = run.batches
    assert (first[1], after_the_run[2]) == ([0, 1], [1])


def test_a_run_ends_with_the_step_in_progress_when_a_request_comes_that_can_be_admitted() -> None:
    """Steps of a run take 1,001 ps; the prefill of 5 tokens ends at 1,005. The request of 6,500 comes in the sixth."""
    run = WholeRun(scenario_of((0, 5, 50), (6_500, 4, 4)), takes_runs=True).serve()
    assert run.runs[0] == 48
    assert run.batches[1][0] == [(0, 1, 12, 0), (1, 4, 4, 0)]
    assert run.requests[1].scheduled_ps == 1005 + 6 * 1001


@pytest.mark.parametrize(
    "scenario",
    [
        scenario_of((0, 5, 20), (0, 4, 4), max_seqs=1),
        scenario_of((0, 5, 20), (0, 48, 1), usable_blocks=12),
        scenario_of((0, 1, 20), (0, 4, 4), budget=1),
    ],
)
def test_waiting_requests_that_cannot_be_admitted_do_not_prevent_a_run(scenario: Scenario) -> None:
    """Because the running list is full; because 12 blocks do not fit into 12 − 2; because the budget is used up."""
    assert _runs(scenario)[0] == 18


def test_there_is_no_run_while_a_waiting_request_could_be_admitted() -> None:
    """Chunks of 4 of a prompt of 8: in the step of its second chunk the other decodes."""
    scenario = scenario_of((0, 5, 9), (0, 8, 9), budget=9)
    assert WholeRun(scenario, takes_runs=True).serve().batches[1][0] == [(0, 1, 6, 0), (1, 4, 8, 0)]
    assert _runs(replace(scenario, stages=2)) == []
