"""Operators of routed experts on one rank, and the dispatch and combine that bring tokens there and back.

Rows are those of the ``RankLoad``, the slowest rank of the group; without one they are expectations under uniform
routing, spread evenly over ranks. What a rank sends and receives is always the mean over ranks.
"""

from __future__ import annotations

import math

from aicb.experts.profile import RankLoad
from aicb.kernels.grouped_gemm import GroupedGemm, Layout
from aicb.model.architecture import MoeFfn
from aicb.model.partition import MoeLayout, Partition, split
from aicb.model.precision import activation_bytes_per_row
from aicb.operators.build import (
    ACTIVATION_BYTES,
    RankShape,
    communicate,
    elementwise,
    grouped_gemm,
    quant,
    silu_mul,
)
from aicb.operators.experts_kernel import ExpertsKernel
from aicb.operators.ffn import tokens_to_route
from aicb.operators.operator import Operator, Phase
from aicb.operators.quantisation import quantised_by

LOW_LATENCY_HEADER_BYTES = 16
"""Per message of DeepEP's low-latency dispatch."""

INDEX_BYTES = 4
"""Of a chosen expert and of a sorted pair."""
UNSORTED_SHARE = 4
"""vLLM's Triton kernel takes pairs as they come where so many times their number is no more than the experts
(0.24.0, ``fused_moe.py``, ``naive_block_assignment``)."""


def expert_operators(
    moe: MoeFfn,
    shape: RankShape,
    *,
    tokens: int,
    group_tokens: int,
    is_decode: bool,
    load: RankLoad | None = None,
    experts_kernel: ExpertsKernel = "deep_gemm",
) -> list[Operator]:
    """Routed experts of one rank; ``group_tokens`` are the distinct tokens of all ranks that share the experts.

    Tokens are replicated, not multiplied, inside a TP group: the mean rows are ``group_tokens · k / ep``.
    """
    is_dispatched = shape.partition.moe_layout is MoeLayout.EXPERT_DATA
    distinct = group_tokens if is_dispatched else tokens
    if distinct == 0:
        return []
    load = load or expected_load(moe, shape.partition, distinct)
    if not is_dispatched:
        if shape.is_fp8 and experts_kernel == "triton":
            return _gathered_tokens(moe, shape, tokens, load)
        return _replicated_tokens(moe, shape, tokens, load, is_decode=is_decode)
    return _dispatched_tokens(moe, shape, (tokens, group_tokens), load, is_decode=is_decode)


def _replicated_tokens(
    moe: MoeFfn, shape: RankShape, tokens: int, load: RankLoad, *, is_decode: bool
) -> list[Operator]:
    """Every rank has all tokens and sums the outputs of its experts into ``[T, h]``.

    fp8 experts get their rows copied and quantised. bf16 experts run in a kernel that gathers them by index (vLLM's
    fused MoE), for which the (token, expert) pairs are sorted.
    """
    rows, hidden, count = load.rows, shape.hidden, shape.count
    if shape.is_fp8:
        gather = [
            elementwise(
                "moe_permute", "permute", (rows, hidden), 2 * ACTIVATION_BYTES, count=count, phase=Phase.EXPERTS
            ),
            quant("moe_quant", rows, hidden, count=count, phase=Phase.EXPERTS),
        ]
    else:
        gather = [_sorted_pairs(moe, tokens, count)]
    return [
        *gather,
        *_grouped(moe, shape, load, "masked" if is_decode else "contiguous"),
        _weighted_sum(rows, tokens, hidden, count),
    ]


def _gathered_tokens(moe: MoeFfn, shape: RankShape, tokens: int, load: RankLoad) -> list[Operator]:
    """fp8 experts in a kernel that gathers rows by index: tokens are quantised once, whatever their experts.

    As vLLM's ``TritonExperts``: quantisation of ``[T, h]``, sorting of pairs, product, activation, quantisation,
    product with the router's weights, sum. Few pairs are not sorted.
    """
    hidden, count = shape.hidden, shape.count
    is_sorted = UNSORTED_SHARE * tokens * moe.experts_per_token > moe.experts
    listed = [
        quant("moe_quant", tokens, hidden, count=count, phase=Phase.EXPERTS),
        *([_sorted_pairs(moe, tokens, count)] if is_sorted else []),
        *_grouped(moe, shape, load, "gathered"),
        _weighted_sum(load.rows, tokens, hidden, count),
    ]
    return quantised_by("vllm", listed)


def _sorted_pairs(moe: MoeFfn, tokens: int, count: int) -> Operator:
    """(token, expert) pairs in the order of experts."""
    per_score = 2 * INDEX_BYTES * moe.experts_per_token / moe.experts
    size = (tokens, moe.experts)
    return elementwise("moe_align", "moe_align", size, per_score, count=count, phase=Phase.EXPERTS)


