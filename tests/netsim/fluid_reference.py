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


@dataclass(frozen=True, slots=True)
class WeightedFlow:
    """A flow in the integers of the C++ model: units of rate and of rate × ps."""

    weights: Mapping[int, int]
    """Of the links it loads, per unit of its rate."""
    amount: int
    start_ps: int = 0
    tail_ps: int = 0
    cap: int | None = None


def filled_rates(flows: Mapping[int, WeightedFlow], capacity: Sequence[int]) -> dict[int, int]:
    """Progressive filling in whole units, from scratch: the smallest share saturates first, the lower link among
    equal ones, but a cap that is no larger comes before."""
    left = dict(enumerate(capacity))
    unfixed = dict(flows)
    rates: dict[int, int] = {}
    while unfixed:
        weight: dict[int, int] = {}
        for flow in unfixed.values():
            for link, by in flow.weights.items():
                weight[link] = weight.get(link, 0) + by
        share, tightest = min((left[link] // total, link) for link, total in weight.items())
        capped = [i for i, flow in unfixed.items() if flow.cap is not None and flow.cap <= share]
        lowest = min((unfixed[i].cap or 0 for i in capped), default=0)
        saturated = [i for i, flow in unfixed.items() if tightest in flow.weights]
        for i in [i for i in capped if unfixed[i].cap == lowest] if capped else saturated:
            rates[i] = lowest if capped else share
            for link, by in unfixed.pop(i).weights.items():
                left[link] -= rates[i] * by
    return rates


def end_times_in_whole_ps(flows: Sequence[WeightedFlow], capacity: Sequence[int]) -> list[int]:
    """Arrivals when rates are solved from scratch at every start and end."""
    left = {i: flow.amount for i, flow in enumerate(flows)}
    starts = sorted({flow.start_ps for flow in flows})
    now, ends = starts[0], {}
    while left:
        rates = filled_rates({i: flows[i] for i in left if flows[i].start_ps <= now}, capacity)
        following = min(
            [now - (-left[i] // rate) for i, rate in rates.items() if rate] + [s for s in starts if s > now]
        )
        for i, rate in rates.items():
            left[i] -= rate * (following - now)
            if left[i] <= 0:
                ends[i] = following + flows[i].tail_ps
                del left[i]
        now = following
    return [ends[i] for i in range(len(flows))]
