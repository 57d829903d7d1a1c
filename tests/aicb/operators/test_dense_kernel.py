"""Dense fp8 products of few rows in the kernel with swapped operands: operators and times against vLLM's trace."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest

from aicb import IterationModel, Partition, Precision, get_gpu, load_model
from aicb.estimators.interpolation import InterpolationEstimator
from aicb.kernels.gemm import Gemm, SwappedGemm, SwappedTimes
from aicb.operators.batch import Batch
from aicb.operators.build import elementwise, gemm, quant
from aicb.operators.dense_kernel import multiplied_by
from aicb.operators.lists import attention_operators, token_operators
from aicb.operators.operator import Operator
from aicb.operators.quantisation import quantised_by
from boundary.errors import InputError
from tests.validation.deepseek_vs_engine import cut_model

FP8, ONE = Precision("fp8"), Partition()
TRACE = Path(__file__).resolve().parents[2] / "data" / "engine" / "vllm-host-default.json.gz"


def as_vllm_runs(tokens: int) -> list[Operator]:
    """Decodes of DeepSeek-V3 of 8 layers, without experts and head."""
    model, batch = cut_model(), Batch.decode([512] * tokens)
    listed = token_operators(model, ONE, FP8, tokens=tokens) + attention_operators(model, ONE, FP8, batch)
    return multiplied_by("flashinfer", quantised_by("vllm", listed))


def engine_times() -> InterpolationEstimator:
    return InterpolationEstimator(get_gpu("h200"), FP8)


def swapped(operators: list[Operator]) -> dict[tuple[int, int], int]:
    """Executions by (n, k)."""
    kernels = [(each.kernel, each.count) for each in operators]
    return {(kernel.n, kernel.k): count for kernel, count in kernels if isinstance(kernel, SwappedGemm)}


def test_the_products_of_a_decode_are_those_of_the_trace_and_take_as_long() -> None:
    """One request in vLLM: 40 swapped products of seven shapes with a quantisation each, 978 µs together."""
    with gzip.open(TRACE, "rt") as file:
        profiles = json.load(file)["models"]["deepseek-v3-l8"]["profiles"]
    kernels = next(each for each in profiles if each["label"] == "decode-B1")["by_kernel"]
    shape = re.compile(r"fp8_gemm_kernel_swapAB<(\d+)u, (\d+)u,")
    launched = {(int(found[1]), int(found[2])): count for name, count, _ in kernels if (found := shape.search(name))}
    operators = as_vllm_runs(1)
    assert swapped(operators) == launched
    assert sum(launched.values()) == sum(count for name, count, _ in kernels if "scale_1x128" in name) == 40
    traced_us = sum(us for name, _, us in kernels if "swapAB" in name or "scale_1x128" in name)
    estimator = engine_times()
    priced_us = sum(each.count * estimator.price(each.kernel).time_us for each in operators if is_swapped(each))
    assert priced_us == pytest.approx(traced_us, rel=0.06)


def is_swapped(operator: Operator) -> bool:
    return isinstance(operator.kernel, SwappedGemm)


def test_from_32_rows_on_products_are_those_of_deep_gemm_behind_a_quantisation() -> None:
    few, many = as_vllm_runs(31), as_vllm_runs(32)
    assert {each.name for each in many} - {each.name for each in few} == {
        *("attention_quant", "q_b_quant", "o_quant", "ffn_quant", "ffn_down_quant", "shared_quant", "shared_down_quant")
    }
    assert not any(map(is_swapped, many))
    assert {each.name for each in few if is_swapped(each)} == {
        each.name for each in many if isinstance(each.kernel, Gemm) and each.kernel.dtype == "fp8"
    }
    weights = [sum(each.count * each.weight_elements for each in listed) for listed in (few, many)]
    assert weights[0] == weights[1]


def test_widths_that_the_kernel_does_not_take_stay_with_deep_gemm() -> None:
    for n, k in ((4096 + 32, 4096), (4096, 4096 + 64)):
        listed = [quant("x_quant", 4, k, count=1), gemm("x", (4, n, k), "fp8")]
        assert multiplied_by("flashinfer", listed) == listed
    bf16 = [elementwise("norm", "rms_norm", (4, 4096), 4.0), gemm("x", (4, 4096, 4096), "bf16")]
    assert multiplied_by("flashinfer", bf16) == bf16
    alone = [quant("x_quant", 4, 4096, count=1)]  # for a product of another list
    assert multiplied_by("flashinfer", alone) == alone


def test_a_width_left_out_is_predicted() -> None:
    """Each (n, k) of the H200 table from all others: its error is stated about right."""
    times = engine_times().fitted(SwappedGemm)
    assert isinstance(times, SwappedTimes)
    sites = [tuple(shape[:2]) for shape in times.surface.shapes]
    found = times.surface.hold_out(sites)
    errors = np.abs(found.relative)
    assert np.median(errors) < 0.03
    assert np.quantile(errors, 0.9) < 0.12
    assert 0.6 < np.mean(errors <= found.claimed) < 0.76


def test_engines_say_which_kernel_they_run() -> None:
    with pytest.raises(InputError, match="dense_kernel: found 'cutlass', expected one of deep_gemm, flashinfer"):
        IterationModel(load_model("qwen3-8b"), ONE, FP8, get_gpu("h200"), dense_kernel="cutlass")  # type: ignore[arg-type]
    took = {
        kernel: IterationModel(cut_model(), ONE, FP8, get_gpu("h200"), quant_kernel="vllm", dense_kernel=kernel)
        .price([Batch.decode([512])])
        .compute_ps
        for kernel in ("deep_gemm", "flashinfer")
    }
    assert 60e6 < took["deep_gemm"] - took["flashinfer"] < 160e6
