"""The answer of a search in sentences: what to run, what it comes to, what limits it, what is next best."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from vidur_pd.config import PoolConfig, SimulationConfig
from vidur_pd.metrics.quantities import share_text
from vidur_pd.metrics.steady import LEAST_STAYS
from vidur_pd.metrics.summary import TargetSummary
from vidur_pd.search.evaluation.outcome import Outcome
from vidur_pd.search.output.launch import partition_text
from vidur_pd.search.screening import GPUS, INVALID, LOAD
from vidur_pd.search.search import Evaluated, SearchResult
from vidur_pd.search.space.objective import Objective

USUAL_LATENCIES: Final = ("TTFT p90", "TPOT p90")
"""Latencies in tables of searches whose SLO bounds none by a percentile or mean."""


def answer(result: SearchResult) -> str:
    """One sentence first, then what it rests on."""
    return "\n".join(_sentences(result))


def _sentences(result: SearchResult) -> Iterator[str]:
    objective, best = result.space.file.objective, result.best
    if best is None:
        yield _nothing(result)
    else:
        outcome = best.last()
        yield (
            f"{deployment(result.space.config(best.candidate.point))}; {_headline(objective, outcome)}; "
            f"{targets_text(outcome.targets)}."
        )
        if besides := result.space.besides(best.candidate.point):
            yield f"With {besides}."
        yield f"Limited by {outcome.limited_by}." if outcome.limited_by else "Nothing limits it."
        if outcome.stays is not None and outcome.stays < LEAST_STAYS:
            yield f"{short_text(outcome.stays)}."
        if (other := next_best(result)) is not None:
            second = deployment(result.space.config(other.candidate.point))
            besides = result.space.besides(other.candidate.point)
            chosen = f" with {besides}" if besides else ""
            yield f"Next best: {second}{chosen}; {_headline(objective, other.last())}."
    yield effort(result)


def short_text(stays: float) -> str:
    """What is said of arrivals that last too few stays for instances to be full."""
    return (
        f"The workload is short: arrivals last {stays:.2g} times as long as a request stays, and at least "
        f"{LEAST_STAYS:g} times are needed to tell what a longer one of this kind asks for"
    )


def next_best(result: SearchResult) -> Evaluated | None:
    """The best deployment with other pools than the best."""
    return next(iter(best_of_each_deployment(result)[1:]), None)


def best_of_each_deployment(result: SearchResult) -> list[Evaluated]:
    """Of points whose pools are the same the best one; the best first."""
    found: dict[str, Evaluated] = {}
    for each in result.ranking:
        found.setdefault(deployment(result.space.config(each.candidate.point)), each)
    return list(found.values())


def _nothing(result: SearchResult) -> str:
    tried = [each.last() for each in result.evaluated]
    text = f"No deployment of {result.space.size:,} meets the SLO"
    if not tried:
        return f"{text}: none could be run."
    nearest = max(tried, key=lambda outcome: outcome.margin)
    return f"{text}; the nearest misses it by {margin_text(-nearest.margin)}: limited by {nearest.limited_by}."


def deployment(config: SimulationConfig) -> str:
    """GPUs in all, and of each pool its instances, the GPUs of one and how these divide the work."""
    kinds = Counter[str]()
    for pool in config.cluster.pools:
        for name, number in config.gpus_by_hardware(pool).items():
            kinds[name.upper()] += pool.instances * number
    gpus = " + ".join(f"{number} × {kind}" for kind, number in kinds.items())
    return f"{gpus}: {', '.join(_instances(pool) for pool in config.cluster.pools)}"


def _instances(pool: PoolConfig) -> str:
    number = f"{pool.instances} {pool.name} instance{'s' if pool.instances > 1 else ''}"
    width = pool.gpus_per_instance
    return f"{number} × {width} GPU{'s' if width > 1 else ''} ({partition_text(pool)})"


def _headline(objective: Objective, outcome: Outcome) -> str:
    match objective:
        case Objective.MAX_THROUGHPUT_PER_GPU:
            return f"up to {outcome.rate_per_s:.3g} requests/s ({outcome.rate_per_s / outcome.gpus:.3g} per GPU)"
        case Objective.MIN_LATENCY:
            return f"mean end-to-end latency {outcome.e2e_mean_s:.3g} s at {outcome.rate_per_s:.3g} requests/s"
        case Objective.MIN_COST:
            return f"{outcome.cost_per_hour:.4g} per hour at {outcome.rate_per_s:.3g} requests/s"
        case Objective.MIN_COST_PER_TOKEN:
            cost = objective.value_of(outcome)
            return (
                f"{cost:.4g} per million output tokens, with what their prompts cost, at a steady "
                f"{outcome.rate_per_s:.3g} requests/s"
            )
        case _:
            tokens = outcome.output_tokens_per_s
            return f"{outcome.rate_per_s:.3g} requests/s" + (
                "" if tokens is None else f", {tokens:,.0f} output tokens/s"
            )


def targets_text(targets: tuple[TargetSummary, ...]) -> str:
    """Each target with what was found and its limit."""
    return ", ".join(_target_text(target) for target in targets) or "no targets"


def _target_text(target: TargetSummary) -> str:
    if target.latency == "":
        share, least = target.found or 0.0, target.limit or 0.0
        return f"{share_text(share, least)} of the requests within their limits (at least {100 * least:g} %)"
    without = "of no request" if not target.requests else "never"
    found = without if target.found is None else seconds_text(target.found)
    return f"{target.name} {found} (limit {seconds_text(target.limit or 0.0)})"


def latency_columns(outcomes: Iterable[Outcome]) -> tuple[str, ...]:
    """Names of the latencies that the targets bound, as ``TTFT p99``; where they bound none by itself, two p90."""
    judged = next((outcome.targets for outcome in outcomes if outcome.targets), ())
    return tuple(target.name for target in judged if target.latency) or USUAL_LATENCIES


def latency_cells(outcome: Outcome, columns: Sequence[str]) -> list[str]:
    """The same of an outcome; a dash for what it does not have."""
    found = dict(zip(USUAL_LATENCIES, (outcome.ttft_p90_s, outcome.tpot_p90_s), strict=True))
    found |= {target.name: target.found for target in outcome.targets if target.latency}
    values = [found.get(name) for name in columns]
    return ["–" if value is None else seconds_text(value) for value in values]


def margin_text(margin: float) -> str:
    """Whole percents, of a margin near none the first digit: below the limit or beyond it is the question."""
    return f"{100 * margin:.0f} %" if abs(margin) >= 0.005 else f"{100 * margin:.1g} %"


def seconds_text(value: float) -> str:
    """Three digits, in milliseconds below a second."""
    if value >= 1 or value == 0:
        return f"{value:.3g} s"
    return f"{1e3 * value:.{max(0, 2 - math.floor(math.log10(1e3 * value)))}f} ms"


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of the points of a space."""

    points: int
    invalid: int
    other_gpus: int
    beyond_load: int
    run: int
    full: int
    """At full fidelity."""
    not_run: int

    @property
    def given_up(self) -> int:
        """After a cheap run that missed the SLO, or the best value, by more than the slack."""
        return self.run - self.full

    @property
    def valid(self) -> int:
        return self.points - self.invalid - self.other_gpus


