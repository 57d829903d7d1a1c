"""What faults did: their intervals over throughput and TTFT."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
from markupsafe import Markup

from vidur_pd.metrics.summary import FaultEvent, FaultSummary
from vidur_pd.report.charts import Chart, Frame, Properties, axis, draw, label, scatter, time_axis
from vidur_pd.report.colours import fainter, series_colour
from vidur_pd.report.figures_load import token_rates
from vidur_pd.report.load import RunOutput
from vidur_pd.report.series import Floats, middles, time_edges
from vidur_pd.report.text import digits, duration, percent, table_html

MOST_SHADED = 200
"""Intervals drawn; a link that flaps all the time would make a page of rectangles."""
MOST_LISTED = 40
MOST_LABELLED = 12
LABEL_LINES, LINE_PX = 4, 13
HEIGHT_PX, MARGINS_PX = 360, 80
KIND_COLOURS = {
    "gpu": "#c4262e",
    "instance": "#c4262e",
    "drain": "#8a8f98",
    "straggler": "#b58900",
    "slow_gpu": "#b58900",
}
NETWORK_COLOUR = "#8e4ec6"


def fault_timeline(run: RunOutput) -> Chart | None:
    """Output tokens per second and mean TTFT by arrival, with every fault as a shaded interval."""
    events = () if run.summary.faults is None else run.summary.faults.events
    if not events or not len(run.requests):
        return None
    edges = time_edges(run.span_s, at_most=80)
    end_s = float(edges[-1])
    rates, ttfts = token_rates(run, edges)[1], _mean_ttft(run, edges)
    names = _names([event for event in events if event.at_s < end_s])
    rate = scatter(
        middles(edges),
        rates,
        name="output tokens per second",
        mode="lines",
        line={"color": series_colour(0), "width": 1.8},
        hovertemplate="%{y:.4s} tokens/s at %{x:.4g} s<extra></extra>",
    )
    ttft = scatter(
        middles(edges),
        ttfts,
        name="mean TTFT of arrivals (right)",
        mode="lines+markers",
        marker={"size": 3},
        line={"color": series_colour(1), "width": 1.4},
        yaxis="y2",
        hovertemplate="TTFT %{y:.4g} s for arrivals around %{x:.4g} s<extra></extra>",
    )
    hidden = f" {len(events) - MOST_SHADED:,} further intervals are not drawn." if len(events) > MOST_SHADED else ""
    reading = f"Shaded: faults. A rate that returns later than the shade ends shows the work that had piled up.{hidden}"
    frame = Frame("faults", "Faults over throughput and TTFT", reading, height_px=HEIGHT_PX, is_wide=True)
    return draw(
        frame,
        [rate, ttft],
        time_axis(edges),
        axis("Output tokens per second", range=_below_names(rates, names)),
        showlegend=True,
        yaxis2=axis(
            "TTFT (s)",
            overlaying="y",
            side="right",
            range=_below_names(ttfts, names),
            showgrid=False,
            tickmode="auto",
        ),
        shapes=[_shade(event, end_s) for event in events[:MOST_SHADED] if event.at_s < end_s],
        annotations=names,
    )


def _mean_ttft(run: RunOutput, edges: Floats) -> Floats:
    """[bins] NaN where no completed request arrived."""
    completed = run.completed
    known = completed.known("ttft_s")
    arrived, ttft = completed["arrived_at_s"][known], completed["ttft_s"][known]
    counts, _ = np.histogram(arrived, edges)
    sums, _ = np.histogram(arrived, edges, weights=ttft)
    mean: Floats = np.divide(sums, counts, out=np.full(len(counts), np.nan), where=counts > 0)
    return mean


def _below_names(values: Floats, names: Sequence[Properties]) -> tuple[float, float]:
    """An axis from zero, the largest value of which is drawn below the names of faults."""
    largest = float(np.nanmax(values)) if np.isfinite(values).any() else 0.0
    taken = LINE_PX * min(len(names), LABEL_LINES) / (HEIGHT_PX - MARGINS_PX)
    return 0.0, 1.05 * (largest or 1.0) / (1 - taken)


def _shade(event: FaultEvent, end_s: float) -> Properties:
    colour = KIND_COLOURS.get(event.kind, NETWORK_COLOUR)
    return {
        "type": "rect",
        "x0": event.at_s,
        "x1": min(event.end_s, end_s),
        "y0": 0,
        "y1": 1,
        "yref": "paper",
        "fillcolor": fainter(colour, 0.16),
        "line": {"width": 0.5, "color": fainter(colour, 0.5)},
        "layer": "below",
    }


def _names(events: Sequence[FaultEvent]) -> list[Properties]:
    """At the first of equal faults (a link that flaps), on lines in turn, as neighbours would cover each other."""
    first: dict[tuple[str, str], FaultEvent] = {}
    for event in events:
        first.setdefault((event.kind, event.target), event)
    return [
        {
            "x": event.at_s,
            "y": 1,
            "yref": "paper",
            "yshift": -LINE_PX * (place % LABEL_LINES),
            "xanchor": "left",
            "yanchor": "top",
            "showarrow": False,
            "text": label(f"{event.kind} {event.target}", 28),
            "font": {"size": 10},
            "bgcolor": "rgba(0,0,0,0)",
        }
        for place, event in enumerate(list(first.values())[:MOST_LABELLED])
    ]


def _moments(at_s: float, until_s: float | None) -> tuple[str, str]:
    """Begin and end, with as many digits as tell them apart."""
    if until_s is None:
        return duration(at_s), "for ever"
    texts = [(duration(at_s), duration(until_s))]
    texts += [(f"{at_s:,.{places}f} s", f"{until_s:,.{places}f} s") for places in range(1, 7)]
    return next((pair for pair in texts if pair[0] != pair[1]), texts[-1])


def fault_tables(faults: FaultSummary) -> Markup:
    """SLO-loss minutes with what recovery did, and the events."""
    acted = {f"requests {each.name}": getattr(faults.requests, each.name) for each in fields(faults.requests)}
    acted["transfers retried"] = faults.transfers_retried
    rows = [[name, f"{count:,}"] for name, count in acted.items()]
    loss = faults.slo_loss_minutes
    for part in ("total", "before_faults", "during_faults", "after_faults", "beyond_fault_free"):
        minutes = getattr(loss, part)
        if minutes is not None:
            rows.append([f"SLO-loss minutes, {part.replace('_', ' ')}", digits(minutes)])
    if loss.worst_attainment is not None:
        rows.append(["smallest attainment of a window", percent(loss.worst_attainment)])
    events = [[event.kind, event.target, *_moments(event.at_s, event.until_s)] for event in faults.events[:MOST_LISTED]]
    text = table_html(("What faults cost", ""), rows, text_columns=1)
    if len(faults.events) > MOST_LISTED:
        events.append([f"{len(faults.events) - MOST_LISTED:,} more", "", "", ""])
    return text + (table_html(("Fault", "Of", "From", "Until"), events, text_columns=2) if events else Markup())
