"""Operators of one iteration: what is computed and what is sent, with shapes, FLOPs and bytes.

Shapes are per rank. Identical layers are listed once with their ``count``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from aicb.model.precision import KvDtype

GemmDtype = Literal["bf16", "fp8"]
"""``fp8`` is e4m3 with 1x128 activation and 128x128 weight scales (DeepGEMM)."""


class Phase(Enum):
    """Where an operator belongs in the per-phase breakdown of reports."""

    ATTENTION = "attention"
    """Kernels that depend on the lengths of requests: attention, MLA expansion and absorption, linear attention."""
    DENSE = "dense"
    """GEMMs that every token passes: projections, dense FFN, shared expert."""
    EXPERTS = "experts"
    """Router and routed experts, with the kernels between them."""
    HEAD = "head"
    """Embedding, final norm, LM head, sampling."""
    NORM = "norm_and_small"
    """Memory-bound kernels between projections: norms, RoPE, quantisation, activation, KV write."""
    COMMUNICATION = "communication"


@dataclass(frozen=True, slots=True)
class Gemm:
    """``[m, k] x [n, k]^T -> [m, n]``."""

    m: int
    n: int
    k: int
    dtype: GemmDtype


@dataclass(frozen=True, slots=True)
class BatchedGemm:
    """``batch`` independent bf16 products ``[m, k] x [k, n]`` (MLA absorb)."""

    batch: int
    m: int
    n: int
    k: int


@dataclass(frozen=True, slots=True)
class GroupedGemm:
    """One product per local expert; ``rows`` is the total over local experts (a mean, may be fractional).

    ``layout`` "masked" is used by decode (one row block per expert), "contiguous" by prefill (rows padded to 128
    per expert).
    """

    rows: float
    groups: int
    active_groups: float
    n: int
    k: int
    dtype: GemmDtype
    layout: Literal["masked", "contiguous"]
    largest_group_rows: float | None = None
    """Rows of the fullest local expert; ``None`` where only the total is known."""


@dataclass(frozen=True, slots=True, eq=False)
class PrefillAttention:
    """Causal attention of query chunks over past and new keys, one entry per request."""

    new_tokens: NDArray[np.int64]
    kv_tokens: NDArray[np.int64]
    heads: int
    kv_heads: int
    d_qk: int
    d_v: int
    dtype: GemmDtype = "bf16"
    """Format of queries, keys and values; ``fp8`` is e4m3 with a scale per KV head, the output bf16."""


@dataclass(frozen=True, slots=True, eq=False)
class DecodeAttention:
    """One query token per request over a paged GQA cache."""

    kv_tokens: NDArray[np.int64]
    heads: int
    kv_heads: int
    head_dim: int
    kv_dtype: KvDtype | None = field(default=None, kw_only=True)
    """Format of the cache; ``None``: that of the instance, which the estimator knows."""


@dataclass(frozen=True, slots=True, eq=False)
class MlaDecode:
    """Absorbed MLA decode (FlashMLA): every head attends to one latent of 576, value 512."""

    kv_tokens: NDArray[np.int64]
    heads: int
    d_qk: int
    d_v: int
    kv_dtype: KvDtype | None = field(default=None, kw_only=True)
    """Format of the cache; ``None``: that of the instance, which the estimator knows."""


SparseKernel = Literal["index_logits", "index_topk", "attention"]
"""Kernels of DeepSeek Sparse Attention in order: scores of all keys a query sees, choice of the best, attention."""


@dataclass(frozen=True, slots=True, eq=False)
class SparseMlaDecode(MlaDecode):
    """One kernel of absorbed MLA decode over the keys that an indexer chooses; ``d_qk`` and ``d_v`` are the latent's.

    ``heads`` beyond ``query_heads`` are further query tokens of the same request, which choose keys of their own.
    """

    kernel: SparseKernel
    query_heads: int
    """Heads of one query token, padded to what the kernel takes."""
    topk: int
    index_heads: int
    index_dim: int

    @property
    def queries(self) -> int:
        """Query tokens per request."""
        return -(-self.heads // self.query_heads)


@dataclass(frozen=True, slots=True, eq=False)
class SparseMlaPrefill:
    """One kernel of absorbed sparse attention of query chunks over past and new latents, one entry per request."""

    new_tokens: NDArray[np.int64]
    kv_tokens: NDArray[np.int64]
    kernel: SparseKernel
    heads: int
    """Padded to what the kernel takes."""
    d_qk: int
    d_v: int
    topk: int
    index_heads: int
    index_dim: int


@dataclass(frozen=True, slots=True, eq=False)
class GatedDeltaPrefill:
    """Chunked gated delta rule over whole chunks of new tokens, one entry per request."""

    new_tokens: NDArray[np.int64]
    key_heads: int
    value_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class GatedDeltaDecode:
    """Recurrent gated delta rule: one state per sequence, read and written."""

    sequences: int
    key_heads: int
    value_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Elementwise:
    """A memory-bound kernel: norm, RoPE, quantisation, activation, router top-k, KV write, embedding, sampling."""

    kernel: str
    """One of: rms_norm, add_rms_norm, layer_norm, head_norm, rope, quant, silu_mul, silu_mul_quant, topk, grouped_topk,
    permute, unpermute, kv_write, kv_write_fp8, latent_write, latent_gather (both also _fp8 and _sparse_fp8),
    merge_states, index_write, index_gather, embedding, sampling, conv, gating, add, assemble_k, state_copy."""
    rows: int
    cols: int
    moved_bytes: int
    """Bytes read plus bytes written."""


@dataclass(frozen=True, slots=True)
class Communication:
    """A collective between the ranks of a group of the instance; priced by the user of this package.

    ``size_bytes`` follows nccl-tests: the full buffer; for all_to_all what one rank sends in total.
    """

    op: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]
    size_bytes: int
    group: Literal["tp", "ep", "pp"]


Work = (
    Gemm
    | BatchedGemm
    | GroupedGemm
    | PrefillAttention
    | DecodeAttention
    | MlaDecode
    | SparseMlaDecode
    | SparseMlaPrefill
    | GatedDeltaPrefill
    | GatedDeltaDecode
    | Elementwise
    | Communication
)


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """One operator of an iteration, repeated ``count`` times (once per identical layer)."""

    name: str
    work: Work
    count: int
    phase: Phase
    flops: float
    """Algorithmic FLOPs of one execution."""
    moved_bytes: float
    """Bytes read and written by one execution, weights included once."""
    weight_elements: int
    """Parameters the rank holds for one execution, inactive experts included; 0 where it has none of its own.

    Kernels that share weights in a mixed batch (prefill and decode forms of one layer) each state them.
    """
