"""Operators of multi-head latent attention (DeepSeek-V2/V3): absorbed for decodes, expanded for prefills.

A decode attends to the latents themselves, with W_UK folded into the query and W_UV applied to the result
(arXiv 2405.04434, section 2.1.2). A prefill expands latents to keys and values, of its new tokens and again of its
cached past, and runs multi-head attention over them; the past part is merged by log-sum-exp. By vLLM's FlashAttention-3
short chunks are absorbed as decodes are (`most_absorbed`). With an indexer attention is sparse and absorbed throughout
(``layers/sparse_mla.py``).

An fp8 cache of dense attention is e4m3 with one scale: decodes multiply fp8 queries with it, prefills expand it to
bf16.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from aicb.kernels.mla_chunks import MOST_TOKENS, Fa3MlaChunks
from aicb.kernels.mla_decode import Fa3MlaDecode, FlashInferMlaDecode, MlaDecode, SglangMlaDecode
from aicb.kernels.prefill_attention import PrefillAttention
from aicb.model.architecture import LatentAttention
from aicb.model.partition import split
from aicb.model.precision import ELEMENT_BYTES, Precision
from aicb.operators import sparse_mla
from aicb.operators.batch import Batch
from aicb.operators.build import (
    ACTIVATION_BYTES,
    RankShape,
    attention_kernel,
    batched_gemm,
    elementwise,
    gemm,
    quant,
    tp_all_reduce,
)
from aicb.operators.operator import Operator, Phase
from boundary.errors import InputError

MlaKernel = Literal["flash_mla", "fa3", "fa3_chunks", "fa3_sglang", "flashinfer"]
"""Of absorbed decodes: FlashMLA, or FlashAttention-3, by which vLLM computes short chunks of prompts, too
(``fa3_chunks``), or as SGLang 0.5.17 calls it, which makes the schedule in each layer (``flashattention_backend.py``,
``_compute_scheduler_metadata``), or FlashInfer (its ``--attention-backend flashinfer``). FlashAttention-3's read bf16
caches only (vLLM 0.24.0, ``mla/flashattn_mla.py``, ``supported_kv_cache_dtypes``), FlashInfer was measured over them
alone; FlashMLA reads the others."""
_DECODES: Mapping[MlaKernel, type[MlaDecode]] = {
    "flash_mla": MlaDecode,
    "fa3": Fa3MlaDecode,
    "fa3_chunks": Fa3MlaDecode,
    "fa3_sglang": SglangMlaDecode,
    "flashinfer": FlashInferMlaDecode,
}
"""Over a bf16 cache."""


RopeKernel = Literal["in_place", "compiled", "sglang"]
"""Of the rotary embedding: one that rotates a slice of each head's query and the shared key, or what torch.compile
makes of vLLM's Python, which writes the whole queries anew (0.24.0, ``deepseek_scaling_rope.py``). ``sglang``: the
first; in other attention what SGLang runs around it (`aicb.operators.around_attention`)."""


def check_rope_kernel(chosen: str) -> None:
    """Raises: InputError, no such kernel."""
    if chosen not in get_args(RopeKernel):
        raise InputError(f"rope_kernel: found {chosen!r}, expected one of {', '.join(get_args(RopeKernel))}")


def check_mla_kernel(chosen: str) -> None:
    """Raises: InputError, no such kernel."""
    if chosen not in get_args(MlaKernel):
        raise InputError(f"mla_kernel: found {chosen!r}, expected one of {', '.join(get_args(MlaKernel))}")


def token_operators(
    mla: LatentAttention, shape: RankShape, tokens: int, rope_kernel: RopeKernel = "in_place"
) -> list[Operator]:
    """Down-projections (whole on every TP rank), latent norms, query expansion, RoPE, latent write, output."""
    heads = split(mla.heads, shape.tp, "attention heads")
    count, dtype, hidden = shape.count, shape.precision.dense, shape.hidden
    query_width, value_width = heads * mla.qk_head_dim, heads * mla.v_head_dim
    if mla.q_lora_rank is None:
        listed = [
            gemm("q", (tokens, query_width, hidden), dtype, count=count),
            gemm("kv_a", (tokens, mla.kv_elements, hidden), dtype, count=count),
        ]
    else:
        rank = mla.q_lora_rank
        listed = [
            gemm("qkv_a", (tokens, rank + mla.kv_elements, hidden), dtype, count=count),
            _latent_norm("q_a_norm", tokens, rank, count),
            *([quant("q_b_quant", tokens, rank, count=count)] if shape.is_fp8 else []),
            gemm("q_b", (tokens, query_width, rank), dtype, count=count),
        ]
    cached_bytes = mla.kv_bytes(shape.precision.kv) - (mla.indexer.cache_bytes if mla.indexer else 0)
    written = ACTIVATION_BYTES + cached_bytes / mla.kv_elements
    rope, rotated = "rope", (heads + 1) * mla.qk_rope_head_dim
    if rope_kernel == "compiled":
        rope, rotated = "rope_latent", query_width
    listed += [
        _latent_norm("kv_a_norm", tokens, mla.kv_lora_rank, count),
        elementwise("rope", rope, (tokens, rotated), 2 * ACTIVATION_BYTES, count=count),
        elementwise(
            "kv_write", f"latent_write{_cache_suffix(mla, shape)}", (tokens, mla.kv_elements), written, count=count
        ),
    ]
    if mla.indexer is not None:
        listed += sparse_mla.indexer_token_operators(mla, mla.indexer, shape, tokens)
    if shape.is_fp8:
        listed.append(quant("o_quant", tokens, value_width, count=count))
    listed.append(gemm("o", (tokens, hidden, value_width), dtype, count=count))
    return listed + tp_all_reduce("attention_all_reduce", tokens, shape)


def attention_operators(
    mla: LatentAttention, shape: RankShape, batch: Batch, kernel: MlaKernel = "flash_mla"
) -> list[Operator]:
    """The decodes of the batch absorbed, its prefills expanded, or absorbed where the kernel takes short ones; all
    absorbed where attention is sparse."""
    if mla.indexer is not None:
        return sparse_mla.attention_operators(mla, mla.indexer, shape, batch)
    is_decode = batch.is_decode
    is_short = ~is_decode & (batch.new_tokens <= most_absorbed(kernel, shape.precision))
    is_long = ~is_decode & ~is_short
    listed = []
    if is_decode.any():
        listed += _absorbed(mla, shape, batch.kv_tokens[is_decode], kernel)
    if is_short.any():
        listed += _absorbed_chunks(mla, shape, batch.new_tokens[is_short], batch.kv_tokens[is_short])
    if is_long.any():
        listed += _expanded(mla, shape, batch.new_tokens[is_long], batch.kv_tokens[is_long])
    return listed


def most_absorbed(kernel: MlaKernel, precision: Precision) -> int:
    """Tokens of the longest chunk of a prompt that is absorbed; 0: all are expanded. In vLLM FlashMLA takes chunks of
    up to 128 if they are equally long (``mla/flashmla.py``), which is not priced."""
    return MOST_TOKENS if kernel == "fa3_chunks" and precision.kv == "bf16" else 0


def _absorbed_chunks(
    mla: LatentAttention, shape: RankShape, new: NDArray[np.int64], kv: NDArray[np.int64]
) -> list[Operator]:
    heads, tokens = split(mla.heads, shape.tp, "attention heads"), int(new.sum())
    attention = Fa3MlaChunks(new, kv, heads, mla.kv_elements, mla.kv_lora_rank)
    return [
        batched_gemm("q_absorb", heads, (tokens, mla.kv_lora_rank, mla.qk_nope_head_dim), shape.count),
        attention_kernel("chunk_attention", attention, shape),
        batched_gemm("o_unabsorb", heads, (tokens, mla.v_head_dim, mla.kv_lora_rank), shape.count),
    ]


def _absorbed(mla: LatentAttention, shape: RankShape, kv: NDArray[np.int64], kernel: MlaKernel) -> list[Operator]:
    heads, sequences = split(mla.heads, shape.tp, "attention heads"), len(kv)
    d_qk, d_v = mla.kv_elements, mla.kv_lora_rank
    is_fp8 = shape.precision.kv == "fp8"
    decode = MlaDecode if is_fp8 else _DECODES[kernel]
    return [
        batched_gemm("q_absorb", heads, (sequences, mla.kv_lora_rank, mla.qk_nope_head_dim), shape.count),
        *([quant("query_quant", sequences * heads, d_qk, count=shape.count, phase=Phase.ATTENTION)] if is_fp8 else []),
        attention_kernel("mla_decode", decode(kv, heads, d_qk, d_v), shape),
        batched_gemm("o_unabsorb", heads, (sequences, mla.v_head_dim, mla.kv_lora_rank), shape.count),
    ]


def _expanded(mla: LatentAttention, shape: RankShape, new: NDArray[np.int64], kv: NDArray[np.int64]) -> list[Operator]:
    heads = split(mla.heads, shape.tp, "attention heads")
    attention = PrefillAttention(new, kv, heads, heads, mla.qk_head_dim, mla.v_head_dim)
    return [
        *chunk_operators(mla, shape, int(new.sum())),
        *past_operators(mla, shape, int((kv - new).sum())),
        attention_kernel("prefill_attention", attention, shape),
        *merge_operators(mla, shape, int(new[kv > new].sum())),
    ]


def chunk_operators(mla: LatentAttention, shape: RankShape, tokens: int) -> list[Operator]:
    """Expansion of the latents of so many new tokens of prefills."""
    return _expand_latents(mla, shape, tokens, "kv_b") if tokens else []


def past_operators(mla: LatentAttention, shape: RankShape, tokens: int) -> list[Operator]:
    """Gathering and expansion of so many cached latents before the chunks of prefills."""
    if not tokens:
        return []
    copied = ELEMENT_BYTES[shape.precision.kv] + ACTIVATION_BYTES
    size, kernel = (tokens, mla.kv_elements), f"latent_gather{_cache_suffix(mla, shape)}"
    gather = elementwise("past_latent_gather", kernel, size, copied, count=shape.count, phase=Phase.ATTENTION)
    return [gather, *_expand_latents(mla, shape, tokens, "past_kv_b")]


def merge_operators(mla: LatentAttention, shape: RankShape, tokens: int) -> list[Operator]:
    """Attention to past and to new keys joined, for so many new tokens of prefills that have a past."""
    if not tokens:
        return []
    size = (tokens, split(mla.heads, shape.tp, "attention heads") * mla.v_head_dim)
    moved = 3 * ACTIVATION_BYTES
    return [elementwise("past_merge", "merge_states", size, moved, count=shape.count, phase=Phase.ATTENTION)]


def _cache_suffix(mla: LatentAttention, shape: RankShape) -> str:
    """Of the kernels that write or gather latents: the cache's format."""
    if shape.precision.kv == "bf16":
        return ""
    return "_fp8" if mla.indexer is None else "_sparse_fp8"


def _expand_latents(mla: LatentAttention, shape: RankShape, tokens: int, name: str) -> list[Operator]:
    """kv_b over ``tokens`` latents, then keys assembled from their expanded part and the shared rotary part."""
    heads, count, dtype = split(mla.heads, shape.tp, "attention heads"), shape.count, shape.precision.dense
    width = heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    expand = gemm(name, (tokens, width, mla.kv_lora_rank), dtype, count=count, phase=Phase.ATTENTION)
    key_width = heads * mla.qk_head_dim
    read_and_written = ACTIVATION_BYTES * (1 + (heads * mla.qk_nope_head_dim + mla.qk_rope_head_dim) / key_width)
    assemble = elementwise(
        f"{name}_assemble_k",
        "assemble_k",
        (tokens, key_width),
        read_and_written,
        count=count,
        phase=Phase.ATTENTION,
    )
    quantise = [quant(f"{name}_quant", tokens, mla.kv_lora_rank, count=count)] if shape.is_fp8 else []
    return [*quantise, expand, assemble]


def _latent_norm(name: str, tokens: int, width: int, count: int) -> Operator:
    return elementwise(name, "rms_norm", (tokens, width), 2 * ACTIVATION_BYTES, count=count, weights=width)
