"""What quantises the inputs of fp8 products: operators against the kernels that vLLM launched, and their times."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from aicb import IterationModel, Partition, Precision, get_gpu, load_model
from aicb.estimators.selection import select_estimator
from aicb.kernels.elementwise import Elementwise
from aicb.model.architecture import Model
from aicb.operators.batch import Batch
from aicb.operators.lists import attention_operators, expert_operators, token_operators
from aicb.operators.operator import Operator
from aicb.operators.quantisation import quantised_by
from boundary.errors import InputError

FP8, ONE = Precision("fp8"), Partition()
TRACE = Path(__file__).resolve().parents[2] / "data" / "engine" / "vllm-host-default.json.gz"


def deepseek() -> Model:
    whole = load_model("deepseek-v3")
    return replace(whole, pattern=whole.pattern[:8])


def prefill_of(tokens: int) -> list[Operator]:
    """A prompt as vLLM runs it, without the head."""
    model = deepseek()
    experts = expert_operators(
        model, ONE, FP8, tokens=tokens, group_tokens=tokens, is_decode=False, experts_kernel="triton"
    )
    of_tokens = token_operators(model, ONE, FP8, tokens=tokens)
    attention = attention_operators(model, ONE, FP8, Batch.prefill([tokens]))
    return [*quantised_by("vllm", [*of_tokens, *attention]), *experts]


def called(operators: list[Operator], kernel: str) -> list[Operator]:
    return [each for each in operators if isinstance(each.kernel, Elementwise) and each.kernel.name == kernel]


def test_as_many_kernels_quantise_and_activate_as_in_the_trace() -> None:
    """DeepSeek-V3 of 8 layers, 4,096 tokens: 48 before dense products, 10 in 5 layers with experts; 13 activations."""
    with gzip.open(TRACE, "rt") as file:
        profiles = json.load(file)["models"]["deepseek-v3-l8"]["profiles"]
    kernels = next(each for each in profiles if each["label"] == "prefill-4096")["by_kernel"]

    def launched(*parts: str) -> int:
        return sum(count for name, count, _ in kernels if any(part in name for part in parts))

    operators = prefill_of(4096)
    quantised = sum(each.count for each in called(operators, "group_quant"))
    assert quantised == launched("per_token_group_quant_8bit_kernel") == 58
    activated = sum(each.count for each in called(operators, "silu_mul"))
    assert activated == launched("act_and_mul_kernel", "triton_poi_fused_mul_silu_slice") == 13
    assert not called(operators, "quant")
    assert not called(operators, "silu_mul_quant")


def test_quantisations_take_what_they_take_in_the_engine() -> None:
    """4.67 ms in the trace of 4,096 tokens, from which no time is taken; each shape was measured alone."""
    estimator = select_estimator("auto", get_gpu("h200"), FP8)
    found = called(prefill_of(4096), "group_quant")
    total_us = sum(each.count * estimator.price(each.kernel).time_us for each in found)
    assert total_us == pytest.approx(3512.7 + 1155.3, rel=0.06)
    assert not any(estimator.price(each.kernel).is_estimate for each in found)


def test_an_activation_and_its_quantisation_move_the_result_twice_more() -> None:
    """[100, 2048]: 4 + 2 bytes an element, then 2 + 1 and a scale for 128; in one kernel 4 + 1."""
    fused = [each for each in token_operators(deepseek(), ONE, FP8, tokens=100) if each.name == "shared_silu_mul"]
    apart = {each.name: each.kernel for each in quantised_by("vllm", fused)}
    assert [fused[0].kernel] == [Elementwise("silu_mul_quant", 100, 2048, 100 * (2048 * 5 + 64))]
    assert apart == {
        "shared_silu_mul": Elementwise("silu_mul", 100, 2048, 100 * 2048 * 6),
        "shared_down_quant": Elementwise("group_quant", 100, 2048, 100 * (2048 * 3 + 64)),
    }
    assert quantised_by("triton", fused) == fused


def test_without_fp8_products_nothing_changes() -> None:
    model, kv_fp8 = load_model("qwen3-8b"), Precision("bf16", "fp8")
    for precision in (Precision(), kv_fp8):
        listed = token_operators(model, ONE, precision, tokens=64)
        assert quantised_by("vllm", listed) == listed


def test_another_kernel_is_refused() -> None:
    with pytest.raises(InputError, match="quant_kernel: found 'cutlass', expected one of triton, vllm"):
        IterationModel(deepseek(), ONE, FP8, get_gpu("h200"), quant_kernel="cutlass")  # type: ignore[arg-type]
