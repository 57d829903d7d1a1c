"""What limits a run: from the part of latency that most late requests spend most of their time in, to a resource.

A part says where requests wait or what they wait for; which resource that is, pools and links say: how busy they are,
what of their batch slots, KV blocks, tensor cores and memory bandwidth is taken. `limit_of` is the table of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from vidur_pd.metrics.summary import ConnectorSummary, LinkSummary, PoolSummary, Summary

FULL: Final = 0.9
"""Share of slots, blocks, or of a link in its fullest window, from which on it is taken as full. Our choice."""
REPLAYED_CHUNKS: Final = "chunks that graphs replay (engine.max_batched_tokens up to the largest of engine.graph_sizes)"
NEAR_ROOF: Final = 0.5
"""Share of a roof (tensor cores, memory bandwidth) from which on a kernel mix is bound by it: measured tables of large
products and of decode attention reach 0.6 to 0.9 (docs/accuracy/kernels.md), so that half of it on average means that
most kernels are. Our choice."""
UNEVEN: Final = 1.5
"""The busiest instance against the mean of its pool, from which on routing is uneven. Our choice."""
AMONG_DECODES: Final = 0.3
"""Share of a pool's busy time in iterations with prompts, from which on these delay decodes. Our choice."""
STEPS_AHEAD: Final = 2
"""Steps for which requests may wait though nothing is full: the one in progress, and one that an asynchronous
scheduler has made ready behind it."""
MUCH_COMMUNICATION: Final = 1 / 3
"""Share of a pool's busy time in exposed collectives, from which on they are named before its compute. Our choice."""
NEARLY_ALL: Final = 0.9
"""Share of the time of transfers in which descriptors are posted, from which on nothing else is their limit: with half
of it, bytes may take as long. Our choice."""
_PREFILLING: Final = ("prefill_compute", "prefill_communication")


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


def limit_of(part: str, summary: Summary) -> Found:
    """The limit behind a part of latency (`attribution.PARTS`)."""
    prefill, decode = _pool(summary, "prefill"), _pool(summary, "decode")
    match part:
        case "queue":
            return _behind_decode(summary, prefill, decode) or _before_prefill(prefill)
        case "prefill_compute":
            return _prefill_itself(prefill)
        case "prefill_communication":
            return _communication(summary, prefill)
        case "kv_room":
            if found := _down(summary, decode):
                return found
            return _kv_room(decode, outlasts_steps=_outlasts_steps(summary))
        case "preempted":
            return _kv_room(decode)
        case "kv_setup":
            return _set_up(summary)
        case "kv_transfer":
            return _on_the_way(summary)
        case "decode_queue":
            return _before_decode(summary, decode)
        case "decode_compute":
            if (decode.communication_share or 0.0) >= MUCH_COMMUNICATION:
                return _communication(summary, decode)
            return _decode(decode)
        case "decode_communication":
            return _communication(summary, decode)
        case "frontend":
            advice = "more API servers (frontend.servers)"
            return Found(Limit.FRONTEND, "frontend", "requests and tokens wait for API servers", advice)
        case "lost":
            return Found(Limit.FAULTS, "", "attempts are lost to faults", "more spare instances, or fewer faults")
        case _:
            return _between_iterations(decode)


def _pool(summary: Summary, role: str) -> PoolSummary:
    """The pool of a role that is busiest, or the busiest that serves both."""
    pools = [pool for pool in summary.pools if pool.role == role]
    return max(pools or summary.pools, key=lambda pool: pool.busy_share or 0.0)


def percent(share: float | None) -> str:
    """A share in words, with a digit more where it is small."""
    if share is None:
        return "?"
    return f"{100 * share:.0f} %" if share >= 0.1 or share == 0 else f"{100 * share:.1f} %"


def _field(pool: PoolSummary, name: str) -> str:
    return f"cluster.pools.{pool.name}.{name}"


def _more(pool: PoolSummary) -> str:
    return f"more instances ({_field(pool, 'instances')}, now {pool.instances})"


