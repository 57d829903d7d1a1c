"""Latency as the user sees it: distributions, their course over the run, and where the time to first token goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vidur_pd.metrics.summary import Histogram
from vidur_pd.report.charts import (
    Chart,
    Frame,
    Trace,
    axis,
    bars,
    draw,
    label,
    log_axis,
    near_slo,
    rows_axis,
    scatter,
    slo_mark,
)
from vidur_pd.report.colours import STAGE_COLOURS, series_colour
from vidur_pd.report.load import RunOutput
from vidur_pd.report.series import MOST_CURVE_POINTS, Floats, cumulative_curve, thin
from vidur_pd.report.stacks import Stacks
from vidur_pd.report.table import Table

TTFT_BANDS = ((0, 50), (50, 90), (90, 99), (99, 100))
LOG_AXIS_RATIO = 8.0
"""A distribution whose largest value exceeds its first percentile by this factor is drawn on a logarithmic axis."""
LOG_AXIS_TAIL = 5.0
"""So is one whose largest value exceeds its median by this factor."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A cumulative distribution: ``shares`` of the sample lie at or below ``values_s``; equal shapes, ascending."""

    label: str
    values_s: Floats
    shares: Floats
    is_binned: bool = False
    """Whether it comes from a histogram, whose values lie somewhere between the points, or from each value."""
    is_thinned: bool = False
    """Whether it passes through some of the values only."""


def sample_curve(name: str, values: Floats) -> Curve:
    return Curve(name, *cumulative_curve(values), is_thinned=bool(np.isfinite(values).sum() > MOST_CURVE_POINTS))


def histogram_curve(name: str, histogram: Histogram) -> Curve:
    """The distribution at the upper edge of each bin; a last bin without an upper end is drawn at its lower edge."""
    if sum(histogram.counts) == 0:
        return Curve(name, np.empty(0), np.empty(0))
    edges, counts = np.array(histogram.edges_s), np.array(histogram.counts, dtype=float)
    uppers = np.where(np.isfinite(edges[1:]), edges[1:], edges[:-1])
    shares = np.cumsum(counts) / counts.sum()
    occupied = np.flatnonzero(counts)
    kept = slice(int(occupied[0]), int(occupied[-1]) + 1)
    return Curve(name, np.append(edges[kept][:1], uppers[kept]), np.append(0.0, shares[kept]), is_binned=True)


def latency_curves(run: RunOutput, name: str) -> Mapping[str, Curve]:
    """TTFT, TPOT, ITL and E2E of one run."""
    completed = run.completed
    return {
        "ttft": sample_curve(name, completed["ttft_s"]),
        "tpot": sample_curve(name, completed["tpot_s"]),
        "itl": histogram_curve(name, run.summary.itl_histogram),
        "e2e": sample_curve(name, completed["e2e_s"]),
    }


THINNED = f" Drawn through {MOST_CURVE_POINTS} of the values."
LATENCIES = {
    "ttft": ("Time to first token (TTFT)", "s", 1.0),
    "tpot": ("Time per output token (TPOT)", "ms", 1e3),
    "itl": ("Inter-token latency (ITL)", "ms", 1e3),
    "e2e": ("End-to-end latency (E2E)", "s", 1.0),
}
READINGS = {
    "ttft": "Share of completed requests whose first token came within x.",
    "tpot": "Mean gap between tokens of one request; requests with one output token have none.",
    "itl": "All gaps between tokens, pooled over requests: the tail shows stalls that TPOT averages out.",
    "e2e": "Arrival to last token; it grows with the output length, so compare runs rather than requests.",
}


