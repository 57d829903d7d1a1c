"""Ring all_reduce, all_gather and reduce_scatter.

The buffer is cut into one block per rank and each block into one share per ring. A share travels as a chain of flows
along its ring, NCCL 2.30.7's data order (§ ring kernels of src/device): in all_reduce and reduce_scatter it leaves the
successor of its owner, is reduced at every hop and reaches its owner after n−1; in the second half of an all_reduce,
and in all_gather, it leaves the owner and is copied on. Chains are independent. A hop does not start before its chain
could have come so far at the ring's own bandwidth: a ring that finds its NVLinks less busy gets no faster by it, since
NCCL's channels are no faster. On an idle network every hop then starts on schedule and chains never wait for links.

Assumed: a share is one flow per hop. NCCL cuts it into chunks and slices that are pipelined through FIFO buffers; with
equal hop times this changes neither the sum of latencies nor that of transfers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simccl.collective import PROTOCOLS, Collective, Protocol, shares, wire_bytes
from simccl.communicator import Communicator
from simccl.lowering import PortRates
from simccl.plan import PARTIAL_SUM, Operation, PlannedFlows
from simccl.tuning import RingCosts

_PS_PER_US = 1_000_000
_PS_PER_S = 1_000_000_000_000


@dataclass(frozen=True, slots=True, eq=False)
class RingHops:
    """Rings laid over a communicator."""

    orders: NDArray[np.int32]
    """[rings, ranks] distinct rings; hop i of a ring leads from its entry i to entry i + 1."""
    crosses: NDArray[np.bool_]
    """[rings, ranks] whether that hop leads to another node."""

    @classmethod
    def over(cls, communicator: Communicator, channels: int) -> RingHops:
        """The distinct rings among so many channels, in the order of their first channel."""
        every = communicator.ring_orders(channels)
        _, first = np.unique(every, axis=0, return_index=True)
        orders = every[np.sort(first)]
        node = communicator.node_of_rank()
        return cls(orders=orders, crosses=node[orders] != node[np.roll(orders, -1, axis=1)])

    def most_crossings(self, steps: int) -> int:
        """The most hops between nodes that ``steps`` consecutive hops of any ring contain."""
        ranks = self.crosses.shape[1]
        turns = -(-steps // ranks) + 1
        passed = np.cumsum(np.tile(self.crosses, (1, turns)), axis=1, dtype=np.int64)
        passed = np.pad(passed, ((0, 0), (1, 0)))
        return int((passed[:, steps:] - passed[:, : passed.shape[1] - steps]).max())

    def rings_per_port(self, crosses: bool) -> int:
        """The most rings that share one GPU's network port (``crosses``) or NVLink port, in one direction."""
        senders = self.orders[self.crosses == crosses]
        receivers = np.roll(self.orders, -1, axis=1)[self.crosses == crosses]
        return max(int(np.bincount(ports).max()) if len(ports) else 1 for ports in (senders, receivers))


def ring_port_rates(hops: RingHops, bus_gbytes_per_s: float) -> PortRates:
    """User bytes per second at each kind of port when all rings together carry the bus bandwidth."""
    of_one_ring = bus_gbytes_per_s * 1e9 / len(hops.orders)
    return PortRates(of_one_ring * hops.rings_per_port(False), of_one_ring * hops.rings_per_port(True))


def ring_flows(op: Collective, size_bytes: int, hops: RingHops, protocol: Protocol, costs: RingCosts) -> PlannedFlows:
    """The flows of a ring collective over two or more ranks, chain by chain; empty shares send nothing."""
    rings, ranks = hops.orders.shape
    steps = costs.steps
    chains = _Chains.of(hops, size_bytes)
    copies = op is Collective.ALL_GATHER
    step = np.arange(steps)
    ring_bytes_per_s = costs.bus_gbytes_per_s[PROTOCOLS.index(protocol)] * 1e9 / rings
    sender = (chains.place[:, None] + (0 if copies else 1) + step) % ranks
    ring_of_hop = np.broadcast_to(chains.ring[:, None], sender.shape)
    is_reduce = np.broadcast_to(~copies & (step < ranks - 1), sender.shape)
    latency_ps = _hop_latency_ps(hops, protocol, costs, size_bytes)[hops.crosses[ring_of_hop, sender].astype(np.intp)]
    transfer_ps = (chains.payload_bytes * (_PS_PER_S / ring_bytes_per_s)).astype(np.int64)
    payload_bytes = np.repeat(chains.payload_bytes, steps)
    chained = np.broadcast_to(step > 0, sender.shape).ravel()
    return PlannedFlows(
        src=hops.orders[ring_of_hop, sender].ravel(),
        dst=hops.orders[ring_of_hop, (sender + 1) % ranks].ravel(),
        payload_bytes=payload_bytes,
        wire_bytes=wire_bytes(payload_bytes, protocol),
        channel=np.repeat(chains.ring, steps).astype(np.int32),
        step=np.tile(step, len(chains.ring)).astype(np.int32),
        origin=np.repeat(chains.owner if copies else np.full_like(chains.owner, PARTIAL_SUM), steps),
        offset=np.repeat(chains.offset, steps),
        operation=np.where(is_reduce, Operation.REDUCE, Operation.COPY).astype(np.uint8).ravel(),
        latency_ps=latency_ps.ravel(),
        not_before_ps=(np.cumsum(latency_ps, axis=1) - latency_ps + transfer_ps[:, None] * step).ravel(),
        dep_offsets=np.concatenate(([0], np.cumsum(chained, dtype=np.int64))),
        deps=np.flatnonzero(chained) - 1,
    )


class _Chains(NamedTuple):
    """Shares of the buffer that travel along a ring; empty ones left out."""

    ring: NDArray[np.int64]
    """[chains]"""
    place: NDArray[np.int64]
    """[chains] place of the owner in its ring"""
    owner: NDArray[np.int32]
    """[chains] rank whose block it is from"""
    offset: NDArray[np.int64]
    """[chains] first byte in the buffer"""
    payload_bytes: NDArray[np.int64]
    """[chains]"""

    @classmethod
    def of(cls, hops: RingHops, size_bytes: int) -> _Chains:
        """One block per rank of all, cut into one share per ring."""
        rings, ranks = hops.orders.shape
        block = shares(size_bytes, ranks)
        ring, index = (grid.ravel() for grid in np.indices((rings, ranks)))
        owner = hops.orders[ring, index]
        block_bytes = block[owner + 1] - block[owner]
        begin, end = (-(-(ring + side) * block_bytes // rings) for side in (0, 1))
        kept = end > begin
        offset = block[owner] + begin
        return cls(ring[kept], index[kept], owner[kept], offset[kept], (end - begin)[kept])


def _hop_latency_ps(hops: RingHops, protocol: Protocol, costs: RingCosts, size_bytes: int) -> NDArray[np.int64]:
    """[2] latency of a hop inside a node and of one between nodes.

    NCCL counts 2(N−1) or N−1 hops between nodes; the slowest chain of the plan may have more. The surplus of such a
    hop is scaled so that the slowest chain has the latency of the cost model.
    """
    p = PROTOCOLS.index(protocol)
    factor = costs.latency_factors(np.array([size_bytes]))[p, 0]
    inside, between = costs.nvlink_step_us[p], costs.network_step_us[p]
    crossings = hops.most_crossings(costs.steps)
    if crossings:
        between = inside + (between - inside) * costs.network_steps / crossings
    latency_us: NDArray[np.float64] = np.array([inside, between]) * factor
    return np.rint(latency_us * _PS_PER_US).astype(np.int64)
