"""What limits a run: from the part of latency that most late requests spend most of their time in, to a resource.

A part says where requests wait or what they wait for; which resource that is, pools and links say: how busy they are,
what of their batch slots, KV blocks, tensor cores and memory bandwidth is taken. `limit_of` is the table of both.
"""

from __future__ import annotations

from typing import Final

from vidur_pd.metrics.summary import PoolSummary, Summary
from vidur_pd.metrics.verdict.limits import (
    FULL,
    NEAR_ROOF,
    Found,
    Limit,
    more_instances,
    percent,
    pool_field,
    time_text,
)
from vidur_pd.metrics.verdict.transfers import between_steps, collectives, descriptor_stalls, on_the_way, set_up

REPLAYED_CHUNKS: Final = "chunks that graphs replay (engine.max_batched_tokens up to the largest of engine.graph_sizes)"
UNEVEN: Final = 1.5
"""The busiest instance against the mean of its pool, from which on routing is uneven. Our choice."""
AMONG_DECODES: Final = 0.3
"""Share of a pool's busy time in iterations with prompts, from which on these delay decodes. Our choice."""
STEPS_AHEAD: Final = 2
"""Steps for which requests may wait though nothing is full: the one in progress, and one that an asynchronous
scheduler has made ready behind it."""
MANY_STEPS: Final = 10
"""Steps for which a request whose KV has arrived waits for nothing but a place in a batch. Our choice."""
MUCH_COMMUNICATION: Final = 1 / 3
"""Share of a pool's busy time in exposed collectives, from which on they are named before its compute. Our choice."""
_PREFILLING: Final = ("prefill_compute", "prefill_communication")


def limit_of(part: str, summary: Summary) -> Found:
    """The limit behind a part of latency (`attribution.PARTS`)."""
    prefill, decode = _pool(summary, "prefill"), _pool(summary, "decode")
    match part:
        case "queue":
            return _behind_decode(summary, prefill, decode) or _before_prefill(summary, prefill)
        case "prefill_compute":
            return _prefill_itself(summary, prefill)
        case "prefill_communication":
            return collectives(summary, prefill)
        case "kv_room":
            return _before_transfer(summary, decode)
        case "preempted":
            return _kv_room(summary, decode)
        case "kv_setup":
            return set_up(summary)
        case "kv_transfer":
            return on_the_way(summary)
        case "decode_queue":
            return _before_decode(summary, decode)
        case "decode_compute":
            if (decode.communication_share or 0.0) >= MUCH_COMMUNICATION:
                return collectives(summary, decode)
            return _decode(summary, decode)
        case "decode_communication":
            return collectives(summary, decode)
        case "frontend":
            advice = "more API servers (frontend.servers)"
            return Found(Limit.FRONTEND, "frontend", "requests and tokens wait for API servers", advice)
        case "lost":
            return Found(Limit.FAULTS, "", "attempts are lost to faults", "more spare instances, or fewer faults")
        case _:
            return _between_iterations(summary, decode)


def _pool(summary: Summary, role: str) -> PoolSummary:
    """The pool of a role that is busiest, or the busiest that serves both."""
    pools = [pool for pool in summary.pools if pool.role == role]
    return max(pools or summary.pools, key=lambda pool: pool.busy_share or 0.0)


def _uneven(pool: PoolSummary) -> Found | None:
    """The busiest instance has much more to do than the mean."""
    most, mean = pool.busy_share_max, pool.busy_share
    if pool.instances == 1 or most is None or not mean or most < UNEVEN * mean:
        return None
    reason = f"its busiest instance is busy {percent(most)} of the time, the mean one {percent(mean)}"
    return Found(Limit.ROUTING, pool.name, reason, "routing by load (routing.policy: least_tokens)")


def _slots(pool: PoolSummary) -> float:
    """Share of the batch slots that are taken, on average over the run, or over iterations where that is more: an
    instance without requests has no iterations."""
    in_iterations = (pool.batch_mean or 0.0) / pool.max_seqs if pool.max_seqs else 0.0
    return max(in_iterations, pool.batch_use or 0.0)


def _full(summary: Summary, pool: PoolSummary) -> Found | None:
    """KV blocks or batch slots of the pool are taken."""
    if _slots(pool) >= FULL:
        reason = f"a rank has {pool.batch_mean or 0.0:.0f} requests in an iteration, of {pool.max_seqs} slots"
        return Found(Limit.BATCH_SLOTS, pool.name, reason, _more_slots(summary, pool))
    if (pool.kv_use_max or 0.0) >= FULL and (pool.kv_use_mean or 0.0) >= NEAR_ROOF:
        return _kv_room(summary, pool)
    return None


