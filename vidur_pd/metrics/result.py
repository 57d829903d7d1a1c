"""What a simulation leaves behind."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from netsim import LinkLog, Topology
from vidur_pd.config import SimulationConfig
from vidur_pd.execution.coupling.plan import CouplingPlan
from vidur_pd.kv.transfer.sender import FlowRow
from vidur_pd.metrics.attribution import attribution_columns
from vidur_pd.metrics.columns import KEY, TEXT, Column, values_of
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

    def attribution_columns(self) -> dict[str, Any]:
        """Columns of ``attribution.parquet``."""
        return attribution_columns(self.table)

    def batch_columns(self) -> dict[str, Any]:
        """Columns of ``batches.parquet``, once."""
        return values_of(BATCH_COLUMNS, BatchRows(self.iterations.members(), self.workload.request_ids))

    def flow_columns(self) -> dict[str, Any]:
        """Columns of ``flows.parquet``: every flow of every KV transfer, in order of arrival of its transfer."""
        return values_of(FLOW_COLUMNS, FlowRows(self.flows, self.workload.request_ids))


@dataclass(frozen=True, slots=True, eq=False)
class BatchRows:
    """One row for every request of every batch."""

    members: dict[str, NDArray[np.int64]]
    request_ids: tuple[str, ...]


def _of_members(name: str, unit: str, of: str, meaning: str) -> Column[BatchRows]:
    return Column(name, unit, lambda rows: rows.members[of], meaning)


BATCH_COLUMNS: Final[tuple[Column[BatchRows], ...]] = (
    _of_members("batch", KEY, "number", "number of the batch, as in `iterations.parquet`"),
    Column(
        "request_id",
        TEXT,
        lambda rows: np.array(rows.request_ids, dtype=object)[rows.members["request"]],
        "name of a request in it",
    ),
    _of_members(
        "new_tokens", "tokens", "new_tokens", "tokens that it computes in the first iteration, drafts included"
    ),
    _of_members(
        "kv_tokens", "tokens", "kv_tokens", "those that it has then, these included; one more in each that follows"
    ),
)
"""Columns of ``batches.parquet``."""


@dataclass(frozen=True, slots=True, eq=False)
class FlowRows:
    """One row for every flow of a KV transfer."""

    flows: list[FlowRow]
    request_ids: tuple[str, ...]

    def column(self, name: str) -> NDArray[np.int64]:
        return np.array([getattr(row, name) for row in self.flows], dtype=np.int64)

    @property
    def request_id(self) -> NDArray[np.object_]:
        return np.array([self.request_ids[row.request] for row in self.flows], dtype=object)


def _of_flows(name: str, unit: str, meaning: str) -> Column[FlowRows]:
    return Column(name, unit, lambda rows: rows.column(name), meaning)


FLOW_COLUMNS: Final[tuple[Column[FlowRows], ...]] = (
    _of_flows("src", KEY, "GPU that sends"),
    _of_flows("dst", KEY, "GPU that receives"),
    _of_flows("size_bytes", "bytes", "size of the flow"),
    _of_flows("start_ps", "ps", "first byte"),
    _of_flows("end_ps", "ps", "last byte"),
    Column("request_id", TEXT, lambda rows: rows.request_id, "request whose KV it is"),
)
"""Columns of ``flows.parquet``."""