def distribution_chart(metric: str, curves: Sequence[Curve], slo_s: float | None) -> Chart | None:
    """Cumulative distributions of one latency, one line per curve; ``None`` without a single sample."""
    drawn = [(place, curve) for place, curve in enumerate(curves) if len(curve.values_s)]
    if not drawn:
        return None
    title, unit, scale = LATENCIES[metric]
    traces = [
        scatter(
            curve.values_s * scale,
            curve.shares * 100,
            name=label(curve.label),
            mode="lines",
            line={"color": series_colour(place), "width": 2, "shape": "linear" if curve.is_binned else "hv"},
            hovertemplate=f"%{{y:.1f}} % ≤ %{{x:.4g}} {unit}<extra>{label(curve.label)}</extra>",
        )
        for place, curve in drawn
    ]
    if len(drawn) == 1:
        traces.append(_percentile_marks(drawn[0][1], scale, unit))
    slo = None if slo_s is None else slo_s * scale
    largest = max(float(curve.values_s[-1]) for _, curve in drawn) * scale
    near = near_slo(slo, largest)
    x_title, is_log = f"{metric.upper()} ({unit})", any(_is_wide(curve) for _, curve in drawn)
    x_axis = (
        log_axis(x_title, *(curve.values_s * scale for _, curve in drawn), [near or 0.0]) if is_log else axis(x_title)
    )
    reading = READINGS[metric] + (" Right of the dashed line the SLO is missed." if near is not None else "")
    reading += THINNED if any(curve.is_thinned for _, curve in drawn) else ""
    return draw(
        Frame(f"cdf-{metric}", title, reading),
        traces,
        x_axis,
        axis("", range=[0, 101], ticksuffix=" %"),
        showlegend=len(drawn) > 1,
        **slo_mark(slo, largest, unit, x_axis),
    )


def _percentile_marks(curve: Curve, scale: float, unit: str) -> Trace:
    shares = np.array([0.5, 0.9, 0.99])
    places = np.searchsorted(curve.shares, shares - 1e-12).clip(0, len(curve.shares) - 1)
    values = np.interp(shares, curve.shares, curve.values_s) if curve.is_binned else curve.values_s[places]
    return scatter(
        values * scale,
        shares * 100,
        mode="markers",
        marker={"color": series_colour(0), "size": 7},
        text=["p50", "p90", "p99"],
        hovertemplate=f"%{{text}}: %{{x:.4g}} {unit}<extra></extra>",
        showlegend=False,
    )


def _is_wide(curve: Curve) -> bool:
    low, median = np.interp((0.01, 0.5), curve.shares, curve.values_s)
    high = curve.values_s[-1]
    return bool(low > 0 and (high > LOG_AXIS_RATIO * low or high > LOG_AXIS_TAIL * median))


def ttft_over_time(run: RunOutput) -> Chart | None:
    """One point per completed request at its arrival."""
    completed = run.completed
    rows = np.flatnonzero(completed.known("ttft_s"))
    if not len(rows):
        return None
    rows = rows[np.argsort(completed["arrived_at_s"][rows], kind="stable")]
    ttft_s, shown = completed["ttft_s"][rows], rows[thin(len(rows))]
    trace = scatter(
        completed["arrived_at_s"][shown],
        completed["ttft_s"][shown],
        mode="markers",
        marker={"color": series_colour(0), "size": 4, "opacity": 0.55},
        text=[label(name) for name in completed.words["request_id"].rows(shown)],
        hovertemplate="request %{text}<br>arrived %{x:.4g} s, TTFT %{y:.4g} s<extra></extra>",
        showlegend=False,
    )
    low, high = np.percentile(ttft_s, 1), ttft_s.max()
    slo = run.summary.slo.ttft_s
    if low > 0 and high > LOG_AXIS_RATIO * low:
        y_axis = log_axis("TTFT (s)", ttft_s, [near_slo(slo, high) or 0.0])
    else:
        y_axis = axis("TTFT (s)", rangemode="tozero")
    sampled = "" if len(shown) == len(rows) else f" {len(shown):,} of {len(rows):,} requests shown."
    reading = f"A cloud that rises to the right means that load exceeds capacity and queues grow.{sampled}"
    frame = Frame("ttft-time", "TTFT over the run", reading, is_wide=True)
    return draw(frame, [trace], axis("Arrival (s)"), y_axis, **slo_mark(slo, high, "s", y_axis, is_vertical=False))


def ttft_stages(completed: Table) -> Floats:
    """[stages, requests] TTFT of each request cut into consecutive stages, in seconds, which sum to ``ttft_s``.

    Stages after the first token count zero: where the prefill side delivers it, the KV transfer delays the second
    token instead. A transfer that starts before the prefill ends (layer-wise) counts only what outlasts the prefill.
    """
    first = completed["first_token_at_s"]
    stamps = [completed["arrived_at_s"]]
    for column in ("scheduled_at_s", "prefill_completed_at_s", "kv_sent_at_s", "kv_arrived_at_s"):
        stamp = np.minimum(completed[column], first)
        stamps.append(np.fmax(stamps[-1], stamp))  # an empty stamp (no transfer) leaves the previous one
    stamps.append(first)
    return np.diff(np.stack(stamps), axis=0)


