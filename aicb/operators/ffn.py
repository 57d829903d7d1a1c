"""Operators of the feed-forward networks that every token passes: dense, router, shared expert."""

from __future__ import annotations

from aicb.kernels.router import Fp32Router
from aicb.model.architecture import DenseFfn, MoeFfn
from aicb.model.partition import MoeLayout, Partition, split
from aicb.model.precision import ELEMENT_BYTES, ceil_div
from aicb.operators.build import (
    ACTIVATION_BYTES,
    RankShape,
    communicate,
    computed,
    elementwise,
    gemm,
    quant,
    silu_mul,
    tp_all_reduce,
)
from aicb.operators.hybrid_kernels import HybridKernels, shared_expert_gate
from aicb.operators.operator import Operator, Phase

INDEX_BYTES = 4
"""Of a chosen expert (int32), and of a sorted pair."""
ROUTED_BYTES = ELEMENT_BYTES["fp32"] + INDEX_BYTES
"""Weight (fp32) and index of each expert chosen."""


def dense_operators(ffn: DenseFfn, shape: RankShape, tokens: int) -> list[Operator]:
    """SwiGLU network, divided by tp, and its all-reduce."""
    swiglu = _swiglu("ffn", ffn.intermediate, shape.tp, shape, tokens)
    return swiglu + tp_all_reduce("ffn_all_reduce", tokens, shape)


def moe_token_operators(moe: MoeFfn, shape: RankShape, tokens: int, kernels: HybridKernels = "fused") -> list[Operator]:
    """Operators of an MoE layer over the tokens of a rank, whatever their experts: router, shared expert, all-reduce.

    With data-parallel attention and tp > 1 the TP ranks of a token divide it: each routes and dispatches 1/tp of
    the tokens, the shared expert is whole on each rank, and an all-gather replaces the all-reduce (the
    sequence-parallel MoE of vLLM).
    """
    is_expert_data = shape.partition.moe_layout is MoeLayout.EXPERT_DATA
    own_tokens = tokens_to_route(shape.partition, tokens)
    listed = router_operators(moe, shape, own_tokens)
    if moe.shared_intermediate:
        listed += shared_expert_operators(moe, shape, own_tokens, tp=1 if is_expert_data else shape.tp, kernels=kernels)
    if not is_expert_data:
        return listed + tp_all_reduce("moe_all_reduce", tokens, shape)
    if shape.tp > 1:
        size_bytes = own_tokens * shape.tp * shape.hidden * ACTIVATION_BYTES
        listed.append(communicate("moe_all_gather", "all_gather", size_bytes, "tp", shape.count))
    return listed


def tokens_to_route(partition: Partition, tokens: int) -> int:
    """Tokens of a rank's batch that this rank routes: its share of the TP group's with dispatch, else all."""
    return ceil_div(tokens, partition.tp) if partition.moe_layout is MoeLayout.EXPERT_DATA else tokens


def router_operators(moe: MoeFfn, shape: RankShape, tokens: int) -> list[Operator]:
    """Scores of all experts, and the choice of those of each token."""
    logit_bytes = ELEMENT_BYTES["fp32"]
    choose = elementwise(
        "topk",
        "grouped_topk" if moe.has_correction_bias else "topk",
        (tokens, moe.experts),
        logit_bytes + ROUTED_BYTES * moe.experts_per_token / moe.experts,
        count=shape.count,
        weights=moe.experts if moe.has_correction_bias else 0,
        phase=Phase.EXPERTS,
    )
    return [_scores(moe, shape, tokens), choose]


def _scores(moe: MoeFfn, shape: RankShape, tokens: int) -> Operator:
    size, count = (tokens, moe.experts, shape.hidden), shape.count
    if moe.has_fp32_router:
        kernel, weights = Fp32Router(*size), moe.experts * shape.hidden
        return computed("router", kernel, shape.precision, count=count, phase=Phase.EXPERTS, weight_elements=weights)
    return gemm(
        "router",
        size,
        "bf16",
        count=count,
        phase=Phase.EXPERTS,
        output_bytes=ELEMENT_BYTES["fp32"],
        has_bias=moe.has_biases,
    )


def shared_expert_operators(
    moe: MoeFfn, shape: RankShape, tokens: int, *, tp: int, kernels: HybridKernels = "fused"
) -> list[Operator]:
    """The network that every token passes in addition to its experts, divided by ``tp``; its output is added, compiled
    kernels do so in the norm that follows."""
    listed = _swiglu("shared", moe.shared_intermediate, tp, shape, tokens)
    size, count = (tokens, shape.hidden), shape.count
    is_compiled = kernels == "compiled"
    if moe.has_shared_gate:
        listed.append(gemm("shared_gate", (tokens, 1, shape.hidden), "bf16", count=count))
        multiply = elementwise("shared_gate_mul", "gating", size, 2 * ACTIVATION_BYTES, count=count)
        listed += shared_expert_gate(shape, tokens) if is_compiled else [multiply]
    if is_compiled:
        return listed
    listed.append(elementwise("shared_add", "add", size, 3 * ACTIVATION_BYTES, count=count))
    return listed


def _swiglu(name: str, intermediate: int, tp: int, shape: RankShape, tokens: int) -> list[Operator]:
    width = split(intermediate, tp, f"{name} intermediate columns")
    dtype, count, hidden = shape.precision.dense, shape.count, shape.hidden
    return [
        *([quant(f"{name}_quant", tokens, hidden, count=count)] if shape.is_fp8 else []),
        gemm(f"{name}_gate_up", (tokens, 2 * width, hidden), dtype, count=count),
        silu_mul(f"{name}_silu_mul", tokens, width, shape, phase=Phase.NORM),
        gemm(f"{name}_down", (tokens, hidden, width), dtype, count=count),
    ]
