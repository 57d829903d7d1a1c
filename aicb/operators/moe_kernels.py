"""Small kernels around the products of experts whose rows the kernel gathers: bf16, and fp8 by Triton.

``generic``: pairs of tokens and experts are always sorted where experts are bf16, one generated kernel activates, one
vectorised kernel sums the results of a token's experts where the layer needs them; other engines than vLLM were not
looked at kernel by kernel. ``vllm``: what vLLM 0.24.0 runs (kernels of steps and layers on an H200,
``tests/data/engine/vllm-host-default.json.gz`` and ``vllm-eager-layers.json.gz``):

- its own kernel scores the experts of up to 16 tokens of DeepSeek-V3, Kimi-K2 and GLM-5 (`aicb.kernels.router`);
- of 128 and more experts its own kernel chooses, by softmax of scores in bf16 (``topkGating``);
- few pairs are not sorted, one number is filled in instead (``fused_moe/fused_moe.py``, ``naive_block_assignment``);
- its own kernel activates (``silu_and_mul``), also where the rest of the model is compiled;
- results of more than four experts are summed by torch (``moe_sum`` in ``csrc/moe/moe_align_sum_kernels.cu`` has
  kernels for two to four), which takes 5 us for a single token;
- sums are copied to where the layer expects them (``fused_moe/prepare_finalize/no_dp_ep.py``), by a copy, no kernel.

``sglang``: SGLang 0.5.17's, measured alone (`aicb.profiling.libraries.sglang_ops`): one chooses experts by softmax, two
sort the pairs, however few, one sums results; and the same kernel for scores of up to 16 tokens
(``srt/models/deepseek_v2.py``, ``MoEGate``). ``sglang_fused``: the same with the shared expert among the routed ones
(`aicb.operators.fused_shared_expert`), which an engine decides by its model.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal, get_args

from aicb.kernels.elementwise import Elementwise
from aicb.kernels.gemm import Gemm
from aicb.kernels.router import FEW_SHAPES, FEW_TOKENS, FewTokensRouter
from aicb.model.architecture import Model, MoeFfn
from aicb.model.partition import Partition
from aicb.model.precision import Precision
from aicb.operators.build import ACTIVATION_BYTES, RankShape, elementwise
from aicb.operators.ffn import INDEX_BYTES
from aicb.operators.fused_shared_expert import is_fused, without_shared_expert
from aicb.operators.operator import Operator, Phase
from boundary.errors import InputError

MoeKernels = Literal["generic", "sglang", "vllm"]
MoeKernelsOfModel = Literal[MoeKernels, "sglang_fused"]
OF_SGLANG = ("sglang", "sglang_fused")

UNSORTED_SHARE = 4
"""vLLM's Triton kernel takes pairs as they come where so many times their number is no more than the experts and no
other rank has some of these."""
CHOOSING_EXPERTS = 128
"""The fewest experts for which its kernel was measured; among fewer, the other one's times stand for it."""
SUMMED_BY_VLLM = 4
"""Experts of a token up to which vLLM sums results by kernels of its own."""
ADDED_BY_TORCH = 2
"""Experts of a token whose results SGLang has torch add."""


def check_moe_kernels(chosen: str) -> None:
    """Raises: InputError, no such kernels."""
    if chosen not in get_args(MoeKernels):
        raise InputError(f"moe_kernels: found {chosen!r}, expected one of {', '.join(get_args(MoeKernels))}")


def moe_kernels_of(
    chosen: MoeKernels, model: Model, partition: Partition, precision: Precision, *, is_apart: bool = False
) -> MoeKernelsOfModel:
    """What is chosen in an engine of this model; ``is_apart``: the shared expert cannot be a routed one, as it overlaps
    others or runs elsewhere."""
    is_with_routed = chosen == "sglang" and is_fused(model, partition, precision) and not is_apart
    return "sglang_fused" if is_with_routed else chosen


def chosen_by(kernels: MoeKernelsOfModel, operators: Iterable[Operator]) -> list[Operator]:
    """The operators, among which are scores of experts, the choice by them and shared experts, as ``kernels`` do it."""
    if kernels == "generic":
        return list(operators)
    listed = without_shared_expert(operators) if kernels == "sglang_fused" else operators
    by_softmax = _by_softmax if kernels == "vllm" else _by_sglang
    return [by_softmax(_scored(each)) for each in listed]


