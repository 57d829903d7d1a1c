"""Memory of one GPU of an instance: weights, activations, runtime, and the KV blocks that fit in the rest.

The share that an engine takes is of all of these (vLLM), or with `MemoryLimits.is_static` of weights and KV alone
(SGLang); then the others take what it leaves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from aicb.kernels.grouped_gemm import GroupedGemm
from aicb.kernels.kernel import Kernel
from aicb.measurements.gpu import MIB, Gpu
from aicb.model.architecture import Model, MoeFfn, kv_bytes_per_token_per_rank, state_bytes_per_rank
from aicb.model.kv_groups import KvGroups, kv_groups, kv_layers
from aicb.model.partition import MoeLayout, Partition
from aicb.model.precision import Precision, ceil_div
from aicb.operators.batch import Batch
from aicb.operators.build import ACTIVATION_BYTES
from aicb.operators.dispatch import DEEPEP, ExpertDispatch
from aicb.operators.drafter import NORMS_OF_LAYERS, Drafter
from aicb.operators.lists import expert_operators, iteration_operators
from aicb.operators.operator import Operator
from boundary.errors import InputError

CONTEXT_BYTES = 512 * MIB
"""CUDA context, cuBLAS workspaces, allocator slack (the constant part of SGLang 0.5.23's reserve)."""
COMMUNICATOR_BYTES = 392 * MIB
"""NCCL buffers of an instance with several GPUs (the larger of the values aiconfigurator books)."""
GRAPH_BYTES_PER_SEQUENCE = 2 * MIB
"""CUDA graphs, per sequence of the largest captured batch (SGLang 0.5.23's reserve)."""
STATIC_CONTEXT_BYTES = 1247 * MIB
"""What a GPU lacks when SGLang begins to load weights: the driver's own, and the context. Of 81,559 MiB of an H100
78.43 GiB were free (the log in SGLang's documentation of LoRA, 2026-02-09); 0.8 to 1.5 GiB elsewhere."""
STATIC_COMMUNICATOR_BYTES = 1126 * MIB
"""What it lacks besides in an instance with several GPUs, for NCCL and all-reduce kernels: 77.33 GiB were free on each
of eight H100 (SGLang 0.5.14, the log of a GLM-5.2, 2026-07-05); 0.9 to 2.0 GiB elsewhere."""
GPU_MEMORY_UTILIZATION: Final = 0.92
"""Share of a GPU's memory that an instance takes, unless stated: that of vLLM 0.24 (vllm/config/cache.py)."""
LEAST_BLOCKS = 2
"""KV blocks that an engine needs: one is vLLM's null block."""
LOW_LATENCY_TOKENS = 128
"""Tokens per rank for which DeepEP's low-latency buffers are laid out at least (SGLang's default)."""


@dataclass(frozen=True, slots=True)
class InstanceMemory:
    """Memory plan of the fullest rank: the one of the pipeline stage with the fewest KV blocks."""

    weights_bytes: int
    kv_bytes_per_token_per_rank: int
    """In all layers, also those that keep a token only for a while."""
    state_bytes_per_request_per_rank: int
    activation_bytes: int
    runtime_bytes: int
    available_kv_bytes: int
    """Memory left for KV blocks, the state of ``max_seqs`` requests already taken off."""
    num_kv_blocks: int
    """Blocks of one group of layers each."""
    kv_groups: KvGroups
    lacking_bytes: int = 0
    """What activations, graphs and buffers take more than a static share leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimits:
    """What an engine sets that memory depends on."""

    gpu_memory_utilization: float
    max_batched_tokens: int
    max_seqs: int
    block_tokens: int
    cuda_graphs: bool
    drafter: Drafter | None = None
    dispatch: ExpertDispatch = DEEPEP
    is_static: bool = False
    """The share is SGLang's ``mem_fraction_static``: of weights and KV alone, in what is free before weights."""
    largest_graph: int | None = None
    """Requests of the largest captured batch, where that is known and ``is_static``; else ``max_seqs``."""

    def __post_init__(self) -> None:
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise InputError(
                f"gpu_memory_utilization: found {self.gpu_memory_utilization}, expected above 0 and at most 1"
            )
        for name in ("max_batched_tokens", "max_seqs", "block_tokens"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}: found {getattr(self, name)}, expected at least 1")

    def usable_bytes(self, gpu: Gpu, baseline: int = 0) -> int:
        """Memory that the engine takes; with ``is_static`` for weights and KV, of what the ``baseline`` leaves."""
        return int(self.gpu_memory_utilization * (gpu.hbm_bytes - (baseline if self.is_static else 0)))

    def where(self, gpu: Gpu) -> str:
        """GPU and utilisation, for messages."""
        return f"{gpu.name} at gpu_memory_utilization {self.gpu_memory_utilization}"


def instance_memory(
    model: Model,
    partition: Partition,
    precision: Precision,
    gpu: Gpu,
    *,
    gpu_memory_utilization: float = GPU_MEMORY_UTILIZATION,
    max_batched_tokens: int = 8192,
    max_seqs: int = 256,
    block_tokens: int = 16,
    cuda_graphs: bool = True,
    drafter: Drafter | None = None,
    dispatch: ExpertDispatch = DEEPEP,
) -> InstanceMemory:
    """Plans the memory of the fullest rank: KV gets what utilisation leaves after all else.

    ``blocks = ⌊(utilisation · HBM − weights − activations − runtime − max_seqs · state) / (block · KV per token)⌋``,
    of all layers, or of one group of `KvGroups` where some layers keep a token only for a while.
    Activations are the residual stream and the tensors of the largest single operator of a full prefill batch;
    memory fragmentation and allocator caching are ignored. The ``drafter`` is on the last stage: its weights, and its
    KV cache, which shares the blocks of the target's. ``dispatch`` by DeepEP's low-latency kernels needs buffers.

    Raises:
        InputError: weights, or weights and all else, do not fit; the model cannot be divided this way.
    """
    limits = MemoryLimits(
        gpu_memory_utilization=gpu_memory_utilization,
        max_batched_tokens=max_batched_tokens,
        max_seqs=max_seqs,
        block_tokens=block_tokens,
        cuda_graphs=cuda_graphs,
        drafter=drafter,
        dispatch=dispatch,
    )
    return planned_memory(model, partition, precision, gpu, limits)


def planned_memory(
    model: Model, partition: Partition, precision: Precision, gpu: Gpu, limits: MemoryLimits
) -> InstanceMemory:
    """`instance_memory` within limits as one value."""
    gpu.check(precision)
    model.check(precision)
    plans = [_stage_memory(model, partition, precision, gpu, limits, stage) for stage in range(partition.pp)]
    return min((plan for plan in plans if plan.kv_bytes_per_token_per_rank), key=lambda plan: plan.num_kv_blocks)


MIXED: Final = Batch(np.array([2, 1]), np.array([2, 2]), logit_rows=2)
"""A batch that needs all weights."""


def resident_weight_bytes(model: Model, partition: Partition, precision: Precision, stage: int = 0) -> int:
    """Weights that one rank of a stage holds: those its operators read.

    MLA counts kv_b for prefills and the bf16 copies of W_UK and W_UV that decodes absorb, as vLLM keeps both.
    """
    return weights_read_by(iteration_operators(model, partition, precision, MIXED, stage=stage))


def weights_read_by(listed: Iterable[Operator]) -> int:
    """Bytes of the weights of operators, once for those of one name, which share them."""
    by_name = {op.name: op for op in listed}
    return sum(op.count * weight_bytes(op) for op in by_name.values())


def draft_weight_bytes(drafter: Drafter, target: Partition) -> int:
    """Weights that one rank of the last stage holds for a drafter.

    A layer shares the LM head, and the embedding where the first stage is also the last; a model shares nothing.
    """
    model, partition = drafter.model, drafter.partition
    whole = resident_weight_bytes(model, partition, drafter.precision)
    if not drafter.is_layer:
        return whole
    joining = sum(weight_bytes(operator) for operator in drafter.joining_operators(1))
    lacking = ACTIVATION_BYTES * len(NORMS_OF_LAYERS) * model.hidden if drafter.method == "eagle" else 0
    embedding = ACTIVATION_BYTES * ceil_div(model.vocab, partition.tp) * model.hidden
    is_head_tied = model.has_tied_embeddings
    shared = embedding * (1 if is_head_tied else 2)
    return whole - shared - lacking + joining + (embedding if target.pp > 1 and not is_head_tied else 0)


def weight_bytes(operator: Operator) -> int:
    """Bytes of one operator's weights in memory, block scales of fp8 included."""
    kernel = operator.kernel
    return kernel.weight_bytes(operator.weight_elements) if isinstance(kernel, Kernel) else 0


def expert_weights(model: Model, partition: Partition, precision: Precision, stage: int = 0) -> tuple[int, int]:
    """Layers of a stage that have routed experts, and the bytes of one expert's weights in one of them."""
    listed = expert_operators(model, partition, precision, tokens=1, group_tokens=1, is_decode=True, stage=stage)
    held = [(op, op.kernel.groups) for op in listed if isinstance(op.kernel, GroupedGemm)]
    return max((op.count for op, _ in held), default=0), sum(weight_bytes(op) // slots for op, slots in held)


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB"


def _stage_memory(
    model: Model, partition: Partition, precision: Precision, gpu: Gpu, limits: MemoryLimits, stage: int
) -> InstanceMemory:
    weights = resident_weight_bytes(model, partition, precision, stage)
    per_token = kv_bytes_per_token_per_rank(model, partition, precision, stage)
    drafter = limits.drafter if stage == partition.pp - 1 else None
    if drafter is not None:
        weights += draft_weight_bytes(drafter, partition)
        per_token += kv_bytes_per_token_per_rank(drafter.model, drafter.partition, drafter.precision)
    check_weights(model, precision, gpu, limits, weights, str(partition))
    activations = _activation_bytes(model, partition, precision, limits, stage)
    if drafter is not None and not drafter.is_layer:  # one after the other
        own = _activation_bytes(drafter.model, drafter.partition, drafter.precision, limits, 0)
        activations = max(activations, own)
    baseline = baseline_bytes(partition.gpus, limits)
    runtime = runtime_bytes(partition.gpus, limits) + _expert_buffer_bytes(model, partition, limits)
    behind = [] if drafter is None else kv_layers(drafter.model, drafter.partition, drafter.precision)
    groups = kv_groups(model, partition, precision, stage, behind)
    state = state_bytes_per_rank(model, partition, precision, stage)
    fixed = FixedBytes(weights, activations, runtime, state, baseline)
    return with_kv(model, gpu, limits, fixed, (per_token, groups), str(partition))


@dataclass(frozen=True, slots=True)
class FixedBytes:
    """What a GPU holds besides KV."""

    weights: int
    activations: int
    runtime: int
    state_per_request: int
    baseline: int
    """Of ``runtime``, what is there before weights (`baseline_bytes`)."""


def check_weights(
    model: Model, precision: Precision, gpu: Gpu, limits: MemoryLimits, weights: int, divided: str
) -> None:
    """Raises: InputError, where the weights of a GPU do not fit; ``divided`` says how the model is."""
    usable = limits.usable_bytes(gpu)
    if weights > usable:
        published = gpu.weights_of(model.published_weights)
        of_checkpoint = "" if precision.weights == published else f", published in {published}"
        raise InputError(
            f"model {model.name}: found {weights} bytes of {precision.weights} weights ({_gb(weights)}{of_checkpoint})"
            f" per GPU ({divided}), expected at most {usable} bytes available ({_gb(usable)}; {limits.where(gpu)})"
        )


def with_kv(
    model: Model, gpu: Gpu, limits: MemoryLimits, fixed: FixedBytes, kv: tuple[int, KvGroups], divided: str
) -> InstanceMemory:
    """The memory of a GPU with as many KV blocks as fit; ``kv``: bytes per token in all layers, and their groups.

    With ``is_static`` as SGLang 0.5.23 has it (``mem_cache/kv_cache_configurator.py``, `_profile_available_bytes`):
    ``KV = free after weights − (1 − share) · free before weights = share · (HBM − baseline) − weights − state``.
    SGLang does not look whether the rest is enough for activations, graphs and buffers (``lacking_bytes``). Ignored:
    its table of requests, 4 bytes · context · requests, which is in the rest, and that of several stages the one with
    the most weights says how much is free on all.

    Raises:
        InputError: fewer than `LEAST_BLOCKS` fit.
    """
    (per_token, groups), usable = kv, limits.usable_bytes(gpu, fixed.baseline)
    others, lacking = fixed.activations + fixed.runtime, 0
    if limits.is_static:
        lacking = max(0, others - (gpu.hbm_bytes - usable))
        others = 0
    needed = fixed.weights + others + limits.max_seqs * fixed.state_per_request
    available = usable - needed
    least = LEAST_BLOCKS * limits.block_tokens * groups.token_bytes
    if available < least:
        held = "weights and state" if limits.is_static else "weights, activations, state and runtime"
        raise InputError(
            f"model {model.name}: found {needed} bytes of {held} ({_gb(needed)}) "
            f"per GPU ({divided}), expected room for {LEAST_BLOCKS} KV blocks of {limits.block_tokens} tokens "
            f"({_gb(least)}) within {usable} bytes available ({_gb(usable)}; {limits.where(gpu)})"
        )
    blocks = available // (limits.block_tokens * groups.token_bytes) if per_token else 0
    return InstanceMemory(
        fixed.weights,
        per_token,
        fixed.state_per_request,
        fixed.activations,
        fixed.runtime,
        available,
        blocks,
        groups,
        lacking,
    )


def _activation_bytes(
    model: Model, partition: Partition, precision: Precision, limits: MemoryLimits, stage: int
) -> int:
    listed = iteration_operators(
        model, partition, precision, largest_prefill(limits), stage=stage, dispatch=limits.dispatch
    )
    return activation_bytes(model, precision, limits.max_batched_tokens, listed)


def largest_prefill(limits: MemoryLimits) -> Batch:
    """A prompt of all tokens of an iteration, with logits of as many requests as there may be."""
    tokens = limits.max_batched_tokens
    return Batch(np.array([tokens]), np.array([tokens]), logit_rows=min(limits.max_seqs, tokens))


def activation_bytes(model: Model, precision: Precision, tokens: int, listed: Iterable[Operator]) -> int:
    """Residual stream of the tokens, and the tensors of the largest single operator."""
    residual = tokens * model.hidden * ACTIVATION_BYTES
    kernels = [operator.kernel for operator in listed if isinstance(operator.kernel, Kernel)]
    return residual + max(kernel.tensor_bytes(precision) for kernel in kernels)


def runtime_bytes(gpus: int, limits: MemoryLimits) -> int:
    """Context, graphs and communicators of one of so many GPUs of an instance."""
    captured = limits.max_seqs
    if limits.is_static and limits.largest_graph is not None:
        captured = min(captured, limits.largest_graph)
    graphs = GRAPH_BYTES_PER_SEQUENCE * captured if limits.cuda_graphs else 0
    return baseline_bytes(gpus, limits) + graphs


def baseline_bytes(gpus: int, limits: MemoryLimits) -> int:
    """Context and communicators of one of so many GPUs of an instance, which are there before weights."""
    if limits.is_static:
        return STATIC_CONTEXT_BYTES + (STATIC_COMMUNICATOR_BYTES if gpus > 1 else 0)
    return CONTEXT_BYTES + (COMMUNICATOR_BYTES if gpus > 1 else 0)


def _expert_buffer_bytes(model: Model, partition: Partition, limits: MemoryLimits) -> int:
    """DeepEP's low-latency buffers: two to send and two to receive, of bf16 rows with room for scales, per expert."""
    networks = [kind.ffn for kind in model.kinds if isinstance(kind.ffn, MoeFfn)]
    kinds = (limits.dispatch.prefill, limits.dispatch.decode)
    if partition.moe_layout is not MoeLayout.EXPERT_DATA or not networks or "deepep_low_latency" not in kinds:
        return 0
    slots = max(network.experts for network in networks) + partition.redundant_experts
    return low_latency_buffer_bytes(model, slots, max(LOW_LATENCY_TOKENS, ceil_div(limits.max_seqs, partition.tp)))


def low_latency_buffer_bytes(model: Model, slots: int, tokens: int) -> int:
    """Two buffers to send and two to receive ``tokens`` rows for each of ``slots``."""
    return 4 * slots * tokens * (2 * model.hidden + 4 * ceil_div(model.hidden, 128))
