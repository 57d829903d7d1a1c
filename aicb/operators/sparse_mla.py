"""Operators of DeepSeek Sparse Attention (DeepSeek-V3.2): latent attention to the keys that an indexer chooses.

The indexer scores every past key of a request with small fp8 heads and keeps the best ``topk`` of each query; attention
runs absorbed over those, in prefills as in decodes (as vLLM does; a dense prefill of prompts below ``topk`` is not
modelled). The indexer is whole on every TP rank. Attention kernels of SM90 take multiples of 64 heads, so a rank with
fewer computes padding.

A bf16 cache is read in place. An fp8 cache (656 bytes per latent) is read in place by decodes and expanded to bf16,
past and new tokens, before a prefill.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from aicb.kernels.sparse_decode import SparseMlaDecode
from aicb.kernels.sparse_prefill import HEAD_MULTIPLE, SparseMlaPrefill, SparseStep
from aicb.model.architecture import Indexer, LatentAttention
from aicb.model.partition import split
from aicb.model.precision import ceil_div
from aicb.operators.batch import Batch
from aicb.operators.build import ACTIVATION_BYTES, RankShape, attention_kernel, batched_gemm, elementwise, gemm, quant
from aicb.operators.operator import Operator, Phase

INDEX_BYTES = 4
"""A chosen key's position, int32; also a score, fp32."""


def indexer_token_operators(mla: LatentAttention, index: Indexer, shape: RankShape, tokens: int) -> list[Operator]:
    """Projections of queries, key and head weights, LayerNorm of the key, RoPE, quantisation, write of the key."""
    assert mla.q_lora_rank is not None, "the indexer projects the compressed query"
    count, dtype = shape.count, shape.precision.dense
    width, rotated = index.heads * index.head_dim, (index.heads + 1) * mla.qk_rope_head_dim
    written = (ACTIVATION_BYTES * index.head_dim + index.cache_bytes) / index.head_dim
    return [
        gemm("index_q", (tokens, width, mla.q_lora_rank), dtype, count=count),
        gemm("index_k", (tokens, index.head_dim, shape.hidden), dtype, count=count),
        gemm("index_weights", (tokens, index.heads, shape.hidden), "bf16", count=count),
        elementwise(
            "index_k_norm",
            "layer_norm",
            (tokens, index.head_dim),
            2 * ACTIVATION_BYTES,
            count=count,
            weights=2 * index.head_dim,
        ),
        elementwise("index_rope", "rope", (tokens, rotated), 2 * ACTIVATION_BYTES, count=count),
        quant("index_q_to_fp8", tokens, width, count=count),
        elementwise("index_write", "index_write", (tokens, index.head_dim), written, count=count),
    ]


def attention_operators(mla: LatentAttention, index: Indexer, shape: RankShape, batch: Batch) -> list[Operator]:
    """Absorption over all tokens of the batch; scores, choice and attention of its decodes and of its prefills."""
    heads, tokens, is_decode = split(mla.heads, shape.tp, "attention heads"), batch.tokens, batch.is_decode
    listed = [batched_gemm("q_absorb", heads, (tokens, mla.kv_lora_rank, mla.qk_nope_head_dim), shape.count)]
    if is_decode.any():
        listed += _decode(mla, index, shape, batch.kv_tokens[is_decode])
    if not is_decode.all():
        listed += _prefill(mla, index, shape, batch.new_tokens[~is_decode], batch.kv_tokens[~is_decode])
    size = (tokens, index.topk)
    listed.append(elementwise("index_to_slot", "state_copy", size, 2 * INDEX_BYTES, count=shape.count, phase=_PHASE))
    listed.append(batched_gemm("o_unabsorb", heads, (tokens, mla.v_head_dim, mla.kv_lora_rank), shape.count))
    return listed


_PHASE = Phase.ATTENTION


def _decode(mla: LatentAttention, index: Indexer, shape: RankShape, kv: NDArray[np.int64]) -> list[Operator]:
    heads = split(mla.heads, shape.tp, "attention heads")
    padded = HEAD_MULTIPLE * ceil_div(heads, HEAD_MULTIPLE)
    d_qk, d_v = mla.kv_elements, mla.kv_lora_rank

    def listed(name: str, step: SparseStep) -> Operator:
        kernel = SparseMlaDecode(kv, padded, d_qk, d_v, step, padded, index.topk, index.heads, index.head_dim)
        return attention_kernel(name, kernel, shape)

    return [
        listed("index_logits_decode", "index_logits"),
        listed("index_topk_decode", "index_topk"),
        listed("mla_sparse_decode", "attention"),
    ]


def _prefill(
    mla: LatentAttention, index: Indexer, shape: RankShape, new: NDArray[np.int64], kv: NDArray[np.int64]
) -> list[Operator]:
    heads, keys, count = split(mla.heads, shape.tp, "attention heads"), int(kv.sum()), shape.count
    padded = HEAD_MULTIPLE * ceil_div(heads, HEAD_MULTIPLE)
    d_qk, d_v = mla.kv_elements, mla.kv_lora_rank

    def listed(name: str, step: SparseStep) -> Operator:
        kernel = SparseMlaPrefill(new, kv, step, padded, d_qk, d_v, index.topk, index.heads, index.head_dim)
        return attention_kernel(name, kernel, shape)

    copied = 2 * index.cache_bytes / index.head_dim
    gathered = [elementwise("index_gather", "index_gather", (keys, index.head_dim), copied, count=count, phase=_PHASE)]
    if shape.precision.kv == "fp8":
        expanded = ACTIVATION_BYTES + _latent_bytes(mla, shape) / d_qk
        kernel = "latent_gather_sparse_fp8"
        gathered.append(elementwise("latent_gather", kernel, (keys, d_qk), expanded, count=count, phase=_PHASE))
    return [
        *gathered,
        listed("index_logits_prefill", "index_logits"),
        listed("index_topk_prefill", "index_topk"),
        listed("mla_sparse_prefill", "attention"),
    ]


def _latent_bytes(mla: LatentAttention, shape: RankShape) -> int:
    """A cached latent without its index key."""
    assert mla.indexer is not None
    return mla.kv_bytes(shape.precision.kv) - mla.indexer.cache_bytes
