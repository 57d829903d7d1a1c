"""Ring all_reduce, all_gather and reduce_scatter, with the loops of each ring merged.

The buffer is cut into one block per rank and each block into one share per ring. A share travels as a chain of flows
along its ring, NCCL 2.30.7's data order (§ ring kernels of src/device): in all_reduce and reduce_scatter it leaves the
successor of its owner, is reduced at every hop and reaches its owner after n−1; in the second half of an all_reduce,
and in all_gather, it leaves the owner and is copied on. Chains are independent, and none is faster than its ring, since
NCCL's channels are no faster on an idle link. On an idle network chains never wait for each other.

Assumed: a share is one flow per hop. Loops, chunks, slices and credits are in `simccl.algorithms.ring_loops`; merging
them changes neither the sum of latencies nor that of transfers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simccl.algorithms.flow_rates import FlowRates, Lanes
from simccl.collective import Collective, check_flows, shares
from simccl.communicator.communicator import Communicator
from simccl.plan.flows import PARTIAL_SUM, Operation, PlannedFlows


@dataclass(frozen=True, slots=True, eq=False)
class RingHops:
    """Rings laid over a communicator."""

    orders: NDArray[np.int32]
    """[rings, ranks] distinct rings; hop i of a ring leads from its entry i to entry i + 1."""
    crosses: NDArray[np.bool_]
    """[rings, ranks] whether that hop leads to another node."""

    @classmethod
    def over(cls, communicator: Communicator, channels: int) -> RingHops:
        """The distinct rings among so many channels, in the order of their first channel; the same for every size."""
        return _distinct_rings(communicator, channels)

    @classmethod
    def every(cls, communicator: Communicator, channels: int) -> RingHops:
        """One ring per channel, equal ones included."""
        return cls.along(communicator, communicator.ring_orders(channels))

    @classmethod
    def along(cls, communicator: Communicator, orders: NDArray[np.int32]) -> RingHops:
        """Given rings, one per row."""
        node = communicator.node_of_rank()
        return cls(orders=orders, crosses=node[orders] != node[np.roll(orders, -1, axis=1)])

    def most_crossings(self, steps: int) -> int:
        """The most hops between nodes that ``steps`` consecutive hops of any ring contain."""
        ranks = self.crosses.shape[1]
        turns = -(-steps // ranks) + 1
        passed = np.cumsum(np.tile(self.crosses, (1, turns)), axis=1, dtype=np.int64)
        passed = np.pad(passed, ((0, 0), (1, 0)))
        return int((passed[:, steps:] - passed[:, : passed.shape[1] - steps]).max())


@lru_cache(maxsize=64)
def _distinct_rings(communicator: Communicator, channels: int) -> RingHops:
    every = communicator.ring_orders(channels)
    _, first = np.unique(every, axis=0, return_index=True)
    return RingHops.along(communicator, every[np.sort(first)])


def ring_flows(op: Collective, size_bytes: int, hops: RingHops, rates: FlowRates, network_steps: int) -> PlannedFlows:
    """The flows of a ring collective over two or more ranks, chain by chain; empty shares send nothing.

    ``network_steps`` is how many of a chain's steps the cost model takes to be between nodes.
    """
    rings, ranks = hops.orders.shape
    steps = ring_steps(op, ranks)
    check_flows(rings * ranks * steps, f"{op} of {ranks} ranks on {rings} rings")
    chains = _Chains.of(hops, size_bytes)
    copies = op is Collective.ALL_GATHER
    step = np.arange(steps)
    sender = (chains.place[:, None] + (0 if copies else 1) + step) % ranks
    ring_of_hop = np.broadcast_to(chains.ring[:, None], sender.shape)
    is_reduce = np.broadcast_to(~copies & (step < ranks - 1), sender.shape)
    latency_ps = ring_hop_latency_ps(hops, rates, steps, network_steps)
    chained = np.broadcast_to(step > 0, sender.shape).ravel()
    waiting = np.flatnonzero(chained)
    return Lanes(
        src=hops.orders[ring_of_hop, sender].ravel(),
        dst=hops.orders[ring_of_hop, (sender + 1) % ranks].ravel(),
        payload_bytes=np.repeat(chains.payload_bytes, steps),
        channel=np.repeat(chains.ring, steps),
        step=np.tile(step, len(chains.ring)),
        origin=np.repeat(chains.owner if copies else np.full_like(chains.owner, PARTIAL_SUM), steps),
        offset=np.repeat(chains.offset, steps),
        operation=np.where(is_reduce, Operation.REDUCE, Operation.COPY).ravel(),
        latency_ps=latency_ps[hops.crosses[ring_of_hop, sender].astype(np.intp)].ravel(),
        wire_rate=rates.wire_rate(steps / ranks / rings),
        edges=(waiting, waiting - 1),
    ).flows(rates.protocol)


def ring_steps(op: Collective, ranks: int) -> int:
    """Hops that a block makes."""
    return (2 if op is Collective.ALL_REDUCE else 1) * (ranks - 1)


def ring_hop_latency_ps(hops: RingHops, rates: FlowRates, steps: int, network_steps: int) -> NDArray[np.int64]:
    """[2] latency of a hop inside a node and of one between nodes.

    NCCL counts 2(N−1) or N−1 hops between nodes; the slowest chain of the plan may have more. The surplus of such a
    hop is scaled so that the slowest chain has the latency of the cost model.
    """
    inside, between = rates.hop_latency_ps(np.array([False, True])).tolist()
    crossings = hops.most_crossings(steps)
    if crossings:
        between = round(inside + (between - inside) * network_steps / crossings)
    return np.array([inside, between], dtype=np.int64)


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