def _uneven(pool: PoolSummary) -> Found | None:
    """The busiest instance has much more to do than the mean."""
    most, mean = pool.busy_share_max, pool.busy_share
    if pool.instances == 1 or most is None or not mean or most < UNEVEN * mean:
        return None
    reason = f"its busiest instance is busy {percent(most)} of the time, the mean one {percent(mean)}"
    return Found(Limit.ROUTING, pool.name, reason, "routing by load (routing.policy: least_tokens)")


def _full(pool: PoolSummary) -> Found | None:
    """KV blocks or batch slots of the pool are taken."""
    slots = (pool.batch_mean or 0.0) / pool.max_seqs if pool.max_seqs else 0.0
    if slots >= FULL:
        reason = f"a rank has {pool.batch_mean:.0f} requests in an iteration, of {pool.max_seqs} slots"
        return Found(
            Limit.BATCH_SLOTS, pool.name, reason, f"more slots (engine.max_seqs, now {pool.max_seqs}), or {_more(pool)}"
        )
    if (pool.kv_use_max or 0.0) >= FULL and (pool.kv_use_mean or 0.0) >= NEAR_ROOF:
        return _kv_room(pool)
    return None


def _outlasts_steps(summary: Summary) -> bool:
    """The mean wait for KV room is longer than the ends of steps explain."""
    return summary.attribution_s.get("kv_room", 0.0) > STEPS_AHEAD * (summary.tpot_s.mean or 0.0)


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
    if waiting <= computing or not _outlasts_steps(summary):
        return None
    found = _kv_room(decode, outlasts_steps=True)
    reason = (
        f"{found.reason}; computed prompts hold {percent(prefill.kv_use_mean)} of the KV of {prefill.name} until then"
    )
    return Found(found.limit, found.where, reason, found.advice)


def _behind_its_decodes(pool: PoolSummary) -> Found | None:
    """Prompts queue at a pool that serves both phases and computes few: what the KV of its requests leaves free is too
    little for another, though a pool of few large requests has never all blocks taken."""
    prompts, kv = pool.prompts_share or 0.0, pool.kv_use_mean or 0.0
    if pool.role != "mixed" or prompts >= NEAR_ROOF or kv < NEAR_ROOF:
        return None
    found = _kv_room(pool, outlasts_steps=True)
    reason = f"{found.reason}, while prompts are {percent(prompts)} of its busy time"
    return Found(found.limit, found.where, reason, found.advice)


def _host(pool: PoolSummary, share: float | None, kind: str, others: str = "") -> Found | None:
    """Iterations of a kind are mostly exposed host time: neither more FLOPs nor more memory bandwidth shorten them.

    ``others``: what helps besides a faster host; more in an iteration and more instances, unless stated.
    """
    if (share or 0.0) < NEAR_ROOF:
        return None
    reason = f"GPUs wait for the host in {percent(share)} of the time of {kind} (MFU {percent(pool.mfu)})"
    others = others or f"more in an iteration (engine.max_batched_tokens), or {_more(pool)}"
    return Found(Limit.HOST, pool.name, reason, f"a faster host (engine.host), or {others}")


def _before_prefill(pool: PoolSummary) -> Found:
    if found := _uneven(pool) or _full(pool) or _behind_its_decodes(pool):
        return found
    if (pool.communication_share or 0.0) >= MUCH_COMMUNICATION:
        reason = f"collectives take {percent(pool.communication_share)} of its busy time"
        return Found(Limit.COLLECTIVES, pool.name, reason, "fewer ranks in a group, or faster links")
    if found := _host(pool, pool.prompts_host_share, "prompts"):
        return found
    busy = pool.busy_share if pool.busy_under_load is None else pool.busy_under_load
    reason = f"prompts queue, and {pool.name} is busy {percent(busy)} of the time in which they arrive"
    if (busy or 0.0) < NEAR_ROOF:
        reason += ", in bursts"
    return Found(Limit.PREFILL_COMPUTE, pool.name, f"{reason} (MFU {percent(pool.mfu)})", _more(pool))


def _prefill_itself(pool: PoolSummary) -> Found:
    if found := _host(pool, pool.prompts_host_share, "prompts"):
        return found
    reason = f"prompts take that long by themselves (MFU {percent(pool.mfu)})"
    advice = f"prompts over more GPUs ({_field(pool, 'tp')}, now {pool.tp}), or a faster GPU"
    return Found(Limit.PREFILL_COMPUTE, pool.name, reason, advice)


