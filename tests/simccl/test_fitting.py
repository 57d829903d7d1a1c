"""Fits recover what the times were made with."""

import numpy as np
import pytest

from simccl import Algorithm, Collective, InputError, Protocol
from simccl.calibrate.fitting import fit_calibration
from simccl.calibrate.nccl_tests import Measurement
from simccl.communicator.gpus import gpu_named
from simccl.nccl.correction import Correction
from simccl.nccl.point_to_point import message_costs
from simccl.planning.calibration import Calibration, Case, Fit
from simccl.planning.choice import choose_at, pair_times
from simccl.planning.cost_model import algorithm_costs
from tests.simccl.arrangements import arranged

AR = Collective.ALL_REDUCE
SIZES = [1 << k for k in range(10, 30)]


def ring_points(correction: Correction, noise: np.ndarray) -> list[Measurement]:  # type: ignore[type-arg]
    """Times of ring Simple all_reduces on 8 H100 as the correction gives them."""
    at = arranged("h100", 1, 8)
    costs = algorithm_costs(AR, at, Algorithm.RING)
    assert costs is not None
    case = Case(AR, 8, 1, Algorithm.RING, Protocol.SIMPLE)
    calibration = Calibration("h100", "", {case: Fit(correction, 0, 0.0)})
    times = pair_times(AR, np.array(SIZES), costs, Protocol.SIMPLE, at, calibration).time_us * noise
    return [
        Measurement(AR, 8, 1, size, time_us, Algorithm.RING, Protocol.SIMPLE)
        for size, time_us in zip(SIZES, times.tolist(), strict=True)
    ]


def test_a_fit_finds_the_correction_behind_the_times() -> None:
    """Twenty points with 1 % of noise; the priors pull by less than 3 %."""
    made_with = Correction(latency_factor=0.8, latency_growth=0.2, transfer_factor=1.25, exponent=1.3)
    noise = np.exp(np.random.default_rng(1).normal(0, 0.01, len(SIZES)))
    calibration = fit_calibration(ring_points(made_with, noise), gpu_named("h100"), "made up")
    ((case, fit),) = calibration.fits.items()
    assert (case.algorithm, case.protocol, fit.points) == (Algorithm.RING, Protocol.SIMPLE, 20)
    assert fit.correction.latency_factor == pytest.approx(0.8, rel=0.04)
    assert fit.correction.transfer_factor == pytest.approx(1.25, rel=0.02)
    assert fit.correction.exponent == pytest.approx(1.3, rel=0.1)
    assert fit.median_error < 0.01


def test_times_of_nccls_model_need_no_correction() -> None:
    calibration = fit_calibration(ring_points(Correction(), np.ones(20)), gpu_named("h100"), "made up")
    (fit,) = calibration.fits.values()
    assert fit.correction.latency_factor == pytest.approx(1, abs=0.001)
    assert fit.correction.transfer_factor == pytest.approx(1, abs=0.001)
    assert fit.correction.exponent == pytest.approx(1, abs=0.001)


def test_one_point_moves_only_what_it_speaks_of() -> None:
    """512 MiB twice as slow is a matter of bandwidth; the latency stays NCCL's."""
    (*_, largest) = ring_points(Correction(transfer_factor=1.5), np.ones(20))
    (fit,) = fit_calibration([largest], gpu_named("h100"), "made up").fits.values()
    assert fit.correction.transfer_factor == pytest.approx(1.5, rel=0.05)
    assert fit.correction.latency_factor == pytest.approx(1, abs=0.05)


def test_a_fit_of_messages_finds_the_rate_of_a_channel() -> None:
    at, sizes = arranged("h100", 1, 4), np.array(SIZES)
    costs = message_costs(Collective.SEND_RECV, sizes, at)
    made_with = Correction(latency_factor=0.9, transfer_factor=1.1, channel_gbytes_per_s=25.0)
    times = costs.corrected_us(made_with)
    points = [
        Measurement(Collective.SEND_RECV, 4, 1, size, time_us)
        for size, time_us in zip(SIZES, times.tolist(), strict=True)
    ]
    fits = fit_calibration(points, gpu_named("h100"), "made up").fits
    simple = fits[Case(Collective.SEND_RECV, 4, 1, Algorithm.PAIRWISE, Protocol.SIMPLE)].correction
    assert simple.channel_gbytes_per_s == pytest.approx(25.0, rel=0.03)
    assert simple.transfer_factor == pytest.approx(1.1, rel=0.03)


def test_measurements_without_a_pair_count_for_nccls_choice() -> None:
    """8 H100 all_reduce: ring LL up to 1 MiB, NVLS above."""
    sizes = (1 << 10, 1 << 20, 1 << 21, 1 << 28)
    at = arranged("h100", 1, 8)
    points = [Measurement(AR, 8, 1, size, choose_at(AR, size, at).time_us) for size in sizes]
    fits = fit_calibration(points, gpu_named("h100"), "made up").fits
    found = {(case.algorithm, case.protocol): fit.points for case, fit in fits.items()}
    assert found == {(Algorithm.RING, Protocol.LL): 2, (Algorithm.NVLS, Protocol.SIMPLE): 2}


def test_repeated_points_count_with_their_median() -> None:
    points = [Measurement(AR, 8, 1, 1024, t, Algorithm.RING, Protocol.LL) for t in (10.0, 15.0, 1000.0)]
    (fit,) = fit_calibration(points, gpu_named("h100"), "made up").fits.values()
    assert fit.points == 1
    assert fit.correction.latency_factor < 1.1


@pytest.mark.parametrize(
    ("ranks", "nodes", "message"), [(1, 1, "found none of two or more"), (8, 3, "nodes: found 3, expected a divisor")]
)
def test_measurements_that_say_nothing_are_refused(ranks: int, nodes: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        fit_calibration([Measurement(AR, ranks, nodes, 1024, 10.0)], gpu_named("h100"), "made up")
