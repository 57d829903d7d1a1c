"""What a simulation leaves behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from netsim import Topology
from netsim.topology import LinkKind
from vidur_pd.config import SimulationConfig
from vidur_pd.handoff import FlowRow
from vidur_pd.metrics.iterations import IterationLog
from vidur_pd.metrics.links import LinkLog
from vidur_pd.metrics.request_rows import Journey
from vidur_pd.workload import Workload


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """What a simulation leaves behind."""

    config: SimulationConfig
    workload: Workload
    journeys: list[Journey]
    iterations: IterationLog
    links: LinkLog
    flows: list[FlowRow]
    topology: Topology
    summary: dict[str, Any]

    def link_columns(self) -> dict[str, Any]:
        """Columns of ``links.parquet``."""
        columns: dict[str, Any] = self.links.columns()
        link = np.asarray(columns["link"], dtype=np.int64)
        names = np.array(self.topology.node_name, dtype=object)
        described = {
            "link": link,
            "src": names[self.topology.link_src[link]],
            "dst": names[self.topology.link_dst[link]],
            "kind": np.array([kind.name.lower() for kind in LinkKind], dtype=object)[self.topology.link_kind[link]],
            "capacity_bps": self.topology.capacity_bps[link],
        }
        return {**described, **{name: column for name, column in columns.items() if name != "link"}}

    def flow_columns(self) -> dict[str, Any]:
        """Columns of ``flows.parquet``: every flow of every KV transfer, in order of arrival of its transfer."""
        names = ("src", "dst", "size_bytes", "start_ps", "end_ps")
        return {name: np.array([getattr(flow, name) for flow in self.flows], dtype=np.int64) for name in names}
