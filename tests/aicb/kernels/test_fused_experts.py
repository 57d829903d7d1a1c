"""All experts of a rank in one call of FlashInfer: points, shipped rows, times, and where vLLM runs it."""

from __future__ import annotations

import numpy as np
import pytest

from aicb import IterationModel, Partition, Precision, get_gpu, load_model
from aicb.data import FOLDER
from aicb.estimators.selection import EXPERTS_GPU, select_estimator
from aicb.kernels.expert_points import experts_of_all_ranks
from aicb.kernels.fitting.surface import Surface
from aicb.kernels.fused_experts import FusedExperts, FusedTimes
from aicb.kernels.grouped_gemm import GroupedGemm
from aicb.kernels.point import SweptModel
from aicb.measurements.table import KernelTable
from aicb.measurements.timing import MeasuredTimes
from aicb.operators.batch import Batch
from aicb.operators.dispatch import ExpertDispatch
from aicb.operators.lists import iteration_operators
from aicb.operators.operator import Communication, Operator
from boundary.errors import InputError
from tests.validation.engine_figures import read_measurement

FP8, H100, H200 = Precision("fp8"), get_gpu(EXPERTS_GPU), get_gpu("h200")
MINIMAX = "vllm-h100-tp2-ep2-minimax-m2-l12"
DEEPSEEK = "vllm-h200-dp2-ep2-deepseek-v3-l8"
PARTS = (
    "GroupedWithOffset",
    "scale_1x128_kernel<false",
    "finalizeMoe",
    "expandInputRows",
    "doActivation",
    "ExpertMaps",
    "ExpertPrefixSum",
)
"""In the names of the kernels of one call; other quantisations of this name have another first argument."""


def table_times() -> FusedTimes:
    table = KernelTable.read(FOLDER / EXPERTS_GPU / "experts", EXPERTS_GPU)
    return FusedTimes(MeasuredTimes.of(table, "engine", H100))


