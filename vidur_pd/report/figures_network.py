"""The network: how full links are, which are the busiest, and what KV transfers get out of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from vidur_pd.metrics.summary import PoolSummary
from vidur_pd.report.charts import Chart, Frame, Trace, axis, draw, label, log_axis, scatter, time_axis
from vidur_pd.report.colours import FAINT, LINK_COLOURS, series_colour
from vidur_pd.report.load import RunOutput
from vidur_pd.report.series import Floats, Intervals, cumulative_curve, middles, spread, thin
from vidur_pd.report.text import duration

BITS_PER_BYTE = 8
MOST_WINDOWS = 400
BURST = "15.6 ms"
BUSIEST_LINKS = 8
"""Links listed of each kind."""
LINK_KINDS = ("nic", "fabric", "nvlink")
"""Order of the kinds, the path of a KV transfer first; others follow."""
TRAFFIC_DASHES = {"kv": "solid", "collective": "dot"}


MEANING = (
    "Use is what a link carries in a window over what it can carry then, slow-downs by faults included; a link that is "
    "down counts as if it was up. Bytes of simulated flows lie where the network moved them, those of priced "
    "collectives evenly in their iteration, at the speed it had."
)
"""What charts and tables of links show."""
OFFERED_MEANING = (
    "Offered load is what links would have to carry over what they can: here some traffic is timed as if it was alone "
    "(collectives in coupling isolated, everything on backend analytical), so more than 100 % is possible. It means "
    "that a real network would be slower than this run."
)


def is_offered(links: pd.DataFrame) -> bool:
    """Some of what is shown is not what links carry but what they are offered (``metrics/links.py``)."""
    return bool((links["measure"] == "offered").any())


def measure_words(links: pd.DataFrame) -> tuple[str, str]:
    """What the table measures, at the head of a line and inside one."""
    return ("Offered load", "offered load") if is_offered(links) else ("Use", "use")


@dataclass(frozen=True, slots=True)
class LinkUse:
    """One directed link over the whole run; shares of its capacity, over all traffic."""

    src: str
    dst: str
    kind: str
    capacity_bps: float
    mean_use: float
    peak_use: float
    """In the fullest window."""
    burst_use: float
    """In the fullest burst."""
    kv_bytes: float
    collective_bytes: float


def window_edges(links: pd.DataFrame) -> Floats:
    """The windows of the file as bins, or equal bins where there are too many of them."""
    edges = np.unique(np.concatenate([links["window_start_s"], links["window_end_s"]]))
    return edges if len(edges) <= MOST_WINDOWS else np.linspace(edges[0], edges[-1], MOST_WINDOWS + 1)


def mean_use_chart(links: pd.DataFrame) -> Chart:
    """Use over time by kind of link and traffic class, over the links that carry any traffic."""
    edges = window_edges(links)
    capacity = links.drop_duplicates("link").groupby("kind", observed=True)["capacity_bps"].sum()
    traces = []
    for (kind, traffic), rows in links.groupby(["kind", "traffic"], observed=True):
        starts, ends = rows["window_start_s"].to_numpy(), rows["window_end_s"].to_numpy()
        whole = Intervals(starts, ends, np.zeros(len(rows), dtype=np.int64), 1)
        bits = spread(whole, rows["carried_bytes"].to_numpy() * BITS_PER_BYTE, edges)[0]
        name = f"{kind}, {'KV' if traffic == 'kv' else traffic}"
        trace = scatter(
            middles(edges),
            bits / np.diff(edges) / float(capacity.loc[str(kind)]) * 100,
            name=label(name),
            mode="lines",
            line={"color": _link_colour(str(kind)), "width": 1.8, "dash": TRAFFIC_DASHES.get(str(traffic), "dash")},
            hovertemplate=f"%{{y:.3g}} % at %{{x:.4g}} s<extra>{label(name)}</extra>",
        )
        traces.append(trace)
    reading = "Bits over the capacity of all links of a kind that carry anything: the average hides hot links."
    head, inside = measure_words(links)
    frame = Frame("links-mean", "Mean link use" if inside == "use" else "Mean offered load of links", reading)
    return draw(frame, traces, time_axis(edges), axis(f"{head} (%)", rangemode="tozero"), showlegend=True)


def peak_use_chart(links: pd.DataFrame) -> Chart:
    """Use of the fullest link of each kind over time, all traffic together."""
    edges = window_edges(links)
    windows = _window_use(links)
    centre = (windows["window_start_s"] + windows["window_end_s"]) / 2
    bins = np.clip(np.searchsorted(edges, centre, side="right") - 1, 0, len(edges) - 2)
    fullest = windows.assign(bin=bins).groupby(["kind", "bin"], observed=True)["use"].max()
    traces = []
    for kind in fullest.index.get_level_values("kind").unique():
        use = fullest.loc[kind].reindex(range(len(edges) - 1), fill_value=0.0)
        trace = scatter(
            middles(edges),
            use.to_numpy() * 100,
            name=label(str(kind)),
            mode="lines",
            line={"color": _link_colour(str(kind)), "width": 1.8},
            hovertemplate=f"%{{y:.3g}} % at %{{x:.4g}} s<extra>{label(str(kind))}</extra>",
        )
        traces.append(trace)
    traces += _burst_traces(links, edges)
    width = duration(float(np.median(np.diff(edges))))
    waits = "Above" if is_offered(links) else "Near"
    reading = (
        f"{waits} 100 % traffic waits for each other there. Lines are means of windows of {width}, dots the fullest "
        f"{BURST} in them."
    )
    frame = Frame("links-peak", "Busiest link", reading)
    use_axis = axis(f"{measure_words(links)[0]} (%)", rangemode="tozero")
    return draw(frame, traces, time_axis(edges), use_axis, showlegend=True)


def _burst_traces(links: pd.DataFrame, edges: Floats) -> list[Trace]:
    """The fullest burst of any link of a kind in each window; nothing for files without bursts."""
    known = links.dropna(subset=["burst_use"])
    centre = (known["window_start_s"] + known["window_end_s"]) / 2
    bins = np.clip(np.searchsorted(edges, centre, side="right") - 1, 0, len(edges) - 2)
    fullest = known.assign(bin=bins).groupby(["kind", "bin"], observed=True)["burst_use"].max()
    return [
        scatter(
            middles(edges)[of_kind.index.get_level_values("bin")],
            of_kind.to_numpy() * 100,
            name=label(f"{kind}, fullest {BURST}"),
            mode="markers",
            marker={"color": _link_colour(str(kind)), "size": 4, "opacity": 0.6},
            hovertemplate=f"%{{y:.3g}} % for {BURST} around %{{x:.4g}} s<extra>{label(str(kind))}</extra>",
        )
        for kind, of_kind in fullest.groupby("kind", observed=True)
    ]


def _window_use(links: pd.DataFrame) -> pd.DataFrame:
    """One row per link and window with the ``use`` (0…1) by all traffic classes together."""
    keys = ["link", "kind", "window_start_s", "window_end_s", "capacity_bytes"]
    windows = links.groupby(keys, observed=True)["carried_bytes"].sum().reset_index()
    windows["use"] = (windows["carried_bytes"] / windows["capacity_bytes"]).where(windows["capacity_bytes"] > 0, 0.0)
    return windows


def busiest_links(links: pd.DataFrame, seconds: float) -> list[LinkUse]:
    """Of each kind the links of highest mean use over ``seconds``, highest first."""
    known = links.drop_duplicates("link").set_index("link")
    peaks = _window_use(links).groupby("link", observed=True)["use"].max()
    carried = {
        traffic: links[links["traffic"] == traffic].groupby("link", observed=False)["carried_bytes"].sum()
        for traffic in ("kv", "collective")
    }
    total = links.groupby("link", observed=True)["carried_bytes"].sum()
    names = [str(name) for name in known.index]
    capacity = known["capacity_bps"].to_numpy(dtype=float)
    mean = total[names].to_numpy(dtype=float) * BITS_PER_BYTE / (capacity * max(seconds, 1e-12))
    peak = peaks[names].to_numpy(dtype=float)
    burst = links.groupby("link", observed=True)["burst_use"].max()[names].to_numpy(dtype=float)
    kv, collective = (carried[traffic][names].to_numpy(dtype=float) for traffic in ("kv", "collective"))
    ends = known[["src", "dst", "kind"]].astype(str).to_numpy()
    return [
        LinkUse(
            src=ends[place, 0],
            dst=ends[place, 1],
            kind=ends[place, 2],
            capacity_bps=float(capacity[place]),
            mean_use=float(mean[place]),
            peak_use=float(peak[place]),
            burst_use=float(burst[place]),
            kv_bytes=float(kv[place]),
            collective_bytes=float(collective[place]),
        )
        for kind in sorted(set(ends[:, 2]), key=_kind_order)
        for place in _highest(mean, ends[:, 2] == kind)
    ]


def _kind_order(kind: str) -> tuple[int, str]:
    return (LINK_KINDS.index(kind) if kind in LINK_KINDS else len(LINK_KINDS), kind)


def _highest(values: Floats, is_candidate: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
    """Places of the largest values among the candidates."""
    places = np.flatnonzero(is_candidate)
    return places[np.argsort(-values[places], kind="stable")[:BUSIEST_LINKS]]


def transfer_chart(run: RunOutput) -> Chart | None:
    """Size against time of KV transfers, with the time that the NICs need at line rate."""
    sent = run.requests
    sent = sent[(sent["pd_p2p_comm_bytes"] > 0) & (sent["pd_p2p_comm_time_s"] > 0)]
    if sent.empty:
        return None
    shown = sent.iloc[thin(len(sent))]
    traces = [
        scatter(
            shown["pd_p2p_comm_bytes"] / 1e6,
            shown["pd_p2p_comm_time_s"] * 1e3,
            mode="markers",
            name="KV transfer",
            marker={"color": series_colour(0), "size": 5, "opacity": 0.5},
            text=[label(name) for name in shown["request_id"]],
            hovertemplate="request %{text}<br>%{x:.4g} MB in %{y:.4g} ms<extra></extra>",
        )
    ]
    sizes = np.array([sent["pd_p2p_comm_bytes"].min(), sent["pd_p2p_comm_bytes"].max()])
    times = [sent["pd_p2p_comm_time_s"].to_numpy(dtype=float) * 1e3]
    rates = line_rates_bps(run)
    for place, (name, rate) in enumerate(rates.items()):
        times.append(sizes * BITS_PER_BYTE / rate * 1e3)
        trace = scatter(
            sizes / 1e6,
            times[-1],
            mode="lines",
            name=f"{name}, {rate / 1e9:,.0f} Gbit/s",
            line={"color": FAINT, "width": 1.5, "dash": ("solid", "dash")[place]},
            hoverinfo="skip",
        )
        traces.append(trace)
    reading = (
        "Points above the line of the NICs in use share links or wait; points below it went over NVLink."
        if rates
        else "Higher points of equal size share links or wait; without links.parquet no line rate is known."
    )
    reading += "" if len(shown) == len(sent) else f" {len(shown):,} of {len(sent):,} transfers shown."
    frame = Frame("kv-transfers", "KV transfers", reading)
    return draw(frame, traces, log_axis("Size (MB)", sizes / 1e6), log_axis("Time (ms)", *times), showlegend=True)


def line_rates_bps(run: RunOutput) -> Mapping[str, float]:
    """Bit rate of one NIC, and of as many as one transfer can use: the smaller of both sides' ``tp · pp`` ranks."""
    if run.links is None:
        return {}
    nics = run.links.loc[run.links["kind"] == "nic", "capacity_bps"]
    if nics.empty:
        return {}
    nic = float(nics.median())
    ranks = min(_most_ranks(run.summary.pools, role) for role in ("prefill", "decode"))
    return {"1 NIC": nic} | ({f"{ranks} NICs": nic * ranks} if ranks > 1 else {})


