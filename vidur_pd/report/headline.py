"""The headline of a run: what it served, how fast, and what these figures leave out."""

from __future__ import annotations

import numpy as np
from markupsafe import Markup

from vidur_pd.metrics.error_text import host_waits, model_errors
from vidur_pd.metrics.quantities import share_text
from vidur_pd.metrics.reasons import Outcome, Outcomes
from vidur_pd.metrics.summary import Distribution, Summary
from vidur_pd.report.figures_latency import slo_shares
from vidur_pd.report.load import RunOutput
from vidur_pd.report.table import distinct
from vidur_pd.report.templating import part
from vidur_pd.report.text import Tile, digits, duration, meaning_html, note_html, percent, tiles_html

ESTIMATES_WARNING_SHARE = 0.01
LARGE_ERROR = 0.25
"""Of the model: a quarter, beyond which a deployment is not judged by these figures alone."""
MOST_NAMED = 6


def headline(run: RunOutput) -> Markup:
    """Warnings, tiles, and what the tiles count."""
    summary = run.summary
    banners = []
    share = summary.estimates or 0.0
    if share > ESTIMATES_WARNING_SHARE:
        named = list(dict.fromkeys(item.operator for item in summary.estimated_operators))
        where = f": {', '.join(named[:MOST_NAMED])}" if named else ""
        where += f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
        banners.append(f"{percent(share)} of the time rests on estimates, not on measurements{where}.")
    if lost := _not_served(run):
        banners.append(lost)
    warnings = Markup().join(note_html(text, is_warning=True) for text in banners)
    return verdict_html(summary) + warnings + tiles_html(_tiles(run)) + meaning_html(_meaning(summary))


def verdict_html(summary: Summary) -> Markup:
    """The verdict, green where the run meets its objectives and red elsewhere; empty for results without one."""
    verdict = summary.verdict
    if verdict is None or not verdict.sentence:
        return Markup()
    tone = "good" if verdict.outcome == "meets" else "bad"
    return part("verdict", verdict.sentence, tone)


def _meaning(summary: Summary) -> str:
    """What the tiles count."""
    window = ""
    if summary.under_load is not None:
        window = (
            f" Under load: from {duration(summary.under_load.from_s)}, after the warm-up, to the last arrival at "
            f"{duration(summary.under_load.until_s)}, in which {digits(summary.under_load.arrivals_per_s)} requests/s "
            "arrived."
        )
    return (
        "Whole run: completed requests and their tokens over the time from the first arrival to the last completion, "
        f"in which the cluster also empties.{window} Percentiles are over completed requests, ITL's over gaps between "
        "tokens; shares within the SLO are of all requests, those that were refused or failed counted as missed."
    )


def _not_served(run: RunOutput) -> str:
    """How many requests were refused or failed, the most frequent reason, and what that means for other figures."""
    summary, outcomes = run.summary, outcomes_of(run)
    if not outcomes:
        return Markup()
    lost, first = summary.requests - summary.completed, outcomes[0]
    return (
        f"{lost:,} of {summary.requests:,} requests were not served ({summary.rejected:,} rejected, {summary.failed:,} "
        f"failed), most often ({first.requests:,}) {first.status}: {first.reason}. All reasons are listed below. "
        "Latencies are those of completed requests alone; goodput counts the others as missed."
    )


def outcomes_of(run: RunOutput) -> list[Outcome]:
    """How requests ended that were not served, the most frequent first."""
    lost = run.requests.rows(~run.requests.words["status"].are("completed"))
    outcomes = Outcomes()
    if not len(lost):
        return []
    first, groups = distinct(lost.words["status"].codes)
    statuses, ids = (lost.words[name].rows(first) for name in ("status", "request_id"))
    for status, example, size in zip(statuses, ids, np.bincount(groups).tolist(), strict=True):
        outcome, _, reason = status.partition(":")
        outcomes.add(outcome.strip(), reason.strip(), example, size)
    return outcomes.most_frequent()


