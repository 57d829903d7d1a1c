"""SGLang's kernel of experts, by vLLM's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aicb.estimators.selection import select_estimator
from aicb.kernels.fitting.estimate import Estimate
from aicb.kernels.grouped_gemm import GroupedGemm
from aicb.kernels.sglang_tiles import READING, SGLANG_ERROR, TUNED_FP8, UNTUNED_FP8
from aicb.measurements.gpu import get_gpu
from aicb.model.partition import Partition
from aicb.model.precision import Precision
from aicb.operators.experts_kernel import check_experts_kernel
from boundary.errors import InputError

FP8 = Precision("fp8")


def price(kernel: GroupedGemm) -> Estimate:
    return select_estimator("auto", get_gpu("h200"), FP8).price(kernel)


def product(tokens: int, width: int = 768) -> GroupedGemm:
    """The first of Qwen3-30B-A3B's experts, of whom a token chooses 8 of 128; SGLang has tiles for a width of 768."""
    active = 128 * (1.0 - (1.0 - 8 / 128) ** tokens)
    return GroupedGemm(8.0 * tokens, 128, active, 2 * width, 2048, "fp8", "gathered", in_sglang_tiles=True)


@pytest.mark.parametrize("tokens", [1, 64, 1024, 4096, 16384])
def test_it_takes_what_computing_or_reading_takes(tokens: int) -> None:
    """Never more than vLLM's; reading at 3.84 of 4.8 TB/s."""
    kernel = product(tokens)
    own, theirs = price(kernel), price(replace(kernel, in_sglang_tiles=False))
    reading_us = kernel.cost(FP8).moved_bytes / (READING * 4.8e6)
    assert own.time_us == pytest.approx(min(theirs.time_us, max(TUNED_FP8 * theirs.time_us, reading_us)))
    if own.time_us < theirs.time_us:
        assert own.is_estimate
        assert own.error == pytest.approx(theirs.error + SGLANG_ERROR)
    else:
        assert own == theirs


def test_where_its_tiles_were_not_measured_times_are_those_of_vllm() -> None:
    """Of 384 columns, for which it ships some."""
    kernel = product(4096, 384)
    assert price(kernel) == price(replace(kernel, in_sglang_tiles=False))


def test_its_rule_of_thumb_computes_fp8_faster_than_vllms() -> None:
    """4,096 tokens on DeepSeek's whole experts, the shared one among them: 3,576 us in an engine."""
    whole = GroupedGemm(36864.0, 257, 257.0, 4096, 7168, "fp8", "gathered", tokens=4096.0, in_sglang_tiles=True)
    own, theirs = price(whole), price(replace(whole, in_sglang_tiles=False))
    assert own.time_us == pytest.approx(UNTUNED_FP8 * theirs.time_us)
    assert own.time_us == pytest.approx(3576, rel=0.01)
    few = replace(whole, rows=576.0, active_groups=230.8, tokens=64.0)
    assert price(few) == price(replace(few, in_sglang_tiles=False))


@pytest.mark.parametrize(("tokens", "least", "most"), [(64.0, 1.0, 1.0), (128.0, 1.2, 1.8), (8192.0, 2.5, 3.5)])
def test_its_rule_of_thumb_of_bf16_is_slow_for_more_tokens_than_experts(
    tokens: float, least: float, most: float
) -> None:
    """One of two ranks that share Qwen3-30B-A3B's experts: tiles of 64 x 64."""
    rows, active = 4.0 * tokens, 64 * (1.0 - (1.0 - 8 / 128) ** tokens)
    own = GroupedGemm(
        rows, 64, active, 1536, 2048, "bf16", "masked", tokens=tokens, is_shared=True, in_sglang_tiles=True
    )
    ratio = price(own).time_us / price(replace(own, in_sglang_tiles=False)).time_us
    assert least <= ratio <= most


def test_in_tiles_of_its_own_it_computes_bf16_as_vllms_does() -> None:
    own = GroupedGemm(8192.0, 128, 128.0, 1536, 2048, "bf16", "masked", tokens=1024.0, in_sglang_tiles=True)
    assert price(own) == price(replace(own, in_sglang_tiles=False))


def test_it_was_not_measured_where_ranks_share_experts() -> None:
    with pytest.raises(InputError, match="found triton_sglang with ep 8, expected deep_gemm or flashinfer"):
        check_experts_kernel("triton_sglang", Partition(tp=8, ep=8), FP8)
