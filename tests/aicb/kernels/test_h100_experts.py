"""Products of experts on an H100: measured there at the sites that were, transferred at others."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from aicb.data import FOLDER
from aicb.estimators.estimator import CoreEstimator, CostTable
from aicb.estimators.selection import EXPERTS_GPU, select_estimator
from aicb.kernels.expert_points import SHARED, UNIFORM
from aicb.kernels.expert_times import engine_sites
from aicb.kernels.grouped_gemm import GroupedGemm
from aicb.measurements.gpu import get_gpu
from aicb.measurements.table import KernelRow, KernelTable
from aicb.measurements.timing import MeasuredTimes
from aicb.model.precision import Precision, WeightDtype

TABLE = KernelTable.read(FOLDER / EXPERTS_GPU / "experts", EXPERTS_GPU)
FORMATS: tuple[WeightDtype, ...] = ("bf16", "fp8")
SHARED_BY = [f"{UNIFORM}{SHARED}{experts}" for experts in (8, 128, 512)]


@cache
def estimator(gpu: str, weights: WeightDtype) -> CoreEstimator:
    found = select_estimator("auto", get_gpu(gpu), Precision(weights))
    assert isinstance(found, CoreEstimator)
    return found


def rows_of(weights: WeightDtype) -> list[KernelRow]:
    return [row for name in (UNIFORM, *SHARED_BY) for row in TABLE.select("grouped_gemm_gathered", weights, name)]


def kernel_of(row: KernelRow, weights: WeightDtype) -> GroupedGemm:
    shape = float(row["rows"]), row["groups"], float(row["active_groups"]), row["n"], row["k"]
    layout = "contiguous" if weights == "bf16" else "gathered"
    return GroupedGemm(*shape, weights, layout, tokens=row["batch"], is_shared=row.distribution in SHARED_BY)


@pytest.mark.parametrize(("weights", "count"), [("bf16", 880), ("fp8", 450)])
def test_measured_sites_have_the_measured_times(weights: WeightDtype, count: int) -> None:
    rows = rows_of(weights)
    assert len(rows) == count
    measured = MeasuredTimes.of(TABLE, "engine", get_gpu(EXPERTS_GPU))
    for row in rows:
        kernel = kernel_of(row, weights)
        found = estimator(EXPERTS_GPU, weights).price(kernel)
        assert not found.is_estimate
        assert found.time_us == pytest.approx(measured.time_us(row, kernel.cost(Precision()).cold_bytes), rel=1e-6)


@pytest.mark.parametrize("weights", FORMATS)
def test_other_sites_layouts_and_gpus_are_transferred(weights: WeightDtype) -> None:
    kernel = kernel_of(rows_of(weights)[0], weights)
    others = [replace(kernel, groups=kernel.groups // 2, active_groups=1.0, rows=8.0)]
    if weights == "fp8":
        others.append(replace(kernel, layout="contiguous"))
    for other in others:
        assert other.engine_site not in engine_sites(TABLE)
        assert "transferred from h200" in estimator(EXPERTS_GPU, weights).price(other).source
    assert "transferred from h200" in estimator("h800", weights).price(kernel).source
    assert "transferred" not in estimator("h200", weights).price(kernel).source


@pytest.mark.parametrize("weights", FORMATS)
def test_many_kernels_are_priced_as_one_by_one(weights: WeightDtype) -> None:
    kernels = [kernel_of(row, weights) for row in rows_of(weights)[::40]]
    kernels += [replace(kernel, groups=2 * kernel.groups) for kernel in kernels]
    found = estimator(EXPERTS_GPU, weights).times(CostTable.of(kernels, Precision(weights)))
    alone = [estimator(EXPERTS_GPU, weights).price(kernel) for kernel in kernels]
    assert found.time_us == pytest.approx([each.time_us for each in alone], rel=1e-12)
    assert found.is_estimate.tolist() == [each.is_estimate for each in alone]


def test_tiles_that_an_engine_tuned_for_one_gpu_alone_are_not_those_of_another() -> None:
    """Mixtral-8x7B of 512 tokens: vLLM has tuned tiles for an H200 and takes a rule of thumb on an H100, where
    the product takes twice as long as by transfer."""
    up = GroupedGemm(1024.0, 8, 8.0, 28672, 4096, "bf16", "contiguous")
    on_an_h800 = estimator("h800", "bf16").price(up).time_us
    assert estimator(EXPERTS_GPU, "bf16").price(up).time_us == pytest.approx(2.2 * on_an_h800, rel=0.05)