def counts_of(result: SearchResult) -> Counts:
    full = len(result.space.file.fidelities)
    return Counts(
        points=result.space.size,
        invalid=result.screening.count_left_out(INVALID),
        other_gpus=result.screening.count_left_out(GPUS),
        beyond_load=result.screening.count_left_out(LOAD),
        run=len(result.evaluated),
        full=sum(len(each.outcomes) == full for each in result.evaluated),
        not_run=result.not_run,
    )


def stopped_early(result: SearchResult) -> list[Evaluated]:
    """Points at full fidelity whose run ended as soon as it was certain to miss the SLO."""
    full = len(result.space.file.fidelities)
    return [each for each in result.evaluated if len(each.outcomes) == full and each.last().stopped_early]


def effort(result: SearchResult) -> str:
    """How many points were run, how many not, and why."""
    found, stopped = counts_of(result), len(stopped_early(result))
    not_run = "were skipped, as even their promise is no better" if result.is_exhausted else "were not tried"
    left_out = ", ".join(
        f"{number:,} {text}"
        for number, text in (
            (found.invalid, "are invalid or do not fit into memory"),
            (found.other_gpus, "have more or fewer GPUs than asked for"),
            (found.beyond_load, "could not carry the load even with full batches"),
            (found.not_run, not_run),
        )
        if number
    )
    simulations = sum(result.simulations.values())
    run = ", ".join(
        f"{number:,} {text}"
        for number, text in (
            (found.full - stopped, "to the end"),
            (stopped, "until they were certain to miss the SLO"),
            (found.given_up, "given up after a cheap run"),
        )
        if number
    )
    return (
        f"Of {found.points:,} points {found.run:,} were run ({run}; {simulations:,} simulations, "
        f"{result.cpu_s:.0f} s of CPU time)" + (f"; {left_out}." if left_out else ".")
    )
