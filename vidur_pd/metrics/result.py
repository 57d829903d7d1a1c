"""What a simulation leaves behind."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from netsim import LinkLog, Topology
from vidur_pd.config import SimulationConfig
from vidur_pd.execution.coupling.plan import CouplingPlan
from vidur_pd.kv_transfer.sender import FlowRow
from vidur_pd.metrics.columns import KEY, Column, values_of
from vidur_pd.metrics.iterations import IterationLog
from vidur_pd.metrics.links import CapacityChange, link_columns
from vidur_pd.metrics.requests import RequestRecord, RequestTable
from vidur_pd.metrics.summary import Summary
from vidur_pd.metrics.tally import RequestTally
from vidur_pd.workload import Workload


@dataclass(frozen=True, eq=False)
class Result:
    """What a simulation leaves behind."""

    config: SimulationConfig
    workload: Workload
    table: RequestTable
    """In the order of the workload; empty where a stream has taken the requests."""
    tally: RequestTally
    """Latencies of all requests, also where a stream has taken their rows."""
    iterations: IterationLog
    links: LinkLog
    capacity_changes: list[CapacityChange]
    coupling: CouplingPlan
    end_ps: int
    """When the last thing happened."""
    flows: list[FlowRow]
    topology: Topology
    measured: str | None
    """Content of ``measured.json``; ``None`` where all was simulated."""
    summary: Summary

    @cached_property
    def requests(self) -> list[RequestRecord]:
        """The table as records."""
        return self.table.records()

    def link_columns(self) -> dict[str, Any]:
        """Columns of ``links.parquet``."""
        return link_columns(self.links, self.topology, self.coupling, self.capacity_changes, self.end_ps)

    def flow_columns(self) -> dict[str, Any]:
        """Columns of ``flows.parquet``: every flow of every KV transfer, in order of arrival of its transfer."""
        return values_of(FLOW_COLUMNS, self.flows)


def _of_flows(name: str, unit: str, meaning: str) -> Column[list[FlowRow]]:
    return Column(name, unit, lambda rows: np.array([getattr(row, name) for row in rows], dtype=np.int64), meaning)


FLOW_COLUMNS: Final = (
    _of_flows("src", KEY, "GPU that sends"),
    _of_flows("dst", KEY, "GPU that receives"),
    _of_flows("size_bytes", "bytes", "size of the flow"),
    _of_flows("start_ps", "ps", "first byte"),
    _of_flows("end_ps", "ps", "last byte"),
)
"""Columns of ``flows.parquet``."""
