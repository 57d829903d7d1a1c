"""What the GPUs of a pool did in a run; attention workers and FFN workers apart where a pool has both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from aicb import Gpu, Model
from aicb.measurements.power import power_law
from vidur_pd.config import PoolConfig
from vidur_pd.execution.instances.placement import partition_of
from vidur_pd.metrics.energy import PoolActivity
from vidur_pd.metrics.iterations import IterationLog
from vidur_pd.metrics.quantities import PS_PER_S
from vidur_pd.metrics.summary import FfnSummary
from vidur_pd.metrics.utilisation import Activity, AttentionWork, FfnWork, RankWork, Work, both_kinds
from vidur_pd.simulation.pools import PoolModel

T = TypeVar("T")
Pair = tuple[T, T]
"""Of iterations with prompts, and of those of decodes alone."""


@dataclass(frozen=True, slots=True)
class Workers:
    """GPUs of one kind in a pool: all of them, or attention workers, or FFN workers."""

    gpu: Gpu
    gpus: int
    """Of an instance."""
    gpus_per_stage: int
    computing_s: float
    """Summed over instances and stages."""
    work: Pair[Work]
    """Of one of them."""


@dataclass(frozen=True, slots=True)
class PoolWork:
    """What a pool did."""

    own: PoolModel
    busy_s: float
    kinds: Pair[Activity]
    of_gpu: Pair[Work]
    """In the mean over its GPUs."""
    workers: tuple[Workers, ...]

    def activities(self, pool: PoolConfig, held: Callable[[int], float]) -> list[PoolActivity]:
        """For its energy; ``held``: GPUs that were held in the mean over the run, of so many per instance."""
        prompts, decodes = self.kinds
        found = []
        for each in self.workers:
            computes = each.computing_s / self.busy_s if self.busy_s > 0 else 0.0
            found.append(
                PoolActivity(
                    name=pool.name,
                    gpu=each.gpu.name,
                    law=power_law(each.gpu),
                    gpus=held(each.gpus),
                    gpus_per_stage=each.gpus_per_stage,
                    computing_s=(prompts.busy_s * computes, decodes.busy_s * computes),
                    communicating_s=self.busy_s - each.computing_s,
                    work=each.work,
                )
            )
        return found

    def ffn(self, pool: PoolConfig) -> FfnSummary | None:
        """FFN workers of the pool, if it has any."""
        if pool.ffn is None:
            return None
        attention, ffn = (each.computing_s / self.busy_s if self.busy_s > 0 else None for each in self.workers)
        return FfnSummary(
            hardware=self.own.ffn_gpu.name,
            tp=pool.ffn.tp,
            ep=pool.ffn.ep,
            dp=pool.ffn.dp,
            gpus=pool.instances * pool.ffn.gpus,
            micro_batches=pool.ffn.micro_batches,
            weights_bytes=self.own.ffn_weights_bytes,
            attention_busy_share=attention,
            ffn_busy_share=ffn,
        )


def pool_work(model: Model, own: PoolModel, log: IterationLog, instances: list[int]) -> PoolWork:
    """The work of a pool whose ``instances`` are these, from the log of a run."""
    pool = own.pool
    parts = (model, partition_of(pool), own.precision)
    of_prompts, of_decodes = log.activity
    kinds = (Activity.of(of_prompts, instances), Activity.of(of_decodes, instances))
    prompts, decodes = (Activity.by_size(columns, instances) for columns in log.activity_by_size)
    busy_s, computing_s, attention_s, ffn_s = (
        float(each[instances].sum()) / PS_PER_S
        for each in (log.busy_ps, log.computing_ps, log.attention_ps, log.ffn_ps)
    )
    per_stage = pool.tp * pool.dp
    if pool.ffn is None or own.workers is None:
        of_rank = RankWork(*parts, own.gpu)
        mean = (of_rank.of_sizes(prompts), of_rank.of_sizes(decodes, are_decodes=True))
        all_gpus = Workers(own.gpu, per_stage * pool.pp, per_stage, computing_s, mean)
        return PoolWork(own, busy_s, kinds, mean, (all_gpus,))
    split = own.workers.split
    attention, ffn = AttentionWork(*parts, own.gpu, split), FfnWork(*parts, own.ffn_gpu, split)
    of_attention, of_ffn = (
        (rank.of_sizes(prompts), rank.of_sizes(decodes, are_decodes=True)) for rank in (attention, ffn)
    )
    mean = (both_kinds(of_attention[0], of_ffn[0], split), both_kinds(of_attention[1], of_ffn[1], split))
    workers = (
        Workers(own.gpu, per_stage, per_stage, attention_s, of_attention),
        Workers(own.ffn_gpu, pool.ffn.gpus, pool.ffn.gpus, ffn_s, of_ffn),
    )
    return PoolWork(own, busy_s, kinds, mean, workers)
