"""Headline figures of several runs side by side: differences to the first, and what else differed than the system."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from vidur_pd.metrics.summary import Summary
from vidur_pd.report.text import count, digits, duration, percent

Metric = tuple[str, Callable[[Summary], float | None], Callable[[float | None], str]]
HELD = "GPU hours held"
"""Follows from GPUs and time where there is no planner, and is left out then."""
CACHED = "Input tokens from prefix caches"
"""Left out where no run has had any."""
METRICS: tuple[Metric, ...] = (
    ("GPUs", lambda s: float(s.gpus), count),
    (HELD, lambda s: s.gpu_hours, digits),
    ("Completed requests", lambda s: float(s.completed), count),
    ("Requests not served", lambda s: float(s.requests - s.completed), count),
    ("Requests/s, whole run", lambda s: s.throughput.requests_per_s, digits),
    ("Requests/s under load", lambda s: None if s.under_load is None else s.under_load.requests_per_s, digits),
    ("Input tokens/s, whole run", lambda s: s.throughput.input_tokens_per_s, digits),
    ("Output tokens/s, whole run", lambda s: s.throughput.output_tokens_per_s, digits),
    (
        "Output tokens/s under load",
        lambda s: None if s.under_load is None else s.under_load.output_tokens_per_s,
        digits,
    ),
    ("Output tokens/s per GPU", lambda s: s.per_gpu(s.throughput.output_tokens_per_s), digits),
    ("TTFT p50", lambda s: s.ttft_s.p50, duration),
    ("TTFT p99", lambda s: s.ttft_s.p99, duration),
    ("TPOT p50", lambda s: s.tpot_s.p50, duration),
    ("TPOT p99", lambda s: s.tpot_s.p99, duration),
    ("ITL p99", lambda s: s.itl_s.p99, duration),
    ("E2E p50", lambda s: s.e2e_s.p50, duration),
    ("E2E p99", lambda s: s.e2e_s.p99, duration),
    ("Goodput (requests/s)", lambda s: s.goodput, digits),
    ("All requests within SLO", lambda s: s.goodput_share, percent),
    ("Energy (J per output token)", lambda s: None if s.energy is None else s.energy.total_j_per_output_token, digits),
    ("Cost per hour", lambda s: None if s.cost is None else s.cost.per_hour, digits),
    ("Cost per million input tokens", lambda s: None if s.cost is None else s.cost.per_million_input_tokens, digits),
    ("Cost per million output tokens", lambda s: None if s.cost is None else s.cost.per_million_output_tokens, digits),
    (
        "Cost per million output tokens, everything on them",
        lambda s: None if s.cost is None else s.cost.all_per_million_output_tokens,
        digits,
    ),
    (CACHED, lambda s: s.cached_input_share, percent),
    ("Time on estimates", lambda s: s.estimates, percent),
    ("Simulator wall time", lambda s: s.simulator.wall_s, duration),
)


COST = "Cost"
IF_KNOWN = ("Energy", COST)
"""Begins of the metrics that are left out where no run has them."""
SEEDED: Mapping[str, str] = {
    "Requests/s, whole run": "throughput.requests_per_s",
    "Output tokens/s, whole run": "throughput.output_tokens_per_s",
    "TTFT p50": "ttft_s.p50",
    "TTFT p99": "ttft_s.p99",
    "TPOT p50": "tpot_s.p50",
    "TPOT p99": "tpot_s.p99",
    "ITL p99": "itl_s.p99",
    "E2E p50": "e2e_s.p50",
    "E2E p99": "e2e_s.p99",
    "Goodput (requests/s)": "goodput",
    "All requests within SLO": "goodput_share",
}
"""Metrics of which several seeds give an interval, by the path of the figure (`vidur_pd.metrics.seeds.FIGURES`)."""


class ComparisonRow(TypedDict):
    """One figure of every run, keyed by the run's label, the run compared with first; ready for JSON."""

    metric: str
    values: dict[str, float | None]
    """Seconds, counts, rates per second or shares of 1; ``None`` where a run has none."""
    texts: dict[str, str]
    """The values with their units."""
    changes_percent: dict[str, float | None]
    """(value / first − 1) · 100 of the other runs; ``None`` where one is missing, the first is zero, or the requests
    are not the same."""
    change_texts: dict[str, str]
    """The changes, those of shares in percentage points; empty where there is none. ``≈`` before one that is within the
    noise of the seeds of both runs."""


