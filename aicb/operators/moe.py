"""Operators of routed experts on one rank, with what brings tokens there and back (`aicb.operators.dispatch`).

Rows are those of the ``RankLoad``, the slowest rank of the group; without one they are expectations under uniform
routing, spread evenly over ranks. Every rank is taken to send as many tokens as this one.
"""

from __future__ import annotations

from dataclasses import replace

from aicb.experts.popularity import RankPopularity
from aicb.experts.profile import RankLoad
from aicb.kernels.grouped_gemm import GroupedGemm, Layout
from aicb.model.architecture import MoeFfn
from aicb.model.partition import MoeLayout, Partition, split
from aicb.model.precision import activation_bytes_per_row
from aicb.operators.build import (
    ACTIVATION_BYTES,
    RankShape,
    elementwise,
    grouped_gemm,
    quant,
    silu_mul,
)
from aicb.operators.dispatch import (
    ADDING,
    DEEPEP,
    GATHERING,
    DispatchKind,
    ExpertDispatch,
    Sent,
    copies_per_token,
    quantises_first,
    travel,
)
from aicb.operators.experts_kernel import ExpertsKernel
from aicb.operators.ffn import INDEX_BYTES, tokens_to_route
from aicb.operators.operator import Operator, Phase
from aicb.operators.quantisation import quantised_by

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
    dispatch: ExpertDispatch = DEEPEP,
    popularity: tuple[RankPopularity, ...] | None = None,
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
    kind = dispatch.kind(is_decode=is_decode)
    sent = Sent(tokens_to_route(shape.partition, tokens), group_tokens, popularity)
    if kind in GATHERING:
        return _tokens_of_all(moe, shape, sent, load, kind, is_decode=is_decode)
    return _dispatched_tokens(moe, shape, sent, load, kind)


def _replicated_tokens(
    moe: MoeFfn, shape: RankShape, tokens: int, load: RankLoad, *, is_decode: bool
) -> list[Operator]:
    """Every rank has all tokens and sums the outputs of its experts into ``[T, h]``.

    fp8 experts get their rows copied and quantised. bf16 experts run in a kernel that gathers them by index (vLLM's
    fused MoE), for which the (token, expert) pairs are sorted. Where ranks share them, all pairs are: those of others'
    experts become rows of zeros, which the activation and the sum go over as well.
    """
    rows, hidden, count = load.rows, shape.hidden, shape.count
    is_shared = shares_bf16_experts(shape)
    pairs = float(tokens * moe.experts_per_token) if is_shared else rows
    if shape.is_fp8:
        gather = [
            elementwise(
                "moe_permute", "permute", (rows, hidden), 2 * ACTIVATION_BYTES, count=count, phase=Phase.EXPERTS
            ),
            quant("moe_quant", rows, hidden, count=count, phase=Phase.EXPERTS),
        ]
    else:
        gather = [_sorted_pairs(moe, tokens, count), *([_expert_map(count)] if is_shared else [])]
    if shape.precision.weights == "mxfp4":
        return [*gather, *_fused(moe, shape, load)]
    return [
        *gather,
        *_grouped(moe, shape, load, "masked" if is_decode else "contiguous", activated=pairs),
        _weighted_sum(pairs, tokens, hidden, count),
    ]


def shares_bf16_experts(shape: RankShape) -> bool:
    """Whether this is one of several ranks with bf16 experts of their own."""
    return shape.partition.ep > 1 and shape.precision.weights == "bf16"


_TILES = 512
"""Tiles whose experts are looked up. A stand-in: their 2 KB of indices, or ten times that, take what a launch takes."""


def _expert_map(count: int) -> Operator:
    """Places of the tiles' experts on this rank: two small kernels (vLLM 0.24.0, ``moe_align_block_size.py``)."""
    return elementwise("moe_expert_map", "add", (1, _TILES), INDEX_BYTES, count=2 * count, phase=Phase.EXPERTS)


def _output_copy(tokens: int, shape: RankShape) -> Operator:
    """What a scatter brought back is copied to where the layer expects it (``prepare_finalize/naive_dp_ep.py``)."""
    size = (tokens, shape.hidden)
    return elementwise("moe_output", "add", size, 2 * ACTIVATION_BYTES, count=shape.count, phase=Phase.EXPERTS)


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


def _tokens_of_all(
    moe: MoeFfn, shape: RankShape, sent: Sent, load: RankLoad, kind: DispatchKind, *, is_decode: bool
) -> list[Operator]:
    """Every rank gets the tokens of all, and sums the outputs of its experts into as many rows."""
    there, back = travel(moe, shape, sent, kind)
    experts = _replicated_tokens(moe, shape, sent.group, load, is_decode=is_decode)
    if not quantises_first(kind, shape):
        is_copied = kind == "all_gather" and sent.own and shares_bf16_experts(shape)
        return [there, *experts, back, *([_output_copy(sent.own, shape)] if is_copied else [])]
    hidden, count = shape.hidden, shape.count
    quantised = [quant("moe_quant", sent.own, hidden, count=count, phase=Phase.EXPERTS)] if sent.own else []
    return [*quantised, there, _permuted(load.rows, shape), *(op for op in experts if op.name not in _GATHERED), back]


_GATHERED = ("moe_permute", "moe_quant")
"""What gathers rows of bf16 tokens and quantises them."""


