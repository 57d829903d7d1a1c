"""What a run waits for where its SLO is tightest, in one phrase, from its summary."""

from __future__ import annotations

from collections.abc import Iterable

from vidur_pd.metrics.summary import PoolSummary, Summary, TargetSummary

FIRST_TOKEN_PARTS = ("queue", "prefill_compute", "prefill_communication", "kv_wait", "kv_transfer")
DECODE_PARTS = ("decode_compute", "decode_communication", "stall")


def limited_by(summary: Summary) -> str:
    """The largest part of the latency whose target has the least margin, and the pool that it is spent in."""
    target = tightest(summary.slo.targets)
    parts = summary.attribution_s
    if target is None or not parts:
        return ""
    names = {"ttft": FIRST_TOKEN_PARTS, "tpot": DECODE_PARTS}.get(target.latency, FIRST_TOKEN_PARTS + DECODE_PARTS)
    largest = max(names, key=lambda name: parts.get(name, 0.0))
    prefill = _busiest(pool for pool in summary.pools if pool.role != "decode")
    decode = _busiest(pool for pool in summary.pools if pool.role != "prefill")
    match largest:
        case "queue":
            return f"prefill: prompts queue before {_named(prefill)}"
        case "prefill_compute":
            return f"prefill compute of {_named(prefill)}"
        case "prefill_communication":
            return f"collectives of prefill in {_named(prefill)}"
        case "kv_wait":
            full = max((pool.kv_use_max or 0.0 for pool in summary.pools if pool.role != "prefill"), default=0.0)
            return f"room for KV on the decode side (up to {100 * full:.0f} % of its blocks used)"
        case "kv_transfer":
            return "KV transfers over the network"
        case "decode_compute":
            return f"decode compute of {_named(decode)}"
        case "decode_communication":
            return f"collectives of decode in {_named(decode)}"
        case _:
            return f"places in the batches of {_named(decode)}, and preemptions ({summary.preemptions})"


def tightest(targets: Iterable[TargetSummary]) -> TargetSummary | None:
    """The target with the least margin; one that is infinitely far away before all."""
    return min(targets, key=lambda each: float("-inf") if each.margin is None else each.margin, default=None)


def _busiest(pools: Iterable[PoolSummary]) -> PoolSummary | None:
    return max(pools, key=lambda pool: pool.busy_share or 0.0, default=None)


def _named(pool: PoolSummary | None) -> str:
    return "the cluster" if pool is None else f"{pool.name} ({100 * (pool.busy_share or 0.0):.0f} % busy)"
