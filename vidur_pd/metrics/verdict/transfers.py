"""Limits of what goes between GPUs: KV transfers, collectives, and the links that both take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from vidur_pd.metrics.summary import ConnectorSummary, LinkSummary, PoolSummary, Summary
from vidur_pd.metrics.verdict.limits import FULL, NEAR_ROOF, Found, Limit, percent, pool_field

NEARLY_ALL: Final = 0.9
"""Share of the time of transfers in which descriptors are posted, from which on nothing else is their limit: with half
of it, bytes may take as long. Our choice."""


def _fullest(links: Sequence[LinkSummary]) -> LinkSummary | None:
    between_nodes = [link for link in links if link.kind != "nvlink"] or list(links)
    return max(between_nodes, key=lambda link: link.peak_use or 0.0, default=None)


def _link(link: LinkSummary) -> Found:
    name = f"{link.src} → {link.dst}"
    reason = f"{name} is used to {percent(link.mean_use)}, {percent(link.peak_use)} in its fullest window"
    advice = "faster NICs (cluster.topology.nic)" if link.kind == "nic" else "less oversubscription (cluster.topology)"
    return Found(Limit.LINK, name, reason, advice)


def set_up(summary: Summary) -> Found:
    """What precedes KV transfers: first contacts, others that are posted before, or a set-up of every transfer."""
    of, before_s = summary.connector, summary.attribution_s.get("kv_setup", 0.0) * summary.completed
    if of is not None and before_s:
        if (meeting := (of.handshakes_s or 0.0) / before_s) >= NEAR_ROOF:
            reason = f"instances meet for the first time, which is {percent(meeting)} of the set-up of KV transfers"
            advice = (
                "warm up every prefill–decode pair with one request; to simulate a warmed-up cluster, set "
                "kv_transfer.connector.handshake_us and handshake_descriptor_us to 0"
            )
            return Found(Limit.KV_TRANSFER, "", reason, advice)
        if (waiting := (of.waits_s or 0.0) / before_s) >= NEAR_ROOF:
            reason = f"KV transfers wait until others are posted, for {percent(waiting)} of their set-up"
            return Found(Limit.KV_TRANSFER, "", reason, _fewer_descriptors(of))
    return _exposed(summary, "set-up of KV transfers")


def on_the_way(summary: Summary) -> Found:
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


def descriptor_stalls(summary: Summary, pool: PoolSummary) -> Found | None:
    """KV that has arrived waits for engines whose steps stand still for half of the run."""
    return None if _standing(summary, pool) < NEAR_ROOF else _stalled(summary, pool)


def between_steps(summary: Summary, pool: PoolSummary) -> Found | None:
    """Half of the time for which running requests wait between iterations is that of steps that stand still."""
    waits_s = summary.attribution_s.get("stall", 0.0) * summary.completed
    stalls_s = 0.0 if summary.connector is None else summary.connector.stalls_s or 0.0
    stalled_s = stalls_s * (pool.batch_mean or 0.0)
    return _stalled(summary, pool) if stalled_s and stalled_s >= NEAR_ROOF * waits_s else None


def _standing(summary: Summary, pool: PoolSummary) -> float:
    """Share of the run in which steps stand still while descriptors are posted."""
    if summary.connector is None or not summary.makespan_s:
        return 0.0
    return (summary.connector.stalls_s or 0.0) / (summary.makespan_s * pool.instances * pool.dp)


def _stalled(summary: Summary, pool: PoolSummary) -> Found:
    assert summary.connector is not None, "only connectors make steps stand still"
    standing = percent(_standing(summary, pool))
    reason = f"steps stand still in {standing} of the run, while descriptors of KV transfers are posted"
    return Found(Limit.KV_TRANSFER, pool.name, reason, _fewer_descriptors(summary.connector))


def collectives(summary: Summary, pool: PoolSummary) -> Found:
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
        advice = (
            f"more micro-batches ({pool_field(pool, 'ffn.micro_batches')}: {pool.ffn.micro_batches}), or faster NICs"
        )
        return Found(Limit.COLLECTIVES, pool.name, reason, advice)
    return Found(
        Limit.COLLECTIVES, pool.name, reason, "groups within a node, or compute that hides them (engine.overlap)"
    )
