"""Choosing the kernels of a shipped table, and the profile shipped for the H200."""

from __future__ import annotations

import json

import pytest

from aicb.data import FOLDER
from aicb.kernels.point import decode_lengths
from aicb.measurements.table import COLUMNS as TABLE_COLUMNS
from aicb.measurements.table import read_rows
from aicb.profiling.convert import csv_cells, split_kernels
from aicb.profiling.store import COLUMNS, PROVENANCE_FILE, SCHEMA_VERSION, TABLE_FILE, Row, read_table

SHIPPED = FOLDER / "h200" / "profile"


@pytest.fixture(scope="module")
def shipped() -> list[Row]:
    return read_table(SHIPPED / TABLE_FILE)


def row(kernel: str, **other: str | int | float) -> Row:
    return {"op": "rope", "kernel": kernel, "dtype": "bf16", "m": 4, "n": 8, "cold_us": 5.0, "run": "a", **other}


def test_one_kernel_is_kept_per_shape_and_its_repetitions_with_it() -> None:
    rows = [row("vllm/rotary_embedding"), row("triton_own/rope"), row("triton_own/rope", cold_us=6.0)]
    chosen, others = split_kernels(rows)
    assert [r["cold_us"] for r in chosen] == [5.0, 6.0]
    assert [r["kernel"] for r in others] == ["vllm/rotary_embedding"]


def test_the_only_kernel_of_a_shape_is_kept_whatever_its_library() -> None:
    chosen, others = split_kernels([row("vllm/rotary_embedding", m=5), row("triton_own/rope", m=4)])
    assert (len(chosen), others) == (2, [])


def test_the_tightest_capacity_of_a_masked_gemm_is_kept() -> None:
    rows = [row("deep_gemm/masked", op="grouped_gemm_masked", max_m=capacity) for capacity in (512, 128)]
    chosen, _ = split_kernels(rows)
    assert [r["max_m"] for r in chosen] == [128]


def test_rows_convert_to_the_columns_of_the_table() -> None:
    cells = csv_cells(row("triton_own/rope", graph_us=2.0, page_tokens=16))
    assert list(cells) == list(TABLE_COLUMNS)
    (read,) = read_rows([",".join(TABLE_COLUMNS), ",".join(cells.values())], "test")
    assert (read["m"], read.cold_us, read.graph_us) == (4, 5.0, 2.0)


def test_a_profile_has_every_column_of_the_table() -> None:
    assert set(TABLE_COLUMNS) <= set(COLUMNS)


def test_shipped_rows_are_plausible_times(shipped: list[Row]) -> None:
    """No kernel beats the device (H200 data sheet): bf16 989.5, fp8 1979 TFLOP/s; none of 2^28 bytes or more, far
    beyond the L2, moves more than 4.8 TB/s. Graph replays have no event floor, so they are not far above cold times."""
    for r in shipped:
        if "graph_us" not in r or "flops" not in r or r["op"] == "device_copy":  # graphs copy by another engine
            continue
        graph_us = float(r["graph_us"])
        assert float(r["flops"]) / graph_us < (1979e6 if r["dtype"] == "fp8" else 989.5e6), r
        if float(r["bytes"]) >= 2**28 and r["op"].endswith(("gemm", "decode", "decode_attention", "masked")):
            assert float(r["bytes"]) / graph_us < 4.8e6, r
        assert graph_us < 1.5 * float(r["cold_us"]), r


def test_shipped_kernels_were_checked_against_references(shipped: list[Row]) -> None:
    """Every kernel that computes has checked rows, and none is beyond its tolerance."""
    checked: dict[str, int] = {}
    for r in shipped:
        if "error" in r:
            assert float(r["error"]) <= float(r["tolerance"]), r
        checked[str(r["kernel"])] = checked.get(str(r["kernel"]), 0) + ("error" in r)
    computing = {name: count for name, count in checked.items() if "/" in name and name != "torch/null_kernel"}
    assert min(computing.values()) >= 1, computing
    assert len(computing) > 15


def test_shipped_lengths_agree_with_their_summary_columns(shipped: list[Row]) -> None:
    for r in shipped:
        lengths = decode_lengths(str(r.get("lengths", "")))
        if str(r["op"]).startswith("grouped"):
            assert (sum(lengths), max(lengths), len(lengths)) == (r["rows"], r["max_rows"], r["groups"])
        elif r["op"] in ("decode_attention", "mla_decode"):
            assert (len(lengths), sum(lengths) // len(lengths)) == (r["batch"], r["kv_len"])


def test_the_provenance_names_device_libraries_and_method() -> None:
    facts = json.loads((SHIPPED / PROVENANCE_FILE).read_text())
    runs = [facts["runs"]["shared"] | run for run in facts["runs"]["by_run"].values()]
    assert facts["schema_version"] == SCHEMA_VERSION
    assert {run["environment"]["device"] for run in runs} == {"NVIDIA H200"}
    assert any(version.startswith("deep_gemm") for run in runs for version in run["libraries"])
    assert all({"cold_us", "graph_us"} <= set(run["timing"]) for run in runs)
