"""Small kernels of models with gated delta rules (Qwen3-Next): all but products, attention and experts.

``fused``: one kernel for a step, or none where it is part of the one before or after; other engines than vLLM were not
looked at kernel by kernel. ``compiled``: vLLM 0.24.0, which has kernels of its own for some and Python code that
torch.compile makes kernels of for the rest. Bytes follow from vLLM's code (paths are in ``vllm/model_executor``):

- the columns of the interleaved projection are taken apart and joined: queries, keys and values become one tensor,
  values and z are copied before (``layers/mamba/gdn/qwen_gdn_linear_attn.py``, ``fix_query_key_value_ordering``) by one
  to three kernels, as the compiler chooses, which move as much as three copies in all; memory for results is cleared
  (``forward_cuda``);
- results of the convolution are split, queries and keys normalised, gates computed
  (``layers/fla/ops/fused_gdn_prefill_post_conv.py``), results of the chunked rule copied (``_forward_core``); decodes
  have all of it in the kernel of the rule (``layers/fla/ops/fused_recurrent.py``, packed), which reads and writes the
  state;
- the gated norm is a kernel that sums squares and one that normalises (``layers/layernorm.py``, ``RMSNormGated``);
- norms have weights that are one off (``GemmaRMSNorm``), so they are compiled, too: the next layer's adds the shared
  experts' results to the routed ones', and copies on the way what the projection after attention gave to the tensor
  that ``models/qwen3_next.py`` has for it (the kernel's name has ``copy_``; torch 2.11 does so with this code alone);
- heads are taken apart from their gates, normalised and rotated in one kernel (``layers/fused_qk_norm_rope.py``);
- the shared expert's gate is a sigmoid and a product (``models/qwen2_moe.py``).

Their times on an H200 are those inside the engine (``aicb/data/h200/vllm_hybrid.parquet``). Elsewhere they are
transferred or, without a table, priced by their bytes at the rate of norms and flagged as estimates.
"""

from __future__ import annotations

from typing import Literal, get_args

from aicb.model.architecture import GatedDeltaNet, GroupedQueryAttention
from aicb.model.precision import ELEMENT_BYTES
from aicb.operators.build import ACTIVATION_BYTES, RankShape, elementwise
from aicb.operators.operator import Operator, Phase
from boundary.errors import InputError

HybridKernels = Literal["fused", "compiled"]

_COPIED = 2 * ACTIVATION_BYTES
"""Bytes of an element that is read and written."""
_ROW_STATISTIC = ELEMENT_BYTES["fp32"]


def check_hybrid_kernels(chosen: str) -> None:
    """Raises: InputError, no such kernels."""
    if chosen not in get_args(HybridKernels):
        raise InputError(f"hybrid_kernels: found {chosen!r}, expected one of {', '.join(get_args(HybridKernels))}")


def residual_norms(shape: RankShape, tokens: int) -> list[Operator]:
    """Both norms of a layer. After attention two tensors are read and two written; before it a third is read, the
    shared experts' results, and one is copied."""
    kernels = {"input_norm": ("offset_sum_norm", 7), "post_attention_norm": ("offset_norm", 4)}
    size = (tokens, shape.hidden)
    return [
        elementwise(name, kernel, size, tensors * ACTIVATION_BYTES, count=shape.count, weights=shape.hidden)
        for name, (kernel, tensors) in kernels.items()
    ]


def reordered(gdn: GatedDeltaNet, shape: RankShape, tokens: int) -> list[Operator]:
    """Copies between the projections and the convolution."""
    values = (tokens, gdn.value_heads * gdn.head_dim // shape.tp)
    joined = (tokens, gdn.conv_channels // shape.tp)
    return [
        elementwise("gdn_split", "delta_split", values, 3 * _COPIED, count=shape.count),
        elementwise("gdn_join", "delta_join", joined, _COPIED, count=shape.count),
        elementwise("gdn_clear", "delta_clear", values, ACTIVATION_BYTES, count=shape.count),
    ]


def gated_norm(gdn: GatedDeltaNet, shape: RankShape, tokens: int) -> list[Operator]:
    """Gated norm of each head's results: sums of squares, then the norm times silu(z)."""
    size, statistic = (tokens * gdn.value_heads // shape.tp, gdn.head_dim), _ROW_STATISTIC / gdn.head_dim
    count, weights = shape.count, gdn.head_dim
    return [
        elementwise("gdn_norm_sums", "delta_norm_sums", size, ACTIVATION_BYTES + statistic, count=count),
        elementwise(
            "gdn_gated_norm", "delta_gated_norm", size, 3 * ACTIVATION_BYTES + statistic, count=count, weights=weights
        ),
    ]


def prepared(gdn: GatedDeltaNet, shape: RankShape, tokens: int) -> Operator:
    """Split of the convolution's results of prompts, with two gates per value head: bf16 read, fp32 written."""
    channels, heads = gdn.conv_channels // shape.tp, gdn.value_heads // shape.tp
    gates = 2 * heads * (ACTIVATION_BYTES + ELEMENT_BYTES["fp32"])
    per_element = _COPIED + gates / channels
    return elementwise(
        "gdn_prepare",
        "delta_prepare",
        (tokens, channels),
        per_element,
        count=shape.count,
        weights=2 * heads,
        phase=Phase.ATTENTION,
    )


def copied_results(gdn: GatedDeltaNet, shape: RankShape, tokens: int) -> Operator:
    """Copy of the chunked rule's results into the layer's tensor."""
    size = (tokens, gdn.value_heads * gdn.head_dim // shape.tp)
    return elementwise("gdn_results", "delta_results", size, _COPIED, count=shape.count, phase=Phase.ATTENTION)


def packed_decode(gdn: GatedDeltaNet, shape: RankShape, sequences: int) -> Operator:
    """Decode step of the rule, a token per request. It reads state, results of the convolution and gates as they are
    projected, and writes state and results. A row is a state in bf16, so that one in fp32 counts as two."""
    heads, channels = gdn.value_heads // shape.tp, gdn.conv_channels // shape.tp
    rows = ELEMENT_BYTES[shape.precision.state] // ELEMENT_BYTES["bf16"]
    state = 2 * ELEMENT_BYTES[shape.precision.state] * gdn.state_elements // shape.tp
    moved = state + ACTIVATION_BYTES * (channels + heads * (gdn.head_dim + 2))
    return elementwise(
        "gdn_decode",
        "delta_decode",
        (sequences * rows, channels),
        moved / (rows * channels),
        count=shape.count,
        weights=2 * heads,
        phase=Phase.ATTENTION,
    )


def gated_head_norm(gqa: GroupedQueryAttention, shape: RankShape, tokens: int, heads: int, kv_heads: int) -> Operator:
    """Norm and rotary embedding of queries and keys: queries with gates, and keys are read, all three written apart."""
    size = (tokens, (2 * heads + kv_heads) * gqa.head_dim)
    weights = 2 * gqa.head_dim
    return elementwise("gated_head_norm", "gated_head_norm", size, _COPIED, count=shape.count, weights=weights)


def shared_expert_gate(shape: RankShape, tokens: int) -> list[Operator]:
    """Gate of the shared expert: a sigmoid of one value per token, and its product with the expert's result."""
    count = shape.count
    return [
        elementwise("shared_gate_sigmoid", "gate_sigmoid", (tokens, 1), _COPIED, count=count),
        elementwise("shared_gate_mul", "gate_mul", (tokens, shape.hidden), _COPIED, count=count),
    ]
