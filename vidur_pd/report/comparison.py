"""Several runs on one page: what differs between their configurations, and what it did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from markupsafe import Markup

from vidur_pd.report.charts import Chart, Frame, axis, draw, label, scatter
from vidur_pd.report.colours import series_colour
from vidur_pd.report.differences import compare_summaries, has_other_requests, unlike
from vidur_pd.report.figures_latency import (
    LATENCIES,
    distribution_chart,
    latency_curves,
    mean_stages,
    queue_note,
    stage_bars,
    ttft_stages,
)
from vidur_pd.report.figures_load import output_rate_comparison
from vidur_pd.report.headline import ESTIMATES_WARNING_SHARE
from vidur_pd.report.load import RunOutput
from vidur_pd.report.page import Section, charts_html, page_html
from vidur_pd.report.single import day_of, run_title, workload_text
from vidur_pd.report.text import NONE, note_html, percent, table_html

MOST_DIFFERENCES = 60


def comparison_page(runs: Sequence[RunOutput], *, ranks_unlike: bool = False) -> Iterable[str]:
    """The whole page, in pieces; the first run is the one that others are compared with."""
    sections = [
        Section("headline", "Headline", _warnings(runs) + _verdicts(runs) + _headline_table(runs, ranks_unlike)),
        Section("differences", "What differs", _differences(runs)),
        Section("latency", "Latency", _latency(runs)),
        Section("throughput", "Throughput", charts_html([output_rate_comparison(runs), efficiency_chart(runs)])),
        Section("pools", "Pools", _pools(runs)),
    ]
    facts = [(run.label, f"{run_title(run)}; {workload_text(run)}") for run in runs]
    days = [day_of(run.summary) for run in runs]
    about = (", ".join(run.label for run in runs), " to ".join(dict.fromkeys((min(days), max(days)))))
    return page_html(f"Comparison of {len(runs)} runs", facts, sections, about)


def _warnings(runs: Sequence[RunOutput]) -> Markup:
    notes = [note_html(text, is_warning=True) for text in unlike({run.label: run.summary for run in runs})]
    for run in runs:
        summary, parts = run.summary, []
        if summary.completed < summary.requests:
            lost = summary.requests - summary.completed
            parts.append(f"{lost:,} of {summary.requests:,} requests were not completed")
        if (summary.estimates or 0.0) > ESTIMATES_WARNING_SHARE:
            parts.append(f"{percent(summary.estimates)} of the time rests on estimates, not on measurements")
        if parts:
            notes.append(note_html(f"{run.label}: {'; '.join(parts)}.", is_warning=True))
    return Markup().join(notes)


def _verdicts(runs: Sequence[RunOutput]) -> Markup:
    rows = [[run.label, run.summary.verdict.sentence] for run in runs if run.summary.verdict is not None]
    return table_html(("Run", "Verdict"), rows, text_columns=2) if rows else Markup()


def _headline_table(runs: Sequence[RunOutput], ranks_unlike: bool) -> Markup:
    rows = []
    for row in compare_summaries({run.label: run.summary for run in runs}, ranks_unlike=ranks_unlike):
        changes = {run: f" ({text})" for run, text in row["change_texts"].items() if text}
        rows.append([row["metric"], *(text + changes.get(run, "") for run, text in row["texts"].items())])
    head = "Figure (change against the first run; ≈ within the noise of seeds)"
    return table_html((head, *(run.label for run in runs)), rows) + _unranked(runs, ranks_unlike)


def _unranked(runs: Sequence[RunOutput], ranks_unlike: bool) -> Markup:
    first, *others = runs
    unlike_first = [run.label for run in others if has_other_requests(first.summary, run.summary)]
    if ranks_unlike or not unlike_first:
        return Markup()
    return note_html(f"Changes are left out for runs of other requests: {', '.join(unlike_first)}.")


def _differences(runs: Sequence[RunOutput]) -> Markup:
    flat = [flatten(run.config) for run in runs]
    keys = list(dict.fromkeys(key for tree in flat for key in tree))
    rows = [[key, *(tree.get(key, NONE) for tree in flat)] for key in keys]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    missing = [run.label for run in runs if run.config_text is None]
    notes = note_html(f"Without config.yaml: {', '.join(missing)}.") if missing else Markup()
    if not rows:
        return notes + note_html("The recorded configurations are equal.")
    if len(rows) > MOST_DIFFERENCES:
        notes += note_html(f"The first {MOST_DIFFERENCES} of {len(rows)} differing fields.")
    return notes + table_html(
        ("Field", *(run.label for run in runs)), rows[:MOST_DIFFERENCES], text_columns=1 + len(runs)
    )


def flatten(tree: object, path: str = "") -> dict[str, str]:
    """Leaves of a configuration by dotted path; items of a list are named by their ``name``, else by place."""
    if isinstance(tree, Mapping):
        items = [(str(key), value) for key, value in tree.items()]
    elif isinstance(tree, list):
        items = [
            (str(value.get("name", place)) if isinstance(value, Mapping) else str(place), value)
            for place, value in enumerate(tree)
        ]
    else:
        return {path: str(tree)}
    leaves: dict[str, str] = {}
    for key, value in items:
        leaves |= flatten(value, f"{path}.{key}" if path else key)
    return leaves


def _latency(runs: Sequence[RunOutput]) -> Markup:
    curves = [latency_curves(run, run.label) for run in runs]
    objectives = {
        "ttft": _common([run.summary.slo.ttft_s for run in runs]),
        "tpot": _common([run.summary.slo.tpot_s for run in runs]),
    }
    charts = [
        distribution_chart(metric, [each[metric] for each in curves], objectives.get(metric)) for metric in LATENCIES
    ]
    body = charts_html([*charts, _stage_chart(runs)])
    return body or note_html("Left out: no request of any run completed.")


def _common(values: Sequence[float | None]) -> float | None:
    """The objective of all runs, or ``None`` where they differ."""
    return values[0] if len(set(values)) == 1 else None


def _stage_chart(runs: Sequence[RunOutput]) -> Chart | None:
    served = {run.label: run.completed for run in runs}
    served = {name: completed.rows(completed.known("first_token_at_s")) for name, completed in served.items()}
    groups = {name: ttft_stages(completed) for name, completed in served.items() if len(completed)}
    if not groups:
        return None
    means = mean_stages(groups)
    reading = "Mean time in each stage of TTFT: the piece that grows from one run to the next is what the change cost."
    reading += queue_note(runs)
    frame = Frame("ttft-stages", "Where TTFT goes", reading, height_px=150 + 46 * len(runs), is_wide=True)
    return stage_bars(means, frame, "Mean time (s)", "s")


def efficiency_chart(runs: Sequence[RunOutput]) -> Chart | None:
    """Output tokens per second and GPU against the speed that a user sees, one point per run."""
    traces = []
    for place, run in enumerate(runs):
        rate, tpot = run.summary.per_gpu(run.summary.throughput.output_tokens_per_s), run.summary.tpot_s.p50
        if rate is None or not tpot:
            continue
        hover = f"%{{x:.3g}} tokens/s per user, %{{y:.4g}} tokens/s per GPU<extra>{label(run.label)}</extra>"
        traces.append(
            scatter(
                [1 / tpot],
                [rate],
                name=label(run.label),
                mode="markers",
                marker={"color": series_colour(place), "size": 11},
                hovertemplate=hover,
            )
        )
    if not traces:
        return None
    frame = Frame(
        "efficiency",
        "Throughput against interactivity",
        "Up is cheaper, right is faster for the user: a run below and left of another one is worse in both.",
    )
    users = axis("Output tokens/s per user (1 / TPOT p50)", rangemode="tozero")
    gpus = axis("Output tokens/s per GPU", rangemode="tozero")
    return draw(frame, traces, users, gpus, showlegend=True)


def _pools(runs: Sequence[RunOutput]) -> Markup:
    rows = [
        [
            run.label,
            pool.name,
            f"{pool.instances} × {pool.partition}",
            f"{pool.gpus:,}",
            percent(pool.busy_share),
            percent(pool.kv_use_mean),
            percent(pool.kv_use_max),
        ]
        for run in runs
        for pool in run.summary.pools
    ]
    if not rows:
        return note_html("Left out: no run recorded its pools.")
    columns = ("Run", "Pool", "Instances", "GPUs", "Busy share", "KV use, mean", "KV use, max")
    return table_html(columns, rows, text_columns=3)
