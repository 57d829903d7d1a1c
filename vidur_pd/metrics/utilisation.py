"""How much of a pool its work has taken: batch slots, tensor cores, memory bandwidth, next to how long it was busy.

An instance is busy while an iteration is under way, be it for one request. What it holds and computes is apart from
that:

- batch slots: requests in iterations over ``max_seqs`` of every rank, mean over the makespan;
- tensor cores (MFU): algorithmic FLOPs of the operators over what the peak rate does in the busy time;
- memory bandwidth: bytes that the operators read and write, each operand once, over what the nominal bandwidth moves
in it.

FLOPs and bytes are those of the mean iterations of a pool, of those with prompts and of those of decodes alone, by half
octaves of their tokens: with as many prompts, decodes, tokens and pairs of tokens that attend to each other. Within a
half octave both follow these almost linearly; over all iterations they do not, as experts are read for the first token
that chooses them. Tokens that verify drafts of a request read its KV once. Drafters are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aicb import Batch, Gpu, Model, Operator, Partition, Precision
from aicb.iteration.overlap import cut_batch
from aicb.kernels.kernel import CacheKernel
from aicb.model.precision import GemmDtype
from aicb.model.worker_split import WorkerSplit
from vidur_pd.metrics.quantities import PS_PER_S

KINDS: Final = ("prompts", "decodes")
"""Kinds of iterations, in the order of the core: those with prompts, those of decodes alone."""


@dataclass(frozen=True, slots=True)
class Activity:
    """What the iterations of one kind of a pool have computed, summed over its instances."""

    iterations: int
    busy_s: float
    """Summed over pipeline stages."""
    requests: int
    """Summed over iterations, as the next three."""
    new_tokens: int
    kv_tokens: int
    token_pairs: float
    request_s: float
    """Requests times the length of their iterations."""
    host_s: float = 0.0
    """Of ``busy_s``: in which the GPUs wait for the host."""
    decodes: int = 0
    """Requests with a past that compute one token, summed over iterations."""
    decode_kv: int = 0
    """KV tokens that these read."""

    @classmethod
    def of(cls, columns: dict[str, NDArray[Any]], instances: list[int]) -> Activity:
        """Of iterations of all sizes, from the columns of a log's ``activity``."""
        return cls._summed(columns, instances)

    @classmethod
    def by_size(cls, columns: dict[str, NDArray[Any]], instances: list[int]) -> tuple[Activity, ...]:
        """Of iterations of each size, from the columns of its ``activity_by_size``."""
        own = np.isin(columns["instance"], instances) & (columns["iterations"] > 0)
        return tuple(cls._summed(columns, own & (columns["size"] == size)) for size in np.unique(columns["size"][own]))

    @classmethod
    def _summed(cls, columns: dict[str, NDArray[Any]], rows: list[int] | NDArray[np.bool_]) -> Activity:
        total = {name: values[rows].sum().item() for name, values in columns.items()}
        names = (
            "iterations",
            "requests",
            "new_tokens",
            "kv_tokens",
            "token_pairs",
            "decodes",
            "decode_kv",
            "request_s",
        )
        return cls(
            busy_s=total["busy_ps"] / PS_PER_S,
            host_s=total["host_ps"] / PS_PER_S,
            **{name: total[name] for name in names},
        )


@dataclass(frozen=True, slots=True)
class Work:
    """What iterations ask of a GPU: seconds that its peak rate and its nominal bandwidth would take."""

    compute_s: float
    memory_s: float
    moved_bytes: float = 0.0
    flops: Mapping[GemmDtype, float] = field(default_factory=dict)
    """By number format."""

    @classmethod
    def sum_of(cls, parts: Sequence[Work]) -> Work:
        flops: dict[GemmDtype, float] = {}
        for part in parts:
            for dtype, amount in part.flops.items():
                flops[dtype] = flops.get(dtype, 0.0) + amount
        return cls(
            compute_s=sum(part.compute_s for part in parts),
            memory_s=sum(part.memory_s for part in parts),
            moved_bytes=sum(part.moved_bytes for part in parts),
            flops=flops,
        )


