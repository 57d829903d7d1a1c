"""Operators of grouped-query attention; with an output gate that of Qwen3-Next, within a span that of gpt-oss."""

from __future__ import annotations

from typing import Literal, get_args

from aicb.kernels.decode_attention import (
    CapturedDecodeAttention,
    DecodeAttention,
    SglangDecodeAttention,
    SlidingDecodeAttention,
    UnscheduledDecodeAttention,
)
from aicb.kernels.prefill_attention import PrefillAttention
from aicb.model.architecture import GroupedQueryAttention
from aicb.model.partition import kv_heads_per_rank, split
from aicb.model.precision import ELEMENT_BYTES
from aicb.operators.batch import Batch
from aicb.operators.build import (
    ACTIVATION_BYTES,
    RankShape,
    attention_kernel,
    communicate,
    elementwise,
    gemm,
    quant,
    tp_all_reduce,
)
from aicb.operators.hybrid_kernels import HybridKernels, gated_head_norm
from aicb.operators.operator import Operator
from boundary.errors import InputError

GqaKernel = Literal["fa3", "fa3_captured", "fa3_sglang"]
"""Of decodes: FlashAttention-3 called with its own choice of splits, or as vLLM 0.24.0 or SGLang 0.5.17 captures it.
The latter were measured over bf16 caches; vLLM's without a schedule where layers differ in their windows, and in layers
that slide. These stand, flagged, for SGLang's (8 % slower than with its splits and pages of one token at the median of
36 points, where as many keys without a window are 38 % faster) and for those of models all of whose layers have one
window. Over fp8 caches the first stands for both, and for SGLang's with heads of other than `SGLANG_COLUMNS` or within
chunks (``flashattention_backend.py``)."""
SGLANG_COLUMNS = 128
"""Of a head, in measurements of SGLang's decodes."""


def check_gqa_kernel(chosen: str) -> None:
    """Raises: InputError, no such kernel."""
    if chosen not in get_args(GqaKernel):
        raise InputError(f"gqa_kernel: found {chosen!r}, expected one of {', '.join(get_args(GqaKernel))}")


def token_operators(
    gqa: GroupedQueryAttention, shape: RankShape, tokens: int, kernels: HybridKernels = "fused"
) -> list[Operator]:
    """Projections, head norms, RoPE, KV write, gate and the all-reduce after the output projection."""
    heads, kv_heads = _heads(gqa, shape.tp)
    head_dim, count, dtype = gqa.head_dim, shape.count, shape.precision.dense
    query_width = heads * head_dim
    qkv_width = query_width * (2 if gqa.has_output_gate else 1) + 2 * kv_heads * head_dim
    listed = [gemm("qkv", (tokens, qkv_width, shape.hidden), dtype, count=count, has_bias=gqa.has_qkv_bias)]
    rotated = (heads + kv_heads) * gqa.rotary_dim
    if kernels == "compiled" and gqa.has_output_gate:
        listed.append(gated_head_norm(gqa, shape, tokens, heads, kv_heads))
        rotated = 0
    else:
        listed += _norms(gqa, shape, tokens)
    if rotated:
        listed.append(elementwise("rope", "rope", (tokens, rotated), 2 * ACTIVATION_BYTES, count=count))
    listed += [
        elementwise(
            "kv_write",
            "kv_write_fp8" if shape.precision.kv == "fp8" else "kv_write",
            (tokens, 2 * kv_heads * head_dim),
            ACTIVATION_BYTES + ELEMENT_BYTES[shape.precision.kv],
            count=count,
            weights=heads if gqa.has_sinks else 0,  # read by both kernels of attention, held once
        ),
    ]
    if shape.precision.kv == "fp8":  # FA3 multiplies fp8 queries with an fp8 cache
        listed.append(quant("query_quant", tokens, query_width, count=count))
    if gqa.has_output_gate:
        gating = "output_gate" if kernels == "compiled" else "gating"
        listed.append(elementwise("output_gate", gating, (tokens, query_width), 3 * ACTIVATION_BYTES, count=count))
    if shape.is_fp8:
        listed.append(quant("o_quant", tokens, query_width, count=count))
    output = (tokens, shape.hidden, query_width)
    listed.append(gemm("o", output, dtype, count=count, has_bias=gqa.has_output_bias))
    return listed + tp_all_reduce("attention_all_reduce", tokens, shape)


