"""Operator lists of one iteration of one rank, split by what they depend on.

The parts depend on few integers each, so that a caller can memoise them: the rank's tokens, the tokens of the group
that shares experts, the rows that need logits. Attention alone depends on the vector of lengths. Operators are
grouped by part, not in execution order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Literal

from aicb.experts.popularity import RankPopularity
from aicb.experts.profile import RankLoad
from aicb.kernels.kernel import Kernel
from aicb.model.architecture import (
    Attention,
    DenseFfn,
    Ffn,
    GatedDeltaNet,
    GroupedQueryAttention,
    LatentAttention,
    Model,
    MoeFfn,
    stage_range,
)
from aicb.model.partition import MoeLayout, Partition
from aicb.model.precision import Precision
from aicb.operators import ffn, gated_delta, gqa, head, mla, moe
from aicb.operators.around_attention import rotated_by
from aicb.operators.batch import Batch
from aicb.operators.build import ACTIVATION_BYTES, RankShape, communicate, elementwise, quant
from aicb.operators.dense_kernel import DenseKernel, as_run
from aicb.operators.dispatch import DEEPEP, ExpertDispatch
from aicb.operators.experts_kernel import ExpertsKernel, experts_kernel_of
from aicb.operators.hybrid_kernels import HybridKernels, residual_norms
from aicb.operators.moe_kernels import MoeKernels, MoeKernelsOfModel, moe_kernels_of
from aicb.operators.norm_kernel import NormKernel, normalised_by
from aicb.operators.operator import Communication, Operator
from aicb.operators.quantisation import QuantKernel


def token_operators(
    model: Model,
    partition: Partition,
    precision: Precision,
    *,
    tokens: int,
    stage: int = 0,
    rope_kernel: mla.RopeKernel = "in_place",
    hybrid_kernels: HybridKernels = "fused",
) -> list[Operator]:
    """Operators that depend only on the tokens T of the rank.

    Embedding (first stage), norms, projections, RoPE, KV write, dense FFN, router, shared expert, collectives of the
    TP group, and the ``[T, h]`` sent to the next stage. Without tokens there are none. ``rope_kernel`` is what the
    engine runs for the rotary embedding of latent attention, ``hybrid_kernels`` what it runs in models with gated delta
    rules.

    Raises:
        InputError: the model cannot be divided this way.
    """
    if tokens == 0:
        return []
    listed = not_ffn_token_operators(
        model,
        partition,
        precision,
        tokens=tokens,
        stage=stage,
        rope_kernel=rope_kernel,
        hybrid_kernels=hybrid_kernels,
    )
    kernels = kernels_of(model, hybrid_kernels)
    for network, count in ffn_counts(model, partition, stage):
        counted = RankShape(model.hidden, partition, precision, count)
        match network:
            case DenseFfn():
                listed += ffn.dense_operators(network, counted, tokens)
            case MoeFfn():
                listed += ffn.moe_token_operators(network, counted, tokens, kernels)
    if stage < partition.pp - 1:
        listed.append(communicate("stage_send", "send_recv", tokens * model.hidden * ACTIVATION_BYTES, "pp"))
    return listed


def not_ffn_token_operators(
    model: Model,
    partition: Partition,
    precision: Precision,
    *,
    tokens: int,
    stage: int = 0,
    rope_kernel: mla.RopeKernel = "in_place",
    hybrid_kernels: HybridKernels = "fused",
) -> list[Operator]:
    """Those of `token_operators` that belong to no feed-forward network, without what is sent to the next stage."""
    attentions, _, layers = _stage_parts(model, partition, stage)
    shape, kernels = RankShape(model.hidden, partition, precision, layers), kernels_of(model, hybrid_kernels)
    listed = head.embedding_operators(model, _counted(shape, 1), tokens) if stage == 0 else []
    listed += _norms(shape, tokens, kernels)
    grouped: list[Operator] = []
    for attention, count in attentions:
        counted = _counted(shape, count)
        match attention:
            case GroupedQueryAttention():
                grouped += gqa.token_operators(attention, counted, tokens, kernels)
            case LatentAttention():
                listed += mla.token_operators(attention, counted, tokens, rope_kernel)
            case GatedDeltaNet():
                listed += gated_delta.token_operators(attention, counted, tokens, kernels)
    listed += _joined(grouped)
    return listed


def ffn_counts(model: Model, partition: Partition, stage: int = 0) -> tuple[tuple[Ffn, int], ...]:
    """Distinct feed-forward networks of a stage, and how many layers have each."""
    return _stage_parts(model, partition, stage)[1]


def attention_operators(
    model: Model,
    partition: Partition,
    precision: Precision,
    batch: Batch,
    *,
    stage: int = 0,
    mla_kernel: mla.MlaKernel = "flash_mla",
    gqa_kernel: gqa.GqaKernel = "fa3",
    hybrid_kernels: HybridKernels = "fused",
) -> list[Operator]:
    """Operators that depend on the (q, S) vector of the batch: attention, MLA expansion, linear attention.

    ``mla_kernel`` and ``gqa_kernel`` are what the engine runs for decodes of latent and of grouped-query attention,
    ``hybrid_kernels`` what it runs around gated delta rules.

    Raises:
        InputError: the model cannot be divided this way.
    """
    if len(batch.new_tokens) == 0:
        return []
    listed: list[Operator] = []
    attentions, _, _ = _stage_parts(model, partition, stage)
    for attention, count in attentions:
        shape = RankShape(model.hidden, partition, precision, count)
        match attention:
            case GroupedQueryAttention():
                listed += gqa.attention_operators(
                    attention, shape, batch, gqa_kernel, windows_differ=model.windows_differ
                )
            case LatentAttention():
                listed += mla.attention_operators(attention, shape, batch, mla_kernel)
            case GatedDeltaNet():
                listed += gated_delta.attention_operators(attention, shape, batch, hybrid_kernels)
    return listed


def expansion_operators(
    model: Model,
    partition: Partition,
    precision: Precision,
    *,
    part: Literal["chunk", "past", "merge"],
    tokens: int,
    stage: int = 0,
) -> list[Operator]:
    """Operators around the kernel of prefills of latent attention, which depend on few sums:

    new tokens (``chunk``), cached tokens before them (``past``), and new tokens of requests with a past (``merge``).
    """
    listed: list[Operator] = []
    for attention, count in _stage_parts(model, partition, stage)[0]:
        if isinstance(attention, LatentAttention):
            shape = RankShape(model.hidden, partition, precision, count)
            match part:
                case "chunk":
                    listed += mla.chunk_operators(attention, shape, tokens)
                case "past":
                    listed += mla.past_operators(attention, shape, tokens)
                case "merge":
                    listed += mla.merge_operators(attention, shape, tokens)
    return listed


def expert_operators(
    model: Model,
    partition: Partition,
    precision: Precision,
    *,
    tokens: int,
    group_tokens: int,
    is_decode: bool,
    stage: int = 0,
    load: Callable[[MoeFfn, int], RankLoad] | None = None,
    experts_kernel: ExpertsKernel = "deep_gemm",
    moe_kernels: MoeKernelsOfModel = "generic",
    dispatch: ExpertDispatch = DEEPEP,
    popularity: Callable[[MoeFfn, int], tuple[RankPopularity, ...] | None] | None = None,
) -> list[Operator]:
    """Routed experts of one rank, with dispatch and combine where attention is data parallel.

    Args:
        tokens: tokens of this rank's batch, which it dispatches.
        group_tokens: distinct tokens over all DP ranks of the EP group; ignored where experts are not shared by DP.
        is_decode: the whole group decodes.
        load: rows and active experts of the rank in question as a function of the distinct tokens; by default the
            expectation under uniform routing.
        experts_kernel: what the engine runs for fp8 experts.
        moe_kernels: what it runs around the products of experts.
        dispatch: how tokens of data-parallel ranks travel to experts that these share.
        popularity: of the ranks that they travel to, as a function of the distinct tokens; by default even.

    Raises:
        InputError: the model cannot be divided this way.
    """
    listed: list[Operator] = []
    _, ffns, _ = _stage_parts(model, partition, stage)
    distinct = group_tokens if partition.moe_layout is MoeLayout.EXPERT_DATA else tokens
    for network, count in ffns:
        if isinstance(network, MoeFfn):
            listed += moe.expert_operators(
                network,
                RankShape(model.hidden, partition, precision, count),
                tokens=tokens,
                group_tokens=group_tokens,
                is_decode=is_decode,
                load=load(network, distinct) if load and distinct else None,
                experts_kernel=experts_kernel,
                moe_kernels=moe_kernels,
                dispatch=dispatch,
                popularity=popularity(network, distinct) if popularity and distinct else None,
            )
    return listed


def head_operators(
    model: Model, partition: Partition, precision: Precision, *, rows: int, stage: int = 0
) -> list[Operator]:
    """Final norm, LM head, gather of logits, sampling; on the last stage and for at least one row only."""
    if rows == 0 or stage != partition.pp - 1:
        return []
    return head.head_operators(model, RankShape(model.hidden, partition, precision, 1), rows)


def iteration_operators(
    model: Model,
    partition: Partition,
    precision: Precision,
    batch: Batch,
    *,
    group_tokens: int | None = None,
    stage: int = 0,
    load: Callable[[MoeFfn, int], RankLoad] | None = None,
    experts_kernel: ExpertsKernel = "deep_gemm",
    moe_kernels: MoeKernels = "generic",
    mla_kernel: mla.MlaKernel = "flash_mla",
    gqa_kernel: gqa.GqaKernel = "fa3",
    quant_kernel: QuantKernel = "triton",
    dense_kernel: DenseKernel = "deep_gemm",
    rope_kernel: mla.RopeKernel = "in_place",
    hybrid_kernels: HybridKernels = "fused",
    norm_kernel: NormKernel = "apart",
    dispatch: ExpertDispatch = DEEPEP,
    shared_expert_apart: bool = False,
) -> list[Operator]:
    """All operators of one rank of one stage in one iteration.

    ``group_tokens`` defaults to equal batches on all DP ranks. Whether the group decodes is taken from this batch.
    ``shared_expert_apart``: it overlaps the others, and is none of them.
    ``load``, ``experts_kernel``, ``moe_kernels``, ``dispatch`` as in ``expert_operators``, ``mla_kernel``,
    ``gqa_kernel`` as in ``attention_operators``, ``quant_kernel`` and ``dense_kernel`` as in ``dense_kernel.as_run``,
    ``rope_kernel`` and ``hybrid_kernels`` as in ``token_operators``, ``norm_kernel`` as in
    ``norm_kernel.normalised_by``.
    """
    tokens = batch.tokens
    shares_experts = partition.moe_layout is MoeLayout.EXPERT_DATA
    if group_tokens is None:
        group_tokens = tokens * partition.dp if shares_experts else tokens
    parallel = (model, partition, precision)
    experts_kernel = experts_kernel_of(experts_kernel, moe_kernels, precision.weights)
    of_model = moe_kernels_of(moe_kernels, *parallel, is_apart=shared_expert_apart)
    listed = token_operators(
        *parallel, tokens=tokens, stage=stage, rope_kernel=rope_kernel, hybrid_kernels=hybrid_kernels
    )
    listed = normalised_by(norm_kernel, rotated_by(rope_kernel, listed, model), partition.tp)
    listed += attention_operators(
        *parallel,
        batch,
        stage=stage,
        mla_kernel=mla_kernel,
        gqa_kernel=gqa_kernel,
        hybrid_kernels=hybrid_kernels,
    )
    return [
        *as_run(listed, quant_kernel, dense_kernel, of_model),
        *expert_operators(
            model,
            partition,
            precision,
            tokens=tokens,
            group_tokens=group_tokens,
            is_decode=bool(batch.is_decode.all()),
            stage=stage,
            load=load,
            experts_kernel=experts_kernel,
            moe_kernels=of_model,
            dispatch=dispatch,
        ),
        *head_operators(model, partition, precision, rows=batch.logit_rows, stage=stage),
    ]


def kernels_of(model: Model, kernels: HybridKernels) -> HybridKernels:
    """Other models than those with gated delta rules run the same either way."""
    return kernels if any(isinstance(layer.attention, GatedDeltaNet) for layer in model.kinds) else "fused"


def _norms(shape: RankShape, tokens: int, kernels: HybridKernels) -> list[Operator]:
    """Both residual-add norms of every layer (two tensors read, two written) and the quantisation before attention."""
    size, count = (tokens, shape.hidden), shape.count
    if kernels == "compiled":
        listed = residual_norms(shape, tokens)
    else:
        listed = [
            elementwise(name, "add_rms_norm", size, 4 * ACTIVATION_BYTES, count=count, weights=shape.hidden)
            for name in ("input_norm", "post_attention_norm")
        ]
    if shape.is_fp8:
        listed.append(quant("attention_quant", tokens, shape.hidden, count=count))
    return listed


def _joined(listed: list[Operator]) -> list[Operator]:
    """The list of layers that differ in some operators: those that are the same are repeated as often as both were."""
    counts: dict[tuple[str, Kernel | Communication], Operator] = {}
    for operator in listed:
        key = (operator.name, operator.kernel)
        before = counts[key].count if key in counts else 0
        counts[key] = replace(operator, count=before + operator.count)
    return list(counts.values())


def _counted(shape: RankShape, count: int) -> RankShape:
    return RankShape(shape.hidden, shape.partition, shape.precision, count)


@lru_cache(maxsize=64)  # of all that a simulation has; each is asked for with every count of tokens
def _stage_parts(
    model: Model, partition: Partition, stage: int
) -> tuple[tuple[tuple[Attention, int], ...], tuple[tuple[Ffn, int], ...], int]:
    """Distinct attentions and feed-forward networks of a stage with their counts, and its number of layers."""
    layers = stage_range(model, partition, stage)
    attentions: dict[Attention, int] = {}
    ffns: dict[Ffn, int] = {}
    for layer, count in model.count_layers(layers):
        attentions[layer.attention] = attentions.get(layer.attention, 0) + count
        ffns[layer.ffn] = ffns.get(layer.ffn, 0) + count
    return tuple(attentions.items()), tuple(ffns.items()), len(layers)