def _no_slot(summary: Summary, pool: PoolSummary) -> Found:
    """Requests wait for longer than steps last, and not for KV blocks: for a place in the batch.

    That is before KV is sent as well as after it, as an engine without a free slot reserves no blocks.
    """
    waits_s, step_s = _waits_s(summary, "kv_room") + _waits_s(summary, "decode_queue"), _step_s(summary)
    reason = (
        f"requests wait {time_text(waits_s)} on average for a place in the batch, {waits_s / step_s:.0f} decode "
        f"iterations; a rank has {pool.batch_mean or 0.0:.0f} requests in an iteration, of {pool.max_seqs} slots, and "
        f"KV blocks are taken to {percent(pool.kv_use_max)} at most"
    )
    return Found(Limit.BATCH_SLOTS, pool.name, reason, _more_slots(summary, pool))


def _more_slots(summary: Summary, pool: PoolSummary) -> str:
    return (
        f"more slots ({pool_field(pool, 'engine.max_seqs')}, now {pool.max_seqs}), or {more_instances(summary, pool)}"
    )


def _waits_s(summary: Summary, part: str) -> float:
    return summary.attribution_s.get(part, 0.0)


def _step_s(summary: Summary) -> float:
    """A decode iteration. TPOT is more where requests wait after their first token."""
    return summary.itl_s.p50 or summary.tpot_s.p50 or 0.0


def _outlasts_steps(summary: Summary, part: str, steps: int = STEPS_AHEAD) -> bool:
    """The mean wait is longer than the ends of steps explain."""
    return _step_s(summary) > 0 and _waits_s(summary, part) > steps * _step_s(summary)


def _behind_decode(summary: Summary, prefill: PoolSummary, decode: PoolSummary) -> Found | None:
    """Prompts queue at a pool that is mostly idle, as computed ones hold its KV until decode has room for them.

    KV is then held for longer after the prompt than while it is computed. A pool whose requests are few and large is
    short of KV long before all blocks are taken, so that it need not be full.
    """
    busy = prefill.busy_share if prefill.busy_under_load is None else prefill.busy_under_load
    if prefill.name == decode.name or (busy or 0.0) >= NEAR_ROOF or (prefill.kv_use_mean or 0.0) < NEAR_ROOF:
        return None
    parts = summary.attribution_s
    waiting, computing = parts.get("kv_room", 0.0), sum(parts.get(part, 0.0) for part in _PREFILLING)
    if waiting <= computing or not _outlasts_steps(summary, "kv_room"):
        return None
    found = _before_transfer(summary, decode)
    reason = (
        f"{found.reason}; computed prompts hold {percent(prefill.kv_use_mean)} of the KV of {prefill.name} until then"
    )
    return Found(found.limit, found.where, reason, found.advice)


def _behind_its_decodes(summary: Summary, pool: PoolSummary) -> Found | None:
    """Prompts queue at a pool that serves both phases and computes few: what the KV of its requests leaves free is too
    little for another, though a pool of few large requests has never all blocks taken."""
    prompts, kv = pool.prompts_share or 0.0, pool.kv_use_mean or 0.0
    if pool.role != "mixed" or prompts >= NEAR_ROOF or kv < NEAR_ROOF:
        return None
    found = _kv_room(summary, pool)
    reason = f"{found.reason}, while prompts are {percent(prompts)} of its busy time"
    return Found(found.limit, found.where, reason, found.advice)


def _host(summary: Summary, pool: PoolSummary, share: float | None, kind: str, others: str = "") -> Found | None:
    """Iterations of a kind are mostly exposed host time: neither more FLOPs nor more memory bandwidth shorten them.

    ``others``: what helps besides a faster host; more in an iteration and more instances, unless stated.
    """
    if (share or 0.0) < NEAR_ROOF:
        return None
    reason = f"GPUs wait for the host in {percent(share)} of the time of {kind} (MFU {percent(pool.mfu)})"
    others = others or f"more in an iteration (engine.max_batched_tokens), or {more_instances(summary, pool)}"
    return Found(Limit.HOST, pool.name, reason, f"a faster host (engine.host), or {others}")


def _before_prefill(summary: Summary, pool: PoolSummary) -> Found:
    if found := _uneven(pool) or _full(summary, pool) or _behind_its_decodes(summary, pool):
        return found
    if (pool.communication_share or 0.0) >= MUCH_COMMUNICATION:
        reason = f"collectives take {percent(pool.communication_share)} of its busy time"
        return Found(Limit.COLLECTIVES, pool.name, reason, "fewer ranks in a group, or faster links")
    if found := _host(summary, pool, pool.prompts_host_share, "prompts"):
        return found
    busy = pool.busy_share if pool.busy_under_load is None else pool.busy_under_load
    reason = f"prompts queue, and {pool.name} is busy {percent(busy)} of the time in which they arrive"
    if (busy or 0.0) < NEAR_ROOF:
        reason += ", in bursts"
    return Found(Limit.PREFILL_COMPUTE, pool.name, f"{reason} (MFU {percent(pool.mfu)})", more_instances(summary, pool))


