"""Columns of ``links.parquet``: what links carried, in windows of equal width, and what they could have carried.

``measure`` says what bytes over capacity are. `USE` is what a link carries with everything else on it, at most all it
can. `OFFERED` is a load whose traffic was timed as if it was alone, collectives in coupling ``isolated`` and everything
on backend ``analytical``: the sum may be more than the link can carry, and then is what it would have to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from netsim import LinkLog, Topology
from netsim.topology import LinkKind
from vidur_pd.execution.coupling.plan import TRAFFIC, CouplingPlan, Treatment
from vidur_pd.metrics.columns import values_of
from vidur_pd.metrics.link_columns import LINK_COLUMNS, LinkRows
from vidur_pd.metrics.quantities import PS_PER_S
from vidur_pd.metrics.summary import LinkSummary

USE: Final = "use"
OFFERED: Final = "offered"

BITS_PER_BYTE: Final = 8


@dataclass(frozen=True, slots=True)
class CapacityChange:
    """A link has another capacity from an instant on, by a fault."""

    at_ps: int
    link: int
    capacity_bps: float


def measures(plan: CouplingPlan) -> tuple[str, str]:
    """What is known of each class of traffic, in the order of `TRAFFIC`."""
    transfers, collectives = (OFFERED if how is Treatment.PRICED else USE for how in (plan.transfers, plan.collectives))
    return transfers, collectives


def link_columns(
    log: LinkLog, topology: Topology, plan: CouplingPlan, changes: Sequence[CapacityChange], end_ps: int
) -> dict[str, NDArray[Any]]:
    """[rows] by name; the last window ends with the run.

    A link that is down counts as if it was up: what shows there is the rest of iterations that were in progress.
    """
    traffic, window, link, carried_bytes, burst_bytes = log.rows()
    names = np.array(topology.node_name, dtype=object)
    start_ps = window * log.window_ps
    until_ps = np.minimum(start_ps + log.window_ps, np.maximum(end_ps, start_ps + 1))
    rows = LinkRows(
        link=link,
        src=names[topology.link_src[link]],
        dst=names[topology.link_dst[link]],
        kind=np.array([kind.name.lower() for kind in LinkKind], dtype=object)[topology.link_kind[link]],
        capacity_bps=topology.capacity_bps[link],
        traffic=np.array(TRAFFIC, dtype=object)[traffic],
        measure=np.array(measures(plan), dtype=object)[traffic],
        start_ps=start_ps,
        until_ps=until_ps,
        carried_bytes=carried_bytes,
        burst_use=_burst_use(topology, link, burst_bytes, log.burst_ps, until_ps - start_ps),
        capacity_bytes=_capacity_bytes(topology, link, start_ps, until_ps, changes),
    )
    return values_of(LINK_COLUMNS, rows)


def _burst_use(
    topology: Topology,
    link: NDArray[np.int64],
    burst_bytes: NDArray[np.float64],
    burst_ps: int,
    window_ps: NDArray[np.int64],
) -> NDArray[np.float64]:
    """[rows] share of the capacity without faults; a window that the end of the run cuts is no longer than that."""
    bits = burst_bytes * BITS_PER_BYTE * PS_PER_S
    return bits / (topology.capacity_bps[link].astype(np.float64) * np.minimum(burst_ps, window_ps))


def fullest_links(columns: dict[str, NDArray[Any]], run_s: float) -> tuple[LinkSummary, ...]:
    """Of each kind of link that carries something, the one with the highest mean use over the run.

    ``columns`` are those of ``links.parquet``.
    """
    if not len(columns["link"]) or run_s <= 0:
        return ()
    links, first, place = np.unique(columns["link"], return_index=True, return_inverse=True)
    carried = np.bincount(place, weights=columns["carried_bytes"])
    kv = np.bincount(place, weights=columns["carried_bytes"] * (columns["traffic"] == TRAFFIC[0]))
    capacity_bps, kinds = columns["capacity_bps"][first], columns["kind"][first]
    mean_use = carried * BITS_PER_BYTE / (capacity_bps * run_s)
    found = []
    for kind in sorted(set(kinds.tolist())):
        of_kind = np.flatnonzero(kinds == kind)
        at = int(of_kind[np.argmax(mean_use[of_kind])])
        row = int(first[at])
        mine = columns["link"] == links[at]
        peak_use, window_s = _fullest_window({name: values[mine] for name, values in columns.items()})
        burst_use = float(columns["burst_use"][mine].max())
        found.append(
            LinkSummary(
                kind=kind,
                src=str(columns["src"][row]),
                dst=str(columns["dst"][row]),
                capacity_bps=int(capacity_bps[at]),
                mean_use=float(mean_use[at]),
                peak_use=peak_use,
                window_s=window_s,
                burst_use=burst_use,
                kv_share=float(kv[at] / carried[at]) if carried[at] else None,
                measure=OFFERED if bool((columns["measure"][mine] == OFFERED).any()) else USE,
            )
        )
    return tuple(found)


def _fullest_window(rows: dict[str, NDArray[Any]]) -> tuple[float, float]:
    """Use of one link in its fullest window, all traffic together, and the width of that window in seconds."""
    starts, first, place = np.unique(rows["window_start_s"], return_index=True, return_inverse=True)
    use = np.bincount(place, weights=rows["carried_bytes"]) / np.maximum(rows["capacity_bytes"][first], 1e-12)
    fullest = int(np.argmax(use))
    return float(use[fullest]), float(rows["window_end_s"][first[fullest]] - starts[fullest])


def _capacity_bytes(
    topology: Topology,
    link: NDArray[np.int64],
    start_ps: NDArray[np.int64],
    until_ps: NDArray[np.int64],
    changes: Sequence[CapacityChange],
) -> NDArray[np.float64]:
    """[rows] what each link could have carried in its window, slow-downs by faults taken into account."""
    capacity_bps = topology.capacity_bps.astype(np.float64)
    possible = capacity_bps[link] * (until_ps - start_ps)
    now_bps = capacity_bps.copy()
    for change in changes:  # each holds from its instant on, instead of what held before
        rows = np.flatnonzero(link == change.link)
        left_ps = np.maximum(until_ps[rows] - np.maximum(start_ps[rows], change.at_ps), 0)
        possible[rows] += (change.capacity_bps - now_bps[change.link]) * left_ps
        now_bps[change.link] = change.capacity_bps
    return possible / (BITS_PER_BYTE * PS_PER_S)
