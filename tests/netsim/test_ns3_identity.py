"""Backend `ns3` against `packet`: the same model on two event engines gives the same results to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from netsim import BackendUnavailable, FlowGraph
from netsim.backends.ns3 import Ns3Backend
from netsim.backends.ns3.extension import load_extension
from netsim.backends.packet import PacketBackend
from tests.netsim.roce_scenarios import (
    EARLY_MARKS,
    FAR_PS,
    LOSSY,
    US_PS,
    LinkEvent,
    Outcome,
    Scenario,
    assert_equal,
    clos,
    outcome,
    scenarios,
    with_shared_bytes,
)

pytestmark = pytest.mark.ns3

try:
    load_extension()
except BackendUnavailable as error:
    pytest.skip(str(error), allow_module_level=True)


STEPS_PS = st.sampled_from([300_001, 3 * US_PS, FAR_PS])


@given(scenario=scenarios(), steps_ps=st.tuples(STEPS_PS, STEPS_PS))
@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
def test_random_runs_are_equal_to_the_bit_whatever_the_steps(scenario: Scenario, steps_ps: tuple[int, int]) -> None:
    """Times, completions, acknowledgements, pauses, counters, time series and errors."""
    assert_equal(outcome(PacketBackend, scenario, steps_ps[0]), outcome(Ns3Backend, scenario, steps_ps[1]))


INCAST = FlowGraph.from_lists(range(7), [7] * 7, [200_000] * 7, priority=[1, 2, 3] * 2 + [3])


def both(scenario: Scenario) -> Outcome:
    first = outcome(PacketBackend, scenario, US_PS)
    assert_equal(first, outcome(Ns3Backend, scenario, US_PS))
    return first


def total(result: Outcome, counter: str) -> int:
    return int(np.sum(np.asarray(result[f"LinkCounters {counter}"])))


@pytest.mark.parametrize("congestion_control", ["dcqcn", "hpcc", "timely", "dctcp", "none"])
def test_an_incast_that_marks_and_pauses_is_equal_under_every_congestion_control(congestion_control: str) -> None:
    settings = {"congestion_control": congestion_control, "window": "unbounded", "ecn_thresholds": EARLY_MARKS}
    result = both(Scenario(clos(), with_shared_bytes(clos(), 20_000, **settings), ((0, INCAST),)))
    assert total(result, "marks") > 10
    assert total(result, "pauses") > 10
    assert total(result, "drops") == 0


@pytest.mark.parametrize("recovery", ["go_back_n", "selective_repeat"])
def test_an_incast_that_loses_packets_is_equal_with_every_recovery(recovery: str) -> None:
    settings = {"congestion_control": "none", "recovery": recovery, **LOSSY}
    result = both(Scenario(clos(), with_shared_bytes(clos(), 60_000, **settings), ((0, INCAST),)))
    assert total(result, "drops") > 10
    assert np.min(np.asarray(result["0 end"])) > 0


@pytest.mark.parametrize("load_balancing", ["ecmp", "flowlet", "adaptive"])
def test_a_failure_on_the_way_is_equal_with_every_routing(load_balancing: str) -> None:
    """Both directions of a cable between leaf and spine fail at 5 µs and are repaired at 60 µs."""
    topology = clos()
    cable = [2 * 8, 2 * 8 + 1]
    events = [LinkEvent(5 * US_PS, link, False) for link in cable] + [
        LinkEvent(60 * US_PS, link, True) for link in cable
    ]
    config = with_shared_bytes(
        topology, 10**6, load_balancing=load_balancing, reroute_delay="5us", retransmission_timeout="20us"
    )
    result = both(Scenario(topology, config, ((0, INCAST),), tuple(events)))
    assert total(result, "drops") > 0
    assert np.min(np.asarray(result["0 end"])) > 0
