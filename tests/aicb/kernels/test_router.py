"""Scores of experts: which models have kernels of their own, and their times against the engine's."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from aicb import Partition, Precision, get_gpu, load_model
from aicb.data import FOLDER
from aicb.estimators.selection import EXPERTS_GPU, select_estimator
from aicb.kernels.fitting.surface import Surface
from aicb.kernels.gemm import Gemm
from aicb.kernels.router import FP32_FEW_TOKENS, FewTokensRouter, Fp32Router, RouterTimes
from aicb.measurements.table import KernelTable
from aicb.measurements.timing import MeasuredTimes
from aicb.operators.lists import token_operators
from aicb.operators.moe_kernels import chosen_by
from tests.validation.engine_figures import read_measurement


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


@pytest.mark.parametrize("kernels", ["vllm", "sglang", "generic"])
@pytest.mark.parametrize(("name", "tokens"), [("deepseek-v3", 16), ("deepseek-v3", 17), ("kimi-k2", 1), ("glm-4.5", 1)])
def test_engines_score_few_tokens_of_deepseek_by_a_kernel_of_its_own(name: str, tokens: int, kernels: str) -> None:
    listed = token_operators(load_model(name), Partition(), Precision("fp8"), tokens=tokens)
    (router,) = [op for op in chosen_by(kernels, listed) if op.name == "router"]  # type: ignore[arg-type]
    is_few = kernels != "generic" and name != "glm-4.5" and tokens <= 16
    assert isinstance(router.kernel, FewTokensRouter) == is_few
    assert isinstance(router.kernel, FewTokensRouter | Fp32Router | Gemm)
    assert router.kernel.m == tokens
    assert router.weight_elements == router.kernel.n * router.kernel.k


STEPS = {"decode": (1, 8, 64), "prompt": (16, 300, 1024, 4096)}
LAYERS = 12
SCORES = ("fp32_router_gemm", "f32f32_f32f32", "simt_sgemm", "splitKreduce_kernel<32, 16, int, float, float")
"""In the names of the kernels of such products: vLLM's own, cuBLAS's, and sums of its parts."""
CAST, OTHER_CASTS_US = "unrolled_elementwise_kernel<at::native::direct_copy", 0.9
"""Of a layer's casts those that are there in steps whose activations vLLM's own kernel takes as they are, too."""


@cache
def in_the_engine_us() -> dict[int, float]:
    """By tokens: scores of a layer of MiniMax-M2, casts included, mean over layers of steps of vLLM 0.24.0 on an H100
    (torch's profiler)."""
    recorded = read_measurement("vllm-h100-tp2-ep2-minimax-m2-l12")["kernels"]
    found = {}
    for kind, numbers in STEPS.items():
        for tokens in numbers:
            kernels = recorded[f"{kind}-{tokens}"].items()
            of_layers = {name: time_us for name, (count, time_us) in kernels if 2 * count > LAYERS}
            found[tokens] = sum(time_us for name, time_us in of_layers.items() if any(part in name for part in SCORES))
            if tokens > FP32_FEW_TOKENS:
                found[tokens] += sum(time_us for name, time_us in of_layers.items() if CAST in name)
                found[tokens] -= OTHER_CASTS_US * LAYERS
    return {tokens: time_us / LAYERS for tokens, time_us in found.items()}


ALONE_MHZ = 1990.0
"""Clock at which the table was measured, as short steps in an engine run."""


@pytest.mark.parametrize("tokens", sorted(sum(STEPS.values(), ())))
def test_minimax_scores_as_long_as_in_the_engine(tokens: int) -> None:
    """Measured alone, on another day: within 10 %. 4,096 tokens take ten times what they would in bf16."""
    gpu = get_gpu(EXPERTS_GPU)
    assert gpu.clock is not None
    estimator = select_estimator("auto", gpu, Precision())
    found = estimator.price(Fp32Router(tokens, 256, 3072))
    assert not found.is_estimate
    then_us = found.time_us * gpu.clock.reference_mhz / ALONE_MHZ
    assert then_us == pytest.approx(in_the_engine_us()[tokens], rel=0.1)
    if tokens == 4096:
        assert found.time_us > 10 * estimator.price(Gemm(tokens, 256, 3072, "bf16", output_bytes=4)).time_us


@pytest.mark.parametrize(
    ("operation", "points", "median", "tenth"),
    [("router_few", 32, 0.02, 0.04), ("router_fp32", 54, 0.04, 0.18), ("router_fp32_few", 6, 0.05, 0.23)],
)
def test_points_left_out_are_met(operation: str, points: int, median: float, tenth: float) -> None:
    """Each from all others: medians of 1.6, 3.9 and 4.7 %, p90 3, 17 and 22 %; the ends of the axis are carried."""
    table = KernelTable.read(FOLDER / EXPERTS_GPU / "experts", EXPERTS_GPU)
    measured = MeasuredTimes.of(table, "engine", get_gpu(EXPERTS_GPU))
    surface = RouterTimes(measured, operation).surface
    assert len(surface.shapes) == points
    errors = []
    for place, shape in enumerate(surface.shapes):
        kept = np.arange(points) != place
        others = Surface(surface.reference, surface.shapes[kept], surface.times_us[kept])
        errors.append(abs(others.price(*shape).time_us / surface.times_us[place] - 1.0))
    assert np.median(errors) <= median
    assert np.percentile(errors, 90) <= tenth


def test_time_grows_with_tokens_and_is_an_estimate_elsewhere() -> None:
    h100, h200 = (select_estimator("auto", get_gpu(name), Precision()) for name in (EXPERTS_GPU, "h200"))
    times = [h100.price(Fp32Router(tokens, 256, 3072)).time_us for tokens in (1, 30, 500, 2000, 8000)]
    assert times == sorted(times)
    assert h200.price(Fp32Router(500, 256, 3072)).is_estimate
    assert h200.price(FewTokensRouter(4, 256, 7168)).is_estimate
    other = h100.price(Fp32Router(4096, 128, 4096))  # GLM-4.5-Air: half the products, a third more to cast
    assert 90 < other.time_us < h100.price(Fp32Router(4096, 256, 3072)).time_us
