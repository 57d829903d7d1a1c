"""What the planner did: instances over time with the load, and what they cost."""

from __future__ import annotations

import numpy as np
from markupsafe import Markup

from vidur_pd.metrics.summary import PlannerSummary
from vidur_pd.report.charts import Chart, Frame, Trace, axis, draw, scatter, time_axis
from vidur_pd.report.colours import series_colour
from vidur_pd.report.load import RunOutput
from vidur_pd.report.series import Floats, middles, time_edges
from vidur_pd.report.text import digits, duration, percent, table_html


def fleet_chart(run: RunOutput, planner: PlannerSummary) -> Chart | None:
    """Instances that serve and those that are held, by pool, and arrivals per second."""
    if not len(run.requests):
        return None
    edges = time_edges(run.span_s, at_most=80)
    arrived, _ = np.histogram(run.requests["arrived_at_s"], edges)
    load = scatter(
        middles(edges),
        arrived / np.diff(edges),
        name="arrivals per second (right)",
        mode="lines",
        line={"color": "#8a8f98", "width": 1.2},
        yaxis="y2",
        hovertemplate="%{y:.4g} requests/s at %{x:.4g} s<extra></extra>",
    )
    reading = (
        "Solid: instances that serve. Dotted: those whose GPUs are held, which start or drain besides. The gap between "
        "a rise of the load and that of the solid line is where requests wait."
    )
    frame = Frame("fleet", "Instances over the load", reading, height_px=360, is_wide=True)
    pools = [trace for place, pool in enumerate(planner.pools) for trace in _of_pool(planner, pool.name, place, edges)]
    return draw(
        frame,
        [load, *pools],
        time_axis(edges),
        axis("Instances", rangemode="tozero"),
        showlegend=True,
        yaxis2=axis("Requests/s", overlaying="y", side="right", rangemode="tozero", showgrid=False, tickmode="auto"),
    )


def _of_pool(planner: PlannerSummary, pool: str, place: int, edges: Floats) -> list[Trace]:
    counts = [each for each in planner.counts if each.pool == pool]
    times = [*(each.at_s for each in counts), float(edges[-1])]
    serving = [each.serving for each in counts]
    held = [each.serving + each.starting + each.draining for each in counts]
    lines = ((serving, "solid", 2.0, "serving"), (held, "dot", 1.2, "held"))
    return [
        scatter(
            times,
            [*values, values[-1]],
            name=f"{pool}, {what}",
            mode="lines",
            line={"color": series_colour(place), "width": width, "dash": dash, "shape": "hv"},
            hovertemplate=f"%{{y}} of {pool} {what} from %{{x:.4g}} s<extra></extra>",
        )
        for values, dash, width, what in lines
    ]


def planner_tables(planner: PlannerSummary) -> Markup:
    """What was held, and what became of each pool's instances."""
    rows = [
        ["GPU hours held", digits(planner.gpu_hours)],
        ["GPU hours of all GPUs all the time", digits(planner.all_gpu_hours)],
        ["saved", percent(planner.saved_share)],
        ["decisions", f"{planner.decisions:,}"],
    ]
    if planner.starting_s_mean is not None:
        took = f"{duration(planner.starting_s_mean)}, at most {duration(planner.starting_s_max)}"
        rows.append(["from the decision to start an instance until it served, mean", took])
    for name, size in (("network", planner.weights_network_bytes), ("disks", planner.weights_disk_bytes)):
        if size:
            rows.append([f"weights from {name}", f"{digits(size / 1e9)} GB"])
    pools = [
        [
            pool.name,
            f"{pool.instances:,}",
            digits(pool.serving_mean),
            f"{pool.serving_most:,}",
            *(f"{number:,}" for number in (pool.starts, pool.switches, pool.stops)),
            digits(pool.gpu_hours),
        ]
        for pool in planner.pools
    ]
    columns = ("Pool", "May have", "Serving, mean", "Most", "Started", "Switched to", "Stopped", "GPU hours")
    return table_html((f"Planner {planner.policy}", ""), rows, text_columns=1) + table_html(columns, pools)
