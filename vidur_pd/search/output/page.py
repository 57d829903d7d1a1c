"""The page of a search: the answer, the Pareto front, what matters, what was not tried."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from markupsafe import Markup

from vidur_pd.report.charts import Chart, Frame, Trace, axis, bars, draw, label, rows_axis, scatter
from vidur_pd.report.colours import series_colour
from vidur_pd.report.page import Section, charts_html, page_html
from vidur_pd.report.templating import part
from vidur_pd.report.text import Tile, count, digits, folded_html, note_html, percent, table_html, tiles_html
from vidur_pd.search.output.analysis import importance, pareto_front, tokens_per_gpu, tokens_per_user
from vidur_pd.search.output.answer import (
    answer,
    counts_of,
    deployment,
    latency_cells,
    latency_columns,
    stopped_early,
    targets_text,
)
from vidur_pd.search.output.launch import launch_text
from vidur_pd.search.search import Evaluated, SearchResult
from vidur_pd.search.space.objective import Objective
from vidur_pd.search.space.space import short_name

MOST_ROWS: Final = 20
MET, MISSED = series_colour(2), series_colour(7)


def search_page(result: SearchResult) -> Iterable[str]:
    """The whole page, in pieces."""
    sections = [
        Section("answer", "Answer", _answer(result)),
        Section("front", "Throughput against latency", _front(result)),
        Section("ranking", "Best points", _ranking(result)),
        Section("matters", "What matters", _matters(result)),
        Section("not-tried", "What was not tried", _not_tried(result)),
        Section("launch", "What to launch", _launch(result)),
    ]
    file = result.space.file
    facts = [
        ("Objective", f"{file.objective} within the SLO"),
        ("Sampler", f"{file.sampler}, seed {file.seed}"),
        ("Workload", _workload(result)),
    ]
    about = (Path(result.space.where).stem, datetime.now(UTC).strftime("%Y-%m-%d"))
    return page_html("Search for a deployment", facts, sections, about)


def _workload(result: SearchResult) -> str:
    workload = result.space.base.get("workload")
    if not isinstance(workload, dict):
        return "not recorded"
    return ", ".join(f"{key} {value}" for key, value in workload.items() if not isinstance(value, dict))


def _answer(result: SearchResult) -> Markup:
    first, *others = answer(result).split("\n")
    text = part("verdict", first, "good") if result.best else note_html(first, is_warning=True)
    found = counts_of(result)
    to_the_end = found.full - len(stopped_early(result))
    tiles = [
        Tile("Points", f"{found.points:,}", f"{found.valid:,} valid"),
        Tile("Run", f"{found.run:,}", f"{to_the_end:,} to the end"),
        Tile("Simulations", f"{sum(result.simulations.values()):,}", f"{result.cpu_s:,.0f} s of CPU time"),
        Tile("Meet the SLO", f"{len(result.ranking):,}", "at full fidelity"),
    ]
    return text + part("lines", others) + tiles_html(tiles)


def _front(result: SearchResult) -> Markup:
    full = [each for each in result.evaluated if len(each.outcomes) == len(result.space.file.fidelities)]
    chart = front_chart(result, full)
    drawn = charts_html([chart]) or note_html("Left out: no point has been run in full to its end.")
    stopped = stopped_early(result)
    if not stopped:
        return drawn
    shown = [f"{result.space.label(each.candidate.point)}: {each.last().limited_by}." for each in stopped[:MOST_ROWS]]
    which = "" if len(stopped) <= MOST_ROWS else f" (the first {MOST_ROWS})"
    return drawn + part("lines", [f"Not drawn, as they were certain to miss the SLO before their end{which}:", *shown])


def front_chart(result: SearchResult, evaluated: Sequence[Evaluated]) -> Chart | None:
    """Output tokens per second and GPU against what a user sees; the front as a line."""
    known = [each for each in evaluated if tokens_per_user(each) and tokens_per_gpu(each)]
    if not known:
        return None
    traces = []
    for name, colour, is_met in (("meets the SLO", MET, True), ("misses it", MISSED, False)):
        own = [each for each in known if each.last().is_met == is_met]
        if own:
            traces.append(_points(result, own, name, colour))
    front = pareto_front(known)
    if len(front) > 1:
        users, gpus = [tokens_per_user(each) or 0.0 for each in front], [tokens_per_gpu(each) or 0.0 for each in front]
        traces.append(scatter(users, gpus, name="Pareto front", mode="lines", line={"color": MET, "width": 1.5}))
    frame = Frame(
        "pareto",
        "Throughput per GPU against interactivity",
        "Up is cheaper, right is faster for the user; of the points that meet the SLO none lies above and right of the "
        "line.",
        height_px=400,
        is_wide=True,
    )
    users_axis = axis("Output tokens/s per user (1 / TPOT p50)", rangemode="tozero")
    gpus_axis = axis("Output tokens/s per GPU", rangemode="tozero")
    return draw(frame, traces, users_axis, gpus_axis, showlegend=True)


def _points(result: SearchResult, own: Sequence[Evaluated], name: str, colour: str) -> Trace:
    users, gpus = [tokens_per_user(each) or 0.0 for each in own], [tokens_per_gpu(each) or 0.0 for each in own]
    return scatter(
        users,
        gpus,
        name=name,
        mode="markers",
        marker={"color": colour, "size": 8, "symbol": "circle" if colour == MET else "x"},
        text=[label(result.space.label(each.candidate.point), 160) for each in own],
        hovertemplate="%{text}<br>%{x:.3g} tokens/s per user, %{y:.4g} per GPU<extra></extra>",
    )


def _ranking(result: SearchResult) -> Markup:
    if not result.ranking:
        return note_html("No point meets the SLO.")
    objective = result.space.file.objective
    shown = result.ranking[:MOST_ROWS]
    latencies = latency_columns(each.last() for each in shown)
    columns = ("Deployment", "Choices", _value_name(objective), *latencies, "Margin", "Targets")
    rows = [
        [
            deployment(result.space.config(each.candidate.point)),
            result.space.label(each.candidate.point),
            _value(objective, each),
            *latency_cells(each.last(), latencies),
            percent(each.last().margin),
            targets_text(each.last().targets),
        ]
        for each in shown
    ]
    return table_html(columns, rows, text_columns=2)


def _value(objective: Objective, each: Evaluated) -> str:
    value = objective.value_of(each.last())
    return count(value) if objective is Objective.MIN_GPUS else digits(value)


def _value_name(objective: Objective) -> str:
    return {
        Objective.MIN_GPUS: "GPUs",
        Objective.MIN_COST: "Price per hour",
        Objective.MIN_COST_PER_TOKEN: "Price per million output tokens",
        Objective.MAX_THROUGHPUT_PER_GPU: "Requests/s per GPU",
        Objective.MIN_LATENCY: "Mean E2E (s)",
    }[objective]


def _matters(result: SearchResult) -> Markup:
    shares = importance(result)
    if not shares:
        return note_html("Left out: too few points were run, or all came to the same.")
    frame = Frame(
        "importance",
        "What a choice alone explains",
        "Share of the differences in rank between the points that were run; they were not drawn at random, and what "
        "choices do together is not in it.",
        height_px=120 + 34 * len(shares),
        is_wide=True,
    )
    names = [label(short_name(field)) for field in shares]
    trace = bars(
        [100 * share for share in shares.values()],
        names,
        marker={"color": series_colour(0)},
        hovertemplate="%{y}: %{x:.0f} %<extra></extra>",
    )
    return charts_html([draw(frame, [trace], axis("Share (%)", rangemode="tozero"), rows_axis())])


def _not_tried(result: SearchResult) -> Markup:
    left_out = result.screening.left_out[:MOST_ROWS]
    rows = [[each.status, each.reason, each.example, f"{each.requests:,}"] for each in left_out]
    if result.not_run:
        why = (
            "by its promise it cannot be better than the best"
            if result.is_exhausted
            else "the evaluations were spent before its turn came"
        )
        left = {each.candidate.point for each in result.evaluated}
        example = next(each for each in result.screening.candidates if each.point not in left)
        rows.append(["not run", why, result.space.label(example.point), f"{result.not_run:,}"])
    pruned = [each for each in result.evaluated if len(each.outcomes) < len(result.space.file.fidelities)]
    if pruned:
        why = "a cheap run missed the SLO or the best value by more than the slack"
        rows.append(["run in part", why, result.space.label(pruned[0].candidate.point), f"{len(pruned):,}"])
    if not rows:
        return note_html("Every point was run in full.")
    return table_html(("Kind", "Reason", "Example", "Points"), rows, text_columns=3)


def _launch(result: SearchResult) -> Markup:
    if result.best is None:
        return note_html("Nothing: no point meets the SLO.")
    text = launch_text(result.space.config(result.best.candidate.point))
    return folded_html("launch.txt", text, is_open=True)