def _dispatched_tokens(moe: MoeFfn, shape: RankShape, sent: Sent, load: RankLoad, kind: DispatchKind) -> list[Operator]:
    """Tokens travel to the ranks of their experts, quantised before they leave; bf16 outputs travel back.

    Low-latency kernels deliver one row per expert into the masked layout. Others sum the rows of a token on each
    destination rank first. What comes back is summed at home, or copied where the combine itself has summed (`ADDING`).
    """
    hidden, count, ep = shape.hidden, shape.count, shape.partition.ep
    is_low_latency, rows = kind == "deepep_low_latency", load.rows
    copies = float(moe.experts_per_token) if is_low_latency else copies_per_token(moe, ep)
    there, back = travel(moe, shape, sent, kind)
    listed = []
    if sent.own and shape.is_fp8:
        listed.append(quant("moe_quant", sent.own, hidden, count=count, phase=Phase.EXPERTS))
    listed += [
        there,
        _permuted(rows, shape),
        *_grouped(moe, shape, load, "masked" if is_low_latency else "contiguous"),
    ]
    if not is_low_latency:
        rows_per_token = moe.experts_per_token / copies
        listed.append(_weighted_sum(rows, rows / rows_per_token, hidden, count))
    listed.append(back)
    if sent.own:
        listed.append(_sum_of_copies(sent.own, 1.0 if kind in ADDING else copies, hidden, count))
    return listed


def home_operators(shape: RankShape, tokens: int, copies: float) -> list[Operator]:
    """What a rank whose experts are all elsewhere does with its tokens: quantises them before they leave, and adds up
    the ``copies`` rows that come back of each."""
    listed = [quant("moe_quant", tokens, shape.hidden, count=shape.count, phase=Phase.EXPERTS)] if shape.is_fp8 else []
    return [*listed, _sum_of_copies(tokens, copies, shape.hidden, shape.count)]


def sum_of_worker(moe: MoeFfn, shape: RankShape, rows: float, copies: float) -> Operator:
    """Sum of each token's rows on a rank, of which it gets one of the token's ``copies``, before it leaves."""
    return _weighted_sum(rows, rows * copies / moe.experts_per_token, shape.hidden, shape.count)


def _permuted(rows: float, shape: RankShape) -> Operator:
    """Rows as they have travelled, in the order of experts."""
    per_element = 2 * activation_bytes_per_row(shape.hidden, shape.precision.dense) / shape.hidden
    size = (rows, shape.hidden)
    return elementwise("moe_permute", "permute", size, per_element, count=shape.count, phase=Phase.EXPERTS)


def expected_load(moe: MoeFfn, partition: Partition, tokens: int) -> RankLoad:
    """Expectation over ranks when each of ``tokens`` ≥ 1 tokens picks k of the slots uniformly.

    ``T·k/ep`` rows on ``G·(1 − (1 − k / slots)^T)`` active slots, equally full.
    """
    slots_per_rank = partition.expert_slots_per_rank(moe.experts)
    chosen = moe.experts_per_token / (moe.experts + partition.redundant_experts)
    rows = tokens * moe.experts_per_token / partition.ep
    active = slots_per_rank * (1.0 - (1.0 - chosen) ** tokens)
    return RankLoad(rows, active, rows / active)


def _grouped(
    moe: MoeFfn, shape: RankShape, load: RankLoad, layout: Layout, *, activated: float | None = None
) -> list[Operator]:
    """Up projection, activation (of ``activated`` rows, by default of the load's), down projection over the local
    experts."""
    partition, dtype = shape.partition, shape.precision.weights
    slots_per_rank = partition.expert_slots_per_rank(moe.experts)
    rows, active, largest = load
    tp = partition.tp if partition.moe_layout is MoeLayout.TENSOR else 1
    width = split(moe.intermediate, tp, "expert intermediate columns")
    experts, has_bias = (rows, slots_per_rank, active), moe.has_biases
    traits = {"has_bias": has_bias, "is_shared": activated is not None and shares_bf16_experts(shape)}
    up = GroupedGemm(*experts, 2 * width, shape.hidden, dtype, layout, largest, **traits)
    down = GroupedGemm(*experts, shape.hidden, width, dtype, layout, largest, **traits)
    return [
        grouped_gemm("moe_gate_up", up, shape.count),
        silu_mul("moe_silu_mul", rows if activated is None else activated, width, shape, phase=Phase.EXPERTS),
        grouped_gemm("moe_down", down, shape.count),
    ]


def _fused(moe: MoeFfn, shape: RankShape, load: RankLoad) -> list[Operator]:
    """mxfp4 experts: the up projection with the activation, the down projection with the sum over experts
    (`aicb.profiling.libraries.vllm_mxfp4`)."""
    up, _, down = _grouped(moe, shape, load, "gathered")
    assert isinstance(up.kernel, GroupedGemm), "the first of the products"
    return [replace(up, kernel=replace(up.kernel, has_activation=True)), down]


def _weighted_sum(rows: float, tokens: float, hidden: int, count: int) -> Operator:
    """Expert outputs ``[rows, h]`` read, their weighted sums ``[tokens, h]`` written."""
    per_element = ACTIVATION_BYTES * (1 + tokens / rows)
    return elementwise("moe_unpermute", "unpermute", (rows, hidden), per_element, count=count, phase=Phase.EXPERTS)


def _sum_of_copies(tokens: int, copies: float, hidden: int, count: int) -> Operator:
    """Sum of the ``copies`` rows per token that came back, at the token's rank; of one, a copy to where the layer
    expects it (vLLM 0.24.0, ``prepare_finalize/deepep_ht.py``)."""
    per_element = ACTIVATION_BYTES * (copies + 1)
    return elementwise("moe_reduce", "unpermute", (tokens, hidden), per_element, count=count, phase=Phase.EXPERTS)
