"""Operators of grouped-query attention (Llama, Qwen3, Mixtral; with output gate Qwen3-Next)."""

from __future__ import annotations

from aicb.kernels.decode_attention import DecodeAttention
from aicb.kernels.prefill_attention import PrefillAttention
from aicb.model.architecture import GroupedQueryAttention
from aicb.model.partition import kv_heads_per_rank, split
from aicb.model.precision import ELEMENT_BYTES
from aicb.operators.batch import Batch
from aicb.operators.build import ACTIVATION_BYTES, RankShape, attention_kernel, elementwise, gemm, quant, tp_all_reduce
from aicb.operators.operator import Operator


def token_operators(gqa: GroupedQueryAttention, shape: RankShape, tokens: int) -> list[Operator]:
    """Projections, head norms, RoPE, KV write, gate and the all-reduce after the output projection."""
    heads, kv_heads = _heads(gqa, shape.tp)
    head_dim, count, dtype = gqa.head_dim, shape.count, shape.precision.weights
    query_width = heads * head_dim
    qkv_width = query_width * (2 if gqa.has_output_gate else 1) + 2 * kv_heads * head_dim
    listed = [gemm("qkv", (tokens, qkv_width, shape.hidden), dtype, count=count)]
    if gqa.has_head_norm:
        for name, rows in (("q_norm", tokens * heads), ("k_norm", tokens * kv_heads)):
            per_element = 2 * ACTIVATION_BYTES
            listed.append(elementwise(name, "head_norm", (rows, head_dim), per_element, count=count, weights=head_dim))
    listed += [
        elementwise("rope", "rope", (tokens, (heads + kv_heads) * gqa.rotary_dim), 2 * ACTIVATION_BYTES, count=count),
        elementwise(
            "kv_write",
            "kv_write_fp8" if shape.precision.kv == "fp8" else "kv_write",
            (tokens, 2 * kv_heads * head_dim),
            ACTIVATION_BYTES + ELEMENT_BYTES[shape.precision.kv],
            count=count,
        ),
    ]
    if shape.precision.kv == "fp8":  # FA3 multiplies fp8 queries with an fp8 cache
        listed.append(quant("query_quant", tokens, query_width, count=count))
    if gqa.has_output_gate:
        listed.append(elementwise("output_gate", "gating", (tokens, query_width), 3 * ACTIVATION_BYTES, count=count))
    if shape.is_fp8:
        listed.append(quant("o_quant", tokens, query_width, count=count))
    listed.append(gemm("o", (tokens, shape.hidden, query_width), dtype, count=count))
    return listed + tp_all_reduce("attention_all_reduce", tokens, shape)


def attention_operators(gqa: GroupedQueryAttention, shape: RankShape, batch: Batch) -> list[Operator]:
    """One varlen kernel over the prefills of the batch and one paged kernel over its decodes."""
    heads, kv_heads = _heads(gqa, shape.tp)
    is_decode, listed = batch.is_decode, []
    if not is_decode.all():
        new, kv = batch.new_tokens[~is_decode], batch.kv_tokens[~is_decode]
        prefill = PrefillAttention(new, kv, heads, kv_heads, gqa.head_dim, gqa.head_dim, shape.precision.kv)
        listed.append(attention_kernel("prefill_attention", prefill, shape))
    if is_decode.any():
        decode = DecodeAttention(batch.kv_tokens[is_decode], heads, kv_heads, gqa.head_dim)
        listed.append(attention_kernel("decode_attention", decode, shape))
    return listed


def _heads(gqa: GroupedQueryAttention, tp: int) -> tuple[int, int]:
    return split(gqa.heads, tp, "attention heads"), kv_heads_per_rank(gqa.kv_heads, tp)
