"""Operators of gated-delta-rule layers (Qwen3-Next): chunked over the tokens of prefills, recurrent for decodes."""

from __future__ import annotations

from aicb.kernels.gated_delta import GatedDeltaDecode, GatedDeltaPrefill
from aicb.model.architecture import GatedDeltaNet
from aicb.model.partition import split
from aicb.model.precision import ELEMENT_BYTES
from aicb.operators.batch import Batch
from aicb.operators.build import ACTIVATION_BYTES, RankShape, elementwise, gemm, quant, tp_all_reduce
from aicb.operators.operator import Operator, Phase

CHUNK_TOKENS = 64
"""Tokens per chunk of the chunked kernels (flash-linear-attention 0.6.0, ``chunk_gated_delta_rule``)."""


def token_operators(gdn: GatedDeltaNet, shape: RankShape, tokens: int) -> list[Operator]:
    """Input projections, decay and write gates, gated norm, output projection and its all-reduce."""
    split(gdn.key_heads, shape.tp, "key heads of linear attention")
    value_heads = split(gdn.value_heads, shape.tp, "value heads of linear attention")
    count, dtype, hidden = shape.count, shape.precision.weights, shape.hidden
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
        flops, moved = _chunked_cost(gdn, shape, tokens, sequences=len(new))
        key_heads, value_heads = gdn.key_heads // shape.tp, gdn.value_heads // shape.tp
        work = GatedDeltaPrefill(new, key_heads, value_heads, gdn.head_dim)
        listed.append(_convolution(gdn, shape, tokens, sequences=len(new)))
        listed.append(Operator("gdn_prefill", work, shape.count, Phase.ATTENTION, flops, moved, 0))
    sequences = int(is_decode.sum())
    if sequences:
        listed.append(_convolution(gdn, shape, sequences, sequences=sequences))
        listed.append(_recurrent(gdn, shape, sequences))
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


def _chunked_cost(gdn: GatedDeltaNet, shape: RankShape, tokens: int, *, sequences: int) -> tuple[float, float]:
    """FLOPs and bytes of the chunked form (arXiv 2412.06464, section 3.3), the triangular solve ignored.

    Per token and value head, with chunk c and head d: KKᵀ, QKᵀ, W, U and the output within the chunk, 2cd each;
    the three products with the state, 2d² each.
    """
    key_heads, value_heads = gdn.key_heads // shape.tp, gdn.value_heads // shape.tp
    d = gdn.head_dim
    flops = float(tokens) * value_heads * (5 * 2 * CHUNK_TOKENS * d + 3 * 2 * d * d)
    inputs = ACTIVATION_BYTES * (2 * key_heads + 2 * value_heads) * d + 2 * ELEMENT_BYTES["fp32"] * value_heads
    states = 2 * sequences * value_heads * d * d * ELEMENT_BYTES[shape.precision.state]
    return flops, float(tokens * inputs + states)


def _recurrent(gdn: GatedDeltaNet, shape: RankShape, sequences: int) -> Operator:
    """One token per sequence: state read, decayed, corrected by the delta rule, queried and written back."""
    key_heads, value_heads = gdn.key_heads // shape.tp, gdn.value_heads // shape.tp
    d = gdn.head_dim
    flops = sequences * value_heads * 7.0 * d * d
    inputs = ACTIVATION_BYTES * (2 * key_heads + 2 * value_heads) * d + 2 * ELEMENT_BYTES["fp32"] * value_heads
    states = 2 * value_heads * d * d * ELEMENT_BYTES[shape.precision.state]
    work = GatedDeltaDecode(sequences, key_heads, value_heads, d)
    moved = float(sequences * (inputs + states))
    return Operator("gdn_decode", work, shape.count, Phase.ATTENTION, flops, moved, 0)
