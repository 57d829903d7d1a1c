"""TIMELY and DCTCP on their own, acknowledgement by acknowledgement, and what holds for every congestion control."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netsim import BackendError
from netsim._core import (
    CongestionControl,
    Dcqcn,
    Dctcp,
    Hpcc,
    SendWindow,
    Timely,
    congestion_preset,
    congestion_presets,
)
from tests.netsim.congestion_controllers import (
    GBPS,
    LINE_BPS,
    MBPS,
    MS,
    MTU_BYTES,
    NO_HOPS,
    RTT_PS,
    US,
    WINDOW_BYTES,
    Controller,
    ack,
    dctcp,
    timely,
)

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