def _kv_room(pool: PoolSummary, *, outlasts_steps: bool = False) -> Found:
    """Room for KV is short; or, where there is some and waits are no longer than steps, steps are long."""
    reason = f"KV blocks are taken to {percent(pool.kv_use_mean)} on average, {percent(pool.kv_use_max)} at most"
    advice = f"{_more(pool)}, or fp8 KV (engine.kv)"
    if (pool.kv_use_max or 0.0) >= FULL or outlasts_steps:
        return Found(Limit.KV_ROOM, pool.name, f"requests wait for room: {reason}", advice)
    reason = f"KV has room ({percent(pool.kv_use_max)} at most); requests wait for the end of the step in progress"
    return Found(Limit.DECODE_STEPS, pool.name, reason, f"shorter steps: {_more(pool)}")


def _down(summary: Summary, pool: PoolSummary) -> Found | None:
    """KV has room, requests wait for longer than steps last, and at some time all instances of the pool were down."""
    if summary.faults is None or (pool.kv_use_max or 0.0) >= FULL or not _outlasts_steps(summary):
        return None
    of_pool = [
        event
        for event in summary.faults.events
        if event.kind == "instance" and event.target.rpartition("-")[0] == pool.name
    ]
    for last in of_pool:
        at_once = {event.target for event in of_pool if event.at_s <= last.at_s < event.end_s}
        if len(at_once) == pool.instances:
            others = "" if pool.instances == 1 else " like all others"
            reason = f"{last.target} is {last.outage}{others}, and requests wait for it"
            return Found(Limit.FAULTS, pool.name, reason, f"spare instances: {_more(pool)}")
    return None


def _before_decode(summary: Summary, pool: PoolSummary) -> Found:
    if found := _uneven(pool) or _full(pool) or _posts(summary, pool):
        return found
    reason = "KV that has arrived waits for the end of the step in progress"
    return Found(Limit.DECODE_STEPS, pool.name, reason, f"shorter steps: {_more(pool)}")


def _decode(pool: PoolSummary) -> Found:
    if pool.role != "decode" and (pool.prompts_share or 0.0) >= AMONG_DECODES:
        apart = "prefill and decode on instances of their own"
        kind = f"iterations that compute prompts as well, {percent(pool.prompts_share)} of its busy time"
        if found := _host(pool, pool.prompts_host_share, kind, f"{REPLAYED_CHUNKS}, or {apart}"):
            return found
        reason = f"{percent(pool.prompts_share)} of its busy time are iterations that compute prompts as well"
        advice = f"smaller chunks (engine.max_batched_tokens), or {apart}"
        return Found(Limit.PROMPTS_IN_DECODES, pool.name, reason, advice)
    if found := _host(pool, pool.decodes_host_share, "decodes"):
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
        return Found(Limit.DECODE_STEPS, pool.name, reason, f"fewer requests a step: {_more(pool)}")
    limit = Limit.DECODE_MEMORY if memory >= compute else Limit.DECODE_COMPUTE
    advice = f"fewer requests a step: {_more(pool)}, or weights over more GPUs"
    return Found(limit, pool.name, f"{batch} ({roofs})", advice)


def _fullest(links: Sequence[LinkSummary]) -> LinkSummary | None:
    between_nodes = [link for link in links if link.kind != "nvlink"] or list(links)
    return max(between_nodes, key=lambda link: link.peak_use or 0.0, default=None)


def _link(link: LinkSummary) -> Found:
    name = f"{link.src} → {link.dst}"
    reason = f"{name} is used to {percent(link.mean_use)}, {percent(link.peak_use)} in its fullest window"
    advice = "faster NICs (cluster.topology.nic)" if link.kind == "nic" else "less oversubscription (cluster.topology)"
    return Found(Limit.LINK, name, reason, advice)


