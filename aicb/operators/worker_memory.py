"""Memory of attention workers, which hold the KV, and of FFN workers, which hold the feed-forward networks.

Buffers of the exchange are those of DeepEP's low-latency kernels: for every expert slot as many rows as one attention
worker may send; an FFN worker has those of its own slots for all attention workers.
"""

from __future__ import annotations

from dataclasses import replace

from aicb.measurements.gpu import Gpu
from aicb.model.architecture import Model, MoeFfn, kv_bytes_per_token_per_rank, state_bytes_per_rank
from aicb.model.kv_groups import kv_groups
from aicb.model.precision import Precision, ceil_div
from aicb.model.worker_split import WorkerSplit
from aicb.operators.lists import attention_operators, ffn_counts, head_operators
from aicb.operators.memory import (
    LOW_LATENCY_TOKENS,
    MIXED,
    FixedBytes,
    InstanceMemory,
    MemoryLimits,
    activation_bytes,
    baseline_bytes,
    check_weights,
    largest_prefill,
    low_latency_buffer_bytes,
    runtime_bytes,
    weights_read_by,
    with_kv,
)
from aicb.operators.operator import Operator
from aicb.operators.workers import attention_token_operators, ffn_operators
from boundary.errors import InputError


def attention_worker_memory(
    model: Model, split: WorkerSplit, precision: Precision, gpu: Gpu, limits: MemoryLimits
) -> InstanceMemory:
    """Memory of an attention worker: weights of all but the feed-forward networks, and KV in what they leave.

    Raises:
        InputError: weights, or these and all else, do not fit; the model cannot be divided this way.
    """
    gpu.check(precision)
    model.check(precision)
    partition, batch = split.attention, largest_prefill(limits)

    def listed(tokens: int, rows: int) -> list[Operator]:
        parallel = (model, partition, precision)
        return [
            *attention_token_operators(model, split, precision, tokens=tokens),
            *attention_operators(*parallel, MIXED if tokens == MIXED.tokens else batch),
            *head_operators(*parallel, rows=rows),
        ]

    weights = weights_read_by(listed(MIXED.tokens, MIXED.logit_rows))
    check_weights(model, precision, gpu, limits, weights, str(split))
    activations = activation_bytes(model, precision, limits.max_batched_tokens, listed(batch.tokens, batch.logit_rows))
    buffers = low_latency_buffer_bytes(model, _slots(model, split), _rows_sent(split, limits))
    state = state_bytes_per_rank(model, partition, precision)
    runtime = runtime_bytes(split.gpus, limits) + buffers
    fixed = FixedBytes(weights, activations, runtime, state, baseline_bytes(split.gpus, limits))
    kv = (kv_bytes_per_token_per_rank(model, partition, precision), kv_groups(model, partition, precision, 0, []))
    return with_kv(model, gpu, limits, fixed, kv, str(split))


def ffn_worker_memory(
    model: Model, split: WorkerSplit, precision: Precision, gpu: Gpu, limits: MemoryLimits
) -> FixedBytes:
    """Memory of an FFN worker, which has no KV.

    Raises:
        InputError: it does not fit; the model cannot be divided this way.
    """
    gpu.check(precision)
    model.check(precision)
    group_tokens = ceil_div(split.attention.dp * limits.max_batched_tokens, split.micro_batches)

    def listed(tokens: int, *, is_decode: bool) -> list[Operator]:
        networks = ffn_counts(model, split.attention)
        return [
            replace(each, name=f"{each.name}.{place}")
            for place, (network, count) in enumerate(networks)
            for each in ffn_operators(
                network, model, split, precision, group_tokens=tokens, is_decode=is_decode, count=count
            )
        ]

    weights = weights_read_by(listed(MIXED.tokens, is_decode=True))
    check_weights(model, precision, gpu, limits, weights, str(split))
    own_tokens = split.ffn_tokens(group_tokens)
    activations = activation_bytes(model, precision, own_tokens, listed(group_tokens, is_decode=False))
    slots = ceil_div(_slots(model, split) * split.attention.gpus, split.ffn.gpus)
    buffers = low_latency_buffer_bytes(model, slots, _rows_sent(split, limits))
    without_graphs = replace(limits, cuda_graphs=False)
    runtime = runtime_bytes(split.gpus, without_graphs) + buffers
    fixed = FixedBytes(weights, activations, runtime, 0, baseline_bytes(split.gpus, limits))
    needed, usable = weights + activations + fixed.runtime, limits.usable_bytes(gpu)
    if needed > usable:
        raise InputError(
            f"model {model.name}: found {needed} bytes of weights, activations and runtime per FFN worker ({split}), "
            f"expected at most {usable} bytes available ({limits.where(gpu)})"
        )
    return fixed


def _slots(model: Model, split: WorkerSplit) -> int:
    """Places that rows are sent to: expert slots, or FFN workers."""
    experts = [kind.ffn.experts for kind in model.kinds if isinstance(kind.ffn, MoeFfn)]
    if split.ffn.ep == 1 or not experts:
        return split.ffn.gpus
    return max(experts) + split.ffn.redundant_experts


def _rows_sent(split: WorkerSplit, limits: MemoryLimits) -> int:
    return max(LOW_LATENCY_TOKENS, ceil_div(limits.max_seqs, split.attention.tp))
