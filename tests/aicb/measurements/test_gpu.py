"""Descriptions of GPUs in files, and which estimator prices a GPU."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import yaml

from aicb import InputError, Precision, get_gpu, known_gpus
from aicb.estimators.estimator import Estimator
from aicb.estimators.forest import ForestEstimator
from aicb.estimators.interpolation import InterpolationEstimator
from aicb.estimators.roofline import RooflineEstimator
from aicb.estimators.selection import LEAST_ROWS, ExpertsEstimator, PartialTableEstimator, select_estimator
from aicb.estimators.transfer import TransferEstimator
from aicb.kernels.decode_attention import DecodeAttention
from aicb.kernels.elementwise import Elementwise
from aicb.kernels.gemm import Gemm
from aicb.measurements.table import COLUMNS, KernelTable

DESCRIPTION = {
    "name": "x100",
    "hbm_bytes": 103_079_215_104,
    "hbm_bytes_per_s": 3.0e12,
    "peak_bf16_flops": 600e12,
    "peak_fp8_flops": 1200e12,
    "sms": 120,
    "l2_bytes": 50_000_000,
    "source": "made up",
}
GEMM = Gemm(64, 4096, 4096, "bf16")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "gpu.yaml").write_text(yaml.safe_dump(DESCRIPTION))
    get_gpu.cache_clear()
    return tmp_path


def write_table(folder: Path, keep: Callable[[dict[str, str]], bool]) -> None:
    """Rows of the H200's table that are kept, a fifth slower, as if measured on the new GPU."""
    shipped = files("aicb") / "data" / "h200"
    rows = list(csv.DictReader((shipped / "kernels.csv").read_text().splitlines()))
    kept = [row for row in rows if keep(row) or row["op"] in ("null_kernel", "graph_node", "eager_launch_host")]
    with (folder / "kernels.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(COLUMNS))
        writer.writeheader()
        for row in kept:
            slower = {name: f"{1.2 * float(row[name]):.3f}" for name in ("cold_us", "graph_us") if row[name]}
            writer.writerow({**row, **slower})
    (folder / "provenance.json").write_text(json.dumps({"schema_version": 1}))
    get_gpu.cache_clear()


def test_a_folder_describes_a_gpu(folder: Path) -> None:
    gpu = get_gpu(str(folder))
    assert (gpu.name, gpu.sms, gpu.peak_flops["fp8"], gpu.table) == ("x100", 120, 1200e12, None)
    assert gpu.interconnect == "x100"
    assert get_gpu(str(folder / "gpu.yaml")) == gpu


def test_built_in_gpus_name_their_tables() -> None:
    assert [name for name in known_gpus() if get_gpu(name).table is not None] == ["h200"]


def test_exponents_without_a_sign_are_numbers(folder: Path) -> None:
    """YAML 1.1 takes 3.5e12 for text."""
    text = (folder / "gpu.yaml").read_text().replace("hbm_bytes_per_s: 3000000000000.0", "hbm_bytes_per_s: 3.5e12")
    (folder / "gpu.yaml").write_text(text)
    get_gpu.cache_clear()
    assert get_gpu(str(folder)).hbm_bytes_per_s == 3.5e12


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sms": 0}, r"gpu\.yaml: sms: found 0, expected a whole number, "),
        ({"sms": 1.5}, r"gpu\.yaml: sms: found 1\.5, expected a whole number, "),
        ({"hbm_bytes": True}, r"gpu\.yaml: hbm_bytes: found True, expected a whole number, "),
        ({"hbm_bytes_per_s": "fast"}, r"gpu\.yaml: hbm_bytes_per_s: found 'fast', expected a number, "),
        ({"source": None}, r"gpu\.yaml: source: found nothing, expected text"),
        ({"sm": 1}, r"gpu\.yaml: sm: unknown field, expected sms"),
        ({"table": "x"}, r"gpu\.yaml: table: unknown field, expected name, source"),
    ],
)
def test_a_wrong_description_is_refused(folder: Path, change: dict[str, object], message: str) -> None:
    (folder / "gpu.yaml").write_text(yaml.safe_dump({**DESCRIPTION, **change}))
    with pytest.raises(InputError, match=message):
        get_gpu(str(folder))


