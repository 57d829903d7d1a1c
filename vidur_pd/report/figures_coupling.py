"""What shared links cost: which are full when, where communication time comes from, and where latency goes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from vidur_pd.metrics.summary import NetworkSummary, Summary
from vidur_pd.report.charts import ROW_FONT, Chart, Frame, axis, bars, draw, heat_map, label, rows_axis
from vidur_pd.report.colours import FAINT
from vidur_pd.report.figures_network import BITS_PER_BYTE, link_windows, measure_words, window_edges
from vidur_pd.report.series import Floats, Intervals, spread
from vidur_pd.report.table import Table, distinct
from vidur_pd.report.text import count, digits, percent, table_html

MOST_LINKS = 24
"""Rows of the heat map, the links with the fullest windows."""
INSIDE_NODES = ("nvlink",)
PART_COLOURS: Mapping[str, str] = {
    "frontend": "#6b4f3a",
    "lost": "#c4262e",
    "queue": "#a3abb8",
    "prefill_compute": "#1f6fb4",
    "prefill_communication": "#8e4ec6",
    "kv_room": "#b58900",
    "kv_setup": "#e3b341",
    "kv_transfer": "#c2407a",
    "decode_queue": "#6b7f99",
    "decode_compute": "#16825d",
    "decode_communication": "#d9730d",
    "preempted": "#7a1f2b",
    "stall": "#d8dce2",
}
SOURCES = {
    "priced": "priced on an idle fabric",
    "stretched": "added by the fluid rule for shared links",
    "simulated": "simulated as flows",
}


def link_heat_map(links: Table) -> Chart | None:
    """Use over time of the fullest links between nodes, all traffic together."""
    outside = links.rows(~links.words["kind"].are(*INSIDE_NODES))
    if not len(outside):
        return None
    edges = window_edges(outside)
    first, codes = distinct(outside.words["link"].codes)
    known = outside.rows(first)
    use = _use(outside, codes, known["capacity_bps"], edges)
    rows = np.argsort(-use.max(axis=1), kind="stable")[:MOST_LINKS]
    rows = rows[np.argsort(-use[rows].mean(axis=1), kind="stable")]
    titles = [f"{src} → {dst}" for src, dst in zip(known.words["src"], known.words["dst"], strict=True)]
    _, inside = measure_words(outside)
    trace = heat_map(
        edges,
        [label(titles[row]) for row in rows],
        use[rows] * 100,
        f"{inside} (%)",
        ygap=1,
        hovertemplate="%{y}: %{z:.0f} % at %{x:.4g} s<extra></extra>",
    )
    what = "offered most" if inside == "offered load" else "full"
    shown = "" if len(rows) == len(known) else f" The {len(rows)} with the fullest windows of {len(known)}."
    frame = Frame(
        "links-heat",
        f"Which links are {what}, and when",
        f"NICs and links between switches: where a row comes near 100 %, what crosses it waits.{shown}",
        height_px=110 + 22 * len(rows),
        is_wide=True,
    )
    return draw(frame, [trace], axis("Simulated time (s)"), rows_axis(tickfont=ROW_FONT))


def _use(links: Table, codes: NDArray[np.int64], capacity_bps: NDArray[np.float64], edges: Floats) -> Floats:
    """[links, bins] bits over what links could carry then."""
    starts, ends = links["window_start_s"], links["window_end_s"]
    windows = Intervals(starts, ends, codes, len(capacity_bps))
    bits = spread(windows, links["carried_bytes"] * BITS_PER_BYTE, edges)
    lacking = capacity_bps[codes] * (ends - starts) - links["capacity_bytes"] * BITS_PER_BYTE
    is_first = np.zeros(len(links), dtype=np.bool_)  # of the classes of traffic in a window
    is_first[link_windows(links)[0]] = True
    possible = np.diff(edges) * capacity_bps[:, None] - spread(windows, lacking * is_first, edges)
    return bits / possible


def attribution_chart(summary: Summary) -> Chart | None:
    """Mean end-to-end latency cut into what it was spent on."""
    parts = {name: seconds for name, seconds in summary.attribution_s.items() if seconds > 0}
    if not parts:
        return None
    traces = [
        bars(
            [seconds],
            ["mean request"],
            name=label(part_words(name)),
            marker={"color": PART_COLOURS.get(name, FAINT), "line": {"color": FAINT, "width": 0.4}},
            hovertemplate=f"{label(part_words(name))}: %{{x:.4g}} s<extra></extra>",
        )
        for name, seconds in parts.items()
    ]
    reading = (
        "Parts add up to the mean end-to-end latency. KV and communication count where compute does not hide them; "
        "a stall is a wait between the iterations of a request: for those of others, or while its engine stands still."
    )
    frame = Frame("attribution", "Where latency goes", reading, 230, True)
    unnamed = axis("", type="category", showticklabels=False)
    return draw(frame, traces, axis("Mean time (s)"), unnamed, barmode="stack", showlegend=True)


def sources_table(summary: Summary) -> Markup:
    """Shares of communication time by what they rest on; empty for results that do not record them."""
    rows = [
        [SOURCES.get(source, source), percent(share)]
        for source, share in summary.communication.shares.items()
        if share > 0
    ]
    if not rows:
        return Markup()
    return table_html(("Communication time", "Share"), rows, text_columns=1)


def fabric_table(network: NetworkSummary) -> Markup:
    """What fits between servers at most, over how many ways, and what a cable takes with it; empty where not known."""
    fabric = network.fabric
    if fabric is None:
        return Markup()
    rates = (
        ("From the first half of the servers to the second, at most", fabric.halves_bps),
        ("From prefill to decode over NICs, at most", fabric.prefill_to_decode_bps),
    )
    rows = [[name, f"{digits(bps / 1e9)} Gbit/s"] for name, bps in rates if bps is not None]
    rows.append(["Shortest ways from one server to another", count(fabric.shortest_ways)])
    rows.append(["Ways without a common cable", count(fabric.disjoint_ways)])
    for loss in fabric.losses:
        named = f"A {loss.kind} cable cuts off when it is lost ({loss.cables:,} such cables)"
        rows.append([named, f"{loss.gpus:,} GPU" if loss.gpus == 1 else f"{loss.gpus:,} GPUs"])
    return table_html(("Fabric, however traffic is routed", ""), rows, text_columns=1)


def energy_text(summary: Summary) -> str | None:
    """Energy in words, or ``None`` where it is not known."""
    energy = summary.energy
    if energy is None or energy.gpu_j is None:
        return None
    parts = [f"{digits(energy.gpu_j / 1e3)} kJ in GPUs"]
    if energy.pools_w:
        parts.append(", ".join(f"{digits(watts)} W a GPU of {pool}" for pool, watts in energy.pools_w.items()))
    if (around_j := (energy.network_j or 0.0) + (energy.host_j or 0.0)) > 0:
        parts.append(f"{digits(around_j / 1e3)} kJ around them")
    if energy.total_j_per_output_token is not None:
        parts.append(f"{digits(energy.total_j_per_output_token)} J per output token")
    return "; ".join(parts)


def cost_text(summary: Summary) -> str | None:
    """Cost in words, or ``None`` without a price list."""
    cost = summary.cost
    if cost is None:
        return None
    if cost.per_hour is None:
        return "not known: electricity has a price, and the power of some GPU is not known"
    tokens = (
        ("per million input tokens", cost.per_million_input_tokens),
        ("per million output tokens", cost.per_million_output_tokens),
        ("per million output tokens with everything on them", cost.all_per_million_output_tokens),
    )
    unit = f"{cost.currency} " if cost.currency else ""
    parts = [f"{unit}{digits(cost.per_hour)} per hour"]
    parts += [f"{unit}{digits(amount)} {name}" for name, amount in tokens if amount is not None]
    return "; ".join(parts) + (f" (prices of {cost.as_of})" if cost.as_of else "")


def part_words(name: str) -> str:
    """A part of latency, as it is written in text."""
    return name.replace("_", " ").replace("kv", "KV")
