"""Arrival rates that vary: offered counts follow the integral of the rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boundary.errors import InputError
from tests.vidur_pd.workload_cases import load, synthetic
from vidur_pd.config.file import anchor_paths

HOUR = 3600.0


def offered(rate: dict[str, Any], requests: int = 100_000, base_dir: Path = Path(), **fields: Any) -> Any:
    """[requests] arrivals in seconds."""
    section = synthetic(requests, arrivals={"kind": "varying", "rate": rate, **fields})
    return load(section, base_dir=base_dir).arrived_ps / 10**12


def linear(t: float) -> float:
    """Integral of 10 to 90 requests/s in 1,000 s, then 90."""
    inside = min(t, 1000.0)
    return 10 * inside + 0.04 * inside**2 + 90 * (t - inside)


def exponential(t: float) -> float:
    """Integral of 5 to 200 requests/s in 2,000 s: rate × factor every 2000 / ln 40 s."""
    growth = math.log(40) / 2000
    inside = min(t, 2000.0)
    return 5 * (math.exp(growth * inside) - 1) / growth + 200 * (t - inside)


def steps(t: float) -> float:
    """Integral of 20, 0 and 100 requests/s for 600, 300 and 300 s, again and again."""
    rounds, rest = divmod(t, 1200.0)
    return 42_000 * rounds + 20 * min(rest, 600) + 100 * max(rest - 900, 0)


CURVES: list[tuple[dict[str, Any], Callable[[float], float]]] = [
    ({"kind": "linear", "from_qps": 10, "to_qps": 90, "duration_s": 1000}, linear),
    ({"kind": "exponential", "from_qps": 5, "to_qps": 200, "duration_s": 2000}, exponential),
    ({"kind": "steps", "steps": [[600, 20], [300, 0], [300, 100]], "repeats": True}, steps),
]


@pytest.mark.parametrize("cv", [1.0, 0.4, 3.0])
@pytest.mark.parametrize(("rate", "integral"), CURVES, ids=["linear", "exponential", "steps"])
def test_offered_counts_follow_the_integral_of_the_rate(
    rate: dict[str, Any], integral: Callable[[float], float], cv: float
) -> None:
    """Of a renewal process of rate 1 a count up to x has variance cv²·x (its limit), so 100,000 draws are compared at
    50 instants with 4.5 standard deviations (exceeded in one of 3,000 runs; the seed is fixed), and a first gap."""
    arrived = offered(rate, cv=cv)
    for t in np.linspace(arrived[-1] / 50, arrived[-1], 50).tolist():
        expected = integral(t)
        assert abs(np.count_nonzero(arrived <= t) - expected) < 4.5 * cv * math.sqrt(expected) + 1 + cv**2


def test_gaps_in_the_time_of_the_rate_are_exponential_with_cv_one() -> None:
    """Kolmogorov-Smirnov: of 100,000 exponential gaps D exceeds 1.95/√n in one of 1,000 samples."""
    rate, integral = CURVES[1]
    gaps = np.sort(np.diff([integral(t) for t in offered(rate).tolist()]))
    places = np.arange(1, len(gaps) + 1) / len(gaps)
    assert np.max(np.abs(1 - np.exp(-gaps) - places)) < 1.95 / math.sqrt(len(gaps))


def test_nobody_comes_where_the_rate_is_zero() -> None:
    in_round = offered(CURVES[2][0]) % 1200
    assert not np.any((in_round > 600) & (in_round < 900))


def test_the_last_step_stays() -> None:
    arrived = offered({"kind": "steps", "steps": [[10, 0], [10, 5]]}, 1000)
    assert arrived[0] > 10
    assert 100 < arrived[-1] < 400


def test_a_constant_rate_is_the_gamma_process() -> None:
    flat = offered({"kind": "linear", "from_qps": 4, "to_qps": 4, "duration_s": 10}, 500, cv=2)
    gamma = load(synthetic(500, arrivals={"kind": "gamma", "qps": 4, "cv": 2})).arrived_ps / 10**12
    assert flat == pytest.approx(gamma, abs=1e-9)


def test_a_column_of_a_file_is_a_days_curve(tmp_path: Path) -> None:
    rates = [20.0, 0.0, 35.5]
    (tmp_path / "day.csv").write_text("hour,qps\n" + "".join(f"{hour},{rate}\n" for hour, rate in enumerate(rates)))
    file = {"kind": "file", "path": "day.csv", "column": "qps", "interval_s": 600}
    same = {"kind": "steps", "steps": [[600, rate] for rate in rates], "repeats": True}
    assert offered(file, 5000, tmp_path).tolist() == offered(same, 5000).tolist()
    tree: dict[str, Any] = {"workload": {"kind": "synthetic", "arrivals": {"kind": "varying", "rate": file}}}
    anchor_paths(tree, tmp_path)
    assert tree["workload"]["arrivals"]["rate"]["path"] == str(tmp_path / "day.csv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("qps\n1\nx\n", r"day\.csv: line 3: qps: found 'x', expected requests/s from 0 to 1e\+09"),
        ("qps\n1\n-1\n", r"line 3: qps: found '-1'"),
        ("qps\n1\nnan\n", r"line 3: qps: found 'nan'"),
        ("qps\n0\n", "qps: found no rate at which the last request comes"),
        ("rate\n1\n", "qps"),
        ("", r"day\.csv"),
    ],
)
def test_wrong_files_of_rates_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "day.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        offered({"kind": "file", "path": "day.csv", "column": "qps", "interval_s": 600}, 10, tmp_path)


@pytest.mark.parametrize(
    ("rate", "message"),
    [
        ({"kind": "steps", "steps": [[10, 1], [10, 0]]}, "found a rate of 0 that stays"),
        ({"kind": "steps", "steps": [[10, 0]], "repeats": True}, "found a rate of 0 that stays"),
        ({"kind": "linear", "from_qps": 0, "to_qps": 1, "duration_s": 5}, "from_qps"),
        ({"kind": "sine"}, "rate"),
    ],
)
def test_wrong_rates_are_refused(rate: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        offered(rate, 10)
