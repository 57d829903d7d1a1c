"""A second fluid model, in exact fractions and without shortcuts: what the C++ one is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

BIT_PS_PER_BYTE = 8 * 10**12
"""Bytes over bit/s in picoseconds: bytes · 8 · 10¹² / rate."""


@dataclass(frozen=True, slots=True)
class ReferenceFlow:
    """A flow without dependencies."""

    links: tuple[int, ...]
    size_bytes: int
    start_ps: int
    latency_ps: int
    max_rate_bps: int = 0
    """0: none."""


def max_min_rates(
    paths: Mapping[int, Sequence[int]], capacity_bps: Sequence[int], caps_bps: Mapping[int, int] | None = None
) -> dict[int, Fraction]:
    """Progressive filling: the tightest link fixes its flows at an equal share, until all are fixed.

    A cap is a link of the flow's own.
    """
    left: dict[int | str, Fraction] = {link: Fraction(capacity_bps[link]) for path in paths.values() for link in path}
    own = {flow: f"cap of flow {flow}" for flow, cap in (caps_bps or {}).items() if cap and flow in paths}
    left |= {own[flow]: Fraction(caps_bps[flow]) for flow in own} if caps_bps else {}
    crossed = {flow: [*path, *([own[flow]] if flow in own else [])] for flow, path in paths.items()}
    unfixed = set(paths)
    rates: dict[int, Fraction] = {}
    while unfixed:
        users = {link: [f for f in unfixed if link in crossed[f]] for link in left}
        tightest = min((link for link, flows in users.items() if flows), key=lambda link: left[link] / len(users[link]))
        share = left[tightest] / len(users[tightest])
        for flow in users[tightest]:
            rates[flow] = share
            unfixed.remove(flow)
            for link in crossed[flow]:
                left[link] -= share
    return rates


def end_times_ps(flows: Sequence[ReferenceFlow], capacity_bps: Sequence[int]) -> list[Fraction]:
    """Exact arrival of the last byte of every flow."""
    left = {i: Fraction(flow.size_bytes * BIT_PS_PER_BYTE) for i, flow in enumerate(flows)}
    starts = sorted({flow.start_ps for flow in flows})
    ends: dict[int, Fraction] = {}
    now = Fraction(starts[0])
    while left:
        active = {i: flows[i].links for i in left if flows[i].start_ps <= now}
        rates = max_min_rates(active, capacity_bps, {i: flows[i].max_rate_bps for i in active})
        instants = [now + left[i] / rates[i] for i in active] + [Fraction(s) for s in starts if s > now]
        following = min(instants)
        for i in active:
            left[i] -= rates[i] * (following - now)
            if left[i] == 0:
                ends[i] = following + flows[i].latency_ps
                del left[i]
        now = following
    return [ends[i] for i in range(len(flows))]
