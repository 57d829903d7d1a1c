"""Load and throughput over the run, from the stamps of the requests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vidur_pd.report.charts import Chart, Frame, axis, draw, label, scatter, time_axis
from vidur_pd.report.colours import series_colour
from vidur_pd.report.load import RunOutput
from vidur_pd.report.series import Floats, Intervals, middles, spread, time_edges
from vidur_pd.report.table import Table


def token_rates(run: RunOutput, edges: Floats) -> tuple[Floats, Floats]:
    """Input and output tokens per second in each bin.

    A prompt is spread evenly from first scheduling to the end of its prefill, the output from its first to its last
    token. Requests that did not complete count nothing.
    """
    completed = run.completed
    prompts = _rate(completed, "scheduled_at_s", "prefill_completed_at_s", "prefill_tokens", edges)
    outputs = _rate(completed, "first_token_at_s", "completed_at_s", "decode_tokens", edges)
    return prompts, outputs


def _rate(requests: Table, start: str, end: str, tokens: str, edges: Floats) -> Floats:
    names = (start, end, tokens)
    known = requests.known(*names)
    starts, ends, amounts = (requests[name][known] for name in names)
    whole = Intervals(starts, ends, np.zeros(len(starts), dtype=np.int64), 1)
    return np.asarray(spread(whole, amounts, edges)[0] / np.diff(edges))


def throughput_charts(run: RunOutput) -> list[Chart]:
    """Input and output tokens per second."""
    if not len(run.completed):
        return []
    edges = time_edges(run.span_s)
    readings = {
        "input": "Prompt tokens, cached ones included: prefill comes in bursts, so look at the level, not the peaks.",
        "output": "A level line under continuing arrivals is the capacity of the decode side.",
    }
    return [
        _rate_chart(edges, rates, Frame(f"{name}-rate", f"{name.capitalize()} tokens", reading), series_colour(place))
        for place, ((name, reading), rates) in enumerate(zip(readings.items(), token_rates(run, edges), strict=True))
    ]


def _rate_chart(edges: Floats, rates: Floats, frame: Frame, colour: str) -> Chart:
    trace = scatter(
        middles(edges),
        rates,
        mode="lines",
        line={"color": colour, "width": 1.8},
        hovertemplate="%{y:.4s} tokens/s at %{x:.4g} s<extra></extra>",
    )
    return draw(frame, [trace], time_axis(edges), axis(f"{frame.title} per second", rangemode="tozero"))


def arrivals_chart(run: RunOutput) -> Chart | None:
    """Arrivals and completions per second."""
    edges = time_edges(run.span_s, at_most=80)
    traces = []
    stamps = {"arrived": run.requests["arrived_at_s"], "completed": run.completed["completed_at_s"]}
    for place, (name, values) in enumerate(stamps.items()):
        counts, _ = np.histogram(values[~np.isnan(values)], edges)
        if not counts.any():
            continue
        trace = scatter(
            middles(edges),
            counts / np.diff(edges),
            name=name,
            mode="lines",
            line={"color": ("#6b6f76", series_colour(2))[place], "width": 1.8, "shape": "hvh"},
            hovertemplate=f"%{{y:.4g}} requests/s {name} at %{{x:.4g}} s<extra></extra>",
        )
        traces.append(trace)
    if not traces:
        return None
    reading = "Completions below arrivals for long means that work piles up; the tail after the last arrival is drain."
    frame = Frame("arrivals", "Arrivals and completions", reading, is_wide=True)
    return draw(frame, traces, time_axis(edges), axis("Requests per second", rangemode="tozero"), showlegend=True)


def output_rate_comparison(runs: Sequence[RunOutput]) -> Chart | None:
    """Output tokens per second of several runs on one time axis."""
    traces = []
    for place, run in enumerate(runs):
        if not len(run.completed):
            continue
        edges = time_edges(run.span_s)
        trace = scatter(
            middles(edges),
            token_rates(run, edges)[1],
            name=label(run.label),
            mode="lines",
            line={"color": series_colour(place), "width": 1.8},
            hovertemplate=f"%{{y:.4s}} tokens/s at %{{x:.4g}} s<extra>{label(run.label)}</extra>",
        )
        traces.append(trace)
    if not traces:
        return None
    reading = "The longer a line stays up after the others have fallen, the later that run ends."
    frame = Frame("output-rate", "Output throughput over the run", reading)
    rate_axis = axis("Output tokens per second", rangemode="tozero")
    return draw(frame, traces, axis("Simulated time (s)"), rate_axis, showlegend=True)
