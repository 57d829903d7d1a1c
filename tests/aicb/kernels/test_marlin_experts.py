"""Products of mxfp4 experts in vLLM's Marlin kernel, measured on an H200."""

from __future__ import annotations

import json

import numpy as np
import pytest

from aicb.estimators.roofline import roofline_us
from aicb.estimators.selection import select_estimator
from aicb.kernels.expert_points import MARLIN_OPERATION, UNIFORM
from aicb.kernels.grouped_gemm import GroupedGemm
from aicb.kernels.reference.product_times import MARLIN_TILES, tile_of_marlin
from aicb.measurements.gpu import get_gpu
from aicb.measurements.table import KernelRow, KernelTable
from aicb.measurements.timing import MeasuredTimes
from aicb.model.catalog import load_model
from aicb.model.partition import Partition
from aicb.model.precision import Precision
from aicb.operators.experts_kernel import check_experts_kernel
from aicb.operators.lists import expert_operators
from boundary.errors import InputError
from tests.aicb.kernels.some_rows import errors_of

MXFP4, H200 = Precision("mxfp4"), get_gpu("h200")


@pytest.fixture(scope="module")
def measured() -> MeasuredTimes:
    assert H200.table is not None
    return MeasuredTimes.of(KernelTable.read(H200.table, H200.name), "engine", H200)


def rows_of(measured: MeasuredTimes) -> list[KernelRow]:
    rows = measured.table.select(MARLIN_OPERATION, "mxfp4", UNIFORM)
    return sorted(rows, key=lambda row: (row["groups"], row["n"], row["k"], row["batch"]))


def kernel_of(row: KernelRow) -> GroupedGemm:
    shape = float(row["rows"]), row["groups"], float(row["active_groups"]), row["n"], row["k"]
    return GroupedGemm(*shape, "mxfp4", "gathered", gathering="marlin")


def test_an_h200_has_the_measured_times_and_an_h100_transferred_ones(measured: MeasuredTimes) -> None:
    """No faster than the roofline; sliced up projections and whole down projections share 25 shapes, 3 % apart."""
    own, other = (select_estimator("auto", get_gpu(name), MXFP4) for name in ("h200", "h100"))
    rows = rows_of(measured)
    assert len(rows) == 400
    for row in rows:
        kernel = kernel_of(row)
        here, there = own.price(kernel), other.price(kernel)
        assert here.source.startswith("measured marlin")
        assert here.time_us == pytest.approx(measured.time_us(row, 0.0), rel=0.03)
        assert there.is_estimate
        assert there.source.startswith("estimate: transferred from h200")
        bound_us = roofline_us(kernel.cost(MXFP4), H200, is_resident=kernel.stays_in_cache)
        assert bound_us <= here.time_us <= 1.03 * there.time_us


def test_every_second_token_count_follows_from_the_others(measured: MeasuredTimes) -> None:
    rows = rows_of(measured)
    errors = errors_of(measured, kernel_of, rows[::2], rows[1::2])
    assert np.median(errors) < 0.025
    assert np.quantile(errors, 0.9) < 0.1


def test_a_width_follows_from_the_others(measured: MeasuredTimes) -> None:
    rows, errors = rows_of(measured), list[float]()
    for held_out in sorted({(row["groups"], row["n"], row["k"]) for row in rows}):
        known = [row for row in rows if (row["groups"], row["n"], row["k"]) != held_out]
        errors += errors_of(measured, kernel_of, known, [row for row in rows if row not in known])
    assert len(errors) == 400
    assert np.median(errors) < 0.03
    assert np.quantile(errors, 0.9) < 0.14


def test_tiles_are_those_that_vllm_chooses(measured: MeasuredTimes) -> None:
    """The first that the mean rows of all experts do not fill to nine tenths; the measurements say which ran."""
    found = {row["rows"] / row["groups"]: json.loads(row.settings)["row_tile"] for row in rows_of(measured)}
    assert set(found.values()) == set(MARLIN_TILES)
    for mean, tile in found.items():
        assert tile == next((each for each in MARLIN_TILES if mean / each < 0.9), MARLIN_TILES[-1])
        assert tile == MARLIN_TILES[tile_of_marlin(np.array([mean]))[0]]


def test_many_rows_take_twice_as_long_as_in_triton_and_few_half() -> None:
    """gpt-oss-120b: 8,192 tokens, of which Marlin multiplies 231 TFLOPS at most; one token, 4 experts, TP 8."""
    price = select_estimator("auto", H200, MXFP4).price

    def ratio(rows: float, active: float, columns: int) -> float:
        marlin = GroupedGemm(rows, 128, active, columns, 2880, "mxfp4", "gathered", gathering="marlin")
        triton = GroupedGemm(rows, 128, active, columns, 2880, "mxfp4", "gathered", has_activation=True)
        return price(marlin).time_us / price(triton).time_us

    assert 1.7 < ratio(32768.0, 128.0, 5760) < 2.2
    assert 0.4 < ratio(4.0, 4.0, 720) < 0.6


def test_activation_and_sum_are_kernels_of_their_own() -> None:
    model = load_model("gpt-oss-120b")

    def names(kernel: str) -> list[str]:
        listed = expert_operators(
            model,
            Partition(),
            MXFP4,
            tokens=64,
            group_tokens=64,
            is_decode=True,
            experts_kernel=kernel,  # type: ignore[arg-type]
            moe_kernels="vllm",
        )
        return [operator.name for operator in listed if operator.name.startswith("moe_")]

    assert names("triton") == ["moe_align", "moe_gate_up", "moe_down"]
    assert names("marlin") == ["moe_align", "moe_gate_up", "moe_silu_mul", "moe_down", "moe_unpermute"]


@pytest.mark.parametrize(
    ("weights", "partition", "message"),
    [("fp8", Partition(), "found marlin with weights fp8"), ("mxfp4", Partition(tp=2, ep=2), "found marlin with ep 2")],
)
def test_other_formats_and_shared_experts_are_refused(weights: str, partition: Partition, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_experts_kernel("marlin", partition, Precision(weights))  # type: ignore[arg-type]
