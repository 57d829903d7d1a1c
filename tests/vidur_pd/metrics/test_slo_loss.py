"""SLO-loss minutes of requests made by hand."""

from __future__ import annotations

import pytest

from tests.vidur_pd.metrics.hand_made_requests import Served, tally_of
from vidur_pd.cluster.faults.plan import Draining, Fault
from vidur_pd.config import SloConfig
from vidur_pd.metrics.quantities import PS_PER_S
from vidur_pd.metrics.slo_loss import slo_loss_minutes
from vidur_pd.metrics.tally import RequestTally

SLO = SloConfig(ttft_s=1.0, tpot_s=1.0, attainment=0.5, window_s=60.0)


def requests(*rows: tuple[float, float | None]) -> RequestTally:
    """(arrival, TTFT) [s] of requests of one token; ``None``: it failed."""
    ends = [None if ttft_s is None else at_s + ttft_s for at_s, ttft_s in rows]
    return tally_of(*(Served(at_s, end or 0.0, end, 1, 1) for (at_s, _), end in zip(rows, ends, strict=True)))


def fault(begin_s: float, until_s: float | None) -> Fault:
    until_ps = None if until_s is None else round(until_s * PS_PER_S)
    return Fault("drain", "d-0", round(begin_s * PS_PER_S), until_ps, Draining(0))


def test_windows_are_lost_whole_and_told_apart_by_the_faults() -> None:
    """Windows of a minute from 30 s on: the first is good, the second lost, the third lost during the fault, the fourth
    good as half of its requests are served in time, the fifth lost after the fault, the next without arrivals."""
    early = [(30, 0.5), (100, 2.0), (160, None), (170, 3.0), (220, 0.5)]
    made = requests(*early, (230, 2.0), (280, 1.5), (300, 0.1), (301, 2.0), (400, 1))
    loss = slo_loss_minutes(made, SLO, [fault(155, 205)])
    assert (loss.before_faults, loss.during_faults, loss.after_faults) == (1.0, 1.0, 1.0)
    assert loss.total == 3.0
    assert loss.worst_attainment == 0.0


def test_what_is_beyond_the_fault_free_part_is_what_exceeds_the_rate_before() -> None:
    """One of the two windows before is lost, so that half of the six windows would be lost anyway; four are."""
    made = requests((0, 0.5), (60, 2.0), (120, 2.0), (180, 2.0), (240, 2.0), (300, 0.5))
    loss = slo_loss_minutes(made, SLO, [fault(125, 250)])
    assert loss.total == 4.0
    assert loss.beyond_fault_free == pytest.approx(1.0)


def test_without_a_window_before_the_faults_nothing_is_known_about_the_fault_free_part() -> None:
    loss = slo_loss_minutes(requests((10, 2.0)), SLO, [fault(5, None)])
    assert loss.beyond_fault_free is None
    assert loss.during_faults == 1.0
