from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simccl import Algorithm, Collective, InputError, Protocol, collective_time, time_table
from simccl.nccl.correction import Correction, thread_share
from simccl.planning.calibration import (
    Calibration,
    Case,
    Fit,
    calibration_for,
    read_calibration,
    shipped_calibration,
    write_calibration,
)
from simccl.planning.choice import choose
from tests.simccl.communicators import spread

AR = Collective.ALL_REDUCE
GPUS_WITH_CALIBRATION = ("a100", "h100", "h200", "b200")


def case(ranks: int, nodes: int = 1, op: Collective = AR) -> Case:
    return Case(op, ranks, nodes, Algorithm.RING, Protocol.LL)


def calibration(*cases: Case, also: Calibration | None = None) -> Calibration:
    """Every case has its ranks as factor of the latency, so that one can see which was taken."""
    fits = {c: Fit(Correction(latency_factor=float(c.ranks)), 1, 0.0) for c in cases}
    return Calibration("h100", "made up", fits, also)


def test_the_default_correction_is_nccls_own_sum() -> None:
    latency, transfer = np.array([10.0, 20.0]), np.array([5.0, 80.0])
    assert Correction().time_us(latency, transfer, np.ones(2)).tolist() == [15.0, 100.0]


def test_latency_and_transfer_overlap_with_exponents_above_one() -> None:
    """(3² + 4²)^½ = 5, after a latency of 2 · (1 + 0.5) = 3 and a transfer of 2 · 2 = 4."""
    correction = Correction(latency_factor=2.0, latency_growth=0.5, transfer_factor=2.0, exponent=2.0)
    assert correction.time_us(np.array([1.0]), np.array([2.0]), np.array([1.0])) == pytest.approx([5.0])
    assert correction.time_us(np.array([1.0]), np.array([2.0]), np.array([0.0])) == pytest.approx([np.hypot(2, 4)])


def test_messages_wait_for_their_first_step_and_for_the_slower_of_port_and_channel() -> None:
    """10 GB/s: a part of 1 MB streams in 100 µs, longer than the port's 30; its first 500 kB take 50 µs more."""
    correction = Correction(channel_gbytes_per_s=10.0)
    one = np.array([1.0]), np.array([30.0]), np.array([1_000_000])
    assert correction.message_time_us(*one, 500_000) == pytest.approx([151.0])
    fast = np.array([1.0]), np.array([300.0]), np.array([1_000_000])
    assert correction.message_time_us(*fast, 500_000) == pytest.approx([351.0])


def test_the_share_of_threads_counts_octaves() -> None:
    assert thread_share(np.array([96, 512, 640])).tolist() == [0, 1, 1]
    assert thread_share(np.array([192]))[0] == pytest.approx(np.log(2) / np.log(512 / 96))


def test_other_rank_counts_take_the_nearest() -> None:
    found = calibration(case(2), case(8))
    factors = {n: correction.latency_factor for n in (2, 3, 5, 8, 16) if (correction := found.correction(case(n)))}
    assert factors == {2: 2, 3: 2, 5: 8, 8: 8, 16: 8}


def test_what_was_not_measured_is_not_corrected() -> None:
    found = calibration(case(8))
    assert found.correction(case(16, nodes=2)) is None
    assert found.correction(case(8, op=Collective.ALL_GATHER)) is None


def test_between_nodes_the_named_algorithms_are_corrected_as_inside_one() -> None:
    """16 ranks on two nodes: eight in each."""
    ring, nvls = case(8), Case(AR, 4, 1, Algorithm.NVLS, Protocol.SIMPLE)
    named = frozenset({Algorithm.NVLS_TREE})
    found = replace(calibration(ring, nvls), between_nodes=named)
    of_tree = found.correction(Case(AR, 16, 2, Algorithm.NVLS_TREE, Protocol.SIMPLE))
    assert of_tree is not None
    assert of_tree.latency_factor == 4
    assert found.correction(case(16, nodes=2)) is None
    with_rings = replace(found, between_nodes=named | {Algorithm.RING})
    of_ring = with_rings.correction(case(16, nodes=2))
    assert of_ring is not None
    assert of_ring.latency_factor == 8
    assert with_rings.correction(case(2, nodes=2)) is None, "one GPU per node: nothing inside"


