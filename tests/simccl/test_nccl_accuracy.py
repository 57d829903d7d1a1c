"""The closed form against measured times; see `tests.simccl.nccl_accuracy`."""

import pandas as pd
import pytest

from tests.simccl.nccl_accuracy import MEASUREMENTS, SYSTEMS, errors, main

needs_tables = pytest.mark.skipif(not MEASUREMENTS.is_dir(), reason=f"no measurements at {MEASUREMENTS.name}")


def held_out() -> pd.DataFrame:
    points = pd.concat([errors(gpu) for gpu in SYSTEMS])
    return points[~points.is_fitted]


@needs_tables
def test_half_of_the_sizes_predict_the_other_within_5_and_12_percent() -> None:
    """Three GPU types, 2, 4 and 8 GPUs, four operations, ten held-out sizes: 360 points."""
    error = held_out().calibrated.abs()
    assert len(error) == 3 * 3 * 4 * 10
    assert error.median() <= 0.05
    assert error.quantile(0.9) <= 0.12


@needs_tables
def test_sizes_below_one_mebibyte_are_predicted_as_well() -> None:
    points = held_out()
    error = points[points.bytes < 1 << 20].calibrated.abs()
    assert len(error) == 3 * 3 * 4 * 5
    assert error.median() <= 0.05
    assert error.quantile(0.9) <= 0.12


@needs_tables
@pytest.mark.parametrize("gpu", list(SYSTEMS))
def test_calibration_at_least_halves_the_error_of_every_operation(gpu: str) -> None:
    points = errors(gpu)
    of_op = points[~points.is_fitted].assign(
        calibrated=lambda p: p.calibrated.abs(), uncalibrated=lambda p: p.uncalibrated.abs()
    )
    medians = of_op.groupby("op")[["calibrated", "uncalibrated"]].median()
    assert (medians.calibrated < medians.uncalibrated / 2).all()


@needs_tables
def test_uncalibrated_errors_on_eight_h100_are_those_known_of_nccls_model() -> None:
    """NCCL's model itself misses these measurements by 12.7, 7.0 and 7.6 % on average (512 B to 512 MiB)."""
    points = errors("h100")
    mean = points[points.ranks == 8].groupby("op").uncalibrated.agg(lambda error: error.abs().mean())
    assert mean["all_reduce"] == pytest.approx(0.127, abs=0.01)
    assert mean["all_gather"] == pytest.approx(0.070, abs=0.01)
    assert mean["reduce_scatter"] == pytest.approx(0.076, abs=0.01)


def test_forced_rings_on_h200_are_predicted_within_5_and_12_percent() -> None:
    points = errors("h200")
    error = points[~points.is_fitted & points.pair.str.startswith("ring")].calibrated.abs()
    assert len(error) == 12 * 2 * 10
    assert error.median() <= 0.05
    assert error.quantile(0.9) <= 0.12


def test_the_accuracy_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    printed = capsys.readouterr().out
    assert "Held-out sizes" in printed
    assert "H200, forced algorithm and protocol" in printed