def _most_ranks(pools: Sequence[PoolSummary], role: str) -> int:
    return max((pool.tp * pool.pp for pool in pools if pool.role == role), default=1)


def exposed_chart(run: RunOutput) -> Chart | None:
    """Distribution of the KV time that prefill did not hide."""
    sent = run.completed
    exposed = sent.loc[sent["pd_p2p_comm_bytes"] > 0, "kv_exposed_s"].dropna().to_numpy(dtype=float) * 1e3
    if not len(exposed):
        return None
    values, shares = cumulative_curve(exposed)
    trace = scatter(
        values,
        shares * 100,
        mode="lines",
        line={"color": series_colour(0), "width": 2, "shape": "hv"},
        hovertemplate="%{y:.1f} % ≤ %{x:.4g} ms<extra></extra>",
        showlegend=False,
    )
    reading = "From the end of prefill to the last KV byte at the decode side; zero means that prefill hid it."
    reading += f" Drawn through {len(values):,} of {len(exposed):,} values." if len(values) < len(exposed) else ""
    frame = Frame("kv-exposed", "Exposed KV time", reading)
    time, share = axis("Exposed KV time (ms)", rangemode="tozero"), axis("", range=[0, 101], ticksuffix=" %")
    return draw(frame, [trace], time, share)


def _link_colour(kind: str) -> str:
    return cast(Mapping[str, str], LINK_COLOURS).get(kind, FAINT)
