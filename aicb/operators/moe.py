"""Operators of routed experts on one rank, with what brings tokens there and back (`aicb.operators.dispatch`).

Rows are those of the ``RankLoad``, the slowest rank of the group; without one they are expectations under uniform
routing, spread evenly over ranks. Every rank is taken to send as many tokens as this one.
"""

from __future__ import annotations

from dataclasses import replace

from aicb.experts.popularity import RankPopularity
from aicb.experts.profile import RankLoad
from aicb.kernels.fused_experts import FusedExperts
from aicb.kernels.grouped_gemm import Gathering, GroupedGemm, Layout
from aicb.model.architecture import MoeFfn
from aicb.model.partition import MoeLayout, Partition, split
from aicb.model.precision import activation_bytes_per_row
from aicb.operators.build import (
    ACTIVATION_BYTES,
    RankShape,
    computed,
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
from aicb.operators.experts_kernel import TRITON, ExpertsKernel
from aicb.operators.ffn import INDEX_BYTES, tokens_to_route
from aicb.operators.fused_shared_expert import shared_slot, with_shared_expert
from aicb.operators.moe_kernels import (
    MoeKernelsOfModel,
    activated,
    are_sorted,
    copied_results,
    sorted_pairs,
    summed,
    unsorted_pairs,
    weighted_sum,
)
from aicb.operators.operator import Operator, Phase
from aicb.operators.quantisation import quantised_by


def expert_operators(
    moe: MoeFfn,
    shape: RankShape,
    *,
    tokens: int,
    group_tokens: int,
    is_decode: bool,
    load: RankLoad | None = None,
    experts_kernel: ExpertsKernel = "deep_gemm",
    moe_kernels: MoeKernelsOfModel = "generic",
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
        slot: list[Operator] = []
        if moe_kernels == "sglang_fused":
            slot = shared_slot(moe, tokens, shape.count)
            moe, load = with_shared_expert(moe, load, tokens)
        copies = [copied_results(tokens, shape)] if moe_kernels == "vllm" else []
        if shape.is_fp8 and experts_kernel == "flashinfer":
            return [_in_one_call(moe, shape, tokens, load), *copies]
        listed = _replicated_tokens(moe, shape, tokens, load, moe_kernels, experts_kernel, is_decode=is_decode)
        is_gathered = shape.precision.weights == "bf16" or (shape.is_fp8 and experts_kernel in TRITON)
        return [*slot, *listed, *copies] if is_gathered else [*slot, *listed]
    kind = dispatch.kind(is_decode=is_decode)
    is_one_call = shape.is_fp8 and experts_kernel == "flashinfer" and kind in GATHERING
    sent = Sent(tokens_to_route(shape.partition, tokens), group_tokens, popularity, is_one_call)
    if kind in GATHERING:
        return _tokens_of_all(moe, shape, sent, load, kind, moe_kernels, experts_kernel, is_decode=is_decode)
    return _dispatched_tokens(moe, shape, sent, load, kind)


def _replicated_tokens(
    moe: MoeFfn,
    shape: RankShape,
    tokens: int,
    load: RankLoad,
    kernels: MoeKernelsOfModel,
    experts_kernel: ExpertsKernel,
    *,
    is_decode: bool,
) -> list[Operator]:
    """Every rank has all tokens and sums the outputs of its experts into ``[T, h]``.

    DeepGEMM's fp8 experts get their rows copied and quantised. Others run in a kernel that gathers them by index (fused
    MoE), for which the (token, expert) pairs are sorted. Where ranks share experts, all pairs are: those of others'
    experts become rows of zeros, which the sum goes over as well, and vLLM's activation.
    """
    if shape.is_fp8 and experts_kernel in TRITON:
        gathering: Gathering = "sglang" if experts_kernel == "triton_sglang" else "vllm"
        return _gathered_tokens(moe, shape, tokens, load, kernels, gathering=gathering)
    if shape.is_fp8:
        size, count = (load.rows, shape.hidden), shape.count
        return [
            elementwise("moe_permute", "permute", size, 2 * ACTIVATION_BYTES, count=count, phase=Phase.EXPERTS),
            quant("moe_quant", *size, count=count, phase=Phase.EXPERTS),
            *_grouped(moe, shape, load, "masked" if is_decode else "contiguous"),
            weighted_sum(load.rows, tokens, shape),
        ]
    if shape.precision.weights == "mxfp4":
        sorted_by = sorted_pairs(moe, tokens, shape.count, kernels)
        if experts_kernel == "marlin":
            apart = (activated(each, kernels) for each in _grouped(moe, shape, load, "gathered", gathering="marlin"))
            return [sorted_by, *apart, summed(moe, shape, load.rows, tokens, kernels)]
        return [sorted_by, *_fused(moe, shape, load)]
    pairs = _sorted_rows(moe, shape, tokens, load)
    is_shared, is_sglang = shape.partition.ep > 1, experts_kernel == "triton_sglang"
    is_few = kernels == "vllm" and not is_shared and not are_sorted(moe, tokens)
    layout: Layout = "masked" if is_decode else "contiguous"
    activates = load.rows if is_sglang else pairs
    grouped = _grouped(
        moe,
        shape,
        load,
        layout,
        tokens=float(tokens),
        activates=activates,
        is_shared=is_shared,
        gathering="sglang" if is_sglang else "vllm",
    )
    return [
        unsorted_pairs(shape) if is_few else sorted_pairs(moe, tokens, shape.count, kernels),
        *([_expert_map(shape.count)] if is_shared else []),
        *(activated(each, kernels) for each in grouped),
        summed(moe, shape, pairs, tokens, kernels),
    ]


def _sorted_rows(moe: MoeFfn, shape: RankShape, tokens: int, load: RankLoad) -> float:
    """Pairs of tokens and experts that a rank sorts: with those of others' experts where ranks share them."""
    return float(tokens * moe.experts_per_token) if shape.partition.ep > 1 else load.rows


_TILES = 512
"""Tiles whose experts are looked up. A stand-in: their 2 KB of indices, or ten times that, take what a launch takes."""


def _expert_map(count: int) -> Operator:
    """Places of the experts on this rank: two small kernels (vLLM 0.24.0, ``moe_align_block_size.py``), or as long."""
    return elementwise("moe_expert_map", "add", (1, _TILES), INDEX_BYTES, count=2 * count, phase=Phase.EXPERTS)


def _gathered_tokens(
    moe: MoeFfn,
    shape: RankShape,
    tokens: int,
    load: RankLoad,
    kernels: MoeKernelsOfModel,
    *,
    gathering: Gathering,
) -> list[Operator]:
    """fp8 experts in a kernel that gathers rows by index: tokens are quantised once, whatever their experts.

    As vLLM's ``TritonExperts``: quantisation of ``[T, h]``, sorting of pairs, product, activation, quantisation,
    product with the router's weights, sum. Few pairs are not sorted. Where ranks share experts, SGLang quantises and
    sums rows of others' experts, too, and activates the rank's own.
    """
    unsorted = [unsorted_pairs(shape)] if kernels == "vllm" else []
    is_shared, pairs = shape.partition.ep > 1, _sorted_rows(moe, shape, tokens, load)
    is_sorted = is_shared or are_sorted(moe, tokens)
    listed = [
        quant("moe_quant", tokens, shape.hidden, count=shape.count, phase=Phase.EXPERTS),
        *([sorted_pairs(moe, tokens, shape.count, kernels)] if is_sorted else unsorted),
        *([_expert_map(shape.count)] if is_shared else []),
        *_grouped(
            moe,
            shape,
            load,
            "gathered",
            tokens=float(tokens),
            activates=pairs,
            is_shared=is_shared,
            gathering=gathering,
        ),
        summed(moe, shape, pairs, tokens, kernels),
    ]
    return [activated(each, kernels) for each in quantised_by("vllm", listed)]


def _in_one_call(moe: MoeFfn, shape: RankShape, tokens: int, load: RankLoad) -> Operator:
    """fp8 experts that ranks share, from bf16 tokens to the sums of their results."""
    slots = shape.partition.expert_slots_per_rank(moe.experts)
    kernel = FusedExperts(float(tokens), load.rows, slots, load.active_experts, moe.intermediate, shape.hidden)
    elements = 3 * slots * moe.intermediate * shape.hidden
    precision, count = shape.precision, shape.count
    return computed("moe_experts", kernel, precision, count=count, phase=Phase.EXPERTS, weight_elements=elements)


def _tokens_of_all(
    moe: MoeFfn,
    shape: RankShape,
    sent: Sent,
    load: RankLoad,
    kind: DispatchKind,
    kernels: MoeKernelsOfModel,
    experts_kernel: ExpertsKernel,
    *,
    is_decode: bool,
) -> list[Operator]:
    """Every rank gets the tokens of all, and sums the outputs of its experts into as many rows. What a scatter brings
    back is copied in vLLM (0.24.0, ``prepare_finalize/naive_dp_ep.py``)."""
    there, back = travel(moe, shape, sent, kind)
    if sent.is_quantised_there:
        experts = [_in_one_call(moe, shape, sent.group, load)]
    else:
        experts = _replicated_tokens(moe, shape, sent.group, load, kernels, experts_kernel, is_decode=is_decode)
    if not quantises_first(kind, shape, sent):
        is_unquantised = sent.is_quantised_there or shape.precision.weights == "bf16"
        is_copied = kernels == "vllm" and kind == "all_gather" and sent.own and is_unquantised
        return [there, *experts, back, *([copied_results(sent.own, shape)] if is_copied else [])]
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
        listed.append(weighted_sum(rows, rows / rows_per_token, shape))
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
    return weighted_sum(rows, rows * copies / moe.experts_per_token, shape)


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
    moe: MoeFfn,
    shape: RankShape,
    load: RankLoad,
    layout: Layout,
    *,
    tokens: float | None = None,
    activates: float | None = None,
    is_shared: bool = False,
    gathering: Gathering = "vllm",
) -> list[Operator]:
    """Up projection, activation (of ``activates`` rows, by default of the load's), down projection over the local
    experts; ``tokens`` and ``is_shared``: of the batch and of the experts, where a kernel gathers its rows."""
    partition, dtype = shape.partition, shape.precision.weights
    slots_per_rank = partition.expert_slots_per_rank(moe.experts)
    rows, active, largest = load
    tp = partition.tp if partition.moe_layout is MoeLayout.TENSOR else 1
    width = split(moe.intermediate, tp, "expert intermediate columns")
    up = GroupedGemm(
        rows,
        slots_per_rank,
        active,
        2 * width,
        shape.hidden,
        dtype,
        layout,
        largest,
        tokens=tokens,
        has_bias=moe.has_biases,
        is_shared=is_shared,
        gathering=gathering,
    )
    down = replace(up, n=shape.hidden, k=width)
    return [
        grouped_gemm("moe_gate_up", up, shape.count),
        silu_mul("moe_silu_mul", rows if activates is None else activates, width, shape, phase=Phase.EXPERTS),
        grouped_gemm("moe_down", down, shape.count),
    ]


def _fused(moe: MoeFfn, shape: RankShape, load: RankLoad) -> list[Operator]:
    """mxfp4 experts: the up projection with the activation, the down projection with the sum over experts
    (`aicb.profiling.libraries.vllm_mxfp4`)."""
    up, _, down = _grouped(moe, shape, load, "gathered")
    assert isinstance(up.kernel, GroupedGemm), "the first of the products"
    return [replace(up, kernel=replace(up.kernel, has_activation=True)), down]


def _sum_of_copies(tokens: int, copies: float, hidden: int, count: int) -> Operator:
    """Sum of the ``copies`` rows per token that came back, at the token's rank; of one, a copy to where the layer
    expects it (vLLM 0.24.0, ``prepare_finalize/deepep_ht.py``)."""
    per_element = ACTIVATION_BYTES * (copies + 1)
    return elementwise("moe_reduce", "unpermute", (tokens, hidden), per_element, count=count, phase=Phase.EXPERTS)
