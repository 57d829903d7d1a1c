"""Operators of gated-delta-rule layers (Qwen3-Next): chunked over the tokens of prefills, recurrent for decodes."""

from __future__ import annotations

from aicb.kernels.gated_delta import GatedDeltaDecode, GatedDeltaPrefill, VllmGatedDeltaPrefill
from aicb.model.architecture import GatedDeltaNet
from aicb.model.partition import split
from aicb.model.precision import ELEMENT_BYTES
from aicb.operators import hybrid_kernels
from aicb.operators.batch import Batch
from aicb.operators.build import ACTIVATION_BYTES, RankShape, attention_kernel, elementwise, gemm, quant, tp_all_reduce
from aicb.operators.hybrid_kernels import HybridKernels
from aicb.operators.operator import Operator, Phase


def token_operators(
    gdn: GatedDeltaNet, shape: RankShape, tokens: int, kernels: HybridKernels = "fused"
) -> list[Operator]:
    """Input projections, decay and write gates, gated norm, output projection and its all-reduce."""
    split(gdn.key_heads, shape.tp, "key heads of linear attention")
    value_heads = split(gdn.value_heads, shape.tp, "value heads of linear attention")
    count, dtype, hidden = shape.count, shape.precision.dense, shape.hidden
    value_width = value_heads * gdn.head_dim
    listed = [
        gemm("gdn_qkvz", (tokens, gdn.qkvz_width // shape.tp, hidden), dtype, count=count),
        gemm("gdn_ba", (tokens, 2 * value_heads, hidden), "bf16", count=count),
    ]
    if kernels == "compiled":
        listed += hybrid_kernels.reordered(gdn, shape, tokens)
        listed += hybrid_kernels.gated_norm(gdn, shape, tokens)
    else:
        listed += _gates_and_norm(gdn, shape, tokens)
    if shape.is_fp8:
        listed.append(quant("gdn_out_quant", tokens, value_width, count=count))
    listed.append(gemm("gdn_out", (tokens, hidden, value_width), dtype, count=count))
    return listed + tp_all_reduce("gdn_all_reduce", tokens, shape)


def _gates_and_norm(gdn: GatedDeltaNet, shape: RankShape, tokens: int) -> list[Operator]:
    heads, count = gdn.value_heads // shape.tp, shape.count
    gate_bytes = 2 * ACTIVATION_BYTES + 2 * ELEMENT_BYTES["fp32"]
    norm_bytes, rows = 3 * ACTIVATION_BYTES, (tokens * heads, gdn.head_dim)
    return [
        elementwise("gdn_gates", "gating", (tokens, heads), gate_bytes, count=count, weights=2 * heads),
        elementwise("gdn_gated_norm", "head_norm", rows, norm_bytes, count=count, weights=gdn.head_dim),
    ]


def attention_operators(
    gdn: GatedDeltaNet, shape: RankShape, batch: Batch, kernels: HybridKernels = "fused"
) -> list[Operator]:
    """Causal convolution and delta rule; prefills and decodes run different kernels."""
    is_decode = batch.is_decode
    listed = []
    new = batch.new_tokens[~is_decode]
    if len(new):
        tokens = int(new.sum())
        key_heads, value_heads = gdn.key_heads // shape.tp, gdn.value_heads // shape.tp
        heads = (new, key_heads, value_heads, gdn.head_dim)
        listed.append(_convolution(gdn, shape, tokens, kernels, sequences=len(new)))
        if kernels == "compiled":
            listed += [
                hybrid_kernels.prepared(gdn, shape, tokens),
                attention_kernel("gdn_prefill", VllmGatedDeltaPrefill(*heads), shape),
                hybrid_kernels.copied_results(gdn, shape, tokens),
            ]
        else:
            listed.append(attention_kernel("gdn_prefill", GatedDeltaPrefill(*heads), shape))
    sequences = int(is_decode.sum())
    if sequences:
        listed.append(_convolution(gdn, shape, sequences, kernels, sequences=sequences))
        if kernels == "compiled":
            listed.append(hybrid_kernels.packed_decode(gdn, shape, sequences))
        else:
            key_heads, value_heads = gdn.key_heads // shape.tp, gdn.value_heads // shape.tp
            decode = GatedDeltaDecode(sequences, key_heads, value_heads, gdn.head_dim)
            listed.append(attention_kernel("gdn_decode", decode, shape))
    return listed


def _convolution(
    gdn: GatedDeltaNet, shape: RankShape, tokens: int, kernels: HybridKernels, *, sequences: int
) -> Operator:
    """Reads and writes its channels, and one state per sequence."""
    channels = gdn.conv_channels // shape.tp
    state_elements = sequences * channels * (gdn.conv_width - 1) * 2
    per_element = ACTIVATION_BYTES * (2 + state_elements / (tokens * channels))
    weights = channels * gdn.conv_width
    kernel = "delta_conv" if kernels == "compiled" else "conv"
    return elementwise(
        "gdn_conv", kernel, (tokens, channels), per_element, count=shape.count, weights=weights, phase=Phase.ATTENTION
    )
