"""What changed from one run to another: which part of latency, by how much, and what else changed that explains it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from vidur_pd.metrics.attribution import MEANINGS, PARTS
from vidur_pd.metrics.quantities import milliseconds_text
from vidur_pd.metrics.summary import PoolSummary, Summary
from vidur_pd.metrics.verdict.limits import percent
from vidur_pd.report.differences import has_other_requests, is_noise

POOL_FIGURES: Final[Mapping[str, Callable[[PoolSummary], float | None]]] = {
    "busy under load": lambda pool: pool.busy_under_load,
    "busiest instance": lambda pool: pool.busy_share_max,
    "batch slots held": lambda pool: pool.batch_use,
    "KV in use": lambda pool: pool.kv_use_mean,
    "communication": lambda pool: pool.communication_share,
    "MFU": lambda pool: pool.mfu,
    "memory bandwidth": lambda pool: pool.memory_use,
}
"""Shares of a pool that explain where time goes."""
LEAST_CHANGE: Final = 0.02
"""Of a share, from which on it is shown. Our choice."""


@dataclass(frozen=True, slots=True)
class PartChange:
    """A part of mean latency in both runs."""

    part: str
    before_s: float
    after_s: float

    @property
    def change_s(self) -> float:
        return self.after_s - self.before_s


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one mean latency; the changes of its parts add up to its own."""

    latency: str
    before_s: float
    after_s: float
    parts: tuple[PartChange, ...]
    """The largest change first."""
    is_noise: bool
    """Within the intervals of both runs over their seeds."""


@dataclass(frozen=True, slots=True)
class RunChange:
    """What changed from one run to another."""

    ttft: Change
    e2e: Change
    reasons: tuple[str, ...]
    """Shares of pools, contention, limits."""
    settings: tuple[tuple[str, str, str], ...]
    """(field, before, after) of the configuration."""
    has_other_requests: bool


def change_between(
    before: Summary, after: Summary, config_before: Mapping[str, Any], config_after: Mapping[str, Any]
) -> RunChange:
    """The change from a run to another; configurations are flat, by dotted path (`comparison.flatten`)."""
    fields = dict.fromkeys([*config_before, *config_after])
    settings = [(name, str(config_before.get(name, "–")), str(config_after.get(name, "–"))) for name in fields]
    return RunChange(
        ttft=_change("TTFT", "ttft_s.mean", before, after, lambda of: (of.ttft_s.mean, of.ttft_attribution_s)),
        e2e=_change("E2E", "e2e_s.mean", before, after, lambda of: (of.e2e_s.mean, of.attribution_s)),
        reasons=tuple(_reasons(before, after)),
        settings=tuple(row for row in settings if row[1] != row[2]),
        has_other_requests=has_other_requests(before, after),
    )


def _change(
    latency: str,
    figure: str,
    before: Summary,
    after: Summary,
    of: Callable[[Summary], tuple[float | None, Mapping[str, float]]],
) -> Change:
    (mean_before, parts_before), (mean_after, parts_after) = of(before), of(after)
    parts = [PartChange(part, parts_before.get(part, 0.0), parts_after.get(part, 0.0)) for part in PARTS]
    known = [part for part in parts if part.before_s or part.after_s]
    return Change(
        latency,
        mean_before or 0.0,
        mean_after or 0.0,
        tuple(sorted(known, key=lambda part: -abs(part.change_s))),
        is_noise(before, after, figure),
    )


def _reasons(before: Summary, after: Summary) -> Iterator[str]:
    earlier = {pool.name: pool for pool in before.pools}
    for pool in after.pools:
        if pool.name not in earlier:
            yield f"pool {pool.name} is new"
            continue
        for name, figure in POOL_FIGURES.items():
            first, second = figure(earlier[pool.name]), figure(pool)
            if first is not None and second is not None and abs(second - first) >= LEAST_CHANGE:
                yield f"{pool.name}: {name} {percent(second)}, was {percent(first)}"
    yield from (f"pool {name} is gone" for name in earlier if name not in {pool.name for pool in after.pools})
    for kind, first_use, second_use in _links(before, after):
        yield f"fullest {kind} link: {percent(second_use)} in its fullest window, was {percent(first_use)}"
    contention = [_contention(each) for each in (before, after)]
    if abs(contention[1] - contention[0]) >= LEAST_CHANGE:
        yield f"contention: {percent(contention[1])} of collectives, was {percent(contention[0])}"
    limits = [each.verdict.limit if each.verdict else "" for each in (before, after)]
    if limits[0] != limits[1] and all(limits):
        yield f"limited by {limits[1]}, was limited by {limits[0]}"


def _links(before: Summary, after: Summary) -> Iterator[tuple[str, float, float]]:
    earlier = {link.kind: link.peak_use for link in before.links}
    for link in after.links:
        first, second = earlier.get(link.kind), link.peak_use
        if first is not None and second is not None and abs(second - first) >= LEAST_CHANGE:
            yield link.kind, first, second


def _contention(summary: Summary) -> float:
    of = summary.communication
    return (of.contention_s or 0.0) / of.collectives_s if of.collectives_s else 0.0


def change_text(change: RunChange, names: tuple[str, str]) -> str:
    """The change for a terminal."""
    lines = []
    if change.has_other_requests:
        lines += ["The runs were asked to serve different requests: what follows is not the system's alone.", ""]
    for of in (change.ttft, change.e2e):
        lines += [*_latency_lines(of), ""]
    lines += ["What else changed:", *(f"  {reason}" for reason in change.reasons or ("nothing by 2 % or more",)), ""]
    lines += [f"Configuration, {names[0]} to {names[1]}:"]
    lines += [f"  {name}: {first} → {second}" for name, first, second in change.settings] or ["  no difference"]
    return "\n".join(lines)


def _latency_lines(of: Change) -> Iterator[str]:
    change_s = of.after_s - of.before_s
    relative = f" ({100 * change_s / of.before_s:+.1f} %)" if of.before_s else ""
    noise = ", within the noise of the seeds" if of.is_noise else ""
    largest = next(iter(of.parts), None)
    most = ""
    if largest is not None and largest.change_s:
        most = f"; most of it is {largest.part}: {MEANINGS[largest.part]}"
    before, after, change = (milliseconds_text(value_s) for value_s in (of.before_s, of.after_s, change_s))
    means = f"{before} → {after} ms, {'+' if change_s >= 0 else ''}{change} ms"
    yield f"{of.latency}: {means}{relative}{noise}{most}"
    for part in of.parts:
        if part.change_s:
            yield (
                f"  {1e3 * part.change_s:>+12.3f} ms  {part.part:<22} {1e3 * part.before_s:>12.3f} → "
                f"{1e3 * part.after_s:.3f} ms"
            )