CONDITIONS: tuple[tuple[str, Callable[[Summary], Any], Callable[[Any], str]], ...] = (
    ("requests", lambda s: s.requests, lambda value: f"{value:,}"),
    ("seed", lambda s: s.seed, count),
    ("model", lambda s: s.model, str),
    ("TTFT objective", lambda s: s.slo.ttft_s, duration),
    ("TPOT objective", lambda s: s.slo.tpot_s, duration),
)
"""What a comparison of systems holds fixed, apart from which requests they are."""


def unlike(summaries: Mapping[str, Summary]) -> list[str]:
    """One sentence per run whose requests, seed, model or objectives are not those of the first run."""
    first, *others = summaries
    sentences = []
    for run in others:
        found = _unlike(summaries[first], summaries[run])
        if found:
            sentences.append(f"{run} against {first}: {'; '.join(found)}. What differs is not the system alone.")
    return sentences


def _unlike(base: Summary, other: Summary) -> list[str]:
    found = [
        f"{name} {show(value_of(other))} instead of {show(value_of(base))}"
        for name, value_of, show in CONDITIONS
        if value_of(other) != value_of(base)
    ]
    if base.requests != other.requests:
        return found
    if not (base.workload.digest and other.workload.digest):
        return ["requests of which no digest says whether they are the same", *found]
    return found if base.workload.digest == other.workload.digest else ["other arrivals or lengths of requests", *found]


def has_other_requests(base: Summary, other: Summary) -> bool:
    """The runs were not asked to serve the same: which of them is better, their figures do not say."""
    digests = base.workload.digest, other.workload.digest
    return base.requests != other.requests or not all(digests) or digests[0] != digests[1]


def is_noise(base: Summary, other: Summary, figure: str) -> bool:
    """Whether the difference of a figure is within the intervals of both runs over their seeds; false without any."""
    if base.seeds is None or other.seeds is None:
        return False
    first, second = (summary.seeds.figures.get(figure) for summary in (base, other) if summary.seeds is not None)
    if first is None or second is None or None in (first.low, first.high, second.low, second.high):
        return False
    return max(first.low or 0.0, second.low or 0.0) <= min(first.high or 0.0, second.high or 0.0)


def compare_summaries(summaries: Mapping[str, Summary], *, ranks_unlike: bool = False) -> list[ComparisonRow]:
    """One row per metric; the first summary is the one compared with.

    Runs of other requests than its own have no changes, unless ``ranks_unlike``; costs in other currencies have none.
    """
    first, *others = summaries
    ranked = [run for run in others if ranks_unlike or not has_other_requests(summaries[first], summaries[run])]
    currencies = {run: summary.cost.currency if summary.cost else "" for run, summary in summaries.items()}
    rows = []
    for metric, value_of, show in METRICS:
        values = {run: value_of(summary) for run, summary in summaries.items()}
        if metric.startswith(IF_KNOWN) and all(value is None for value in values.values()):
            continue
        if metric == CACHED and not any(values.values()):
            continue
        if metric == HELD and all(summary.planner is None for summary in summaries.values()):
            continue
        base = values[first]
        change_text = _points if show is percent else _change
        is_money = metric.startswith(COST)
        compared = [run for run in ranked if not is_money or currencies[run] == currencies[first]]
        rows.append(
            ComparisonRow(
                metric=metric,
                values=values,
                texts={
                    run: f"{currencies[run]} {show(value)}".strip() if is_money and value is not None else show(value)
                    for run, value in values.items()
                },
                changes_percent={run: _percent(base, values[run]) if run in compared else None for run in others},
                change_texts={
                    run: _marked(change_text(base, values[run]), metric, summaries[first], summaries[run])
                    if run in compared
                    else ""
                    for run in others
                },
            )
        )
    return rows


def _marked(text: str, metric: str, base: Summary, other: Summary) -> str:
    return f"≈ {text}" if text and is_noise(base, other, SEEDED.get(metric, "")) else text


def _percent(base: float | None, value: float | None) -> float | None:
    return None if base is None or value is None or base == 0 else (value / base - 1) * 100


def _change(base: float | None, value: float | None) -> str:
    change = _percent(base, value)
    return _signed(f"{change:+.1f} %") if change else ""


def _points(base: float | None, value: float | None) -> str:
    return "" if base is None or value is None or value == base else _signed(f"{(value - base) * 100:+.1f} pp")


def _signed(text: str) -> str:
    return text.replace("-", "−")