def _tiles(run: RunOutput) -> list[Tile]:
    summary, preempted = run.summary, run.requests["preemptions"]
    return [
        Tile(
            "Completed / requests",
            f"{summary.completed:,} / {summary.requests:,}",
            f"in {duration(summary.makespan_s)} simulated{_origin(summary)}",
            is_warning=summary.completed < summary.requests,
        ),
        _rate_tile("Requests", summary, "requests_per_s", "requests/s"),
        _rate_tile("Input tokens", summary, "input_tokens_per_s", "tokens/s"),
        _rate_tile("Output tokens", summary, "output_tokens_per_s", "tokens/s"),
        _latency_tile("TTFT", summary.ttft_s, summary),
        _latency_tile("TPOT", summary.tpot_s, summary),
        _latency_tile("ITL", summary.itl_s, summary, "tokens of one step come together"),
        _latency_tile("E2E", summary.e2e_s, summary),
        _goodput_tile(run),
        *_money_tiles(summary),
        Tile("Preemptions", f"{np.nansum(preempted):,.0f}", f"{int((preempted > 0).sum()):,} requests preempted"),
        Tile(
            "Time on estimates",
            percent(summary.estimates),
            "not backed by a measurement",
            is_warning=(summary.estimates or 0.0) > ESTIMATES_WARNING_SHARE,
        ),
        *_error_tiles(summary),
        Tile("Simulator", duration(summary.simulator.wall_s), f"wall time, version {summary.simulator.version or '?'}"),
    ]


def _error_tiles(summary: Summary) -> list[Tile]:
    """By how much latencies may be off, and how much of that is the host's; none where nothing was served."""
    if not (errors := model_errors(summary)):
        return []
    waits = ", ".join(host_waits(summary))
    note = f"GPUs wait for the host (engine.host) in {waits}" if waits else "68 % of errors are smaller"
    largest = max(error or 0.0 for error in (summary.model_error.ttft, summary.model_error.tpot))
    return [Tile("Error of the model", errors, note, is_warning=largest > LARGE_ERROR)]


def _origin(summary: Summary) -> str:
    """From when the time of the run counts, where that is not the zero of the clock, by which moments count."""
    first_s = summary.first_arrival_s or 0.0
    return "" if f"{first_s:.1f}" == "0.0" else f", from the first arrival at {duration(first_s)}"


def _money_tiles(summary: Summary) -> list[Tile]:
    """What a token takes in energy, and costs by the price list; none of what is not known."""
    energy, cost, tiles = summary.energy, summary.cost, []
    if energy is not None and energy.total_j_per_output_token is not None:
        watts = ", ".join(f"{pool} {digits(power)}" for pool, power in energy.pools_w.items())
        joules = f"{digits(energy.total_j_per_output_token)} J per output token"
        tiles.append(Tile("Energy (estimate)", joules, f"W per GPU: {watts}"))
    if cost is not None and cost.per_million_output_tokens is not None:
        unit = f"{cost.currency} " if cost.currency else ""
        of_input, per_hour = digits(cost.per_million_input_tokens), digits(cost.per_hour)
        note = f"per million output tokens; {of_input} of input; {per_hour} an hour"
        tiles.append(Tile("Cost", f"{unit}{digits(cost.per_million_output_tokens)}", note))
    return tiles


def _goodput_tile(run: RunOutput) -> Tile:
    summary = run.summary
    objectives = (("TTFT", summary.slo.ttft_s), ("TPOT", summary.slo.tpot_s))
    met = [
        f"{name} ≤ {value:g} s: {share_text(share)}"
        for (name, value), share in zip(objectives, slo_shares(run), strict=True)
        if value is not None
    ]
    rate = _with_unit(summary.goodput, "requests/s")
    both = f"both: {share_text(summary.goodput_share)} of all requests"
    return Tile("Goodput within SLO", rate, "; ".join([*met, both]), is_warning=not summary.goodput_share)


def _rate_tile(name: str, summary: Summary, rate: str, unit: str) -> Tile:
    """Over the whole run, with the rate under load and that per GPU below."""
    whole: float | None = getattr(summary.throughput, rate)
    notes = []
    if summary.under_load is not None:
        notes.append(f"{digits(getattr(summary.under_load, rate))} under load")
    per_gpu = summary.per_gpu(whole)
    if per_gpu is not None:
        notes.append(f"{digits(per_gpu)} per GPU")
    if rate == "input_tokens_per_s" and summary.cached_input_share:
        notes.append(f"{percent(summary.cached_input_share)} cached")
    return Tile(f"{name}, whole run", _with_unit(whole, unit), ", ".join(notes))


def _latency_tile(name: str, latency: Distribution, summary: Summary, where_zero: str = "") -> Tile:
    """``where_zero``: what a median of zero says."""
    of = "" if summary.completed == summary.requests else f"; of {summary.completed:,} completed"
    why = f"; {where_zero}" if where_zero and latency.p50 == 0 else ""
    note = f"p90 {duration(latency.p90)}, p99 {duration(latency.p99)}{of}{why}"
    return Tile(f"{name} p50", duration(latency.p50), note)


def _with_unit(value: float | None, unit: str) -> str:
    return digits(value) if value is None else f"{digits(value)} {unit}"
