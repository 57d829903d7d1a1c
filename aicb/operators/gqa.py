"""Operators of grouped-query attention (Llama, Qwen3, Mixtral; with output gate Qwen3-Next)."""

from __future__ import annotations

from aicb.kernels.decode_attention import DecodeAttention
from aicb.kernels.pairs import causal_pairs
from aicb.kernels.prefill_attention import PrefillAttention
from aicb.model.architecture import GroupedQueryAttention
from aicb.model.partition import kv_heads_per_rank, split
from aicb.model.precision import ELEMENT_BYTES
from aicb.operators.batch import Batch
from aicb.operators.build import ACTIVATION_BYTES, RankShape, elementwise, gemm, quant, tp_all_reduce
from aicb.operators.operator import Operator, Phase


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
    kv_bytes = 2 * kv_heads * gqa.head_dim * ELEMENT_BYTES[shape.precision.kv]
    is_decode = batch.is_decode
    listed = []
    if not is_decode.all():
        new, kv = batch.new_tokens[~is_decode], batch.kv_tokens[~is_decode]
        prefill = PrefillAttention(new, kv, heads, kv_heads, gqa.head_dim, gqa.head_dim, shape.precision.kv)
        moved = prefill_query_bytes(prefill) + kv_bytes * int(kv.sum())
        listed.append(
            Operator("prefill_attention", prefill, shape.count, Phase.ATTENTION, prefill_flops(prefill), moved, 0)
        )
    if is_decode.any():
        kv = batch.kv_tokens[is_decode]
        total, per_token = int(kv.sum()), 2 * heads * gqa.head_dim
        moved = kv_bytes * total + ACTIVATION_BYTES * per_token * len(kv)
        decode = DecodeAttention(kv, heads, kv_heads, gqa.head_dim)
        flops = 2.0 * per_token * total
        listed.append(Operator("decode_attention", decode, shape.count, Phase.ATTENTION, flops, moved, 0))
    return listed


def prefill_flops(work: PrefillAttention) -> float:
    """Both products, QKᵀ and PV, over the unmasked pairs."""
    return 2.0 * work.heads * (work.d_qk + work.d_v) * int(causal_pairs(work.new_tokens, work.kv_tokens).sum())


def prefill_query_bytes(work: PrefillAttention) -> int:
    """Queries read and outputs written. Keys and values are counted once per request, as if tiles shared them in L2."""
    return ACTIVATION_BYTES * int(work.new_tokens.sum()) * work.heads * (work.d_qk + work.d_v)


def _heads(gqa: GroupedQueryAttention, tp: int) -> tuple[int, int]:
    return split(gqa.heads, tp, "attention heads"), kv_heads_per_rank(gqa.kv_heads, tp)