def _prefill_itself(summary: Summary, pool: PoolSummary) -> Found:
    if found := _host(summary, pool, pool.prompts_host_share, "prompts"):
        return found
    reason = f"prompts take that long by themselves (MFU {percent(pool.mfu)})"
    advice = f"prompts over more GPUs ({pool_field(pool, 'tp')}, now {pool.tp}), or a faster GPU"
    return Found(Limit.PREFILL_COMPUTE, pool.name, reason, advice)


def _kv_room(summary: Summary, pool: PoolSummary) -> Found:
    reason = f"KV blocks are taken to {percent(pool.kv_use_mean)} on average, {percent(pool.kv_use_max)} at most"
    advice = f"{more_instances(summary, pool)}, or fp8 KV (engine.kv)"
    return Found(Limit.KV_ROOM, pool.name, f"requests wait for room: {reason}", advice)


def _before_transfer(summary: Summary, pool: PoolSummary) -> Found:
    """Requests wait until the decode instance takes them: for KV blocks, for a place, or for the step in progress.

    Where half of the blocks are always free there is no lack of them: a request that needs less than half finds room,
    and one that needs more would have taken it.
    """
    most, is_crowded = pool.kv_use_max or 0.0, _slots(pool) >= FULL
    if most >= FULL and not (is_crowded and (pool.kv_use_mean or 0.0) < NEAR_ROOF):
        return _kv_room(summary, pool)
    if _outlasts_steps(summary, "kv_room"):
        is_slots = is_crowded or most < NEAR_ROOF
        return _no_slot(summary, pool) if is_slots else _kv_room(summary, pool)
    reason = f"KV has room ({percent(most)} at most); requests wait for the end of the step in progress"
    return Found(Limit.DECODE_STEPS, pool.name, reason, f"shorter steps: {more_instances(summary, pool)}")


def _before_decode(summary: Summary, pool: PoolSummary) -> Found:
    waits, is_full = "decode_queue", _slots(pool) >= FULL
    if found := _uneven(pool):
        return found
    if is_full and _outlasts_steps(summary, waits):
        return _no_slot(summary, pool)
    if found := _full(summary, pool) or descriptor_stalls(summary, pool):
        return found
    if _outlasts_steps(summary, waits, STEPS_AHEAD if _slots(pool) >= NEAR_ROOF else MANY_STEPS):
        return _no_slot(summary, pool)
    reason = "KV that has arrived waits for the end of the step in progress"
    return Found(Limit.DECODE_STEPS, pool.name, reason, f"shorter steps: {more_instances(summary, pool)}")


def _decode(summary: Summary, pool: PoolSummary) -> Found:
    if pool.role != "decode" and (pool.prompts_share or 0.0) >= AMONG_DECODES:
        apart = "prefill and decode on instances of their own"
        kind = f"iterations that compute prompts as well, {percent(pool.prompts_share)} of its busy time"
        if found := _host(summary, pool, pool.prompts_host_share, kind, f"{REPLAYED_CHUNKS}, or {apart}"):
            return found
        reason = f"{percent(pool.prompts_share)} of its busy time are iterations that compute prompts as well"
        advice = f"smaller chunks (engine.max_batched_tokens), or {apart}"
        return Found(Limit.PROMPTS_IN_DECODES, pool.name, reason, advice)
    if found := _host(summary, pool, pool.decodes_host_share, "decodes"):
        return found
    batch = "decodes"
    if pool.batch_mean is not None:
        number = f"{pool.batch_mean:.0f}"
        batch = f"a rank decodes {number} request{'' if number == '1' else 's'} a step"
    roofs = f"memory bandwidth {percent(pool.memory_use)}, MFU {percent(pool.mfu)}"
    memory, compute = pool.memory_use or 0.0, pool.mfu or 0.0
    others = "launches, small kernels and the host"
    if (pool.communication_share or 0.0) >= 0.1:
        others = f"collectives ({percent(pool.communication_share)}), {others}"
    if max(memory, compute) < NEAR_ROOF:
        reason = f"{batch}, near neither roof ({roofs}): {others} take the rest"
        return Found(Limit.DECODE_STEPS, pool.name, reason, f"fewer requests a step: {more_instances(summary, pool)}")
    limit = Limit.DECODE_MEMORY if memory >= compute else Limit.DECODE_COMPUTE
    advice = f"fewer requests a step: {more_instances(summary, pool)}, or weights over more GPUs"
    return Found(limit, pool.name, f"{batch} ({roofs})", advice)


def _between_iterations(summary: Summary, pool: PoolSummary) -> Found:
    if pool.pp > 1:
        advice = f"fewer stages ({pool_field(pool, 'pp')}, now {pool.pp})"
        return Found(Limit.PIPELINE, pool.name, "requests wait between pipeline stages", advice)
    if found := between_steps(summary, pool):
        return found
    reason = "requests wait while iterations of others run on their instance"
    return Found(
        Limit.BATCH_SLOTS,
        pool.name,
        reason,
        f"larger batches (engine.max_batched_tokens), or {more_instances(summary, pool)}",
    )
