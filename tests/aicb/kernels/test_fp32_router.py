"""Scores of experts in fp32: which models have them, and their times against the engine's."""

from __future__ import annotations

import pytest

from aicb import Partition, Precision, get_gpu, load_model
from aicb.data import FOLDER
from aicb.estimators.selection import EXPERTS_GPU, select_estimator
from aicb.kernels.fitting.surface import Surface
from aicb.kernels.fp32_router import Fp32Router, RouterTimes
from aicb.kernels.gemm import Gemm
from aicb.measurements.table import KernelTable
from aicb.measurements.timing import MeasuredTimes
from aicb.operators.lists import token_operators


@pytest.mark.parametrize("name", ["glm-4.5", "glm-4.5-air", "glm-4.6", "minimax-m2"])
def test_models_with_a_router_in_fp32_score_so(name: str) -> None:
    model = load_model(name)
    (router,) = [op for op in token_operators(model, Partition(), Precision(), tokens=7) if op.name == "router"]
    assert isinstance(router.kernel, Fp32Router)
    assert (router.kernel.m, router.kernel.k) == (7, model.hidden)
    assert router.weight_elements == router.kernel.n * model.hidden


@pytest.mark.parametrize("name", ["deepseek-v3", "qwen3-30b-a3b", "gpt-oss-20b"])
def test_others_score_in_bf16(name: str) -> None:
    listed = token_operators(load_model(name), Partition(), Precision("bf16"), tokens=7)
    assert {type(op.kernel) for op in listed if op.name == "router"} == {Gemm}


@pytest.mark.parametrize("weights", ["bf16", "fp8"])
def test_minimax_scores_as_long_as_in_the_engine(weights: str) -> None:
    """A row of the table is itself: 132.6 us of cuBLAS, 6.6 to sum its parts and 41.3 of casts for 4,096 tokens, ten
    times what bf16 takes."""
    estimator = select_estimator("auto", get_gpu(EXPERTS_GPU), Precision(weights))  # type: ignore[arg-type]
    found = estimator.price(Fp32Router(4096, 256, 3072))
    assert not found.is_estimate
    assert found.time_us == pytest.approx(180.5, rel=0.001)
    assert found.time_us > 10 * estimator.price(Gemm(4096, 256, 3072, "bf16", output_bytes=4)).time_us


def test_a_step_left_out_is_met() -> None:
    """8, 300 and 1,024 tokens from the others."""
    table = KernelTable.read(FOLDER / EXPERTS_GPU / "experts", EXPERTS_GPU)
    surface = RouterTimes(MeasuredTimes.of(table, "engine", get_gpu(EXPERTS_GPU))).surface
    for place, (_, _, tokens) in enumerate(surface.shapes):
        if tokens in (8, 300, 1024):
            kept = surface.shapes[:, 2] != tokens
            others = Surface(surface.reference, surface.shapes[kept], surface.times_us[kept])
            assert others.price(*surface.shapes[place]).time_us == pytest.approx(surface.times_us[place], rel=0.2)


def test_time_grows_with_tokens_and_is_an_estimate_elsewhere() -> None:
    h100, h200 = (select_estimator("auto", get_gpu(name), Precision()) for name in (EXPERTS_GPU, "h200"))
    times = [h100.price(Fp32Router(tokens, 256, 3072)).time_us for tokens in (1, 30, 500, 2000, 8000)]
    assert times == sorted(times)
    assert h200.price(Fp32Router(500, 256, 3072)).is_estimate
    other = h100.price(Fp32Router(4096, 128, 4096))  # GLM-4.5-Air: half the products, a third more to cast
    assert 90 < other.time_us < 180