def attention_operators(
    gqa: GroupedQueryAttention,
    shape: RankShape,
    batch: Batch,
    kernel: GqaKernel = "fa3",
    *,
    windows_differ: bool = False,
) -> list[Operator]:
    """One varlen kernel over the prefills of the batch and one paged kernel over its decodes, within the span.

    ``windows_differ``: other layers of the model slide and these do not, or otherwise.
    """
    heads, kv_heads = _heads(gqa, shape.tp)
    head_dim, span, name = gqa.head_dim, gqa.span, f"{gqa.span.kind}_" if gqa.span else ""
    is_decode, listed = batch.is_decode, []
    if not is_decode.all():
        new, kv = batch.new_tokens[~is_decode], batch.kv_tokens[~is_decode]
        new, kv = (new, kv) if span is None else span.kernel_requests(new, kv)
        prefill = PrefillAttention(new, kv, heads, kv_heads, head_dim, head_dim, shape.precision.kv, span)
        listed.append(attention_kernel(f"{name}prefill_attention", prefill, shape))
    if is_decode.any():
        kv = batch.kv_tokens[is_decode]
        kv = kv if span is None else span.seen(kv)
        kind = _decode_kernel(kernel, shape, gqa, windows_differ=windows_differ)
        is_own = kind is not SlidingDecodeAttention or (kernel == "fa3_captured" and windows_differ)
        decode = kind(kv, heads, kv_heads, head_dim, span=span, is_stand_in=not is_own)
        listed.append(attention_kernel(f"{name}decode_attention", decode, shape))
    return listed


def _decode_kernel(
    kernel: GqaKernel, shape: RankShape, gqa: GroupedQueryAttention, *, windows_differ: bool
) -> type[DecodeAttention]:
    if shape.precision.kv != "bf16" or kernel == "fa3":
        return DecodeAttention
    if gqa.window is not None:
        return SlidingDecodeAttention
    if kernel == "fa3_sglang":
        return SglangDecodeAttention if gqa.head_dim == SGLANG_COLUMNS and gqa.span is None else DecodeAttention
    return UnscheduledDecodeAttention if windows_differ else CapturedDecodeAttention


def _norms(gqa: GroupedQueryAttention, shape: RankShape, tokens: int) -> list[Operator]:
    """Norms of queries and keys. One over all heads of a token needs its sum of squares from all ranks that hold them,
    queries and keys in one fp32 all-reduce."""
    heads, kv_heads = _heads(gqa, shape.tp)
    dim, count, per_element = gqa.head_dim, shape.count, 2 * ACTIVATION_BYTES
    match gqa.qk_norm:
        case "per_head" | "weightless":
            weights = dim if gqa.qk_norm == "per_head" else 0
            rows = (("q_norm", tokens * heads), ("k_norm", tokens * kv_heads))
            return [
                elementwise(name, "head_norm", (size, dim), per_element, count=count, weights=weights)
                for name, size in rows
            ]
        case "whole":
            widths = (("query_norm", heads * dim), ("key_norm", kv_heads * dim))
            listed = [
                elementwise(name, "rms_norm", (tokens, width), per_element, count=count, weights=width)
                for name, width in widths
            ]
            if shape.tp > 1:
                size_bytes = tokens * len(widths) * ELEMENT_BYTES["fp32"]
                listed.append(communicate("qk_norm_all_reduce", "all_reduce", size_bytes, "tp", count))
            return listed
    return []


def _heads(gqa: GroupedQueryAttention, tp: int) -> tuple[int, int]:
    return split(gqa.heads, tp, "attention heads"), kv_heads_per_rank(gqa.kv_heads, tp)
