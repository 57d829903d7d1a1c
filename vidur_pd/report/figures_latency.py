"""Latency as the user sees it: distributions, their course over the run, and where the time to first token goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from vidur_pd.report.charts import (
    STAGE_COLOURS,
    Chart,
    Frame,
    compact,
    finish,
    label,
    log_axis,
    mark_slo,
    near_slo,
    series_colour,
)
from vidur_pd.report.load import RunOutput
from vidur_pd.report.series import MOST_CURVE_POINTS, Floats, cumulative_curve, thin
from vidur_pd.report.summary import ItlHistogram

if TYPE_CHECKING:
    import plotly.graph_objects as go

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


def sample_curve(name: str, values: pd.Series[float]) -> Curve:
    sample = np.asarray(values, dtype=np.float64)
    return Curve(name, *cumulative_curve(sample), is_thinned=bool(np.isfinite(sample).sum() > MOST_CURVE_POINTS))


def histogram_curve(name: str, histogram: ItlHistogram | None) -> Curve:
    """The distribution at the upper edge of each bin; a last bin without an upper end is drawn at its lower edge."""
    if histogram is None or sum(histogram.counts) == 0:
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
    import plotly.graph_objects as go

    drawn = [(place, curve) for place, curve in enumerate(curves) if len(curve.values_s)]
    if not drawn:
        return None
    title, unit, scale = LATENCIES[metric]
    figure = go.Figure()
    for place, curve in drawn:
        values, colour = curve.values_s * scale, series_colour(place)
        figure.add_scatter(
            x=compact(values),
            y=compact(curve.shares * 100),
            name=label(curve.label),
            mode="lines",
            line={"color": colour, "width": 2, "shape": "linear" if curve.is_binned else "hv"},
            hovertemplate=f"%{{y:.1f}} % ≤ %{{x:.4g}} {unit}<extra>{label(curve.label)}</extra>",
        )
        if len(drawn) == 1:
            _mark_percentiles(figure, curve, scale, unit)
    slo = None if slo_s is None else slo_s * scale
    largest = max(float(curve.values_s[-1]) for _, curve in drawn) * scale
    near = near_slo(slo, largest)
    figure.update_layout(showlegend=len(drawn) > 1)
    figure.update_yaxes(range=[0, 101], ticksuffix=" %")
    if any(_is_wide(curve) for _, curve in drawn):
        figure.update_xaxes(**log_axis(*(curve.values_s * scale for _, curve in drawn), [near or 0.0]))
    mark_slo(figure, slo, largest, unit)
    reading = READINGS[metric] + (" Right of the dashed line the SLO is missed." if near is not None else "")
    reading += THINNED if any(curve.is_thinned for _, curve in drawn) else ""
    return finish(figure, Frame(f"cdf-{metric}", title, reading), f"{metric.upper()} ({unit})", "")


def _mark_percentiles(figure: go.Figure, curve: Curve, scale: float, unit: str) -> None:
    shares = np.array([0.5, 0.9, 0.99])
    places = np.searchsorted(curve.shares, shares - 1e-12).clip(0, len(curve.shares) - 1)
    values = np.interp(shares, curve.shares, curve.values_s) if curve.is_binned else curve.values_s[places]
    figure.add_scatter(
        x=compact(values * scale),
        y=compact(shares * 100),
        mode="markers",
        marker={"color": series_colour(0), "size": 7},
        text=["p50", "p90", "p99"],
        hovertemplate=f"%{{text}}: %{{x:.4g}} {unit}<extra></extra>",
        showlegend=False,
    )


def _is_wide(curve: Curve) -> bool:
    low, median = np.interp((0.01, 0.5), curve.shares, curve.values_s)
    high = curve.values_s[-1]
    return bool(low > 0 and (high / low > LOG_AXIS_RATIO or high / median > LOG_AXIS_TAIL))


def ttft_over_time(run: RunOutput) -> Chart | None:
    """One point per completed request at its arrival."""
    import plotly.graph_objects as go

    completed = run.completed[["request_id", "arrived_at_s", "ttft_s"]].dropna(subset=["ttft_s"])
    if completed.empty:
        return None
    completed = completed.sort_values("arrived_at_s", kind="stable")
    shown = completed.iloc[thin(len(completed))]
    figure = go.Figure()
    figure.add_scatter(
        x=compact(shown["arrived_at_s"]),
        y=compact(shown["ttft_s"]),
        mode="markers",
        marker={"color": series_colour(0), "size": 4, "opacity": 0.55},
        text=[label(name) for name in shown["request_id"]],
        hovertemplate="request %{text}<br>arrived %{x:.4g} s, TTFT %{y:.4g} s<extra></extra>",
        showlegend=False,
    )
    low, high = completed["ttft_s"].quantile(0.01), completed["ttft_s"].max()
    slo = run.summary.slo_ttft_s
    if low > 0 and high / low > LOG_AXIS_RATIO:
        figure.update_yaxes(**log_axis(completed["ttft_s"], [near_slo(slo, high) or 0.0]))
    else:
        figure.update_yaxes(rangemode="tozero")
    mark_slo(figure, slo, high, "s", vertical=False)
    sampled = "" if len(shown) == len(completed) else f" {len(shown):,} of {len(completed):,} requests shown."
    reading = f"A cloud that rises to the right means that load exceeds capacity and queues grow.{sampled}"
    frame = Frame("ttft-time", "TTFT over the run", reading, is_wide=True)
    return finish(figure, frame, "Arrival (s)", "TTFT (s)")


def ttft_stages(completed: pd.DataFrame) -> pd.DataFrame:
    """TTFT of each request cut into consecutive stages, in seconds; the columns sum to ``ttft_s``.

    Stages after the first token count zero: where the prefill side delivers it, the KV transfer delays the second
    token instead. A transfer that starts before the prefill ends (layer-wise) counts only what outlasts the prefill.
    """
    first = completed["first_token_at_s"].to_numpy(dtype=float)
    stamps = [completed["arrived_at_s"].to_numpy(dtype=float)]
    for column in ("scheduled_at_s", "prefill_completed_at_s", "kv_sent_at_s", "kv_arrived_at_s"):
        stamp = np.minimum(completed[column].to_numpy(dtype=float), first)
        stamps.append(np.fmax(stamps[-1], stamp))  # an empty stamp (no transfer) leaves the previous one
    stamps.append(first)
    return pd.DataFrame(np.diff(np.stack(stamps, axis=1), axis=1), columns=list(STAGE_COLOURS), index=completed.index)


def ttft_stage_charts(run: RunOutput) -> list[Chart]:
    """Mean stage times over all requests and over bands of TTFT, in seconds and as shares."""
    completed = run.completed.dropna(subset=["ttft_s", "first_token_at_s"])
    if completed.empty:
        return []
    stages = ttft_stages(completed)
    rank = completed["ttft_s"].rank(method="first").to_numpy() / len(completed) * 100
    groups = {"all": stages.mean()}
    for low, high in TTFT_BANDS:
        band = stages[(rank > low) & (rank <= high)]
        if len(band):
            groups[f"p{low}–p{high}"] = band.mean()
    means = pd.DataFrame(groups)
    means = visible_stages(means)
    absolute = Frame(
        "ttft-stages",
        "Where TTFT goes",
        "Mean time in each stage, for all requests and for bands of TTFT: the lowest bar shows what makes the tail."
        + queue_note([run]),
    )
    reading = "The same stages as a share of TTFT."
    if completed["kv_arrived_at_s"].notna().any() and not stages["KV transfer"].any():
        reading += " First tokens come from the prefill side, so KV time delays the second token instead."
    relative = Frame("ttft-stage-shares", "Where TTFT goes, as a share", reading)
    shares = means / means.sum(axis=0) * 100
    return [
        stage_bars(means, absolute, "Mean time (s)", "s"),
        stage_bars(shares, relative, "Share of TTFT (%)", "%"),
    ]


def queue_note(runs: Sequence[RunOutput]) -> str:
    """What the queue stage contains besides waiting, as a sentence to append; empty where it was configured away."""
    given = {_request_latency_ms(run) for run in runs}
    if given == {0.0}:
        return ""
    (amount,) = given if len(given) == 1 else (None,)
    size = "about 3 ms unless configured" if amount is None else f"{amount:g} ms"
    return f" Queue includes the fixed latency of the front end, from the client to the scheduler ({size})."


def _request_latency_ms(run: RunOutput) -> float | None:
    """The configured latency; ``None`` where the default applies."""
    engine = run.config.get("engine")
    given = engine.get("request_latency_ms") if isinstance(engine, Mapping) else None
    return float(given) if isinstance(given, int | float) else None


def visible_stages(means: pd.DataFrame) -> pd.DataFrame:
    """Without the stages (rows) that take less than a thousandth of every column, such as KV in a co-located run."""
    return means[(means > means.sum(axis=0) * 1e-3).any(axis=1)]


def stage_bars(means: pd.DataFrame, frame: Frame, x_title: str, unit: str) -> Chart:
    """Horizontal bars, one per column of ``means``, stacked over its rows (the stages)."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for stage, values in means.iterrows():
        figure.add_bar(
            x=compact(values),
            y=[label(str(name)) for name in means.columns],
            name=str(stage),
            orientation="h",
            marker={"color": STAGE_COLOURS[str(stage)]},
            hovertemplate=f"{stage}: %{{x:.4g}} {unit}<extra>%{{y}}</extra>",
        )
    figure.update_layout(barmode="stack", bargap=0.35, legend={"traceorder": "normal"})
    figure.update_yaxes(autorange="reversed", type="category")
    return finish(figure, frame, x_title, "")


def slo_shares(run: RunOutput) -> tuple[float | None, float | None]:
    """Shares of all requests that complete within the TTFT and the TPOT objective (one output token meets any TPOT)."""
    completed, total = run.completed, len(run.requests)
    summary = run.summary
    if not total:
        return None, None
    ttft_met = None if summary.slo_ttft_s is None else float((completed["ttft_s"] <= summary.slo_ttft_s).sum()) / total
    tpot = completed["tpot_s"].fillna(0.0)
    tpot_met = None if summary.slo_tpot_s is None else float((tpot <= summary.slo_tpot_s).sum()) / total
    return ttft_met, tpot_met
