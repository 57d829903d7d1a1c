"""Operators of attention workers and of FFN workers, which are other GPUs, and the rows that travel between them.

Attention workers compute all that depends on a token alone but the feed-forward networks: embedding, norms, attention,
the router with the choice of experts, head and sampling; rows that come back are added up there. Router and choice are
on attention workers, so that a row can go straight to the workers of its experts (MegaScale-Infer, arXiv 2504.02263,
section 3; vLLM's AFD plugin). Where a TP group has the same tokens, each of its workers routes, sends and gets back
its part of them, and an all-gather makes them whole again.

Rows of MoE layers travel quantised where experts are fp8; those of dense layers in bf16. Results are bf16. Experts
compute rows in the masked layout in decodes, and in the contiguous one with prompts, as behind DeepEP's kernels.
"""

from __future__ import annotations

from collections.abc import Iterable

from aicb.experts.popularity import RankPopularity
from aicb.experts.profile import RankLoad
from aicb.model.architecture import DenseFfn, Ffn, Model, MoeFfn
from aicb.model.partition import MoeLayout
from aicb.model.precision import Precision, ceil_div
from aicb.model.worker_split import Messages, WorkerSplit
from aicb.operators import ffn, moe
from aicb.operators.build import ACTIVATION_BYTES, RankShape, communicate, tp_all_reduce
from aicb.operators.dispatch import DEEPEP, copies_per_token
from aicb.operators.experts_kernel import ExpertsKernel
from aicb.operators.hybrid_kernels import HybridKernels
from aicb.operators.lists import ffn_counts, kernels_of, not_ffn_token_operators
from aicb.operators.mla import RopeKernel
from aicb.operators.moe_kernels import MoeKernelsOfModel
from aicb.operators.operator import Communication, Operator, WorkerExchange


def messages_in(split: WorkerSplit, *, is_decode: bool) -> Messages:
    """Messages of an exchange: low-latency kernels, which send one per expert, are for decodes alone."""
    return "per_worker" if split.messages == "per_expert" and not is_decode else split.messages


def attention_token_operators(
    model: Model,
    split: WorkerSplit,
    precision: Precision,
    *,
    tokens: int,
    rope_kernel: RopeKernel = "in_place",
    hybrid_kernels: HybridKernels = "fused",
) -> list[Operator]:
    """Operators of attention workers that depend only on the tokens of a rank, in all layers.

    Raises:
        InputError: the model cannot be divided this way.
    """
    if tokens == 0:
        return []
    partition = split.attention
    listed = not_ffn_token_operators(
        model, partition, precision, tokens=tokens, rope_kernel=rope_kernel, hybrid_kernels=hybrid_kernels
    )
    kernels = kernels_of(model, hybrid_kernels)
    own = ceil_div(tokens, partition.tp)
    for network, count in ffn_counts(model, partition):
        shape = RankShape(model.hidden, partition, precision, count)
        if isinstance(network, MoeFfn):
            listed += ffn.router_operators(network, shape, own)
            is_summed = split.messages == "per_node"  # but for those of several nodes, which are few
            copies = 1.0 if is_summed else sum(_copies(network, split, messages_in(split, is_decode=True))[1])
            listed += moe.home_operators(shape, own, copies)
            if network.shared_intermediate and split.shared_expert == "attention":
                listed += ffn.shared_expert_operators(network, shape, own, tp=1, kernels=kernels)
        if partition.tp > 1:
            size_bytes = own * partition.tp * model.hidden * ACTIVATION_BYTES
            listed.append(communicate("ffn_all_gather", "all_gather", size_bytes, "tp", count))
    return listed


