"""Congestion controllers on their own, acknowledgement by acknowledgement."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netsim import BackendError
from netsim._core import (
    MAX_INT_HOPS,
    CongestionControl,
    Dcqcn,
    DcqcnParameters,
    Dctcp,
    DctcpParameters,
    Hpcc,
    HpccParameters,
    RateStep,
    SendWindow,
    Timely,
    TimelyParameters,
    congestion_preset,
    congestion_presets,
)

NS, US, MS = 10**3, 10**6, 10**9
MBPS, GBPS = 10**6, 10**9
LINE_BPS = 400 * GBPS
RTT_PS = 10 * US
MTU_BYTES = 4096
WINDOW_BYTES = 500_000
"""400 Gbit/s for 10 us."""
NO_HOPS = np.empty((0, 4), np.int64)
ALPHA_ONE = 2**48

Controller = Dcqcn | Hpcc | Timely | Dctcp | CongestionControl


def dcqcn_parameters(preset: str = "hpcc", /, **changes: int | float | RateStep) -> DcqcnParameters:
    return cast(DcqcnParameters, congestion_preset("dcqcn", preset)).replace(**changes)


def dcqcn(parameters: DcqcnParameters, line_bps: int = LINE_BPS) -> Dcqcn:
    return Dcqcn(
        parameters, line_bps=line_bps, base_rtt_ps=RTT_PS, mtu_bytes=MTU_BYTES, window_bytes=WINDOW_BYTES, now_ps=0
    )


def hpcc(**changes: int | float | RateStep) -> Hpcc:
    parameters = cast(HpccParameters, congestion_preset("hpcc")).replace(**changes)
    return Hpcc(
        parameters, line_bps=LINE_BPS, base_rtt_ps=RTT_PS, mtu_bytes=MTU_BYTES, window_bytes=WINDOW_BYTES, now_ps=0
    )


def timely() -> Timely:
    parameters = cast(TimelyParameters, congestion_preset("timely"))
    return Timely(
        parameters, line_bps=LINE_BPS, base_rtt_ps=RTT_PS, mtu_bytes=MTU_BYTES, window_bytes=WINDOW_BYTES, now_ps=0
    )


def dctcp(**changes: int | float | RateStep) -> Dctcp:
    parameters = cast(DctcpParameters, congestion_preset("dctcp")).replace(**changes)
    return Dctcp(
        parameters, line_bps=LINE_BPS, base_rtt_ps=RTT_PS, mtu_bytes=MTU_BYTES, window_bytes=WINDOW_BYTES, now_ps=0
    )


def ack(
    controller: Controller,
    *,
    now_ps: int = 0,
    seq: int = MTU_BYTES,
    next_seq: int = 0,
    marked: bool = False,
    rtt_ps: int = RTT_PS,
    hops: list[tuple[int, int, int, int]] | None = None,
) -> int:
    """Hands one acknowledgement over and returns the rate then, in bit/s."""
    table = np.array(hops, np.int64) if hops else NO_HOPS
    controller.on_ack(
        now_ps=now_ps,
        rtt_ps=rtt_ps,
        acked_bytes=MTU_BYTES,
        acked_seq=seq,
        next_seq=next_seq,
        is_marked=marked,
        hops=table,
    )
    return controller.rate_bps


# DCQCN


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


# HPCC

FULL_RTT_BYTES = 500_000
"""What 400 Gbit/s carry in the base round trip of 10 us."""


def test_hpcc_divides_by_the_excess_and_adds_a_step() -> None:
    """The first ACK has nothing to compare with. By the second, one base RTT later, the hop has sent 500,000 B in
    10 us: U = 1, c = 1/0.95, rate = 400 * 0.95 + 0.16 = 380.16 Gbit/s (step 10 Mbit/s per 25 Gbit/s)."""
    flow = hpcc()
    assert ack(flow, seq=4096, next_seq=500_000, hops=[(LINE_BPS, 0, 0, 0)]) == LINE_BPS
    rate = ack(flow, seq=504_096, next_seq=1_000_000, hops=[(LINE_BPS, RTT_PS, FULL_RTT_BYTES, 0)])
    assert rate == pytest.approx(380.16 * GBPS, abs=2)
    assert flow.committed_bps == rate
    assert flow.utilization == 1.0


@pytest.mark.parametrize("queues_bytes", [(200_000, 100_000), (100_000, 200_000)])
def test_hpcc_counts_the_smaller_queue_in_windows(queues_bytes: tuple[int, int]) -> None:
    """Queues of 200,000 B and 100,000 B, in whichever order, at a hop of 400 Gbit/s: 100,000/500,000 = 0.2 above the
    rate of 1. Rate = 400 * 0.95/1.2 + 0.16 = 316.827 Gbit/s."""
    flow = hpcc()
    before, now = queues_bytes
    ack(flow, seq=4096, next_seq=500_000, hops=[(LINE_BPS, 0, 0, before)])
    rate = ack(flow, seq=504_096, next_seq=1_000_000, hops=[(LINE_BPS, RTT_PS, FULL_RTT_BYTES, now)])
    assert flow.utilization == pytest.approx(1.2, rel=1e-14)
    assert rate == pytest.approx(316.826667 * GBPS, rel=1e-8)


def test_hpcc_forgets_after_a_base_round_trip_and_no_faster() -> None:
    """1.25 MB in 40 us are 250 Gbit/s: U = 0.625, of which nothing is older than the base RTT of 10 us."""
    flow = hpcc()
    ack(flow, seq=1, next_seq=2, hops=[(LINE_BPS, 0, 0, 0)])
    ack(flow, seq=3, next_seq=4, hops=[(LINE_BPS, 4 * RTT_PS, 1_250_000, 0)])
    assert flow.utilization == 0.625


def test_hpcc_follows_the_busiest_hop_whatever_its_rate() -> None:
    """Hops of 400, 100 and 800 Gbit/s carry 200, 90 and 300 Gbit/s: 0.5, 0.9 and 0.375. U = 0.9."""
    flow = hpcc()
    capacities = (LINE_BPS, 100 * GBPS, 800 * GBPS)
    ack(flow, seq=4096, next_seq=500_000, hops=[(bps, 0, 0, 0) for bps in capacities])
    sent = (250_000, 112_500, 375_000)
    hops = [(bps, RTT_PS, count, 0) for bps, count in zip(capacities, sent, strict=True)]
    ack(flow, seq=504_096, next_seq=1_000_000, hops=hops)
    assert flow.utilization == pytest.approx(0.9, rel=1e-14)


def test_hpcc_reacts_within_a_round_trip_from_the_committed_rate_only() -> None:
    """After the commit at 380.16 Gbit/s (U = 1), ACKs 2 us apart see an idle hop: U = 0.8, then 0.64 (each 2 of 10 us
    weigh a fifth). Rates 380.16 * 0.95/0.8 and 380.16 * 0.95/0.64 exceed the line: 400. Then a hop at 3 times its rate
    (a burst) for 2 us: U = 0.512 + 0.6 = 1.112, rate 380.16 * 0.95/1.112 + 0.16 = 324.94 Gbit/s."""
    flow = hpcc()
    ack(flow, seq=4096, next_seq=500_000, hops=[(LINE_BPS, 0, 0, 0)])
    ack(flow, seq=504_096, next_seq=1_000_000, hops=[(LINE_BPS, 10 * US, 500_000, 0)])
    committed = flow.committed_bps
    assert ack(flow, seq=508_192, next_seq=1_004_096, hops=[(LINE_BPS, 12 * US, 500_000, 0)]) == LINE_BPS
    assert ack(flow, seq=512_288, next_seq=1_008_192, hops=[(LINE_BPS, 14 * US, 500_000, 0)]) == LINE_BPS
    rate = ack(flow, seq=516_384, next_seq=1_012_288, hops=[(LINE_BPS, 16 * US, 800_000, 0)])
    assert flow.utilization == pytest.approx(1.112, rel=1e-12)
    assert rate == pytest.approx((380.16 * 0.95 / 1.112 + 0.16) * GBPS, rel=1e-10)
    assert flow.committed_bps == committed


def test_hpcc_without_fast_reaction_changes_at_commits_only() -> None:
    flow = hpcc(reacts_within_rtt=False)
    ack(flow, seq=4096, next_seq=500_000, hops=[(LINE_BPS, 0, 0, 0)])
    assert ack(flow, seq=500_000, next_seq=900_000, hops=[(LINE_BPS, 9 * US, 450_000, 0)]) == LINE_BPS
    assert ack(flow, seq=500_001, next_seq=900_000, hops=[(LINE_BPS, 10 * US, 500_000, 0)]) < LINE_BPS


def test_hpcc_adds_for_some_round_trips_before_it_scales_up() -> None:
    """MI_THRESH 5 at half load: one RTT at twice the rate gives 400 * 0.95/2 + 0.16 = 190.16 Gbit/s, and U is 0.5 from
    then on, as tau is the base RTT. Five steps of 160 Mbit/s, then 190.96 * 0.95/0.5 + 0.16 = 362.984 Gbit/s."""
    flow = hpcc(max_additive_steps=5)
    ack(flow, seq=1, next_seq=2, hops=[(LINE_BPS, 0, 0, 0)])
    rates = []
    sent = 0
    for rtt in range(1, 8):
        sent += 1_000_000 if rtt == 1 else 250_000
        rates.append(ack(flow, seq=2 * rtt + 1, next_seq=2 * rtt + 2, hops=[(LINE_BPS, rtt * RTT_PS, sent, 0)]) / GBPS)
    assert rates == pytest.approx([190.16, 190.32, 190.48, 190.64, 190.80, 190.96, 362.984], rel=1e-9)
    assert flow.additive_steps == 0


@pytest.mark.parametrize("acks_per_rtt", [1, 10])
def test_one_hpcc_flow_settles_at_its_target_plus_a_step(acks_per_rtt: int) -> None:
    """Alone on a hop of its line rate, U = R/B, so R becomes R * 0.95/U + AI = 0.95 B + AI and stays: 380.16 Gbit/s."""
    flow = hpcc()
    sent, now_ps = 0, 0
    ack(flow, seq=1, next_seq=1, hops=[(LINE_BPS, 0, 0, 0)])
    for number in range(200 * acks_per_rtt):
        now_ps += RTT_PS // acks_per_rtt
        sent += flow.rate_bps * RTT_PS // acks_per_rtt // (8 * 10**12)
        rtt = number // acks_per_rtt + 2
        ack(flow, now_ps=now_ps, seq=rtt, next_seq=rtt, hops=[(LINE_BPS, now_ps, sent, 0)])
    assert flow.rate_bps == pytest.approx(380.16 * GBPS, rel=2e-4)


def test_hpcc_starts_anew_after_a_timeout_or_on_another_path() -> None:
    """Telemetry of two ports must not be subtracted: here it would look like 100 times the line rate."""
    flow, moved = hpcc(), hpcc()
    for each in (flow, moved):
        ack(each, seq=1, next_seq=2, hops=[(LINE_BPS, 0, 0, 0)])
    flow.on_timeout(RTT_PS)
    assert ack(flow, seq=3, next_seq=4, hops=[(LINE_BPS, RTT_PS, 50_000_000, 0)]) == LINE_BPS
    two = [(LINE_BPS, RTT_PS, 50_000_000, 0), (LINE_BPS, RTT_PS, 50_000_000, 0)]
    assert ack(moved, seq=3, next_seq=4, hops=two) == LINE_BPS
    assert (
        ack(moved, seq=5, next_seq=6, hops=[(bps, 2 * RTT_PS, sent + 500_000, 0) for bps, _, sent, _ in two]) < LINE_BPS
    )


def test_hpcc_refuses_more_hops_than_it_can_hold() -> None:
    with pytest.raises(BackendError, match="at most 8 hops, not 9"):
        ack(hpcc(), hops=[(LINE_BPS, 0, 0, 0)] * (MAX_INT_HOPS + 1))


# TIMELY


def after_round_trips(flow: Timely, round_trips_us: list[int]) -> list[float]:
    """Rates in Gbit/s after each of these round trips, one ACK per window."""
    return [
        ack(flow, rtt_ps=rtt_us * US, seq=2 * number + 1, next_seq=2 * number + 2) / GBPS
        for number, rtt_us in enumerate(round_trips_us)
    ]


def test_timely_above_the_high_threshold_cuts_by_the_excess_and_below_the_low_one_adds() -> None:
    """At 1 ms, factor 1 - 0.8 (1 - 500/1000) = 0.6: 240 Gbit/s. At 40 us, five steps of 10 Mbit/s per 10 Gbit/s =
    400 Mbit/s, then hyper steps of 2 Gbit/s. Between two cuts the count of steps begins anew."""
    rates = after_round_trips(timely(), [10, 1000, *[40] * 7, 1000, 40])
    expected = [400, 240, 240.4, 240.8, 241.2, 241.6, 242.0, 244.0, 246.0, 147.6, 148.0]
    assert rates == pytest.approx(expected, rel=1e-9)


def test_timely_between_the_thresholds_follows_the_gradient() -> None:
    """100 and 100 us: gradient 0, up (and so the line). 108: difference 0.875 * 8 = 7 us of 20, gradient 0.35, factor
    0.72: 288. 108 again: 0.125 * 7 = 0.875 us, gradient 0.04375, factor 0.965: 277.92. 100: 0.125 * 0.875 - 7 is
    below 0, up."""
    level = timely()
    after_round_trips(level, [100, 100])
    assert (level.gradient, level.increases) == (0, 1)
    flow = timely()
    assert after_round_trips(flow, [100, 100, 108, 108, 100]) == pytest.approx(
        [400, 400, 288, 277.92, 278.32], rel=1e-9
    )
    assert flow.gradient == pytest.approx((0.125 * 0.875 - 7) / 20, rel=1e-9)
    assert flow.increases == 1


def test_timely_does_not_go_below_the_minimum_rate_at_a_steep_gradient() -> None:
    """140 after 100 us: gradient 0.875 * 40/20 = 1.75; 1 - 0.8 * 1.75 < 0 counts as 0."""
    assert after_round_trips(timely(), [100, 140]) == [400, 1]


def test_timely_changes_once_per_round_trip() -> None:
    flow = timely()
    ack(flow, rtt_ps=10 * US, seq=1, next_seq=100)
    assert ack(flow, rtt_ps=MS, seq=100, next_seq=200) == LINE_BPS
    assert ack(flow, rtt_ps=MS, seq=101, next_seq=200) == 240 * GBPS


# DCTCP


def test_dctcp_cuts_at_the_first_mark_of_a_window_and_adds_after_it() -> None:
    """ACK of packet 1 marked while 10 are out: alpha is still 1, the rate halves; packet 2, marked, changes nothing.
    Packet 11 ends the window: 2 of 10 + 1 packets were marked, alpha = 15/16 + 1/16 * 2/11, and 615 Mbit/s are added.
    The next mark cuts 200.615 Gbit/s by half of that alpha."""
    flow = dctcp()
    assert ack(flow, seq=4096, next_seq=40_960, marked=True) == 200 * GBPS
    assert ack(flow, seq=8192, next_seq=45_056, marked=True) == 200 * GBPS
    for packet in range(3, 11):
        assert ack(flow, seq=packet * 4096, next_seq=(packet + 9) * 4096) == 200 * GBPS
    assert ack(flow, seq=45_056, next_seq=81_920) == 200_615 * MBPS
    alpha = 15 / 16 + 2 / 11 / 16
    assert flow.alpha == pytest.approx(alpha, rel=1e-15)
    assert ack(flow, seq=49_152, next_seq=86_016, marked=True) == int(200_615 * MBPS * (1 - alpha / 2))


def test_a_coalesced_ack_marks_all_the_packets_it_stands_for() -> None:
    """8 packets out, all marked, acknowledged by two ACKs of 4: alpha stays at 15/16 + 1/16 * 8/9."""
    flow = dctcp()
    for seq, next_seq in ((16_384, 32_768), (32_768, 32_768), (49_152, 65_536)):
        flow.on_ack(
            now_ps=0,
            rtt_ps=RTT_PS,
            acked_bytes=16_384,
            acked_seq=seq,
            next_seq=next_seq,
            is_marked=seq <= 32_768,
            hops=NO_HOPS,
        )
    assert flow.alpha == pytest.approx(15 / 16 + 8 / 9 / 16, rel=1e-15)


def test_dctcp_alpha_falls_by_its_gain_per_window_without_marks_while_the_rate_climbs() -> None:
    """The mark of the first window counts for the second, of 2/4096 + 1 = 1 packet: alpha stays 1; then it halves ten
    times."""
    flow = dctcp(gain=0.5)
    for window in range(12):
        ack(flow, seq=2 * window + 1, next_seq=2 * window + 2, marked=window == 0)
    assert flow.alpha == pytest.approx(0.5**10, rel=1e-15)
    assert flow.rate_bps == 200 * GBPS + 11 * 615 * MBPS


# All schemes

SCHEMES: dict[str, type[Controller]] = {"dcqcn": Dcqcn, "hpcc": Hpcc, "timely": Timely, "dctcp": Dctcp}


@st.composite
def ack_columns(draw: st.DrawFn) -> dict[str, np.ndarray]:
    """ACKs in order of time, with telemetry of two hops that is consistent with their capacity."""
    count = draw(st.integers(1, 80))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    now_ps = np.cumsum(rng.integers(1, draw(st.sampled_from([US, 20 * US, 500 * US])), count))
    acked_bytes = rng.integers(1, MTU_BYTES + 1, count)
    acked_seq = np.cumsum(acked_bytes)
    sent_bytes = np.cumsum(rng.integers(0, 60_000, (count, 2)), axis=0)
    hops = np.stack(
        [
            np.full((count, 2), LINE_BPS),
            np.repeat(now_ps[:, None], 2, axis=1),
            sent_bytes,
            rng.integers(0, 400_000, (count, 2)),
        ],
        axis=2,
    )
    return {
        "now_ps": now_ps,
        "rtt_ps": rng.integers(RTT_PS, 60 * RTT_PS, count),
        "acked_bytes": acked_bytes,
        "acked_seq": acked_seq,
        "next_seq": acked_seq + rng.integers(0, 500_000, count),
        "is_marked": rng.random(count) < draw(st.sampled_from([0.0, 0.05, 0.5, 1.0])),
        "hops": hops,
    }


@pytest.mark.parametrize("scheme", SCHEMES)
@given(columns=ack_columns(), line_bps=st.sampled_from([500 * MBPS, 100 * GBPS, LINE_BPS]))
def test_rates_stay_between_minimum_and_line_and_the_variant_equals_its_scheme(
    scheme: str,
    columns: dict[str, np.ndarray],
    line_bps: int,
) -> None:
    for preset in congestion_presets(scheme):
        parameters = congestion_preset(scheme, preset)
        limits = {"line_bps": line_bps, "base_rtt_ps": RTT_PS, "mtu_bytes": MTU_BYTES, "window_bytes": WINDOW_BYTES}
        rates = SCHEMES[scheme](parameters, **limits).on_acks(**columns)  # type: ignore[arg-type]
        lowest = min(line_bps, parameters.min_rate_bps)  # type: ignore[union-attr]
        assert lowest <= rates.min()
        assert rates.max() <= line_bps
        assert (CongestionControl(parameters, **limits).on_acks(**columns) == rates).all()


def test_without_control_a_flow_keeps_the_line_rate() -> None:
    flow = CongestionControl(
        congestion_preset("none"), line_bps=LINE_BPS, base_rtt_ps=RTT_PS, mtu_bytes=MTU_BYTES, window_bytes=WINDOW_BYTES
    )
    assert ack(flow, marked=True, rtt_ps=MS) == LINE_BPS
    assert flow.next_timer_ps is None


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


@pytest.mark.parametrize(
    ("scheme", "preset", "transport"),
    [
        ("dcqcn", "hpcc_vwin", (SendWindow.VARIABLE, False)),
        ("dcqcn", "hpcc", (SendWindow.UNBOUNDED, True)),
        ("dcqcn", "paper_vwin", (SendWindow.VARIABLE, False)),
        ("timely", "hpcc_vwin", (SendWindow.VARIABLE, True)),
        ("timely", "hpcc", (SendWindow.UNBOUNDED, True)),
    ],
)
def test_runs_with_a_window_differ_from_those_without_in_nothing_else(
    scheme: str, preset: str, transport: tuple[SendWindow, bool]
) -> None:
    """HAS_WIN, VAR_WIN and ACK_HIGH_PRIO of the runs dcqcn, dcqcn_vwin, dcqcn_paper_vwin, timely and timely_vwin."""
    found = congestion_preset(scheme, preset)
    assert (found.transport.window, found.transport.acks_go_first) == transport
    plain = congestion_preset(scheme, preset.removesuffix("_vwin"))
    names = {name for name in dir(found) if not name.startswith("_")} - {"transport", "replace"}
    steps = {name for name in names if name.endswith("_increase")}
    assert all(getattr(found, name) == getattr(plain, name) for name in names - steps)
    assert all(getattr(found, name).at(LINE_BPS) == getattr(plain, name).at(LINE_BPS) for name in steps)


def test_unknown_schemes_and_sets_are_refused_with_the_known_ones() -> None:
    with pytest.raises(BackendError, match="'bbr' does not exist; expected none, dcqcn, hpcc, timely or dctcp"):
        congestion_preset("bbr")
    with pytest.raises(BackendError, match="'fast' of dcqcn does not exist; expected one of: paper_vwin, paper, "):
        congestion_preset("dcqcn", "fast")


def test_limits_that_a_scheme_cannot_work_with_are_refused() -> None:
    limits = {"line_bps": LINE_BPS, "base_rtt_ps": RTT_PS, "mtu_bytes": MTU_BYTES, "window_bytes": WINDOW_BYTES}
    for scheme, wrong in (
        ("dcqcn", "line_bps"),
        ("hpcc", "base_rtt_ps"),
        ("hpcc", "window_bytes"),
        ("dctcp", "mtu_bytes"),
    ):
        with pytest.raises(BackendError, match="positive"):
            CongestionControl(congestion_preset(scheme), **{**limits, wrong: 0})
