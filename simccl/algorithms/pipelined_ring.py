"""Broadcast and reduce, pipelined along a ring: NCCL 2.30.7, src/device/broadcast.h and reduce.h.

Every ring carries a share of the buffer from the root once around to the rank before it, or from the rank after the
root to it, adding up. A rank passes chunks on while later ones arrive, so that the time is that of one pass of the
bytes, not n−1 of them. Merged, a hop is one flow that streams; with chunks, a flow per hop and chunk.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simccl.algorithms.chunks import Chunks, chunked
from simccl.algorithms.flow_rates import FlowRates, Lanes
from simccl.collective import Collective, check_flows, shares
from simccl.plan.flows import PARTIAL_SUM, Operation, PlannedFlows

_PS_PER_US = 1_000_000


def pipelined_ring_flows(
    op: Collective,
    size_bytes: int,
    orders: NDArray[np.int32],
    rates: FlowRates,
    *,
    root: int,
    hops_us: float,
    chunks: Chunks | None,
) -> PlannedFlows:
    """The flows of a broadcast from ``root`` or a reduce to it.

    ``orders`` [rings, ranks] are distinct rings. NCCL's model counts ``hops_us`` for all hops together; every hop has
    an equal part. In chunks, or all at once.
    """
    rings, ranks = orders.shape
    place = np.argmax(orders == root, axis=1)[:, None]
    first = place + (1 if op is Collective.REDUCE else 0)
    path = np.take_along_axis(orders, (first + np.arange(ranks)) % ranks, axis=1)
    hops = ranks - 1
    bounds = shares(size_bytes, rings)
    used = np.flatnonzero(np.diff(bounds))
    check_flows(len(used) * hops, f"{op} of {ranks} ranks on {rings} rings")
    src, dst = path[used, :-1].ravel(), path[used, 1:].ravel()
    hop = np.tile(np.arange(hops), len(used))
    waiting = np.flatnonzero(hop > 0)
    whole = Lanes(
        src=src,
        dst=dst,
        payload_bytes=np.repeat(np.diff(bounds)[used], hops),
        channel=np.repeat(used, hops),
        step=hop,
        origin=PARTIAL_SUM,
        offset=np.repeat(bounds[used], hops),
        operation=Operation.REDUCE if op is Collective.REDUCE else Operation.COPY,
        latency_ps=np.full(len(src), round(hops_us / hops * _PS_PER_US), dtype=np.int64),
        wire_rate=rates.wire_rate(1 / rings),
        edges=(waiting, waiting - 1),
        streams=True,
    )
    return (whole if chunks is None else chunked(whole, chunks)).flows(rates.protocol)
