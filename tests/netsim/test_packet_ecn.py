"""RED marks by queue length."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError
from scipy import stats

from netsim import FlowGraph
from netsim.backends.packet import PacketBackend
from netsim.roce.config import EcnThresholds, RoceConfig, ecn_thresholds
from tests.netsim.packet_times import ALONE, FAR_PS
from tests.netsim.strategies import GBPS, star, star_of

PACKET = 4096 + 52
KMIN, KMAX, PMAX = 20 * PACKET, 60 * PACKET, 0.4
THRESHOLDS = EcnThresholds(kmin_bytes=KMIN, kmax_bytes=KMAX, pmax=PMAX)


def marks_of_a_draining_queue(packets: int, config: RoceConfig) -> int:
    """Of a queue that is filled while its link is stopped, then drains: every length below ``packets`` occurs once."""
    backend = PacketBackend(star(2), config)
    backend.set_storm(3, 3, True)
    backend.submit(FlowGraph.from_lists([0], [1], [packets * 4096]), 0)
    backend.advance(packets * 82_960 + 10_000_000)
    assert backend.counters().queued_bytes[3] == packets * PACKET
    backend.set_storm(3, 3, False)
    backend.advance(FAR_PS)
    return int(backend.counters().marks[3])


def red(seed: int, **changes: object) -> RoceConfig:
    thresholds = THRESHOLDS.model_copy(update=changes)
    return ALONE.model_copy(update={"ecn_thresholds": thresholds, "seed": seed})


def test_a_queue_of_kmin_or_less_marks_nothing() -> None:
    """21 packets: the first to leave leaves 20 behind, exactly kmin; with pmax 1, one byte more would mark."""
    config = red(0, pmax=1.0, kmax_bytes=KMIN + 1)
    assert marks_of_a_draining_queue(21, config) == 0
    assert marks_of_a_draining_queue(22, config) == 1


def test_a_queue_above_kmax_marks_everything() -> None:
    """With pmax 0 nothing else is marked: of 100 packets, those that leave 99 … 61 behind."""
    assert marks_of_a_draining_queue(100, red(0, pmax=0.0)) == 39


@pytest.mark.parametrize(("low", "high"), [(21, 30), (31, 45), (46, 60)])
def test_marks_follow_the_red_line_between_the_thresholds(low: int, high: int) -> None:
    """Lengths from ``low`` to ``high`` packets, each once per seed: the number of marks is a sum of independent draws
    with p = pmax (q − kmin)/(kmax − kmin); 400 seeds, within 4 standard deviations (1 in 16,000 by chance).
    The queue drains from ``high``, and looking ends when the packet that leaves ``low`` behind has begun to leave."""
    lengths = np.arange(low, high + 1)
    probability = PMAX * (lengths * PACKET - KMIN) / (KMAX - KMIN)
    found = 0
    for seed in range(400):
        config = red(seed)
        backend = PacketBackend(star(2), config)
        backend.set_storm(3, 3, True)
        backend.submit(FlowGraph.from_lists([0], [1], [(high + 1) * 4096]), 0)
        backend.advance(20_000_000)
        backend.set_storm(3, 3, False)
        backend.advance(20_000_000 + (high - low) * 82_960)  # the last length at issue leaves at this instant
        found += int(backend.counters().marks[3])
    expected, deviation = 400 * probability.sum(), np.sqrt(400 * (probability * (1 - probability)).sum())
    assert abs(found - expected) < 4 * deviation


def test_a_standing_queue_is_marked_with_its_probability() -> None:
    """Three senders of 100 Gbit/s at line rate fill a receiver's link of 200 Gbit/s until pauses hold the queue; with
    kmin 0 and kmax far above, the share of marks grows with the mean queue, here checked against its time series."""
    config = ALONE.model_copy(
        update={
            "ecn_thresholds": EcnThresholds(kmin_bytes=0, kmax_bytes=2_000_000, pmax=1.0),
            "switch_buffer_bytes": 3_000_000,
            "threshold_shift": 3,
        }
    )
    backend = PacketBackend(star_of([100 * GBPS] * 3 + [200 * GBPS], 500_000), config)
    backend.sample_every(163_840)
    backend.submit(FlowGraph.from_lists([0, 1, 2], [3, 3, 3], [20_000_000] * 3), 0)
    backend.advance(FAR_PS)
    series, counters = backend.time_series(), backend.counters()
    steady = slice(500, len(series.at_ps) - 500)
    packets = np.diff(series.wire_bytes[steady, 7]).sum() / PACKET
    marks = int(np.diff(series.marks[steady, 7]).sum())
    probability = series.queued_bytes[steady, 7].mean() / 2_000_000
    assert 0.1 < probability < 0.9
    assert counters.marks.sum() == counters.marks[7]
    assert abs(marks - packets * probability) < 4 * np.sqrt(packets * probability * (1 - probability)) + 0.01 * packets


def test_seeds_decide_which_packets_are_marked() -> None:
    """Same seed, same marks; others mark others. Marks of 200 seeds pass for independent draws (χ² of their sums)."""
    counts = np.array([marks_of_a_draining_queue(61, red(seed)) for seed in range(200)])
    again = np.array([marks_of_a_draining_queue(61, red(seed)) for seed in range(20)])
    assert (counts[:20] == again).all()
    probability = PMAX * (np.arange(21, 61) * PACKET - KMIN) / (KMAX - KMIN)
    variance = (probability * (1 - probability)).sum()
    statistic = ((counts - probability.sum()) ** 2).sum() / variance
    assert stats.chi2.ppf(0.0005, 200) < statistic < stats.chi2.ppf(0.9995, 200)


def test_marks_do_not_depend_on_the_steps_of_the_clock() -> None:
    config = red(7)
    graph = FlowGraph.from_lists([0, 1, 2], [3, 3, 3], [1_000_000] * 3)
    whole, stepped = PacketBackend(star(4), config), PacketBackend(star(4), config)
    whole.submit(graph, 0)
    stepped.submit(graph, 0)
    whole.advance(FAR_PS)
    while stepped.counters().packets.sum() < whole.counters().packets.sum():
        stepped.advance(stepped.now_ps + 77_777)
    assert (whole.counters().marks == stepped.counters().marks).all()
    assert whole.counters().marks.sum() > 0


def test_only_switches_mark_and_only_data() -> None:
    """Control packets have a class of their own that is never marked; host queues are not marked either."""
    config = ALONE.model_copy(update={"ecn_thresholds": EcnThresholds(kmin_bytes=0, kmax_bytes=1, pmax=1.0)})
    backend = PacketBackend(star(2), config)
    backend.submit(FlowGraph.from_lists([0, 0], [1, 1], [1_000_000, 1_000_000]), 0)
    backend.advance(FAR_PS)
    assert backend.counters().marks[[0, 1, 2]].sum() == 0


def test_ecn_can_be_switched_off() -> None:
    assert marks_of_a_draining_queue(100, red(0).model_copy(update={"ecn": False})) == 0


def test_thresholds_may_be_one_step_but_not_crossed() -> None:
    """DCTCP marks everything above K: kmin = kmax."""
    step = EcnThresholds(kmin_bytes=KMIN, kmax_bytes=KMIN, pmax=1.0)
    config = ALONE.model_copy(update={"ecn_thresholds": step})
    assert marks_of_a_draining_queue(31, config) == 10
    with pytest.raises(ValidationError, match="kmin_bytes"):
        EcnThresholds(kmin_bytes=2, kmax_bytes=1, pmax=1.0)


@pytest.mark.parametrize(
    ("rate_gbps", "expected"),
    [
        (25, (100_000, 400_000, 0.2)),
        (200, (300_000, 1_200_000, 0.8)),
        (400, (800_000, 3_200_000, 0.2)),
        (800, (800_000, 3_200_000, 0.2)),
        (3200, (600_000, 2_400_000, 0.2)),
    ],
)
def test_thresholds_are_those_of_the_nearest_known_rate(rate_gbps: int, expected: tuple[int, int, float]) -> None:
    """800 Gbit/s is as far from 400 as from 1600 and takes the first."""
    kmin, kmax, pmax = ecn_thresholds(RoceConfig(), star(2, nic_bps=rate_gbps * GBPS))
    assert (int(kmin[0]), int(kmax[0]), float(pmax[0])) == expected