def _set_up(summary: Summary) -> Found:
    """What precedes KV transfers: first contacts, others that are posted before, or a set-up of every transfer."""
    of, before_s = summary.connector, summary.attribution_s.get("kv_setup", 0.0) * summary.completed
    if of is not None and before_s:
        if (meeting := (of.handshakes_s or 0.0) / before_s) >= NEAR_ROOF:
            reason = f"instances meet for the first time, which is {percent(meeting)} of the set-up of KV transfers"
            advice = (
                "a request between each two instances before users come; to see what follows without one: "
                "kv_transfer.connector.handshake_us and handshake_descriptor_us of 0"
            )
            return Found(Limit.KV_TRANSFER, "", reason, advice)
        if (waiting := (of.waits_s or 0.0) / before_s) >= NEAR_ROOF:
            reason = f"KV transfers wait until others are posted, for {percent(waiting)} of their set-up"
            return Found(Limit.KV_TRANSFER, "", reason, _fewer_descriptors(of))
    return _exposed(summary, "set-up of KV transfers")


def _on_the_way(summary: Summary) -> Found:
    """What KV transfers are as slow as: a link, descriptors, or themselves."""
    link, of, moving_s = _fullest(summary.links), summary.connector, summary.communication.kv_transfers_s or 0.0
    if link is not None and (link.peak_use or 0.0) >= NEAR_ROOF:
        return _link(link)
    if of is not None and moving_s and (posting := (of.posting_s or 0.0) / moving_s) >= NEARLY_ALL:
        reason = f"KV moves no faster than its descriptors are posted ({percent(posting)} of the time on the way)"
        return Found(Limit.KV_TRANSFER, "", reason, _fewer_descriptors(of))
    return _exposed(summary, "KV on its way")


def _exposed(summary: Summary, what: str) -> Found:
    link = _fullest(summary.links)
    used = "" if link is None else f"; the fullest link is used to {percent(link.peak_use)} in its fullest window"
    advice = "KV sent while prompts are computed (kv_transfer.mode: layerwise)"
    return Found(Limit.KV_TRANSFER, "", f"{what} is exposed{used}", advice)


def _fewer_descriptors(of: ConnectorSummary) -> str:
    if of.path == "host":
        return "GPUs and NICs that reach each other's memory (kv_transfer.connector.path: direct)"
    if of.descriptor_tokens is None:
        return "larger KV blocks (engine.block_tokens), of which each is a descriptor"
    return f"longer descriptors (kv_transfer.connector.descriptor_tokens, now {of.descriptor_tokens})"


def _posts(summary: Summary, pool: PoolSummary) -> Found | None:
    """KV that has arrived waits for engines whose steps stand still for half of the run."""
    of = summary.connector
    if of is None or not summary.makespan_s:
        return None
    standing = (of.stalls_s or 0.0) / (summary.makespan_s * pool.instances * pool.dp)
    if standing < NEAR_ROOF:
        return None
    reason = f"steps stand still in {percent(standing)} of the run, while descriptors of KV transfers are posted"
    return Found(Limit.KV_TRANSFER, pool.name, reason, _fewer_descriptors(of))


def _communication(summary: Summary, pool: PoolSummary) -> Found:
    link, of = _fullest(summary.links), summary.communication
    contention = (of.contention_s or 0.0) / of.collectives_s if of.collectives_s else 0.0
    if link is not None and (contention >= 0.1 or (link.peak_use or 0.0) >= FULL):
        found = _link(link)
        return Found(
            found.limit,
            found.where,
            f"{found.reason}; contention is {percent(contention)} of collectives",
            found.advice,
        )
    reason = f"collectives take {percent(pool.communication_share)} of the busy time of {pool.name}"
    if pool.ffn is not None:
        advice = f"more micro-batches ({_field(pool, 'ffn.micro_batches')}: {pool.ffn.micro_batches}), or faster NICs"
        return Found(Limit.COLLECTIVES, pool.name, reason, advice)
    return Found(
        Limit.COLLECTIVES, pool.name, reason, "groups within a node, or compute that hides them (engine.overlap)"
    )


def _between_iterations(pool: PoolSummary) -> Found:
    if pool.pp > 1:
        advice = f"fewer stages ({_field(pool, 'pp')}, now {pool.pp})"
        return Found(Limit.PIPELINE, pool.name, "requests wait between pipeline stages", advice)
    reason = "requests wait while iterations of others run on their instance"
    return Found(Limit.BATCH_SLOTS, pool.name, reason, f"larger batches (engine.max_batched_tokens), or {_more(pool)}")
