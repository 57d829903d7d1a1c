"""HPCC on its own, acknowledgement by acknowledgement."""

from __future__ import annotations

import pytest

from netsim import BackendError
from netsim._core import MAX_INT_HOPS
from tests.netsim.congestion_controllers import GBPS, LINE_BPS, RTT_PS, US, ack, hpcc

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
