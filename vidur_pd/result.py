"""What a simulation leaves behind."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from netsim import LinkLog, Topology
from vidur_pd.config import SimulationConfig
from vidur_pd.execution.coupling.plan import CouplingPlan
from vidur_pd.kv_transfer.sender import FlowRow
from vidur_pd.metrics.iterations import IterationLog
from vidur_pd.metrics.links import CapacityChange, link_columns
from vidur_pd.metrics.requests import RequestRecord, RequestTable
from vidur_pd.workload import Workload


@dataclass(frozen=True, eq=False)
class Result:
    """What a simulation leaves behind."""

    config: SimulationConfig
    workload: Workload
    table: RequestTable
    """In the order of the workload; empty where a stream has taken the requests."""
    iterations: IterationLog
    links: LinkLog
    capacity_changes: list[CapacityChange]
    coupling: CouplingPlan
    end_ps: int
    """When the last thing happened."""
    flows: list[FlowRow]
    topology: Topology
    summary: dict[str, Any]

    @cached_property
    def requests(self) -> list[RequestRecord]:
        """The table as records."""
        return self.table.records()

    def write(self, folder: str | Path) -> None:
        """Writes requests.csv, summary.json, config.yaml, report.html and what ``output`` asks for.

        Raises:
            InputError: where a result cannot be, or a file of the user would be in its way.
            OutputError: the disk is full.
        """
        from vidur_pd.metrics.output import write_result

        write_result(self, Path(folder))

    def link_columns(self) -> dict[str, Any]:
        """Columns of ``links.parquet``."""
        return link_columns(self.links, self.topology, self.coupling, self.capacity_changes, self.end_ps)

    def flow_columns(self) -> dict[str, Any]:
        """Columns of ``flows.parquet``: every flow of every KV transfer, in order of arrival of its transfer."""
        names = ("src", "dst", "size_bytes", "start_ps", "end_ps")
        return {name: np.array([getattr(flow, name) for flow in self.flows], dtype=np.int64) for name in names}