def _scored(operator: Operator) -> Operator:
    kernel = operator.kernel
    if operator.name != "router" or not isinstance(kernel, Gemm):
        return operator
    if kernel.m > FEW_TOKENS or (kernel.n, kernel.k) not in FEW_SHAPES:
        return operator
    few = FewTokensRouter(kernel.m, kernel.n, kernel.k)
    return replace(operator, kernel=few, cost=few.cost(Precision()))


def _by_softmax(operator: Operator) -> Operator:
    kernel = operator.kernel
    if operator.name != "topk" or not isinstance(kernel, Elementwise) or kernel.name != "topk":
        return operator
    return (
        replace(operator, kernel=replace(kernel, name="topk_softmax")) if kernel.cols >= CHOOSING_EXPERTS else operator
    )


def _by_sglang(operator: Operator) -> Operator:
    kernel = operator.kernel
    if operator.name != "topk" or not isinstance(kernel, Elementwise) or kernel.name != "topk":
        return operator
    return replace(operator, kernel=replace(kernel, name="sglang_topk"))


def are_sorted(moe: MoeFfn, tokens: int) -> bool:
    """Whether vLLM sorts the pairs of tokens and experts of a rank that has all experts."""
    return UNSORTED_SHARE * tokens * moe.experts_per_token > moe.experts


def sorted_pairs(moe: MoeFfn, tokens: int, count: int, kernels: MoeKernelsOfModel) -> Operator:
    """(token, expert) pairs in the order of experts."""
    per_score = 2 * INDEX_BYTES * moe.experts_per_token / moe.experts
    size, kernel = (tokens, moe.experts), "sglang_align" if kernels in OF_SGLANG else "moe_align"
    return elementwise("moe_align", kernel, size, per_score, count=count, phase=Phase.EXPERTS)


def unsorted_pairs(shape: RankShape) -> Operator:
    """The number of pairs filled in. A copy of one row stands for it: 0.93 us where the fill took 0.87."""
    size, per_element = (1, shape.hidden), INDEX_BYTES / shape.hidden
    return elementwise("moe_align", "expert_copy", size, per_element, count=shape.count, phase=Phase.EXPERTS)


def activated(operator: Operator, kernels: MoeKernelsOfModel) -> Operator:
    """The activation between two products, of bf16 results that are not quantised in the same kernel."""
    kernel = operator.kernel
    if kernels != "vllm" or not isinstance(kernel, Elementwise) or kernel.name != "silu_mul":
        return operator
    return replace(operator, kernel=replace(kernel, name="silu_and_mul"))


def summed(moe: MoeFfn, shape: RankShape, pairs: float, tokens: float, kernels: MoeKernelsOfModel) -> Operator:
    """Results ``[pairs, h]`` read, their sums ``[tokens, h]`` written; the down projection has weighted them."""
    if kernels == "vllm" and moe.experts_per_token > SUMMED_BY_VLLM:
        return weighted_sum(pairs, tokens, shape, "moe_sum")
    is_sglangs = kernels in OF_SGLANG and moe.experts_per_token > ADDED_BY_TORCH
    return weighted_sum(pairs, tokens, shape, "sglang_sum" if is_sglangs else "unpermute")


def weighted_sum(rows: float, tokens: float, shape: RankShape, kernel: str = "unpermute") -> Operator:
    """Expert outputs ``[rows, h]`` read, their sums ``[tokens, h]`` written."""
    size, per_element = (rows, shape.hidden), ACTIVATION_BYTES * (1 + tokens / rows)
    return elementwise("moe_unpermute", kernel, size, per_element, count=shape.count, phase=Phase.EXPERTS)


def copied_results(tokens: int, shape: RankShape) -> Operator:
    """What experts or a scatter gave, copied to where the layer expects it."""
    size = (tokens, shape.hidden)
    return elementwise("moe_output", "expert_copy", size, 2 * ACTIVATION_BYTES, count=shape.count, phase=Phase.EXPERTS)
