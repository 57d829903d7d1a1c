"""Energy of a run, from what its GPUs did and from the powers of what is around them.

GPUs draw what the law of their GPU says (`aicb.measurements.power`): ready for all of the makespan, more while kernels
run by the bytes and FLOPs of the iterations, with prompts and without apart, and that of polling kernels while they
wait for collectives. Compute and communication divide the time of both kinds of iterations equally, since only its sum
is known. NICs, switches and the rest of a server count if the configuration says what they draw (``power``), all the
time: they hardly draw less when they are idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aicb.measurements.power import PowerLaw
from netsim import LinkKind, Topology
from netsim.topology import is_fabric_switch
from vidur_pd.config import PowerConfig
from vidur_pd.metrics.summary import EnergySummary
from vidur_pd.metrics.utilisation import Work


@dataclass(frozen=True, slots=True)
class PoolActivity:
    """What the GPUs of a pool did, or its attention workers, or its FFN workers: both have the pool's name."""

    name: str
    gpu: str
    law: PowerLaw | None
    """``None`` where the power of its GPU is not known."""
    gpus: float
    """That were held, in the mean over the run."""
    gpus_per_stage: int
    """Of an instance: all of them do what a rank of it does."""
    computing_s: tuple[float, float]
    """Time in which kernels ran, in iterations with prompts and without; summed over instances and stages."""
    communicating_s: float
    """The rest of the time of iterations, summed likewise."""
    work: tuple[Work, Work]
    """Of a GPU of each stage, summed likewise."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What draws power in addition to GPUs."""

    nics: int
    switch_ports: int

    @classmethod
    def of(cls, topology: Topology) -> Surroundings:
        """NICs of GPUs, and ends of cables at switches between servers."""
        is_nic = topology.link_kind == LinkKind.NIC
        at_switch = is_fabric_switch(topology.node_kind)[topology.link_src]
        return cls(
            int(np.count_nonzero(is_nic & (topology.link_src < topology.gpus))), int(np.count_nonzero(at_switch))
        )


def energy_estimate(
    pools: Sequence[PoolActivity], around: Surroundings, power: PowerConfig, makespan_s: float, output_tokens: int
) -> EnergySummary | None:
    """Joules per pool and in all, an estimate; ``None`` where the power of some pool's GPU is not known."""
    laws = {pool.gpu: pool.law for pool in pools if pool.law is not None}
    if any(pool.law is None for pool in pools):
        return None
    joules = dict.fromkeys((pool.name for pool in pools), 0.0)
    held = dict.fromkeys(joules, 0.0)
    for pool in pools:
        assert pool.law is not None, "looked at above"
        joules[pool.name] += gpu_joules(pool, pool.law, makespan_s)
        held[pool.name] += pool.gpus
    gpu_j, gpus = sum(joules.values()), sum(held.values())
    network_j = _network_w(around, power) * makespan_s
    host_j = power.host_w_per_gpu * gpus * makespan_s
    total_j = (gpu_j + network_j + host_j) * power.pue
    return EnergySummary(
        is_estimate=True,
        gpu_j=gpu_j,
        gpu_j_per_output_token=gpu_j / output_tokens if output_tokens else None,
        pools_j=joules,
        pools_w={name: joules[name] / held[name] / makespan_s for name in joules} if makespan_s else {},
        network_j=network_j,
        host_j=host_j,
        total_j=total_j,
        total_j_per_output_token=total_j / output_tokens if output_tokens else None,
        sources={gpu: _source(law) for gpu, law in sorted(laws.items())},
    )


def gpu_joules(pool: PoolActivity, law: PowerLaw, makespan_s: float) -> float:
    """Of all GPUs of a pool."""
    working_j = (law.communicating_w - law.ready_w) * pool.communicating_s
    for computing_s, work in zip(pool.computing_s, pool.work, strict=True):
        if computing_s > 0:
            flops_per_s = {dtype: amount / computing_s for dtype, amount in work.flops.items()}
            busy_w = law.computing_w(work.moved_bytes / computing_s, flops_per_s)
            working_j += (busy_w - law.ready_w) * computing_s
    return law.ready_w * pool.gpus * makespan_s + working_j * pool.gpus_per_stage


def _network_w(around: Surroundings, power: PowerConfig) -> float:
    return power.nic_w * around.nics + power.switch_port_w * around.switch_ports


def _source(law: PowerLaw) -> str:
    measured = "measured on an H100, 2026-11-26 (aicb/data/h100/power.csv)"
    return measured if law.law_as is None else f"transferred: {measured}, within the limit of {law.limit_w:g} W"
