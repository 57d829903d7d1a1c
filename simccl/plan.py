"""Plans: a collective as a dependency graph of flows between ranks, with what each flow carries."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from netsim.flow import FlowGraph
from simccl.collective import Algorithm, Collective, Protocol
from simccl.communicator import Communicator
from simccl.lowering import PortRates, lower

PARTIAL_SUM = -1
"""``origin`` of a flow that carries a reduction of several ranks' data."""


class Operation(IntEnum):
    """What the receiver does with the data of a flow."""

    COPY = 0
    REDUCE = 1


@dataclass(frozen=True, slots=True, eq=False)
class PlannedFlows:
    """Columns of a plan, one entry per flow; ``deps`` is in CSR form as in `netsim.flow.FlowGraph`.

    A flow carries the bytes ``offset … offset + payload_bytes`` of the buffer of ``origin`` (all_to_all, send_recv:
    its send buffer), or of the collective's buffer where the origin is `PARTIAL_SUM` or the op is all_gather.
    """

    src: NDArray[np.int32]
    """[flows] rank that sends."""
    dst: NDArray[np.int32]
    """[flows] rank that receives."""
    payload_bytes: NDArray[np.int64]
    """[flows] user bytes, at least 1."""
    wire_bytes: NDArray[np.int64]
    """[flows] with the protocol's flags and padding."""
    channel: NDArray[np.int32]
    """[flows] ring (distinct orders only), or the first of NCCL's channels that a point-to-point message uses."""
    step: NDArray[np.int32]
    """[flows] ring step or all-to-all round, from 0."""
    origin: NDArray[np.int32]
    """[flows] rank whose data it is, or `PARTIAL_SUM`."""
    offset: NDArray[np.int64]
    """[flows] first byte carried."""
    operation: NDArray[np.uint8]
    """[flows] `Operation`."""
    latency_ps: NDArray[np.int64]
    """[flows] hardware latency of the hop, propagation included; never the base latency."""
    not_before_ps: NDArray[np.int64]
    """[flows] earliest start after the base latency: the pace of a channel, which never exceeds its bandwidth."""
    dep_offsets: NDArray[np.int64]
    """[flows + 1]"""
    deps: NDArray[np.int64]
    """[edges] flows that must have arrived before."""

    def __len__(self) -> int:
        return len(self.src)


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """One collective on one communicator, ready to be put on a network.

    ``flows`` speaks of ranks and user bytes; `graph` maps it to GPUs and to what the links carry.
    """

    op: Collective
    size_bytes: int
    """As nccl-tests counts it; see `Collective`. For all_to_all_v the largest row sum."""
    communicator: Communicator
    algorithm: Algorithm
    protocol: Protocol
    channels: int
    """Channels NCCL would run this size on; flows of channels with the same ring are merged."""
    base_latency_ps: int
    """Paid once, before the first flows."""
    port_rates: PortRates
    flows: PlannedFlows

    def __len__(self) -> int:
        return len(self.flows)

    def graph(self) -> FlowGraph:
        """The flow graph between the communicator's GPUs; see `simccl.lowering` for the model."""
        return lower(self)

    def sent_bytes(self) -> NDArray[np.int64]:
        """[ranks] user bytes that each rank sends, forwarded data included."""
        totals = np.zeros(self.communicator.size, dtype=np.int64)
        np.add.at(totals, self.flows.src, self.flows.payload_bytes)
        return totals


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
        not_before_ps=none64,
        dep_offsets=np.zeros(1, dtype=np.int64),
        deps=none64,
    )
