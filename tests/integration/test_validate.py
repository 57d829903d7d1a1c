"""``vidur-pd validate``: accuracy tables from the command line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from aicb.estimators.accuracy.held_out import cases, held_out, repeats
from tests.integration.test_command_line import vidur_pd
from tests.validation.serving_vs_engine import SERVING
from vidur_pd.commands.validate import _cell
from vidur_pd.commands.validation.serving import measurements


def rows(*arguments: str | Path) -> dict[str, Any]:
    finished = vidur_pd("validate", *arguments, "--json")
    assert finished.returncode == 0, finished.stderr
    found: dict[str, Any] = json.loads(finished.stdout)
    return found


def test_held_out_kernels_are_compared_under_three_methods() -> None:
    found = rows("--only", "compute", "--kernels", "bmm")
    table = found["kernels held out, engine times"]
    assert [row["method"] for row in table] == ["interpolation", "forest", "roofline"]
    assert len({row["points"] for row in table}) == 1
    errors = {row["method"]: row["median"] for row in table}
    assert 0.005 < errors["interpolation"] < min(errors["forest"], errors["roofline"])
    (far,) = found["kernels beyond measured ranges, engine times"]
    assert far["median"] > errors["interpolation"]
    assert "published tables" in found["skipped"]


def test_every_point_is_held_out_once() -> None:
    """Folds are whole groups: the number of errors is the number of shapes, whatever is held out."""
    case = next(case for case in cases("graph") if case.kernel == "RMSNorm + add")
    assert {errors.points for errors in held_out(case)} == {len(case.surface.times_us)}


def test_sessions_repeat_within_what_accuracy_reports() -> None:
    medians = {errors.kernel: errors.median for errors in repeats("cold")}
    assert medians
    assert all(0.0 < median < 0.25 for median in medians.values())


def test_couplings_are_compared_with_the_exact_one() -> None:
    table = rows("--only", "coupling", "--cases", "ep-400")["coupling"]
    assert [(row["case"], row["coupling"]) for row in table] == [("ep-400", "isolated"), ("ep-400", "fluid")]
    assert all(abs(row["tpot"]) < 0.02 for row in table)
    assert table[0]["kv"] != table[1]["kv"]


def test_serving_runs_of_a_folder_are_replayed(tmp_path: Path) -> None:
    """A made-up measurement of two requests that nothing could serve in a microsecond: the simulation is slower."""
    request = {"rid": "a", "arrival": 0.0, "n_in": 100, "n_out": 3, "ttft": 1e-6, "tpot": 1e-6, "e2e": 1e-6}
    runs = {"serve_1": [request, {**request, "rid": "b", "arrival": 0.1}], "prefill": []}
    with gzip.open(tmp_path / "vllm-qwen3-0.6b-tp1.json.gz", "wt") as file:
        json.dump(runs, file)
    table = rows("--only", "serving", "--measurements", tmp_path)["serving, qwen3-0.6b"]
    assert [row["metric"] for row in table] == ["ttft", "tpot", "e2e"]
    assert all(row["error"] > 100 and row["requests"] == 2 for row in table)


@pytest.mark.skipif(not SERVING.is_dir(), reason="measured serving runs are not beside the repository")
def test_measurements_are_found_by_model() -> None:
    assert set(measurements(SERVING)) >= {"qwen3-8b", "qwen3-30b-a3b"}


def test_what_is_missing_is_said() -> None:
    finished = vidur_pd("validate", "--only", "serving")
    assert finished.returncode == 0
    assert finished.stdout == "skipped serving: found no --measurements, expected a folder of vllm-MODEL-tp1.json.gz\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--only", "compute", "--kernels", "conv3d"],
            "vidur-pd: --kernels: found 'conv3d', expected part of one of FA3",
        ),
        (["--only", "coupling", "--cases", "ep-4"], "vidur-pd: --cases: found 'ep-4', expected some of ep-400, ep-50"),
        (["--only", "serving", "--measurements", "/"], "vidur-pd: /: found no vllm-MODEL-tp1.json.gz, expected"),
        (["--only", "compute", "--kernels", "bmm", "--published", "/"], "vidur-pd: /: found no gemm.csv.gz, expected"),
        (["--only", "network"], "vidur-pd: Invalid value for '--only'"),
    ],
)
def test_wrong_arguments_are_one_line(arguments: list[str], message: str) -> None:
    finished = vidur_pd("validate", *arguments)
    assert finished.returncode == 2
    assert finished.stderr.startswith(message)
    assert finished.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("column", "value", "shown"),
    [("measured_p90_s", 0.0931, "0.0931"), ("p90_error", -0.111, "-11.1 %"), ("ratio", 1.234, "1.23"), ("n", 3, "3")],
)
def test_tables_show_times_in_seconds_and_errors_in_percent(column: str, value: object, shown: str) -> None:
    assert _cell(column, value) == shown
