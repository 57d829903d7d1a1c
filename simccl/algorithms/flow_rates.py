"""Rates at which the cost model lets an algorithm run, and flows that keep to them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simccl.collective import PROTOCOLS, Protocol, wire_bytes, wire_share
from simccl.nccl.costs import Choice
from simccl.plan.edges import Edges, csr
from simccl.plan.flows import Pieces, PlannedFlows
from simccl.plan.lowering import PortRates

PS_PER_US = 1_000_000


@dataclass(frozen=True, slots=True)
class FlowRates:
    """The cost model's latencies and bandwidth of one algorithm and protocol for one size."""

    protocol: Protocol
    base_latency_us: float
    nvlink_hop_us: float
    network_hop_us: float
    bytes_per_s: float
    """Size over transfer time: algorithm bandwidth at this size, all channels together."""

    @classmethod
    def of(cls, choice: Choice, size_bytes: int) -> FlowRates:
        """The rates of what NCCL chose, or was made to choose."""
        costs, p = choice.costs, PROTOCOLS.index(choice.protocol)
        size = np.array([size_bytes], dtype=np.int64)
        latency_us = float(costs.latencies_us(size)[p, 0])
        factor = float(costs.latency_factors(size)[p, 0])
        transfer_us = float(costs.times_us(size)[p, 0]) - latency_us
        return cls(
            protocol=choice.protocol,
            base_latency_us=float(costs.base_latency_us[p]) * factor,
            nvlink_hop_us=float(costs.nvlink_step_us[p]) * factor,
            network_hop_us=float(costs.network_step_us[p]) * factor,
            bytes_per_s=size_bytes / transfer_us * 1e6,
        )

    def hop_latency_ps(self, crosses: NDArray[np.bool_]) -> NDArray[np.int64]:
        """[flows] hardware latency of hops that cross to another node or do not."""
        latency_us: NDArray[np.float64] = np.where(crosses, self.network_hop_us, self.nvlink_hop_us)
        return np.rint(latency_us * PS_PER_US).astype(np.int64)

    def wire_rate(self, share: float | NDArray[np.float64]) -> NDArray[np.float64]:
        """Wire bytes per second of a flow that moves this share of the buffer in the whole transfer time.

        A flow that has only one of k steps in turn for its bytes states k times its share.
        """
        return np.asarray(share * self.bytes_per_s * wire_share(self.protocol), dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Lanes:
    """Flows as an algorithm states them; `flows` fills in the other columns of `simccl.plan.flows.PlannedFlows`.

    Arrays are [flows], in any order; columns mean what they mean there.
    """

    src: NDArray[np.integer]
    dst: NDArray[np.integer]
    payload_bytes: NDArray[np.int64]
    channel: NDArray[np.integer]
    step: NDArray[np.integer]
    origin: NDArray[np.integer] | int
    """Rank whose data it is, or `simccl.plan.flows.PARTIAL_SUM`; or one for all."""
    offset: NDArray[np.int64]
    operation: NDArray[np.integer] | int
    """`simccl.plan.flows.Operation`; or one for all."""
    latency_ps: NDArray[np.int64]
    """`FlowRates.hop_latency_ps`."""
    wire_rate: NDArray[np.float64]
    """`FlowRates.wire_rate`; or one for all; 0: as fast as the links."""
    edges: Edges
    """Dependencies: (flow, flow whose data it needs), pairs of places in these arrays."""
    streams: bool = False
    """Every flow that waits for others passes their data on while it arrives."""
    order: NDArray[np.int64] | None = None
    credit: NDArray[np.int64] | None = None
    pieces: Pieces | None = None

    def flows(self, protocol: Protocol) -> PlannedFlows:
        """The columns of a plan."""
        count = len(self.src)
        dep_offsets, deps = csr(self.edges, count)
        return PlannedFlows(
            src=self.src.astype(np.int32),
            dst=self.dst.astype(np.int32),
            payload_bytes=self.payload_bytes,
            wire_bytes=wire_bytes(self.payload_bytes, protocol),
            channel=self.channel.astype(np.int32),
            step=self.step.astype(np.int32),
            origin=np.broadcast_to(self.origin, count).astype(np.int32),
            offset=self.offset,
            operation=np.broadcast_to(self.operation, count).astype(np.uint8),
            latency_ps=self.latency_ps,
            max_rate_bytes_per_s=np.broadcast_to(self.wire_rate, count).astype(np.float64),
            streams=(np.diff(dep_offsets) > 0) & self.streams,
            dep_offsets=dep_offsets,
            deps=deps,
            order=self.order,
            credit=self.credit,
            pieces=self.pieces,
        )


def fair_rates(
    ends: tuple[NDArray[np.integer], NDArray[np.integer]],
    payload: NDArray[np.int64],
    crosses: NDArray[np.bool_],
    batch: NDArray[np.int64],
    rates: PortRates,
) -> NDArray[np.float64]:
    """[flows] user bytes per second: the part of the busier port's rate that the flow has of that port's bytes.

    ``ends`` are senders and receivers, ``batch`` tells apart what does not run at the same time. Flows of a port then
    advance in proportion to their bytes and end together.
    """
    busiest = np.zeros(len(payload))
    kind = (2 * batch + crosses).astype(np.int32)
    kinds = int(kind.max(initial=0)) + 1
    for end in ends:
        port = end * kinds + kind
        np.maximum(busiest, np.bincount(port, weights=payload)[port], out=busiest)
    rate = payload / busiest
    rate *= np.where(crosses, rates.network_bytes_per_s, rates.nvlink_bytes_per_s)
    return rate