def ffn_operators(
    network: Ffn,
    model: Model,
    split: WorkerSplit,
    precision: Precision,
    *,
    group_tokens: int,
    is_decode: bool,
    count: int = 1,
    load: RankLoad | None = None,
    experts_kernel: ExpertsKernel = "deep_gemm",
    moe_kernels: MoeKernelsOfModel = "generic",
) -> list[Operator]:
    """Operators of one FFN worker in ``count`` layers, for ``group_tokens`` of all attention workers.

    ``load``: rows of routed experts on the worker in question, by default those expected of uniform routing.
    ``experts_kernel`` and ``moe_kernels`` count where ``ep`` is 1.

    Raises:
        InputError: the model cannot be divided this way.
    """
    if group_tokens == 0:
        return []
    shape = RankShape(model.hidden, split.ffn, precision, count)
    tokens = split.ffn_tokens(group_tokens)
    if isinstance(network, DenseFfn):
        return _of_workers(ffn.dense_operators(network, shape, tokens))
    is_dispatched = split.ffn.moe_layout is MoeLayout.EXPERT_DATA
    routed = moe.expert_operators(
        network,
        shape,
        tokens=0 if is_dispatched else tokens,
        group_tokens=group_tokens,
        is_decode=is_decode,
        load=load,
        experts_kernel=experts_kernel,
        moe_kernels=moe_kernels,
        dispatch=DEEPEP,
    )
    listed = [each for each in routed if not isinstance(each.kernel, Communication)]
    if is_dispatched and is_decode and split.messages != "per_expert":
        rows = (load or moe.expected_load(network, split.ffn, group_tokens)).rows
        listed.append(moe.sum_of_worker(network, shape, rows, copies_per_token(network, split.ffn.gpus)))
    if network.shared_intermediate and split.shared_expert == "ffn":
        own = ceil_div(group_tokens, split.ffn.gpus) if is_dispatched else tokens
        listed += ffn.shared_expert_operators(network, shape, own, tp=1 if is_dispatched else shape.tp)
    if not is_dispatched:
        listed += tp_all_reduce("moe_all_reduce", tokens, shape)
    return _of_workers(listed)


def exchange_operators(
    network: Ffn,
    model: Model,
    split: WorkerSplit,
    precision: Precision,
    *,
    tokens: int,
    is_decode: bool,
    popularity: tuple[RankPopularity, ...] | None = None,
    mean_share: float = 1.0,
) -> tuple[Communication, Communication]:
    """Rows of ``tokens`` of the data-parallel rank with the most to the FFN workers in one layer, and what comes back.

    ``size_bytes`` is bf16 values of the rows of one attention worker, once each; ``mean_share`` what the mean rank has.
    """
    own = ceil_div(tokens, split.attention.tp)
    is_fp8 = precision.weights == "fp8" and isinstance(network, MoeFfn)
    there, back = _copies(network, split, messages_in(split, is_decode=is_decode), popularity)
    size_bytes = own * model.hidden * ACTIVATION_BYTES
    workers = split.attention.gpus
    by_node = None
    if split.messages == "per_node" and isinstance(network, MoeFfn):
        by_node = (network.experts, network.experts_per_token, network.groups, network.groups_per_token)

    def exchange(copies: tuple[float, ...]) -> WorkerExchange:
        return WorkerExchange(workers, model.hidden, is_fp8, copies, by_node, mean_share)

    return (
        Communication("dispatch", size_bytes, "workers", exchange(there)),
        Communication("combine", size_bytes, "workers", exchange(back)),
    )


def _copies(
    network: Ffn, split: WorkerSplit, messages: Messages, popularity: tuple[RankPopularity, ...] | None = None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """[FFN workers] copies of a row that go there, and that come back.

    Where a group of workers divides a network, each gets the rows of its group, and the sum over the group comes back
    once, in as many parts as it has workers.
    """
    workers = split.ffn.gpus
    if not isinstance(network, MoeFfn) or split.ffn.moe_layout is not MoeLayout.EXPERT_DATA:
        return (1.0 / split.ffn.dp,) * workers, (1.0 / workers,) * workers
    mean = (network.experts_per_token if messages == "per_expert" else copies_per_token(network, workers)) / workers
    loads = [1.0] * workers if popularity is None or messages != "per_expert" else [load for load, _ in popularity]
    shared = 1.0 / workers if network.shared_intermediate and split.shared_expert == "ffn" else 0.0
    copies = tuple(mean * load + shared for load in loads)
    return copies, copies


def _of_workers(listed: Iterable[Operator]) -> list[Operator]:
    """The list with its collectives among FFN workers."""
    return [
        communicate(each.name, each.kernel.op, each.kernel.size_bytes, "ffn_tp", each.count)
        if isinstance(each.kernel, Communication)
        else each
        for each in listed
    ]
