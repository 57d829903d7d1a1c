"""Columns of planned flows between ranks: bytes, dependencies and rates."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from netsim.flow import NO_FLOW
from simccl.plan.edges import Edges, joined, ranges

PARTIAL_SUM = -1
"""``origin`` of a flow that carries a reduction of several ranks' data."""


class Operation(IntEnum):
    """Operation of the receiver on the data of a flow."""

    COPY = 0
    REDUCE = 1


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Byte ranges of flows that carry more than one; flow ``i`` has entries ``offsets[i] … offsets[i + 1]``."""

    offsets: NDArray[np.int64]
    """[flows + 1]"""
    begin: NDArray[np.int64]
    """[pieces] first byte."""
    size_bytes: NDArray[np.int64]
    """[pieces]"""


@dataclass(frozen=True, slots=True, eq=False)
class PlannedFlows:
    """Columns of a plan, one entry per flow; ``deps`` is in CSR form as in `netsim.flow.FlowGraph`.

    A flow carries the bytes ``offset … offset + payload_bytes`` of the buffer of ``origin`` (all_to_all, send_recv:
    its send buffer), or of the collective's buffer where the origin is `PARTIAL_SUM` or the op is all_gather; where
    ``pieces`` are given, those bytes instead. Ends below the number of ranks n are ranks; n + k is the NVSwitch of
    node k, which adds up what reaches it (`Operation.REDUCE`) and sends copies of what it holds.
    """

    src: NDArray[np.int32]
    """[flows] rank or switch that sends."""
    dst: NDArray[np.int32]
    """[flows] rank or switch that receives."""
    payload_bytes: NDArray[np.int64]
    """[flows] user bytes, at least 1."""
    wire_bytes: NDArray[np.int64]
    """[flows] with the protocol's flags and padding."""
    channel: NDArray[np.int32]
    """[flows] NCCL's channel (merged plans: ring, tree or head), or the first one of a point-to-point message."""
    step: NDArray[np.int32]
    """[flows] position in the algorithm, e.g. ring step or all-to-all round, from 0."""
    origin: NDArray[np.int32]
    """[flows] rank whose data the flow carries, or `PARTIAL_SUM`."""
    offset: NDArray[np.int64]
    """[flows] first byte carried."""
    operation: NDArray[np.uint8]
    """[flows] `Operation`."""
    latency_ps: NDArray[np.int64]
    """[flows] hardware latency of the hop, propagation included; never the base latency."""
    max_rate_bytes_per_s: NDArray[np.float64]
    """[flows] wire bytes per second that its channel sends at most; 0: as fast as the links."""
    streams: NDArray[np.bool_]
    """[flows] whether the flow passes its dependencies' data on while they arrive, one hop latency behind."""
    dep_offsets: NDArray[np.int64]
    """[flows + 1]"""
    deps: NDArray[np.int64]
    """[edges] flows whose data this one needs."""
    order: NDArray[np.int64] | None = None
    """[flows] previous flow on the same connection, which must have been sent, or `NO_FLOW`; None: all free."""
    credit: NDArray[np.int64] | None = None
    """[flows] earlier flow on the same connection whose FIFO slot this one takes, or `NO_FLOW`; None: all free.

    The slot is free when the receiver has passed the data on, or has it where it stays.
    """
    pieces: Pieces | None = None

    def __len__(self) -> int:
        return len(self.src)

    def data_edges(self) -> Edges:
        """Data edges: (flow, flow whose data it needs)."""
        return np.repeat(np.arange(len(self)), np.diff(self.dep_offsets)), self.deps

    def order_edges(self) -> Edges:
        """Order edges: (flow, previous flow on the same connection)."""
        return _present(self.order) if self.order is not None else joined([])

    def credit_edges(self) -> Edges:
        """Credit edges: (flow, flow whose arrival frees the FIFO slot that it needs).

        A slot is free when its data has arrived and has been passed on, which waits for the connections that it takes.
        """
        if self.credit is None:
            return joined([])
        waiting, slot = _present(self.credit)
        forwarder, passed_on = self.data_edges()
        by_slot = np.argsort(passed_on, kind="stable")
        counts = np.bincount(passed_on, minlength=len(self))
        first = np.cumsum(counts) - counts
        forwarders = forwarder[by_slot][ranges(first[slot], counts[slot])]
        busy = (np.repeat(waiting, counts[slot]), forwarders if self.order is None else self.order[forwarders])
        queued = busy[1] != NO_FLOW
        return joined([(waiting, slot), (busy[0][queued], busy[1][queued])])


def no_flows() -> PlannedFlows:
    """The columns of a plan that moves nothing: one rank, or zero bytes."""
    none32, none64 = np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64)
    return PlannedFlows(
        src=none32,
        dst=none32,
        payload_bytes=none64,
        wire_bytes=none64,
        channel=none32,
        step=none32,
        origin=none32,
        offset=none64,
        operation=np.zeros(0, dtype=np.uint8),
        latency_ps=none64,
        max_rate_bytes_per_s=np.zeros(0, dtype=np.float64),
        streams=np.zeros(0, dtype=np.bool_),
        dep_offsets=np.zeros(1, dtype=np.int64),
        deps=none64,
    )


def _present(awaited: NDArray[np.int64]) -> Edges:
    waiting = np.flatnonzero(awaited != NO_FLOW)
    return waiting, awaited[waiting]