def _dispatched_tokens(
    moe: MoeFfn, shape: RankShape, sent: tuple[int, int], load: RankLoad, *, is_decode: bool
) -> list[Operator]:
    """Tokens travel to the ranks of their experts, quantised before they leave; bf16 outputs travel back.

    Low-latency kernels deliver one row per expert into the masked layout and sum at home. Normal kernels sum the
    rows of a token on each destination rank first. ``sent``: tokens of the rank and of the group.
    """
    hidden, count, ep = shape.hidden, shape.count, shape.partition.ep
    (tokens, group_tokens), rows = sent, load.rows
    mean_tokens = group_tokens / ep
    routed, copies = tokens_to_route(shape.partition, tokens), copies_per_token(moe, ep, is_decode=is_decode)
    row_bytes = activation_bytes_per_row(hidden, shape.precision.dense)
    message_bytes = row_bytes + (LOW_LATENCY_HEADER_BYTES if is_decode else 0)
    permuted_bytes = 2 * row_bytes / hidden
    listed = []
    if routed and shape.is_fp8:
        listed.append(quant("moe_quant", routed, hidden, count=count, phase=Phase.EXPERTS))
    listed += [
        communicate("moe_dispatch", "all_to_all", routed * copies * message_bytes, "ep", count),
        elementwise("moe_permute", "permute", (rows, hidden), permuted_bytes, count=count, phase=Phase.EXPERTS),
        *_grouped(moe, shape, load, "masked" if is_decode else "contiguous"),
    ]
    if not is_decode:
        rows_per_token = moe.experts_per_token / copies
        listed.append(_weighted_sum(rows, rows / rows_per_token, hidden, count))
    combined_bytes = mean_tokens * copies * hidden * ACTIVATION_BYTES
    listed.append(communicate("moe_combine", "all_to_all", combined_bytes, "ep", count))
    if routed:
        listed.append(_sum_of_copies(routed, copies, hidden, count))
    return listed


def copies_per_token(moe: MoeFfn, ep: int, *, is_decode: bool) -> float:
    """Copies of a token that dispatch sends, the rank's own share included as in nccl-tests.

    Decode-only groups use low-latency kernels: one per selected expert. Others send one per distinct destination
    rank: ``e·(1 − C(E − E/e, k) / C(E, k))`` for uniform routing; the node limit of group-limited routing is ignored.
    """
    if is_decode:
        return float(moe.experts_per_token)
    others = moe.experts - moe.experts // ep
    return ep * (1.0 - math.comb(others, moe.experts_per_token) / math.comb(moe.experts, moe.experts_per_token))


def expected_load(moe: MoeFfn, partition: Partition, tokens: int) -> RankLoad:
    """Expectation over ranks when each of ``tokens`` ≥ 1 tokens picks k of the slots uniformly.

    ``T·k/ep`` rows on ``G·(1 − (1 − k / slots)^T)`` active slots, equally full.
    """
    slots_per_rank = partition.expert_slots_per_rank(moe.experts)
    chosen = moe.experts_per_token / (moe.experts + partition.redundant_experts)
    rows = tokens * moe.experts_per_token / partition.ep
    active = slots_per_rank * (1.0 - (1.0 - chosen) ** tokens)
    return RankLoad(rows, active, rows / active)


def _grouped(moe: MoeFfn, shape: RankShape, load: RankLoad, layout: Layout) -> list[Operator]:
    """Up projection, activation, down projection over the local experts."""
    partition, dtype = shape.partition, shape.precision.weights
    slots_per_rank = partition.expert_slots_per_rank(moe.experts)
    rows, active, largest = load
    tp = partition.tp if partition.moe_layout is MoeLayout.TENSOR else 1
    width = split(moe.intermediate, tp, "expert intermediate columns")
    experts, has_bias = (rows, slots_per_rank, active), moe.has_biases
    up = GroupedGemm(*experts, 2 * width, shape.hidden, dtype, layout, largest, has_bias=has_bias)
    down = GroupedGemm(*experts, shape.hidden, width, dtype, layout, largest, has_bias=has_bias)
    return [
        grouped_gemm("moe_gate_up", up, shape.count),
        silu_mul("moe_silu_mul", rows, width, shape, phase=Phase.EXPERTS),
        grouped_gemm("moe_down", down, shape.count),
    ]


def _weighted_sum(rows: float, tokens: float, hidden: int, count: int) -> Operator:
    """Expert outputs ``[rows, h]`` read, their weighted sums ``[tokens, h]`` written."""
    per_element = ACTIVATION_BYTES * (1 + tokens / rows)
    return elementwise("moe_unpermute", "unpermute", (rows, hidden), per_element, count=count, phase=Phase.EXPERTS)


def _sum_of_copies(tokens: int, copies: float, hidden: int, count: int) -> Operator:
    """Sum of the ``copies`` rows per token that combine brought back, at the token's rank."""
    per_element = ACTIVATION_BYTES * (copies + 1)
    return elementwise("moe_reduce", "unpermute", (tokens, hidden), per_element, count=count, phase=Phase.EXPERTS)
