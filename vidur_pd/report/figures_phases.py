"""What an iteration is made of, per pool, and how its length depends on the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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
from vidur_pd.report.stacks import Stacks
from vidur_pd.report.table import Table, sums

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


@dataclass(frozen=True, slots=True)
class PhaseSeconds:
    """What iterations of each pool have taken in all."""

    phases: Stacks
    length_s: Floats
    """[pools]"""
    iterations: Floats
    """[pools]"""


def phase_seconds(iterations: Table, pool_order: Sequence[str]) -> PhaseSeconds:
    """Seconds in each phase of each pool, summed over its iterations; of pools that are not in the order last.

    Compute that no phase explains is "other compute"; what lies in an iteration apart from compute and communication
    (pipeline or lockstep waits) is "waiting". Overlapped communication counts in full, so a bar may pass 100 %.
    """
    pools = iterations.words["pool"]
    present = [pools.names[code] for code in pools.present()]
    names = [name for name in pool_order if name in present] + [name for name in present if name not in pool_order]
    codes = [pools.names.index(name) for name in names]

    def seconds(values: Floats) -> Floats:
        return sums(pools.codes, values, len(pools.names))[codes]

    compute, communication = seconds(iterations["compute_s"]), seconds(iterations["communication_s"])
    length = seconds(iterations["end_s"] - iterations["start_s"])
    phases = {phase: seconds(iterations[column]) for phase, column in PHASE_COLUMNS.items()}
    phases["other compute"] = np.maximum(compute - sum(phases.values()), 0.0)
    phases["communication"] = communication
    phases["waiting"] = np.maximum(length - compute - communication, 0.0)
    count = np.bincount(pools.codes, minlength=len(pools.names))[codes].astype(np.float64)
    return PhaseSeconds(Stacks(tuple(names), phases), length, count)


def phase_charts(iterations: Table, pool_order: Sequence[str], *, has_drafts: bool = False) -> list[Chart]:
    """Stacked phases per pool: as a share of iteration time, and in milliseconds per iteration.

    ``has_drafts``: an iteration gives several tokens.
    """
    close = "" if has_drafts else "; for a decode pool the bar's length is close to TPOT"
    found = phase_seconds(iterations, pool_order)
    shares = found.phases.over(found.length_s, 100)
    drawn = [phase for phase, values in shares.parts.items() if (values > LEAST_SHARE_SHOWN * 100).any()]
    height = 150 + 60 * len(found.phases.names)
    return [
        _phase_bars(
            shares.only(drawn),
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
            found.phases.over(found.iterations, 1e3).only(drawn),
            Frame(
                "phase-ms",
                "Iteration time by phase",
                f"Mean milliseconds per iteration{close}.",
                height,
            ),
            "Mean time per iteration (ms)",
            "ms",
        ),
    ]


def _phase_bars(values: Stacks, frame: Frame, x_title: str, unit: str) -> Chart:
    traces = [
        bars(
            lengths,
            [label(pool) for pool in values.names],
            name=phase,
            marker={"color": PHASE_COLOURS[phase], "line": {"color": RULE, "width": 0.4}},
            hovertemplate=f"{phase}: %{{x:.3g}} {unit}<extra>%{{y}}</extra>",
        )
        for phase, lengths in values.parts.items()
    ]
    return draw(frame, traces, axis(x_title), rows_axis(), barmode="stack", bargap=0.4, showlegend=True)


def batch_chart(iterations: Table, pool_order: Sequence[str]) -> Chart | None:
    """Iteration length against the new tokens of its batch: median and the 10th to 90th percentile, per pool."""
    tokens = iterations["prefill_tokens"] + iterations["decode_tokens"]
    lengths_ms = (iterations["end_s"] - iterations["start_s"]) * 1e3
    pools = iterations.words["pool"]
    traces, shown_ms = list[Trace](), list[Floats]()
    for pool, colour in pool_colours(list(dict.fromkeys([*pool_order, *pools.names]))).items():
        mine = pools.are(pool) & (tokens > 0)
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
    order = np.lexsort((lengths, bins))
    count = np.bincount(bins)
    held = np.flatnonzero(count)
    count = count[held]
    first = np.cumsum(count) - count
    rising = lengths[order]

    def quantile(share: float) -> Floats:
        """[bins] between the two nearest values, in proportion."""
        place = share * (count - 1)
        below = first + place.astype(np.int64)
        above = np.minimum(below + 1, first + count - 1)
        return np.asarray(rising[below] + (rising[above] - rising[below]) * (place % 1))

    return sums(bins, tokens, len(edges))[held] / count, quantile(0.1), quantile(0.5), quantile(0.9)
