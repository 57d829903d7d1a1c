"""Operators of gated-delta-rule layers (Qwen3-Next): chunked over the tokens of prefills, recurrent for decodes."""

from __future__ import annotations

from aicb.kernels.gated_delta import GatedDeltaDecode, GatedDeltaPrefill
from aicb.model.architecture import GatedDeltaNet
from aicb.model.partition import split
from aicb.model.precision import ELEMENT_BYTES
from aicb.operators.batch import Batch
from aicb.operators.build import ACTIVATION_BYTES, RankShape, attention_kernel, elementwise, gemm, quant, tp_all_reduce
from aicb.operators.operator import Operator, Phase


def token_operators(gdn: GatedDeltaNet, shape: RankShape, tokens: int) -> list[Operator]:
    """Input projections, decay and write gates, gated norm, output projection and its all-reduce."""
    split(gdn.key_heads, shape.tp, "key heads of linear attention")
    value_heads = split(gdn.value_heads, shape.tp, "value heads of linear attention")
    count, dtype, hidden = shape.count, shape.precision.dense, shape.hidden
    value_width = value_heads * gdn.head_dim
    gated_norm = elementwise(
        "gdn_gated_norm",
        "head_norm",
        (tokens * value_heads, gdn.head_dim),
        3 * ACTIVATION_BYTES,
        count=count,
        weights=gdn.head_dim,
    )
    gate_bytes = 2 * ACTIVATION_BYTES + 2 * ELEMENT_BYTES["fp32"]
    listed = [
        gemm("gdn_qkvz", (tokens, gdn.qkvz_width // shape.tp, hidden), dtype, count=count),
        gemm("gdn_ba", (tokens, 2 * value_heads, hidden), "bf16", count=count),
        elementwise("gdn_gates", "gating", (tokens, value_heads), gate_bytes, count=count, weights=2 * value_heads),
        gated_norm,
    ]
    if shape.is_fp8:
        listed.append(quant("gdn_out_quant", tokens, value_width, count=count))
    listed.append(gemm("gdn_out", (tokens, hidden, value_width), dtype, count=count))
    return listed + tp_all_reduce("gdn_all_reduce", tokens, shape)


def attention_operators(gdn: GatedDeltaNet, shape: RankShape, batch: Batch) -> list[Operator]:
    """Causal convolution and delta rule; prefills and decodes run different kernels."""
    is_decode = batch.is_decode
    listed = []
    new = batch.new_tokens[~is_decode]
    if len(new):
        tokens = int(new.sum())
        key_heads, value_heads = gdn.key_heads // shape.tp, gdn.value_heads // shape.tp
        prefill = GatedDeltaPrefill(new, key_heads, value_heads, gdn.head_dim)
        listed.append(_convolution(gdn, shape, tokens, sequences=len(new)))
        listed.append(attention_kernel("gdn_prefill", prefill, shape))
    sequences = int(is_decode.sum())
    if sequences:
        listed.append(_convolution(gdn, shape, sequences, sequences=sequences))
        key_heads, value_heads = gdn.key_heads // shape.tp, gdn.value_heads // shape.tp
        decode = GatedDeltaDecode(sequences, key_heads, value_heads, gdn.head_dim)
        listed.append(attention_kernel("gdn_decode", decode, shape))
    return listed


def _convolution(gdn: GatedDeltaNet, shape: RankShape, tokens: int, *, sequences: int) -> Operator:
    """Reads and writes its channels, and one state per sequence."""
    channels = gdn.conv_channels // shape.tp
    state_elements = sequences * channels * (gdn.conv_width - 1) * 2
    per_element = ACTIVATION_BYTES * (2 + state_elements / (tokens * channels))
    weights = channels * gdn.conv_width
    return elementwise(
        "gdn_conv", "conv", (tokens, channels), per_element, count=shape.count, weights=weights, phase=Phase.ATTENTION
    )
