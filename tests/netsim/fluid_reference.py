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


def max_min_rates(paths: Mapping[int, Sequence[int]], capacity_bps: Sequence[int]) -> dict[int, Fraction]:
    """Progressive filling: the tightest link fixes its flows at an equal share, until all are fixed."""
    left = {link: Fraction(capacity_bps[link]) for path in paths.values() for link in path}
    unfixed = set(paths)
    rates: dict[int, Fraction] = {}
    while unfixed:
        users = {link: [f for f in unfixed if link in paths[f]] for link in left}
        share, tightest = min((left[link] / len(flows), link) for link, flows in users.items() if flows)
        for flow in users[tightest]:
            rates[flow] = share
            unfixed.remove(flow)
            for link in paths[flow]:
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
        rates = max_min_rates(active, capacity_bps)
        instants = [now + left[i] / rates[i] for i in active] + [Fraction(s) for s in starts if s > now]
        following = min(instants)
        for i in active:
            left[i] -= rates[i] * (following - now)
            if left[i] == 0:
                ends[i] = following + flows[i].latency_ps
                del left[i]
        now = following
    return [ends[i] for i in range(len(flows))]