def listed(*, dp: int, kernel: str, dispatch: ExpertDispatch | None = None) -> list[Operator]:
    """Operators of Qwen3-30B-A3B in fp8 on two ranks, a decode of four requests on each."""
    partition = Partition(tp=2 // dp, dp=dp, ep=2)
    gathers = dispatch or ExpertDispatch("all_gather", "all_gather")
    return iteration_operators(
        load_model("qwen3-30b-a3b"),
        partition,
        FP8,
        Batch.decode([100] * 4),
        group_tokens=4 * dp,
        experts_kernel=kernel,  # type: ignore[arg-type]
        moe_kernels="vllm",
        dispatch=gathers,
    )


def test_points_are_of_the_busiest_rank() -> None:
    """4 tokens of 8 of 256 experts, on four ranks: at least 8 of 32 pairs."""
    swept = SweptModel(
        model=load_model("minimax-m2"),
        weights=("fp8",),
        kv=("bf16",),
        tp=(1,),
        dividing_tp=(1,),
        ep=(1, 4),
        max_tokens=16384,
        most_counted_tokens=16384,
        max_kv_tokens=1024,
    )
    points = list(FusedExperts.swept_points(swept))
    assert len(points) == 14
    (four,) = [point for point in points if point["batch"] == 4]
    assert (four["m"], four["n"], four["k"], four["groups"]) == (32, 1536, 3072, 64)
    assert 8 <= four["rows"] == sum(four.lengths) < 32
    assert experts_of_all_ranks(four) == 256


@pytest.mark.parametrize(("step", "tokens", "within"), [("decode-64", 64, 0.02), ("prompt-4096", 4096, 0.03)])
def test_minimax_takes_what_it_takes_in_the_engine(step: str, tokens: int, within: float) -> None:
    """565 and 1,400 us a layer; shorter prompts of random weights reach fewer experts than tokens drawn at random."""
    kernels = read_measurement(MINIMAX)["kernels"][step]
    engine_us = sum(time for name, (_, time) in kernels.items() if any(part in name for part in PARTS)) / 12
    load = 128 * (1 - (1 - 8 / 256) ** tokens)
    priced = select_estimator("auto", H100, FP8).price(FusedExperts(tokens, 4.0 * tokens, 128, load, 1536, 3072))
    assert not priced.is_estimate
    assert priced.time_us == pytest.approx(engine_us, rel=within)


@pytest.mark.parametrize(
    ("step", "tokens", "within"), [("decode-1", 2, 0.05), ("decode-8", 16, 0.07), ("decode-64", 128, 0.01)]
)
def test_an_h200_takes_what_it_takes_in_the_engine(step: str, tokens: int, within: float) -> None:
    """136, 588 and 1,667 us a layer of DeepSeek-V3 on two ranks: reading weights, then products of padded tiles."""
    few, more = (read_measurement(DEEPSEEK)["kernels"][f"{step}-{outputs}"] for outputs in (9, 33))
    parts = [name for name in more if any(part in name for part in PARTS)]
    taken = {name: np.subtract(more[name], few.get(name, (0, 0))) for name in parts}
    calls = sum(count for name, (count, _) in taken.items() if "finalizeMoe" in name)
    engine_us = sum(time for _, time in taken.values()) / calls
    load = 128 * (1 - (1 - 8 / 256) ** tokens)
    priced = select_estimator("auto", H200, FP8).price(FusedExperts(tokens, 4.0 * tokens, 128, load, 2048, 7168))
    assert priced.is_estimate
    assert priced.time_us == pytest.approx(engine_us, rel=within)


def test_few_rows_take_as_long_on_both_gpus_where_tiles_pad_them() -> None:
    """Below 32 tokens weights bind, 0.70 of the time; from 65 on each expert's rows are 128."""
    few, many = (FusedExperts(tokens, 4.0 * tokens, 128, 120, 2048, 7168) for tokens in (31, 128))
    assert few.time_ratio(H100, H200) == pytest.approx(H100.hbm_bytes_per_s / H200.hbm_bytes_per_s, abs=0.02)
    assert many.time_ratio(H100, H200) > 0.85
    assert many.time_ratio(H100, H100) == 1.0


def test_left_out_points_are_met() -> None:
    """1.2 % median; of all points of a width of experts and a hidden size up to 11.5 % (Qwen3-Next's)."""
    surface = table_times().surface
    shapes, times = surface.shapes, surface.times_us
    errors = []
    for left_out in range(0, len(shapes), 7):
        kept = np.arange(len(shapes)) != left_out
        found = Surface(surface.reference, shapes[kept], times[kept]).price(*shapes[left_out])
        errors.append(found.time_us / times[left_out] - 1.0)
    assert np.median(np.abs(errors)) < 0.02
    for site in ((1536.0, 3072.0), (2048.0, 7168.0), (512.0, 2048.0)):
        is_here = (shapes[:, 1:3] == site).all(axis=1)
        other = Surface(surface.reference, shapes[~is_here], times[~is_here])
        found = [other.price(*shape).time_us for shape in shapes[is_here]]
        assert np.median(np.abs(found / times[is_here] - 1.0)) < 0.12


def test_products_of_deep_gemm_take_less_than_six_tenths_of_it() -> None:
    """4,096 tokens of MiniMax-M2 on two ranks, without what copies, quantises, activates and sums around products."""
    estimator = select_estimator("auto", H100, FP8)
    fused = estimator.price(FusedExperts(4096, 16384, 128, 128, 1536, 3072)).time_us
    products = [
        GroupedGemm(16384, 128, 128, 3072, 3072, "fp8", "contiguous"),
        GroupedGemm(16384, 128, 128, 3072, 1536, "fp8", "contiguous"),
    ]
    assert sum(estimator.price(kernel).time_us for kernel in products) < 0.6 * fused


def test_other_gpus_get_transferred_times() -> None:
    kernel = FusedExperts(64, 256, 128, 109, 1536, 3072)
    own, other = (select_estimator("auto", gpu, FP8).price(kernel) for gpu in (H100, H200))
    assert other.is_estimate
    assert "transferred from h100 by its kernel's own ratio" in other.source
    assert 0.65 * own.time_us < other.time_us < own.time_us


def test_experts_are_one_operator_and_tokens_travel_in_bf16() -> None:
    replicated, gathered = listed(dp=1, kernel="flashinfer"), listed(dp=2, kernel="flashinfer")
    for operators, tokens in ((replicated, 4), (gathered, 8)):
        names = [op.name for op in operators if op.name.startswith("moe_") and not isinstance(op.kernel, Communication)]
        assert names == ["moe_experts", "moe_output"]
        (call,) = [op.kernel for op in operators if op.name == "moe_experts"]
        assert call == FusedExperts(tokens, tokens * 4, 64, 64 * (1 - (1 - 8 / 128) ** tokens), 768, 2048)
    in_fp8 = listed(dp=2, kernel="deep_gemm")
    sizes = [
        op.kernel.size_bytes
        for op in (*in_fp8, *gathered)
        if op.name == "moe_dispatch" and isinstance(op.kernel, Communication)
    ]
    assert sizes == [8 * 2048, 8 * 2 * 2048]


def test_tokens_that_deepep_brings_are_multiplied_by_deep_gemm() -> None:
    operators = listed(dp=2, kernel="flashinfer", dispatch=ExpertDispatch())
    assert any(isinstance(op.kernel, GroupedGemm) for op in operators)
    assert not any(isinstance(op.kernel, FusedExperts) for op in operators)


def test_the_kernel_is_for_experts_that_ranks_share() -> None:
    model = load_model("qwen3-30b-a3b")
    with pytest.raises(InputError, match="experts_kernel: found flashinfer with ep 1, expected deep_gemm or triton"):
        IterationModel(model, Partition(tp=2), FP8, H200, experts_kernel="flashinfer")
    IterationModel(model, Partition(tp=2), Precision(), H200, experts_kernel="flashinfer")


def test_bytes_are_counted_tensor_by_tensor() -> None:
    """Two tokens of 256 columns, three pairs of two experts of 128: 1,024 B of tokens and 1,024 of sums; of a pair 512
    copied, 256 + 8 quantised, 512 multiplied, 256 activated, 128 + 4 quantised, 512 multiplied."""
    kernel = FusedExperts(2, 3, 4, 2, 128, 256)
    of_pair = 512 + 264 + 512 + 256 + 132 + 512
    assert kernel.tensor_bytes(FP8) == 2048 + 3 * of_pair
    cost = kernel.cost(FP8)
    assert cost.moved_bytes - cost.cold_bytes == 2048 + 2 * 3 * of_pair
    assert cost.flops == 2 * 3 * 3 * 128 * 256


def test_weights_are_those_of_the_products() -> None:
    def held(kernel: str) -> int:
        experts = [op for op in listed(dp=1, kernel=kernel) if op.name.startswith("moe_")]
        return sum(op.weight_elements * op.count for op in experts)

    assert held("flashinfer") == held("deep_gemm") == 48 * 64 * 3 * 768 * 2048
