"""What each instance does over the run: queue, running requests, busy share, KV use."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vidur_pd.report.charts import (
    ROW_FONT,
    Chart,
    Frame,
    Trace,
    axis,
    draw,
    heat_map,
    label,
    rows_axis,
    scatter,
    time_axis,
)
from vidur_pd.report.colours import fainter, pool_colours
from vidur_pd.report.series import Floats, Intervals, Spreading, middles, thin, time_edges, without_overlap
from vidur_pd.report.table import Table, distinct

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
"""Of the instances of a pool, whose lines have one colour."""
MOST_LINES_PER_POOL = len(DASHES)
MOST_HEAT_ROWS = 320


@dataclass(frozen=True, slots=True)
class Activity:
    """Iterations of all instances on common time bins; arrays have shape ``[instances, bins]``.

    Values of an iteration hold from its start to its end, or to the next start where iterations of a pipelined
    instance overlap. ``waiting`` and ``running`` are means over the bin in which an idle instance counts zero;
    ``kv_use`` is the mean share of KV blocks over the busy part of the bin, NaN where the instance was idle.
    """

    instances: tuple[str, ...]
    pools: tuple[str, ...]
    """Pool of each instance."""
    edges_s: Floats
    busy_share: Floats
    waiting: Floats
    running: Floats
    kv_use: Floats

    def of_pool(self, pool: str) -> list[int]:
        return [place for place, name in enumerate(self.pools) if name == pool]


def measure_activity(iterations: Table, pool_order: Sequence[str], span_s: tuple[float, float]) -> Activity:
    """Aggregates the iterations of a run; instances are ordered by pool, then by number."""
    instance, pool = iterations.words["instance"], iterations.words["pool"]
    first, _ = distinct(instance.codes.astype(np.int64) * len(pool.names) + pool.codes)
    known = {name: place for place, name in enumerate(pool_order)}
    ordered = sorted(
        ((instance[row], pool[row]) for row in first.tolist()),
        key=lambda pair: (known.get(pair[1], len(known)), pair[1], _natural(pair[0])),
    )
    names = [name for name, _ in ordered]
    place_of = {name: place for place, name in enumerate(names)}
    rows = np.array([place_of.get(name, 0) for name in instance.names], dtype=np.int64)[instance.codes]
    held = without_overlap(Intervals(iterations["start_s"], iterations["end_s"], rows, len(names)))
    lengths = held.ends_s - held.starts_s
    edges = time_edges(span_s)

    over_bins = Spreading(held, edges)

    def held_seconds(values: Floats) -> Floats:
        return over_bins.of(values * lengths)

    widths = np.diff(edges)
    busy = over_bins.of(lengths)
    total = iterations["kv_blocks_total"]
    use = np.divide(iterations["kv_blocks_used"], total, out=np.zeros_like(total), where=total > 0)
    return Activity(
        instances=tuple(names),
        pools=tuple(pool for _, pool in ordered),
        edges_s=edges,
        busy_share=np.minimum(busy / widths, 1.0),
        waiting=held_seconds(iterations["waiting"]) / widths,
        running=held_seconds(iterations["running"]) / widths,
        kv_use=np.divide(held_seconds(use), busy, out=np.full_like(busy, np.nan), where=busy > 1e-9 * widths),
    )


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    """A sort key that puts ``decode-2`` before ``decode-10``, whatever the number of digits."""
    parts = re.split(r"([0-9]+)", name)
    return tuple(
        (len(part.lstrip("0")), part.lstrip("0")) if place % 2 else (-1, part) for place, part in enumerate(parts)
    )


def instance_charts(activity: Activity, pool_order: Sequence[str]) -> list[Chart]:
    """Waiting and running requests and KV use, one line per instance or a band per large pool."""
    waiting = Frame(
        "waiting",
        "Waiting requests",
        "A queue that keeps growing marks the pool that limits the cluster; one line far above its pool, poor routing.",
    )
    running = Frame(
        "running",
        "Running requests",
        "Requests in the batch, mean over each time bin: the level at which decode lines flatten is their batch limit.",
    )
    kv_use = Frame(
        "kv-use",
        "KV cache use",
        "Blocks in use over usable blocks while busy: at 100 % requests wait or are preempted.",
        is_wide=True,
    )
    return [
        _per_instance(activity, activity.waiting, pool_order, waiting, "Waiting requests"),
        _per_instance(activity, activity.running, pool_order, running, "Running requests"),
        _per_instance(activity, activity.kv_use * 100, pool_order, kv_use, "KV blocks in use (%)"),
    ]


def _per_instance(activity: Activity, values: Floats, pool_order: Sequence[str], frame: Frame, y_title: str) -> Chart:
    traces = list[Trace]()
    x = middles(activity.edges_s)
    pools = list(dict.fromkeys([*pool_order, *activity.pools]))
    for pool, colour in pool_colours(pools).items():
        places = activity.of_pool(pool)
        if len(places) > MOST_LINES_PER_POOL:
            traces += _band(x, values[places], pool, colour)
            continue
        for rank, place in enumerate(places):
            trace = scatter(
                x,
                values[place],
                name=label(activity.instances[place]),
                mode="lines",
                line={"color": colour, "width": 1.6, "dash": DASHES[rank]},
                hovertemplate=f"%{{y:.3g}} at %{{x:.4g}} s<extra>{label(activity.instances[place])}</extra>",
            )
            traces.append(trace)
    return draw(frame, traces, time_axis(activity.edges_s), axis(y_title, rangemode="tozero"), showlegend=True)


def _band(x: Floats, values: Floats, pool: str, colour: str) -> list[Trace]:
    """Lowest to highest instance of a pool as an area, their mean as a line; bins without any value are bridged."""
    known = ~np.isnan(values).all(axis=0)
    x, values = x[known], values[:, known]
    bound = {
        "mode": "lines",
        "line": {"width": 0},
        "fillcolor": fainter(colour, 0.18),
        "hoverinfo": "skip",
        "showlegend": False,
        "legendgroup": pool,
    }
    mean = scatter(
        x,
        np.nanmean(values, axis=0),
        name=f"{label(pool)}: mean, lowest to highest of {len(values)}",
        mode="lines",
        line={"color": colour, "width": 1.8},
        legendgroup=pool,
        hovertemplate=f"mean %{{y:.3g}} at %{{x:.4g}} s<extra>{label(pool)}</extra>",
    )
    highest = scatter(x, np.nanmax(values, axis=0), fill="tonexty", **bound)
    return [scatter(x, np.nanmin(values, axis=0), **bound), highest, mean]


def busy_heat_map(activity: Activity) -> Chart:
    """Busy share of each instance over time."""
    rows = thin(len(activity.instances), MOST_HEAT_ROWS)
    names = [label(activity.instances[row]) for row in rows]
    trace = heat_map(
        activity.edges_s,
        names,
        activity.busy_share[rows] * 100,
        "busy (%)",
        ygap=1 if len(rows) <= 64 else 0,
        hovertemplate="%{y}: %{z:.0f} % busy at %{x:.4g} s<extra></extra>",
    )
    shown = (
        "" if len(rows) == len(activity.instances) else f" {len(rows)} of {len(activity.instances)} instances shown."
    )
    frame = Frame(
        "busy",
        "Busy share of each instance",
        f"Share of each time bin in which an iteration runs: rows near 0 % are paid for and idle.{shown}",
        height_px=110 + max(90, min(640, 26 * len(rows))),
        is_wide=True,
    )
    return draw(frame, [trace], axis("Simulated time (s)"), rows_axis(tickfont=ROW_FONT))
