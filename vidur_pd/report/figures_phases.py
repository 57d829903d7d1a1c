"""What an iteration is made of, per pool, and how its length depends on the batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from vidur_pd.report.charts import (
    Chart,
    Frame,
    Properties,
    Trace,
    axis,
    bars,
    draw,
    label,
    log_axis,
    rows_axis,
    scatter,
)
from vidur_pd.report.colours import PHASE_COLOURS, RULE, fainter, pool_colours
from vidur_pd.report.series import Floats

PHASE_COLUMNS = {
    "attention": "attention_s",
    "dense": "dense_s",
    "experts": "experts_s",
    "head": "head_s",
    "norm and small": "norm_and_small_s",
    "host": "host_s",
}
LEAST_SHARE_SHOWN = 5e-4
BATCH_BINS = 24


def phase_seconds(iterations: pd.DataFrame) -> pd.DataFrame:
    """Seconds in each phase (rows) of each pool (columns), summed over its iterations, and their count.

    Compute that no phase explains is "other compute"; what lies in an iteration apart from compute and communication
    (pipeline or lockstep waits) is "waiting". Overlapped communication counts in full, so a bar may pass 100 %.
    """
    columns = [*PHASE_COLUMNS.values(), "compute_s", "communication_s"]
    lengths = (iterations["end_s"] - iterations["start_s"]).rename("length_s")
    grouped = pd.concat([iterations[["pool", *columns]], lengths], axis=1).groupby("pool", observed=True)
    sums = grouped.sum()
    phases = pd.DataFrame({phase: sums[column] for phase, column in PHASE_COLUMNS.items()})
    phases["other compute"] = (sums["compute_s"] - phases.sum(axis=1)).clip(lower=0.0)
    phases["communication"] = sums["communication_s"]
    phases["waiting"] = (sums["length_s"] - sums["compute_s"] - sums["communication_s"]).clip(lower=0.0)
    phases["length"] = sums["length_s"]
    phases["iterations"] = grouped.size()
    return phases.T


def phase_charts(iterations: pd.DataFrame, pool_order: Sequence[str]) -> list[Chart]:
    """Stacked phases per pool: as a share of iteration time, and in milliseconds per iteration."""
    table = phase_seconds(iterations)
    present = [str(name) for name in table.columns]
    pools = [name for name in pool_order if name in present] + [name for name in present if name not in pool_order]
    table = table[pools]
    phases = table.drop(index=["length", "iterations"])
    shares = phases / table.loc["length"] * 100
    per_iteration = phases / table.loc["iterations"] * 1e3
    drawn = [str(phase) for phase in shares.index if (shares.loc[phase] > LEAST_SHARE_SHOWN * 100).any()]
    height = 150 + 60 * len(pools)
    return [
        _phase_bars(
            shares.loc[drawn],
            Frame(
                "phase-shares",
                "Iteration time by phase, as a share",
                "The longest piece of a pool's bar is what a faster kernel, link or host would shorten.",
                height,
            ),
            "Share of iteration time (%)",
            "%",
        ),
        _phase_bars(
            per_iteration.loc[drawn],
            Frame(
                "phase-ms",
                "Iteration time by phase",
                "Mean milliseconds per iteration; for a decode pool the bar's length is close to TPOT.",
                height,
            ),
            "Mean time per iteration (ms)",
            "ms",
        ),
    ]


def _phase_bars(values: pd.DataFrame, frame: Frame, x_title: str, unit: str) -> Chart:
    traces = [
        bars(
            row,
            [label(str(pool)) for pool in values.columns],
            name=str(phase),
            marker={"color": PHASE_COLOURS[str(phase)], "line": {"color": RULE, "width": 0.4}},
            hovertemplate=f"{phase}: %{{x:.3g}} {unit}<extra>%{{y}}</extra>",
        )
        for phase, row in values.iterrows()
    ]
    return draw(frame, traces, axis(x_title), rows_axis(), barmode="stack", bargap=0.4, showlegend=True)


def batch_chart(iterations: pd.DataFrame, pool_order: Sequence[str]) -> Chart | None:
    """Iteration length against the new tokens of its batch: median and the 10th to 90th percentile, per pool."""
    tokens = (iterations["prefill_tokens"] + iterations["decode_tokens"]).to_numpy()
    lengths_ms = (iterations["end_s"] - iterations["start_s"]).to_numpy() * 1e3
    present = [str(name) for name in iterations["pool"].cat.categories]
    traces, shown_ms = list[Trace](), list[Floats]()
    for pool, colour in pool_colours(list(dict.fromkeys([*pool_order, *present]))).items():
        mine = (iterations["pool"] == pool).to_numpy() & (tokens > 0)
        if not mine.any():
            continue
        centres, low, median, high = _quantiles_by_batch(tokens[mine], lengths_ms[mine])
        shown_ms += [low, high]
        bound: Properties = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
        line = scatter(
            centres,
            median,
            name=label(pool),
            mode="lines+markers",
            line={"color": colour, "width": 1.8},
            marker={"size": 5},
            hovertemplate=f"median %{{y:.3g}} ms at %{{x:.4g}} tokens<extra>{label(pool)}</extra>",
        )
        highest = scatter(centres, high, fill="tonexty", fillcolor=fainter(colour, 0.18), **bound)
        traces += [scatter(centres, low, **bound), highest, line]
    if not traces:
        return None
    frame = Frame(
        "batch",
        "Iteration time by batch size",
        "Median, with the 10th to 90th percentile as a band: while a line is flat, a larger batch is free throughput.",
        is_wide=True,
    )
    x_axis, y_axis = log_axis("New tokens in the batch", tokens), log_axis("Iteration time (ms)", *shown_ms)
    return draw(frame, traces, x_axis, y_axis, showlegend=True)


def _quantiles_by_batch(tokens: Floats, lengths: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Mean batch, and 10th, 50th and 90th percentile of the length, in bins of equal ratio of the batch."""
    edges = np.unique(np.geomspace(tokens.min(), tokens.max() + 1, BATCH_BINS + 1))
    bins = np.clip(np.searchsorted(edges, tokens, side="right") - 1, 0, max(len(edges) - 2, 0))
    grouped = pd.DataFrame({"bin": bins, "tokens": tokens, "length": lengths}).groupby("bin")
    quantiles = grouped["length"].quantile(np.array([0.1, 0.5, 0.9])).unstack().to_numpy()
    return grouped["tokens"].mean().to_numpy(), quantiles[:, 0], quantiles[:, 1], quantiles[:, 2]
