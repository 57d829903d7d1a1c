"""The network: how full links are, which are the busiest, and what KV transfers get out of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import cast

import numpy as np
import numpy.typing as npt

from vidur_pd.metrics.summary import PoolSummary
from vidur_pd.report.charts import Chart, Frame, Trace, axis, draw, label, log_axis, scatter, time_axis
from vidur_pd.report.colours import FAINT, LINK_COLOURS, series_colour
from vidur_pd.report.load import RunOutput
from vidur_pd.report.series import Floats, Intervals, Ints, cumulative_curve, middles, spread, thin
from vidur_pd.report.table import Table, Words, distinct, greatest, sums
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


def is_offered(links: Table) -> bool:
    """Some of what is shown is not what links carry but what they are offered (``metrics/links.py``)."""
    return bool(links.words["measure"].are("offered").any())


def measure_words(links: Table) -> tuple[str, str]:
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


def window_edges(links: Table) -> Floats:
    """The windows of the file as bins, or equal bins where there are too many of them."""
    edges = np.unique(np.concatenate([links["window_start_s"], links["window_end_s"]]))
    return edges if len(edges) <= MOST_WINDOWS else np.linspace(edges[0], edges[-1], MOST_WINDOWS + 1)


def mean_use_chart(links: Table) -> Chart:
    """Use over time by kind of link and traffic class, over the links that carry any traffic."""
    edges = window_edges(links)
    kinds, traffics = links.words["kind"], links.words["traffic"]
    first, _ = distinct(links.words["link"].codes)
    capacity_bps = sums(kinds.codes[first], links["capacity_bps"][first], len(kinds.names))
    traces = []
    for code, traffic_code in product(kinds.present(), traffics.present()):
        rows = np.flatnonzero((kinds.codes == code) & (traffics.codes == traffic_code))
        if not len(rows):
            continue
        kind, traffic = kinds.names[code], traffics.names[traffic_code]
        windows = (links["window_start_s"][rows], links["window_end_s"][rows])
        whole = Intervals(*windows, np.zeros(len(rows), dtype=np.int64), 1)
        bits = spread(whole, links["carried_bytes"][rows] * BITS_PER_BYTE, edges)[0]
        name = f"{kind}, {'KV' if traffic == 'kv' else traffic}"
        trace = scatter(
            middles(edges),
            bits / np.diff(edges) / float(capacity_bps[code]) * 100,
            name=label(name),
            mode="lines",
            line={"color": _link_colour(kind), "width": 1.8, "dash": TRAFFIC_DASHES.get(traffic, "dash")},
            hovertemplate=f"%{{y:.3g}} % at %{{x:.4g}} s<extra>{label(name)}</extra>",
        )
        traces.append(trace)
    reading = "Bits over the capacity of all links of a kind that carry anything: the average hides hot links."
    head, inside = measure_words(links)
    frame = Frame("links-mean", "Mean link use" if inside == "use" else "Mean offered load of links", reading)
    return draw(frame, traces, time_axis(edges), axis(f"{head} (%)", rangemode="tozero"), showlegend=True)


def peak_use_chart(links: Table) -> Chart:
    """Use of the fullest link of each kind over time, all traffic together."""
    edges = window_edges(links)
    first, use = _window_use(links)
    kinds = links.words["kind"].rows(first)
    fullest = _fullest(use, kinds, _middle_bins(links, edges)[first], len(edges) - 1)
    traces = [
        scatter(
            middles(edges),
            np.nan_to_num(fullest[code]) * 100,
            name=label(kinds.names[code]),
            mode="lines",
            line={"color": _link_colour(kinds.names[code]), "width": 1.8},
            hovertemplate=f"%{{y:.3g}} % at %{{x:.4g}} s<extra>{label(kinds.names[code])}</extra>",
        )
        for code in kinds.present()
    ]
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


def _burst_traces(links: Table, edges: Floats) -> list[Trace]:
    """The fullest burst of any link of a kind in each window; nothing for files without bursts."""
    kinds = links.words["kind"]
    fullest = _fullest(links["burst_use"], kinds, _middle_bins(links, edges), len(edges) - 1)
    return [
        scatter(
            middles(edges)[is_known],
            use[is_known] * 100,
            name=label(f"{kind}, fullest {BURST}"),
            mode="markers",
            marker={"color": _link_colour(kind), "size": 4, "opacity": 0.6},
            hovertemplate=f"%{{y:.3g}} % for {BURST} around %{{x:.4g}} s<extra>{label(kind)}</extra>",
        )
        for kind, use, is_known in zip(kinds.names, fullest, ~np.isnan(fullest), strict=True)
        if is_known.any()
    ]


def _middle_bins(links: Table, edges: Floats) -> Ints:
    """[rows] bin in which the middle of the window lies."""
    centres = (links["window_start_s"] + links["window_end_s"]) / 2
    return np.clip(np.searchsorted(edges, centres, side="right") - 1, 0, len(edges) - 2)


def _fullest(use: Floats, kinds: Words, bins: Ints, n_bins: int) -> Floats:
    """[kinds, bins] greatest use, NaN without any."""
    shape = (len(kinds.names), n_bins)
    return greatest(kinds.codes.astype(np.int64) * n_bins + bins, use, shape[0] * shape[1]).reshape(shape)


def link_windows(links: Table) -> tuple[Ints, Ints]:
    """Links in their windows, of which a row is one class of traffic: their first rows, and which each row is of."""
    starts, window = np.unique(links["window_start_s"], return_inverse=True)
    return distinct(links.words["link"].codes.astype(np.int64) * len(starts) + window)


def _window_use(links: Table) -> tuple[Ints, Floats]:
    """[`link_windows`] first rows, and use (0…1) by all classes of traffic together."""
    first, groups = link_windows(links)
    carried, possible = sums(groups, links["carried_bytes"], len(first)), links["capacity_bytes"][first]
    return first, np.divide(carried, possible, out=np.zeros(len(first)), where=possible > 0)


def busiest_links(links: Table, seconds: float) -> list[LinkUse]:
    """Of each kind the links of highest mean use over ``seconds``, highest first."""
    first, groups = distinct(links.words["link"].codes)
    known, carried_bytes = links.rows(first), links["carried_bytes"]

    def bytes_of(traffic: str) -> Floats:
        return sums(groups, carried_bytes * links.words["traffic"].are(traffic), len(first))

    capacity = known["capacity_bps"]
    mean = sums(groups, carried_bytes, len(first)) * BITS_PER_BYTE / (capacity * max(seconds, 1e-12))
    windows, use = _window_use(links)
    peak = greatest(groups[windows], use, len(first))
    burst = greatest(groups, links["burst_use"], len(first))
    kv, collective = bytes_of("kv"), bytes_of("collective")
    src, dst, kinds = (known.words[name] for name in ("src", "dst", "kind"))
    return [
        LinkUse(
            src=src[place],
            dst=dst[place],
            kind=kind,
            capacity_bps=float(capacity[place]),
            mean_use=float(mean[place]),
            peak_use=float(peak[place]),
            burst_use=float(burst[place]),
            kv_bytes=float(kv[place]),
            collective_bytes=float(collective[place]),
        )
        for kind in sorted(set(kinds), key=_kind_order)
        for place in _highest(mean, kinds.are(kind)).tolist()
    ]


def _kind_order(kind: str) -> tuple[int, str]:
    return (LINK_KINDS.index(kind) if kind in LINK_KINDS else len(LINK_KINDS), kind)


def _highest(values: Floats, is_candidate: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
    """Places of the largest values among the candidates."""
    places = np.flatnonzero(is_candidate)
    return places[np.argsort(-values[places], kind="stable")[:BUSIEST_LINKS]]


def transfer_chart(run: RunOutput) -> Chart | None:
    """Size against time of KV transfers, with the time that the NICs need at line rate."""
    requests = run.requests
    sent = np.flatnonzero((requests["pd_p2p_comm_bytes"] > 0) & (requests["pd_p2p_comm_time_s"] > 0))
    if not len(sent):
        return None
    sent_bytes, times_ms = requests["pd_p2p_comm_bytes"][sent], requests["pd_p2p_comm_time_s"][sent] * 1e3
    shown = thin(len(sent))
    traces = [
        scatter(
            sent_bytes[shown] / 1e6,
            times_ms[shown],
            mode="markers",
            name="KV transfer",
            marker={"color": series_colour(0), "size": 5, "opacity": 0.5},
            text=[label(name) for name in requests.words["request_id"].rows(sent[shown])],
            hovertemplate="request %{text}<br>%{x:.4g} MB in %{y:.4g} ms<extra></extra>",
        )
    ]
    sizes = np.array([sent_bytes.min(), sent_bytes.max()])
    times = [times_ms]
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
        else f"Higher points of equal size share links or wait; {_why_no_line(run.links)}."
    )
    reading += "" if len(shown) == len(sent) else f" {len(shown):,} of {len(sent):,} transfers shown."
    frame = Frame("kv-transfers", "KV transfers", reading)
    return draw(frame, traces, log_axis("Size (MB)", sizes / 1e6), log_axis("Time (ms)", *times), showlegend=True)


def _why_no_line(links: Table | None) -> str:
    """Why no line rate of NICs is drawn; links that carried nothing have no rows."""
    if links is None:
        return "without links.parquet no line rate is known"
    kinds = links.words["kind"]
    if kinds.are("nic").any():
        return "the rate of the NICs is not known"
    over = "KV went over NVLink" if kinds.are("nvlink").any() else "links.parquet names none"
    return f"no line rate of NICs is drawn, as none carried anything: {over}"


def line_rates_bps(run: RunOutput) -> Mapping[str, float]:
    """Bit rate of one NIC, and of as many as one transfer can use: the smaller of both sides' ``tp · pp`` ranks."""
    if run.links is None:
        return {}
    nics = run.links["capacity_bps"][run.links.words["kind"].are("nic")]
    if not len(nics):
        return {}
    nic = float(np.nanmedian(nics))
    ranks = min(_most_ranks(run.summary.pools, role) for role in ("prefill", "decode"))
    return {"1 NIC": nic} | ({f"{ranks} NICs": nic * ranks} if ranks > 1 else {})


def _most_ranks(pools: Sequence[PoolSummary], role: str) -> int:
    return max((pool.tp * pool.pp for pool in pools if pool.role == role), default=1)


def exposed_chart(run: RunOutput) -> Chart | None:
    """Distribution of the KV time that prefill did not hide."""
    sent = run.completed
    exposed = sent["kv_exposed_s"][(sent["pd_p2p_comm_bytes"] > 0) & sent.known("kv_exposed_s")] * 1e3
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