@pytest.mark.parametrize(("text", "message"), [("- 1", "found .1., expected a description"), ("{", "not YAML")])
def test_a_file_that_describes_nothing_is_refused(folder: Path, text: str, message: str) -> None:
    (folder / "gpu.yaml").write_text(text)
    with pytest.raises(InputError, match=message) as raised:
        get_gpu(str(folder))
    assert "\n" not in str(raised.value)


def test_a_folder_without_a_description_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gpu\.yaml: found no such file"):
        get_gpu(str(tmp_path))


def main_of(estimator: Estimator) -> Estimator:
    """What prices all but the kernels that were measured on an H100 alone."""
    return estimator.main if isinstance(estimator, ExpertsEstimator) else estimator


def test_a_gpu_without_a_table_is_transferred(folder: Path) -> None:
    estimator = select_estimator("auto", get_gpu(str(folder)), Precision())
    assert isinstance(main_of(estimator), TransferEstimator)


def test_a_partial_table_prices_what_it_holds_and_transfers_the_rest(folder: Path) -> None:
    """GEMMs in bf16 alone: they cost what the table says; fp8, attention and norms are flagged."""
    write_table(folder, lambda row: row["op"] == "gemm" and row["dtype"] == "bf16")
    gpu = get_gpu(str(folder))
    estimator = select_estimator("auto", gpu, Precision(), "graph")
    row = next(row for row in KernelTable.read(folder, "x100").select("gemm", "bf16") if row.graph_us)
    measured = estimator.price(Gemm(row["m"], row["n"], row["k"], "bf16"))
    assert measured.time_us == row.graph_us
    assert not measured.is_estimate
    lengths = np.full(8, 2000)
    for work in (
        Gemm(64, 4096, 4096, "fp8"),
        DecodeAttention(lengths, 32, 8, 128),
        Elementwise("add_rms_norm", 64, 4096, 2_097_152),
    ):
        assert estimator.price(work).source.startswith("estimate: transferred from h200")
    assert estimator.decode_times(DecodeAttention(lengths, 32, 8, 128), 8)(lengths, 3)[1]


def test_fewer_rows_than_say_something_are_left_out(folder: Path) -> None:
    kept = iter(range(LEAST_ROWS - 1))
    write_table(folder, lambda row: row["op"] == "gemm" and row["dtype"] == "bf16" and next(kept, None) is not None)
    assert select_estimator("auto", get_gpu(str(folder)), Precision()).price(GEMM).is_estimate


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("auto", PartialTableEstimator),
        ("interpolation", PartialTableEstimator),
        ("transfer", TransferEstimator),
        ("roofline", RooflineEstimator),
    ],
)
def test_estimators_of_a_new_gpu_have_names(folder: Path, name: str, kind: type) -> None:
    write_table(folder, lambda row: row["op"] == "gemm")
    assert isinstance(main_of(select_estimator(name, get_gpu(str(folder)), Precision())), kind)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("auto", InterpolationEstimator), ("interpolation", InterpolationEstimator), ("forest", ForestEstimator)],
)
def test_estimators_of_the_h200_read_its_table(name: str, kind: type) -> None:
    assert isinstance(main_of(select_estimator(name, get_gpu("h200"), Precision())), kind)


def test_unknown_estimators_and_missing_tables_are_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="estimator: found 'guess', expected"):
        select_estimator("guess", get_gpu("h200"), Precision())
    with pytest.raises(InputError, match="found 'h100', expected one with measurements"):
        select_estimator("interpolation", get_gpu("h100"), Precision())
