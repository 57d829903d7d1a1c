"""Times of vLLM's fused MoE kernel of fp8 experts, against the running engine, and where it cannot be asked for."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest

from aicb import IterationModel, Partition, Precision, get_gpu, load_model
from aicb.data import FOLDER
from aicb.estimators.selection import select_estimator
from aicb.kernels.grouped_gemm import UNIFORM, UNTUNED_SITES, GroupedGemm
from aicb.kernels.kernel import Kernel
from boundary.errors import InputError

FP8 = Precision("fp8")
H200 = get_gpu("h200")


def products(tokens: int, active: float) -> list[Kernel]:
    rows = tokens * 8
    return [
        GroupedGemm(rows, 256, active, 4096, 7168, "fp8", "gathered"),
        GroupedGemm(rows, 256, active, 7168, 2048, "fp8", "gathered"),
    ]


@pytest.mark.parametrize(("tokens", "active", "engine_us"), [(1024, 256.0, (1978.3, 1073.2)), (1, 8.0, (64.0, 33.1))])
def test_experts_of_deepseek_take_what_they_take_in_the_engine(
    tokens: int, active: float, engine_us: tuple[float, float]
) -> None:
    """``fused_moe_kernel`` in vLLM 0.24.0's own trace of layer 3 (H200, eager); not a row of the table."""
    estimator = select_estimator("auto", H200, FP8)
    for kernel, measured_us in zip(products(tokens, active), engine_us, strict=True):
        found = estimator.price(kernel)
        assert not found.is_estimate
        assert found.time_us == pytest.approx(measured_us, rel=0.06)


def test_the_kernel_is_not_taken_for_deep_gemms() -> None:
    """At 4,096 tokens it takes 1.6 times as long as the contiguous layout."""
    estimator = select_estimator("auto", H200, FP8)
    gathered = estimator.price(products(4096, 256.0)[0]).time_us
    contiguous = estimator.price(GroupedGemm(4096 * 8, 256, 256.0, 4096, 7168, "fp8", "contiguous")).time_us
    assert gathered > 1.3 * contiguous


def test_experts_that_ranks_share_have_no_times_of_this_kernel() -> None:
    model = load_model("deepseek-v3")
    with pytest.raises(InputError, match="experts_kernel: found triton with ep 8, expected deep_gemm or flash"):
        IterationModel(model, Partition(tp=8, ep=8), FP8, H200, experts_kernel="triton")
    with pytest.raises(
        InputError, match="experts_kernel: found 'cutlass', expected one of deep_gemm, flashinfer, triton"
    ):
        IterationModel(model, Partition(), FP8, H200, experts_kernel="cutlass")  # type: ignore[arg-type]
    IterationModel(load_model("qwen3-30b-a3b"), Partition(tp=2, ep=2), Precision(), H200, experts_kernel="triton")


@pytest.mark.parametrize(("n", "k"), [(4096, 7168), (7168, 2048)])
def test_wide_tiles_begin_with_the_first_token_after_64(n: int, k: int) -> None:
    """Experts are read at the rate of 96 tokens from 65 on, at that of 64 up to there: DeepSeek-V3's 6 and 10 % slower.
    Tuned tiles (TP 8) do not change there."""
    estimator = select_estimator("auto", H200, FP8)

    def rate(tokens: int, width: int = n) -> float:
        active = 256 * (1.0 - (1.0 - 8 / 256) ** tokens)
        kernel = GroupedGemm(float(tokens * 8), 256, active, width, k, "fp8", "gathered")
        return active / estimator.price(kernel).time_us

    assert rate(65) == pytest.approx(rate(96), rel=0.015)
    assert rate(65) / rate(64) < 0.97
    assert rate(60) == pytest.approx(rate(64), rel=0.015)
    if k == 7168:
        assert rate(65, 512) == pytest.approx(rate(64, 512), rel=0.01)


def test_sites_without_tuned_tiles_are_those_that_were_measured_without() -> None:
    table = pq.read_table(FOLDER / "h200" / "vllm_experts_fp8.parquet").to_pylist()
    uniform = [row for row in table if row["distribution"] == UNIFORM and row["settings"]]
    is_tuned = {(row["groups"], row["n"], row["k"]): json.loads(row["settings"])["is_tuned"] for row in uniform}
    assert {site for site, tuned in is_tuned.items() if not tuned} == set(UNTUNED_SITES)
    assert 0 < len(UNTUNED_SITES) < len(is_tuned)
