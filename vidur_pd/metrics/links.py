"""Rows of ``links.parquet``: what links carried, in windows of equal width, and what they could have carried.

``measure`` says what bytes over capacity are. `USE` is what a link carries beside everything else on it, at most all it
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
from vidur_pd.execution.coupling import CouplingPlan, Treatment
from vidur_pd.metrics.columns import KEY, TEXT, Column, values_of
from vidur_pd.metrics.quantities import PS_PER_S

TRAFFIC: Final = ("kv", "collective")
"""What flows of each ``FlowGraph.traffic`` are."""
KV: Final = TRAFFIC.index("kv")
COLLECTIVE: Final = TRAFFIC.index("collective")

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


@dataclass(frozen=True, slots=True, eq=False)
class LinkRows:
    """One row for every (traffic, window, link) that carried something."""

    traffic: NDArray[np.uint8]
    """Positions in `TRAFFIC`."""
    link: NDArray[np.int64]
    carried_bytes: NDArray[np.float64]
    start_ps: NDArray[np.int64]
    until_ps: NDArray[np.int64]
    topology: Topology
    plan: CouplingPlan
    changes: Sequence[CapacityChange]

    def node(self, ends: NDArray[np.int32]) -> NDArray[np.object_]:
        """[rows] names of the nodes at an end of the links."""
        return np.array(self.topology.node_name, dtype=object)[ends[self.link]]

    @property
    def capacity_bytes(self) -> NDArray[np.float64]:
        """[rows] what each link could have carried in its window, slow-downs by faults taken into account.

        A link that is down counts as if it was up: what shows there is the rest of iterations that were in progress.
        """
        now_bps = self.topology.capacity_bps.astype(np.float64)
        possible = now_bps[self.link] * (self.until_ps - self.start_ps)
        for change in self.changes:  # each holds from its instant on, instead of what held before
            rows = np.flatnonzero(self.link == change.link)
            left_ps = np.maximum(self.until_ps[rows] - np.maximum(self.start_ps[rows], change.at_ps), 0)
            possible[rows] += (change.capacity_bps - now_bps[change.link]) * left_ps
            now_bps[change.link] = change.capacity_bps
        return np.asarray(possible / (BITS_PER_BYTE * PS_PER_S))


KINDS: Final = np.array([kind.name.lower() for kind in LinkKind], dtype=object)

LINK_COLUMNS: Final[tuple[Column[LinkRows], ...]] = (
    Column("link", KEY, lambda rows: rows.link, "number of the link in the topology"),
    Column("src", TEXT, lambda rows: rows.node(rows.topology.link_src), "node that it leaves"),
    Column("dst", TEXT, lambda rows: rows.node(rows.topology.link_dst), "node that it enters"),
    Column("kind", TEXT, lambda rows: KINDS[rows.topology.link_kind[rows.link]], "nvlink, nic, fabric, …"),
    Column("capacity_bps", "bit/s", lambda rows: rows.topology.capacity_bps[rows.link], "capacity without faults"),
    Column("traffic", TEXT, lambda rows: np.array(TRAFFIC, dtype=object)[rows.traffic], "`kv` or `collective`"),
    Column(
        "measure",
        TEXT,
        lambda rows: np.array(measures(rows.plan), dtype=object)[rows.traffic],
        "`use`: what the link carried beside all other traffic; `offered`: what was timed as if it was alone",
    ),
    Column("window_start_s", "s", lambda rows: rows.start_ps / PS_PER_S, "begin of the window"),
    Column("window_end_s", "s", lambda rows: rows.until_ps / PS_PER_S, "end of the window, or of the run"),
    Column("carried_bytes", "bytes", lambda rows: rows.carried_bytes, "bytes of this traffic in the window"),
    Column(
        "capacity_bytes", "bytes", lambda rows: rows.capacity_bytes, "bytes that it could have carried, with faults"
    ),
)
"""Columns of ``links.parquet``."""


def link_columns(
    log: LinkLog, topology: Topology, plan: CouplingPlan, changes: Sequence[CapacityChange], end_ps: int
) -> dict[str, NDArray[Any]]:
    """[rows] by name; the last window ends with the run."""
    traffic, window, link, carried_bytes = log.rows()
    start_ps = window * log.window_ps
    until_ps = np.minimum(start_ps + log.window_ps, np.maximum(end_ps, start_ps + 1))
    return values_of(LINK_COLUMNS, LinkRows(traffic, link, carried_bytes, start_ps, until_ps, topology, plan, changes))
