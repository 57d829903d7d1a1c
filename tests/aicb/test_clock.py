"""The SM clock under load and what of a time follows it."""

from __future__ import annotations

import csv
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from aicb import Batch, InputError, Partition, Precision, get_gpu, load_model
from aicb.clock import ClockLaw, clocked_share
from aicb.host import HostModel
from aicb.iteration import IterationModel

H200 = get_gpu("h200")
LAW = ClockLaw(1600, 1800, 1400, 0.25, 0.75)


def test_the_clock_falls_linearly_between_a_light_and_a_heavy_load() -> None:
    assert LAW.mhz(np.array([0.0, 0.25, 0.5, 0.75, 1.0])).tolist() == [1800, 1800, 1600, 1400, 1400]
    assert LAW.stretch(np.array([0.5, 1.0])).tolist() == [1.0, 1600 / 1400]


def test_only_what_the_sms_bound_follows_the_clock() -> None:
    """8 MB at 0.83 of 1 TB/s take 9.64 µs: all of a kernel of 9 µs, half of one of 19.28 µs (β = 1 − 1/4)."""
    assert clocked_share(9.0, 8e6, 1e12) == 0.0
    assert clocked_share(19.277, 8e6, 1e12) == pytest.approx(0.75, abs=1e-4)
    assert clocked_share(100.0, 0.0, 1e12) == 1.0


def test_the_law_of_the_h200_fits_its_measured_clocks() -> None:
    """Least squares over 66 matrix products: 55 MHz (root mean square); single ones run up to 150 MHz off it."""
    with (files("aicb") / "data" / "h200" / "clocks.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    share = np.array([float(row["tflops"]) * 1e12 / H200.peak_flops[row["dtype"]] for row in rows])  # type: ignore[index]
    clocks = np.array([float(row["sm_clock_mhz"]) for row in rows])
    assert len(rows) == 66
    assert H200.clock is not None
    residuals = H200.clock.mhz(share) - clocks
    assert np.sqrt(np.mean(residuals**2)) == pytest.approx(55, abs=2)
    for name, change in {"light_mhz": 20, "heavy_mhz": 20, "light_share": 0.04, "heavy_share": 0.04}.items():
        for sign in (-1, 1):
            other = replace(H200.clock, **{name: getattr(H200.clock, name) + sign * change})
            assert np.mean((other.mhz(share) - clocks) ** 2) > np.mean(residuals**2), name


def test_long_prefills_run_at_the_heavy_clock_and_decodes_at_the_light_one() -> None:
    """Against a GPU without the law a prefill of 16,384 tokens takes nearly 1600 / 1385 as long; decode of one request,
    bound by memory, gains less than 1600 / 1810 would give."""
    silent = HostModel(eager_layer_us=0.0, step_us=0.0)
    found, plain = (
        IterationModel(load_model("qwen3-8b"), Partition(), Precision(), gpu, host=silent)
        for gpu in (H200, replace(H200, clock=ClockLaw(1600, 1600, 1600, 0.1, 0.2)))
    )
    ratios = [
        found.price([batch]).compute_ps / plain.price([batch]).compute_ps
        for batch in (Batch.prefill([16384]), Batch.decode([1000]))
    ]
    assert 1.10 < ratios[0] < 1600 / 1385
    assert 1600 / 1810 < ratios[1] < 1.0


@pytest.mark.parametrize(
    "clock",
    ["7", "{reference_mhz: 1}", "{reference_mhz: 1600, light_mhz: 1, heavy_mhz: 2, light_share: 0, heavy_share: 1}"],
)
def test_a_wrong_law_is_refused_in_one_line(tmp_path: Path, clock: str) -> None:
    text = (files("aicb") / "gpus" / "h200.yaml").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("clock:")]
    (tmp_path / "gpu.yaml").write_text("\n".join([*lines, f"clock: {clock}"]))
    with pytest.raises(InputError, match=r"gpu\.yaml: clock: found .*expected"):
        get_gpu(str(tmp_path))