def ttft_stage_charts(run: RunOutput) -> list[Chart]:
    """Mean stage times over all requests and over bands of TTFT, in seconds and as shares."""
    completed = run.completed
    completed = completed.rows(completed.known("ttft_s", "first_token_at_s"))
    if not len(completed):
        return []
    stages = ttft_stages(completed)
    rank = np.empty(len(completed))
    rank[np.argsort(completed["ttft_s"], kind="stable")] = np.arange(1, len(completed) + 1)
    rank = rank / len(completed) * 100
    groups = {"all": stages}
    for low, high in TTFT_BANDS:
        is_in_band = (rank > low) & (rank <= high)
        if is_in_band.any():
            groups[f"p{low}–p{high}"] = stages[:, is_in_band]
    means = mean_stages(groups)
    absolute = Frame(
        "ttft-stages",
        "Where TTFT goes",
        "Mean time in each stage, for all requests and for bands of TTFT: the lowest bar shows what makes the tail."
        + queue_note([run]),
    )
    reading = "The same stages as a share of TTFT."
    if completed.known("kv_arrived_at_s").any() and not stages[list(STAGE_COLOURS).index("KV transfer")].any():
        reading += " First tokens come from the prefill side, so KV time delays the second token instead."
    relative = Frame("ttft-stage-shares", "Where TTFT goes, as a share", reading)
    return [
        stage_bars(means, absolute, "Mean time (s)", "s"),
        stage_bars(means.over(means.whole, 100), relative, "Share of TTFT (%)", "%"),
    ]


def queue_note(runs: Sequence[RunOutput]) -> str:
    """What the queue stage contains besides waiting, as a sentence to append; empty where it was configured away."""
    if any(_has_frontend(run) for run in runs):
        return " Queue includes the way through the frontend to the engine."
    given = {_request_latency_ms(run) for run in runs}
    if given == {0.0}:
        return ""
    (amount,) = given if len(given) == 1 else (None,)
    size = "that of the host unless configured" if amount is None else f"{amount:g} ms"
    return f" Queue includes the fixed latency of the front end, from the client to the scheduler ({size})."


def _has_frontend(run: RunOutput) -> bool:
    frontend = run.config.get("frontend")
    return isinstance(frontend, Mapping) and frontend.get("kind", "none") != "none"


def _request_latency_ms(run: RunOutput) -> float | None:
    """The configured latency; ``None`` where the default applies."""
    engine = run.config.get("engine")
    given = engine.get("request_latency_ms") if isinstance(engine, Mapping) else None
    return float(given) if isinstance(given, int | float) else None


def mean_stages(groups: Mapping[str, Floats]) -> Stacks:
    """Means over the requests of each group, from their `ttft_stages`.

    Stages that take less than a thousandth of every group, such as KV in a co-located run, are left out.
    """
    means = np.array([stages.mean(axis=1) for stages in groups.values()]).T
    stacks = Stacks(tuple(groups), dict(zip(STAGE_COLOURS, means, strict=True)))
    least = stacks.whole * 1e-3
    return stacks.only([stage for stage, values in stacks.parts.items() if (values > least).any()])


def stage_bars(means: Stacks, frame: Frame, x_title: str, unit: str) -> Chart:
    """Horizontal bars, stacked over the stages."""
    traces = [
        bars(
            values,
            [label(name) for name in means.names],
            name=stage,
            marker={"color": STAGE_COLOURS[stage]},
            hovertemplate=f"{stage}: %{{x:.4g}} {unit}<extra>%{{y}}</extra>",
        )
        for stage, values in means.parts.items()
    ]
    return draw(frame, traces, axis(x_title), rows_axis(), barmode="stack", bargap=0.35)


def slo_shares(run: RunOutput) -> tuple[float | None, float | None]:
    """Shares of all requests that complete within the TTFT and the TPOT objective (one output token meets any TPOT)."""
    completed, total = run.completed, len(run.requests)
    summary = run.summary
    if not total:
        return None, None
    ttft_met = None if summary.slo.ttft_s is None else float((completed["ttft_s"] <= summary.slo.ttft_s).sum()) / total
    tpot = np.nan_to_num(completed["tpot_s"])
    tpot_met = None if summary.slo.tpot_s is None else float((tpot <= summary.slo.tpot_s).sum()) / total
    return ttft_met, tpot_met
