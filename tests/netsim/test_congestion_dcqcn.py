"""DCQCN on its own, acknowledgement by acknowledgement."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netsim import BackendError
from netsim._core import Dcqcn, DcqcnParameters, RateStep
from tests.netsim.congestion_controllers import (
    ALPHA_ONE,
    GBPS,
    LINE_BPS,
    MBPS,
    MS,
    NS,
    US,
    ack,
    dcqcn,
    dcqcn_parameters,
)


def test_the_first_mark_keeps_the_rate_and_the_cut_comes_a_decrease_interval_and_1_ns_later() -> None:
    """Marked once at 0: alpha starts at 1 and decays at 1, 2, 3 and 4 us to (255/256)^4 = 0.9845; at 4.001 us the
    rate falls from 400 to 400 (1 - 0.9845/2) = 203.1 Gbit/s; the target stays and the timer of 300 us starts."""
    flow = dcqcn(dcqcn_parameters())
    assert flow.next_timer_ps is None
    assert ack(flow, marked=True) == LINE_BPS
    assert flow.next_timer_ps == 4 * US + NS
    flow.on_timer(4 * US + NS)
    exact = LINE_BPS * (1 - Fraction(255, 256) ** 4 / 2)
    assert abs(flow.rate_bps - exact) < 1
    assert (flow.target_bps, flow.next_timer_ps) == (LINE_BPS, 304 * US + NS)


def test_a_flow_without_marks_or_back_at_the_line_needs_no_timer() -> None:
    """After one cut, each increase halves what is missing of about 197 Gbit/s: 38 of them leave less than 1 bit/s."""
    flow = dcqcn(dcqcn_parameters())
    ack(flow, now_ps=10**15)
    assert flow.next_timer_ps is None
    ack(flow, now_ps=10**15, marked=True)
    ticks = 0
    while flow.next_timer_ps is not None and ticks < 100:
        flow.on_timer(flow.next_timer_ps)
        ticks += 1
    assert (flow.rate_bps, flow.target_bps) == (LINE_BPS, LINE_BPS)
    assert ticks == 1 + 38


def halving(**changes: int | float | RateStep) -> Dcqcn:
    """Alpha has no step within the test, so it stays at 1 and each cut halves."""
    flow = dcqcn(dcqcn_parameters(alpha_interval_ps=10**15, **changes))
    ack(flow, marked=True)
    flow.on_timer(4 * US + NS)
    assert (flow.rate_bps, flow.target_bps) == (200 * GBPS, 400 * GBPS)
    return flow


def test_the_target_stays_at_a_second_cut_unless_an_increase_came_between_or_it_is_clamped() -> None:
    """400 -> 200 -> 100 Gbit/s with target 400, or 200 where clamped. After the increase to (100 + 400)/2 = 250, the
    next cut, to 125, takes 250 as its target."""
    flow, clamped = halving(), halving(clamps_target=True)
    for each in (flow, clamped):
        ack(each, now_ps=5 * US, marked=True)
        assert each.next_timer_ps == 8 * US + NS
        each.on_timer(8 * US + NS)
        assert each.rate_bps == 100 * GBPS
    assert (flow.target_bps, clamped.target_bps) == (400 * GBPS, 200 * GBPS)
    flow.on_timer(308 * US + NS)
    assert flow.rate_bps == 250 * GBPS
    ack(flow, now_ps=309 * US, marked=True)
    flow.on_timer(312 * US + NS)
    assert (flow.rate_bps, flow.target_bps) == (125 * GBPS, 250 * GBPS)


def test_increases_go_from_fast_recovery_over_additive_to_hyper_steps() -> None:
    """From 100 Gbit/s with target 200 (clamped), every 300 us: fast recovery (100 + 200)/2 = 150; additive, + 5 Mbit/s
    per 25 Gbit/s = 80 Mbit/s: target 200.08, rate 175.04; hyper, + 800 Mbit/s: 200.88 and 187.96; 201.68 and 194.82."""
    flow = halving(clamps_target=True)
    ack(flow, now_ps=5 * US, marked=True)
    flow.on_timer(8 * US + NS)
    seen = []
    for tick in range(1, 5):
        assert flow.next_timer_ps == 8 * US + NS + tick * 300 * US
        flow.on_timer(flow.next_timer_ps)
        seen.append((flow.rate_bps // MBPS, flow.target_bps // MBPS))
    assert seen == [(150_000, 200_000), (175_040, 200_080), (187_960, 200_880), (194_820, 201_680)]
    assert flow.increase_stage == 2


def test_a_cut_and_an_increase_of_one_instant_increase_first() -> None:
    """Cuts at 4.001 us + k * 4 us, and 300 us is a multiple of 4 us. A mark at 303 us is cut at 304.001 us, when the
    increase is due: 200 -> 300 (the increase), target 300, then 150 Gbit/s."""
    flow = halving()
    ack(flow, now_ps=303 * US, marked=True)
    assert flow.next_timer_ps == 304 * US + NS
    flow.on_timer(304 * US + NS)
    assert (flow.rate_bps, flow.target_bps) == (150 * GBPS, 300 * GBPS)


def test_cuts_end_at_the_minimum_rate() -> None:
    flow = halving()
    for tick in range(2, 20):
        ack(flow, now_ps=tick * 4 * US, marked=True)
    flow.on_timer(80 * US + NS)
    assert flow.rate_bps == 1 * GBPS


def test_a_line_below_the_minimum_rate_is_never_exceeded() -> None:
    flow = dcqcn(dcqcn_parameters(alpha_interval_ps=10**15), line_bps=300 * MBPS)
    ack(flow, marked=True)
    flow.on_timer(MS)
    assert flow.rate_bps == 300 * MBPS


@pytest.mark.parametrize("steps", [1, 2, 10, 256, 1000, 5000])
def test_alpha_decays_as_a_power_of_its_steps(steps: int) -> None:
    """Rounding down 48 binary places loses at most g^-1 = 256 units of 2^-48 in all, 10^-12."""
    flow = dcqcn(dcqcn_parameters())
    ack(flow, now_ps=7, marked=True)
    found = Fraction(flow.alpha_at(7 + steps * US), ALPHA_ONE)
    exact = Fraction(255, 256) ** steps
    assert 0 <= exact - found <= Fraction(256, ALPHA_ONE)
    assert flow.alpha_at(7 + steps * US - 1) > flow.alpha_at(7 + steps * US)


def test_alpha_reaches_zero_in_finite_time_so_that_catching_up_is_bounded() -> None:
    flow = dcqcn(dcqcn_parameters())
    ack(flow, marked=True)
    assert flow.alpha_at(7231 * US) == 1
    assert flow.alpha_at(7232 * US) == 0


@dataclass(slots=True)
class TickingDcqcn:
    """DCQCN as its sources have it: three clocks that tick for ever once a first mark has started them."""

    constants: DcqcnParameters
    line_bps: int
    rate_bps: int
    target_bps: int
    alpha: int = ALPHA_ONE
    alpha_tick_ps: int | None = None
    cut_tick_ps: int | None = None
    increase_tick_ps: int | None = None
    stage: int = 0
    marked_for_alpha: bool = False
    marked_for_cut: bool = False

    def run(self, until_ps: int) -> None:
        while True:
            ticks = [
                (at, order)
                for order, at in enumerate((self.alpha_tick_ps, self.increase_tick_ps, self.cut_tick_ps))
                if at is not None and at <= until_ps
            ]
            if not ticks:
                return
            (self.tick_alpha, self.tick_increase, self.tick_cut)[min(ticks)[1]]()

    def mark(self, now_ps: int) -> None:
        self.marked_for_cut = True
        if self.alpha_tick_ps is None:
            self.alpha_tick_ps = now_ps + self.constants.alpha_interval_ps
            self.cut_tick_ps = now_ps + NS + self.constants.decrease_interval_ps
        else:
            self.marked_for_alpha = True

    def tick_alpha(self) -> None:
        assert self.alpha_tick_ps is not None
        self.alpha_tick_ps += self.constants.alpha_interval_ps
        gain = int(Fraction(self.constants.gain) * ALPHA_ONE)
        self.alpha = self.alpha * (ALPHA_ONE - gain) // ALPHA_ONE + (gain if self.marked_for_alpha else 0)
        self.marked_for_alpha = False

    def tick_cut(self) -> None:
        assert self.cut_tick_ps is not None
        if self.marked_for_cut:
            if self.stage > 0 or self.constants.clamps_target:
                self.target_bps = self.rate_bps
            lowest = min(self.constants.min_rate_bps, self.line_bps)
            self.rate_bps = max(lowest, self.rate_bps - self.rate_bps * self.alpha // (2 * ALPHA_ONE))
            self.stage = 0
            self.marked_for_cut = False
            self.increase_tick_ps = self.cut_tick_ps + self.constants.increase_interval_ps
        self.cut_tick_ps += self.constants.decrease_interval_ps

    def tick_increase(self) -> None:
        assert self.increase_tick_ps is not None
        threshold = self.constants.fast_recovery_steps
        if self.stage >= threshold:
            step = self.constants.additive_increase if self.stage == threshold else self.constants.hyper_increase
            per = step.per_line_bps
            added = step.bps if per is None else step.bps * self.line_bps // per
            self.target_bps = min(self.line_bps, self.target_bps + added)
        self.rate_bps = -((-self.rate_bps - self.target_bps) // 2)  # half, rounded up
        self.stage += 1
        self.increase_tick_ps += self.constants.increase_interval_ps


GAPS_PS = st.one_of(
    st.integers(0, 3 * US),
    st.integers(0, 400 * US),
    st.integers(0, 12).map(lambda n: n * US),
    st.just(NS),
    st.just(4 * US + NS),
)
ACK_GAPS = st.lists(st.tuples(GAPS_PS, st.booleans()), min_size=1, max_size=60)
DCQCN_CONSTANTS = st.builds(
    dcqcn_parameters,
    st.sampled_from(["hpcc", "paper", "simai", "nic"]),
    clamps_target=st.booleans(),
    gain=st.sampled_from([1 / 256, 1 / 16, 0.3, 1.0]),
    increase_interval_ps=st.sampled_from([55 * US, 300 * US, 16 * US]),
    fast_recovery_steps=st.integers(0, 3),
)


@given(DCQCN_CONSTANTS, st.sampled_from([25 * GBPS, LINE_BPS, 123_456_789_123]), ACK_GAPS)
def test_lazy_timers_give_what_ticking_clocks_give_to_the_last_bit(
    constants: DcqcnParameters, line_bps: int, acks: list[tuple[int, bool]]
) -> None:
    flow = dcqcn(constants, line_bps)
    reference = TickingDcqcn(constants, line_bps, line_bps, line_bps)
    now_ps = 0
    for gap_ps, marked in acks:
        now_ps += gap_ps
        ack(flow, now_ps=now_ps, marked=marked)
        reference.run(now_ps)
        if marked:
            reference.mark(now_ps)
        assert (flow.rate_bps, flow.target_bps) == (reference.rate_bps, reference.target_bps)
        assert flow.alpha_at(now_ps) == reference.alpha
    for end_ps in (now_ps + 4 * US + NS, now_ps + 2 * MS):
        flow.on_timer(end_ps)
        reference.run(end_ps)
        assert (flow.rate_bps, flow.target_bps) == (reference.rate_bps, reference.target_bps)


@given(DCQCN_CONSTANTS, ACK_GAPS)
def test_timers_that_run_in_time_change_nothing_that_an_ack_would_not_catch_up_with(
    constants: DcqcnParameters, acks: list[tuple[int, bool]]
) -> None:
    timed, late = dcqcn(constants), dcqcn(constants)
    now_ps = 0
    for gap_ps, marked in acks:
        now_ps += gap_ps
        while timed.next_timer_ps is not None and timed.next_timer_ps < now_ps:
            timed.on_timer(timed.next_timer_ps)
        assert ack(timed, now_ps=now_ps, marked=marked) == ack(late, now_ps=now_ps, marked=marked)
        assert timed.next_timer_ps == late.next_timer_ps


@pytest.mark.parametrize(
    ("preset", "intervals_us", "gain", "recovery", "steps_mbps", "min_mbps"),
    [
        ("hpcc", (1, 4, 300), 1 / 256, 1, (80, 800), 1000),
        ("paper", (50, 50, 55), 1 / 256, 1, (80, 800), 1000),
        ("simai", (1, 4, 900), 1 / 256, 1, (50, 100), 100),
        ("nic", (55, 4, 1500), 1 / 16, 5, (5, 50), 100),
    ],
)
def test_dcqcn_sets_are_the_published_ones(
    preset: str,
    intervals_us: tuple[int, int, int],
    gain: float,
    recovery: int,
    steps_mbps: tuple[int, int],
    min_mbps: int,
) -> None:
    """At 400 Gbit/s, where steps of 5 and 50 Mbit/s per 25 Gbit/s are 80 and 800 Mbit/s."""
    found = dcqcn_parameters(preset)
    times_ps = (found.alpha_interval_ps, found.decrease_interval_ps, found.increase_interval_ps)
    assert times_ps == tuple(us * US for us in intervals_us)
    assert (found.gain, found.fast_recovery_steps) == (gain, recovery)
    steps = (found.additive_increase.at(LINE_BPS), found.hyper_increase.at(LINE_BPS))
    assert steps == tuple(mbps * MBPS for mbps in steps_mbps)
    assert (found.min_rate_bps, found.clamps_target) == (min_mbps * MBPS, False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gain": 0.0}, "gain"),
        ({"gain": 1.5}, "gain"),
        ({"alpha_interval_ps": 0}, "intervals"),
        ({"decrease_interval_ps": -1}, "intervals"),
        ({"min_rate_bps": 0}, "min_rate_bps"),
        ({"additive_increase": RateStep(0)}, "rate steps"),
        ({"hyper_increase": RateStep(1, 0)}, "rate step"),
        ({"speed": 1}, "no constant 'speed'"),
        ({"additive_increase_bps": 0}, "rate steps"),
        ({"additive_increase": 5}, "'additive_increase' cannot be 5"),
        ({"fast_recovery_steps": 0.5}, "'fast_recovery_steps' cannot be 0.5"),
    ],
)
def test_constants_without_meaning_are_refused(changes: dict[str, int | float | RateStep], message: str) -> None:
    with pytest.raises(BackendError, match=message):
        dcqcn_parameters(**changes)


def test_a_rate_step_in_bits_per_second_holds_for_every_line() -> None:
    step = dcqcn_parameters(additive_increase_bps=40 * MBPS).additive_increase
    assert (step.at(LINE_BPS), step.at(25 * GBPS)) == (40 * MBPS, 40 * MBPS)