def test_measurements_between_nodes_come_before_those_inside_one() -> None:
    found = replace(calibration(case(8), case(32, nodes=4)), between_nodes=frozenset({Algorithm.RING}))
    correction = found.correction(case(16, nodes=2))
    assert correction is not None
    assert correction.latency_factor == 32


def test_exact_cases_of_another_gpu_come_before_near_ones_of_this() -> None:
    found = calibration(case(4), also=calibration(case(8)))
    for ranks, taken in ((4, 4), (8, 8), (6, 4)):
        correction = found.correction(case(ranks))
        assert correction is not None
        assert correction.latency_factor == taken


def test_a_calibration_survives_its_file(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    fits = {case(2): Fit(Correction(0.5, 0.25, 1.5, 2.0), 7, 0.01), case(4): Fit(Correction(), 3, 0.5)}
    written = Calibration("a100", "made up", fits, between_nodes=frozenset({Algorithm.RING, Algorithm.NVLS_TREE}))
    write_calibration(written, file)
    assert read_calibration(file) == written


@pytest.mark.parametrize("text", ["", "[]", '{"gpu": "h100"}', '{"gpu": "h100", "source": "", "fits": [{"op": "x"}]}'])
def test_files_that_are_no_calibration_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "c.json"
    file.write_text(text)
    with pytest.raises(InputError, match=r"c\.json: found .*, expected a calibration"):
        read_calibration(file)


def test_files_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.json: found no such file"):
        read_calibration(tmp_path / "none.json")


@pytest.mark.parametrize("gpu", GPUS_WITH_CALIBRATION)
def test_shipped_calibrations_name_their_source_and_are_near_nccls_constants(gpu: str) -> None:
    found = shipped_calibration(gpu)
    assert found is not None
    assert found.gpu == gpu
    assert "NCCL 2." in found.source
    for of_case, fit in found.fits.items():
        assert 0.1 < fit.correction.latency_factor < 3, of_case
        assert 0.4 < fit.correction.transfer_factor < 3, of_case
        assert fit.median_error < 0.11, of_case


def test_gpus_without_calibration_keep_nccls_constants() -> None:
    assert shipped_calibration("h800") is None
    times = [
        time_table(["all_reduce"], [1 << 20], [8], [1], "h800", calibration=c).time_us for c in ("shipped", "none")
    ]
    assert times[0] == times[1]


def test_a_calibration_of_another_gpu_is_not_applied() -> None:
    mine = calibration(case(8))
    assert calibration_for("h100", mine) is mine
    assert calibration_for("h800", mine) is None
    assert calibration_for("h100", "none") is None


@pytest.mark.parametrize("gpu", GPUS_WITH_CALIBRATION)
@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter"])
def test_a_choice_has_costs_that_give_the_calibrated_time(gpu: str, op: str) -> None:
    for size in (1 << 10, 1 << 16, 12_345_678, 1 << 30):
        communicator = spread(1, 8, gpu)
        found = choose(Collective(op), size, communicator)
        plain = choose(Collective(op), size, communicator, calibration="none")
        again = found.costs.times_us(np.array([size])).min(axis=0)
        assert (found.algorithm, found.protocol) == (plain.algorithm, plain.protocol)
        assert found.time_us == pytest.approx(collective_time(op, size, communicator).time_ps / 1e6, abs=1e-5)
        assert again == pytest.approx([found.time_us])


@pytest.mark.parametrize("gpu", GPUS_WITH_CALIBRATION)
@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "all_to_all", "broadcast", "send_recv"])
def test_calibrated_times_are_positive_and_grow_without_bound(gpu: str, op: str) -> None:
    sizes = [1, 1 << 10, 1 << 40, 1 << 41]
    times = time_table([op] * 4, sizes, [8] * 4, [1] * 4, gpu)
    assert (times.time_us >= times.latency_us).all()
    assert (times.latency_us > 0).all()
    assert times.time_us[3] == pytest.approx(2 * times.time_us[2], rel=0.01)
