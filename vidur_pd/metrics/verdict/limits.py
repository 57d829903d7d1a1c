"""What can limit a run, how a verdict puts it, and the words and thresholds that all of its parts share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from vidur_pd.metrics.summary import PoolSummary, Summary

FULL: Final = 0.9
"""Share of slots, blocks, or of a link in its fullest window, from which on it is taken as full. Our choice."""
NEAR_ROOF: Final = 0.5
"""Share of a roof (tensor cores, memory bandwidth) from which on a kernel mix is bound by it: measured tables of large
products and of decode attention reach 0.6 to 0.9 (docs/accuracy/kernels.md), so that half of it on average means that
most kernels are. Our choice."""


class Limit(StrEnum):
    """What there is too little of."""

    PREFILL_COMPUTE = "prefill compute"
    DECODE_COMPUTE = "decode compute"
    DECODE_MEMORY = "decode memory bandwidth"
    DECODE_STEPS = "decode step time"
    PROMPTS_IN_DECODES = "prompts in the iterations of decodes"
    KV_ROOM = "KV room"
    BATCH_SLOTS = "batch slots"
    ROUTING = "routing imbalance"
    LINK = "a link"
    COLLECTIVES = "collectives"
    KV_TRANSFER = "KV transfer"
    PIPELINE = "pipeline"
    HOST = "host"
    FRONTEND = "frontend"
    FAULTS = "faults"
    REFUSALS = "refusals"


@dataclass(frozen=True, slots=True)
class Found:
    """A limit, where it is, how it shows, and the next thing to change."""

    limit: Limit
    where: str
    reason: str
    advice: str


def percent(share: float | None) -> str:
    """A share in words, with a digit more where it is small."""
    if share is None:
        return "?"
    return f"{100 * share:.0f} %" if share >= 0.1 or share == 0 else f"{100 * share:.1f} %"


def time_text(seconds: float | None) -> str:
    """A time in words, to three digits."""
    if seconds is None:
        return "?"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def pool_field(pool: PoolSummary, name: str) -> str:
    return f"cluster.pools.{pool.name}.{name}"


def more_instances(summary: Summary, pool: PoolSummary) -> str:
    """More instances, in words; with a planner that has not used all of them, what keeps it from doing so."""
    planned = () if summary.planner is None else summary.planner.pools
    most = next((each.serving_most for each in planned if each.name == pool.name), pool.instances)
    if most >= pool.instances:
        return f"more instances ({pool_field(pool, 'instances')}, now {pool.instances})"
    options = f"planner.options, planner.interval_s, planner.pools.{pool.name}.min"
    return f"more instances in service (the planner ran at most {most} of {pool.instances}: {options})"