@dataclass(frozen=True, slots=True, eq=False)
class RankWork:
    """Work of one rank of a pool."""

    model: Model
    partition: Partition
    precision: Precision
    gpu: Gpu

    def of_sizes(self, activities: Sequence[Activity], *, are_decodes: bool = False) -> Work:
        """Of iterations of several sizes."""
        return Work.sum_of([self.of(activity, are_decodes=are_decodes) for activity in activities])

    def of(self, activity: Activity, *, are_decodes: bool = False) -> Work:
        """Of iterations of one size, per GPU and summed over pipeline stages, as their busy time is.

        ``are_decodes``: they have no prompts, and the new tokens of a request verify drafts.
        """
        batch, tokens_share, active_share = self._mean_batch(activity)
        if batch is None:
            return Work(0.0, 0.0)
        queries = int(batch.new_tokens[0]) if are_decodes else 1
        if queries > 1:
            batch = Batch.decode(batch.kv_tokens.repeat(queries))
        operators = [
            self._reading_kv_once(operator, queries)
            for stage in range(self.partition.pp)
            for operator in self._operators(batch, stage)
        ]
        flops: dict[GemmDtype, float] = {}
        for each in operators:
            amount = each.count * each.flops * tokens_share * activity.iterations
            flops[each.cost.dtype] = flops.get(each.cost.dtype, 0.0) + amount
        moved_bytes = sum(each.count * _moved_bytes(each) for each in operators) * active_share * activity.iterations
        compute_s = sum(amount / self.gpu.peak_flops[dtype] for dtype, amount in flops.items())
        return Work(compute_s, moved_bytes / self.gpu.hbm_bytes_per_s, moved_bytes, flops)

    def _operators(self, batch: Batch, stage: int) -> Iterable[Operator]:
        """Of one iteration in which every rank has this batch."""
        from aicb import iteration_operators

        return iteration_operators(self.model, self.partition, self.precision, batch, stage=stage)

    def _reading_kv_once(self, operator: Operator, queries: int) -> Operator:
        """The operator, with so many decodes in a row that read the cache as queries of one request."""
        kernel = operator.kernel
        if queries == 1 or not isinstance(kernel, CacheKernel):
            return operator
        kernel = kernel.over(kernel.kv_tokens[::queries]).with_queries(queries)
        return replace(operator, kernel=kernel, cost=kernel.cost(self.precision))

    def _active_share(self, requests: float) -> float:
        """Of GPUs that read their weights where ranks have so many requests in the mean."""
        return min(1.0, requests)

    def _mean_batch(self, activity: Activity) -> tuple[Batch | None, float, float]:
        """The mean batch of a rank in whole requests and tokens, what the true one has of its tokens, and the share of
        GPUs that have any."""
        ranks = activity.iterations * self.partition.dp
        if not ranks or not activity.new_tokens:
            return None, 0.0, 0.0
        decodes = round(activity.decodes / ranks)
        new_tokens, kv_tokens = [1] * decodes, [round(activity.decode_kv / max(activity.decodes, 1))] * decodes
        apart, read = (activity.decodes, activity.decode_kv) if decodes else (0, 0)
        if others := activity.requests - apart:
            tokens, pairs = activity.new_tokens - apart, activity.token_pairs - read
            whole = max(1, round(others / ranks))
            each = max(1, round(tokens / ranks / whole))
            # A request of q new tokens up to position s has q·s − q(q − 1)/2 pairs of tokens.
            reached = pairs / tokens + (tokens / others - 1) / 2
            new_tokens += [each] * whole
            kv_tokens += [max(each + (each == 1), round(reached))] * whole
        batch = Batch(np.array(new_tokens), np.array(kv_tokens), len(new_tokens))
        tokens_share = activity.new_tokens / ranks / batch.tokens
        return batch, tokens_share, self._active_share(activity.requests / ranks)


@dataclass(frozen=True, slots=True, eq=False)
class AttentionWork(RankWork):
    """Work of an attention worker: ``partition`` and ``gpu`` are theirs."""

    split: WorkerSplit

    def _operators(self, batch: Batch, stage: int) -> Iterable[Operator]:
        from aicb import attention_operators, head_operators
        from aicb.operators.workers import attention_token_operators

        parallel = (self.model, self.partition, self.precision)
        for part in _micro_batches(batch, self.split):
            yield from attention_token_operators(self.model, self.split, self.precision, tokens=part.tokens)
            yield from attention_operators(*parallel, part, stage=stage)
        yield from head_operators(*parallel, rows=batch.logit_rows, stage=stage)


@dataclass(frozen=True, slots=True, eq=False)
class FfnWork(RankWork):
    """Work of an FFN worker: ``gpu`` is theirs, ``partition`` that of attention workers, whose batches are known."""

    split: WorkerSplit

    def _operators(self, batch: Batch, stage: int) -> Iterable[Operator]:
        from aicb.operators.lists import ffn_counts
        from aicb.operators.workers import ffn_operators

        is_decode = bool(batch.is_decode.all())
        for part in _micro_batches(batch, self.split):
            group_tokens = part.tokens * self.split.attention.dp
            for network, count in ffn_counts(self.model, self.partition, stage):
                yield from ffn_operators(
                    network,
                    self.model,
                    self.split,
                    self.precision,
                    group_tokens=group_tokens,
                    is_decode=is_decode,
                    count=count,
                )

    def _active_share(self, requests: float) -> float:
        return min(1.0, requests * self.partition.dp)


def _micro_batches(batch: Batch, split: WorkerSplit) -> list[Batch]:
    return [part for part in cut_batch(batch, split.micro_batches) if part.tokens]


def both_kinds(attention: Work, ffn: Work, split: WorkerSplit) -> Work:
    """Mean over attention workers and FFN workers."""
    share = split.attention.gpus / split.gpus
    return Work(
        share * attention.compute_s + (1 - share) * ffn.compute_s,
        share * attention.memory_s + (1 - share) * ffn.memory_s,
    )


def _moved_bytes(operator: Operator) -> float:
    """Bytes from and to memory: operands that were written just before may be in the cache."""
    kernel = operator.kernel
    return operator.cost.cold_bytes if getattr(kernel, "stays_in_cache", False) else operator.moved_bytes
