"""Ring all_reduce, all_gather and reduce_scatter with NCCL's loops, slices and FIFO credits.

Every channel owns a contiguous part of the buffer (all_gather, reduce_scatter: of every rank's block), whole cells of
NCCL's work split, and works through it in loops; a loop gives every rank one chunk, cut into two slices with Simple.
Small operations leave channels without a part; those that have one share the rate of all. A slice follows the data
order of `simccl.algorithms.merged_ring`. On a connection slices go one after the other, and one may go only when the
slice that had its FIFO slot, four back with Simple and eight back with LL and LL128, has been passed on. Loops may be
merged: fewer, with larger chunks. NCCL 2.30.7, src/device/all_reduce.h, all_gather.h, reduce_scatter.h and
prims_simple.h.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from simccl.algorithms.flow_rates import FlowRates, Lanes
from simccl.algorithms.merged_ring import RingHops, ring_hop_latency_ps, ring_steps
from simccl.collective import Collective, Protocol, check_flows, shares
from simccl.nccl.work_split import FIFO_STEPS, channel_offsets
from simccl.plan.edges import earlier_on_connection
from simccl.plan.flows import PARTIAL_SUM, Operation, PlannedFlows

_ALIGN_BYTES = 16

Size = TypeVar("Size", int, NDArray[np.int64])


@dataclass(frozen=True, slots=True)
class Loops:
    """Loops, chunks and slices into which a channel cuts its part."""

    chunk_bytes: int
    """Of one rank in one loop."""
    slices: int
    """Per chunk."""
    slots: int
    """Slices under way per connection."""

    @classmethod
    def of(cls, protocol: Protocol, chunk_bytes: int, coarsen: int) -> Loops:
        """NCCL's, so many loops merged into one: a slice is two FIFO steps with Simple, otherwise one."""
        if protocol is Protocol.SIMPLE:
            return cls(chunk_bytes * coarsen, slices=2, slots=FIFO_STEPS // 2)
        return cls(chunk_bytes * coarsen, slices=1, slots=FIFO_STEPS)


class _Slices(NamedTuple):
    """Slices, each of which travels as one along a ring; empty ones left out. One entry per slice."""

    channel: NDArray[np.int64]
    loop: NDArray[np.int64]
    place: NDArray[np.int64]
    """Place of the owner in the channel's ring."""
    slice: NDArray[np.int64]
    """Of its chunk."""
    offset: NDArray[np.int64]
    payload_bytes: NDArray[np.int64]


def ring_loop_flows(
    op: Collective, size_bytes: int, hops: RingHops, rates: FlowRates, loops: Loops, *, network_steps: int
) -> PlannedFlows:
    """The flows of a ring collective, slice by slice; ``hops`` has one ring per channel, equal ones included."""
    ranks = hops.orders.shape[1]
    parts = channel_offsets(op, size_bytes, ranks, rates.protocol, len(hops.orders))
    steps = ring_steps(op, ranks)
    loop_bytes = loops.chunk_bytes * (ranks if op is Collective.ALL_REDUCE else 1)
    count = int((-(-np.diff(parts) // loop_bytes)).sum())
    check_flows(count * ranks * loops.slices * steps, f"{op} of {ranks} ranks in {count} loops")
    found = _slices(op, size_bytes, hops, loops, parts)
    copies = op is Collective.ALL_GATHER
    step = np.tile(np.arange(steps), len(found.channel))
    channel, loop, place, part, offset, payload_bytes = (np.repeat(column, steps) for column in found)
    sender = (place + (0 if copies else 1) + step) % ranks
    latency_ps = ring_hop_latency_ps(hops, rates, steps, network_steps)
    waiting = np.flatnonzero(step > 0)
    queue = np.lexsort((part, step, loop, sender, channel))
    connection = (channel * ranks + sender)[queue]
    return Lanes(
        src=hops.orders[channel, sender],
        dst=hops.orders[channel, (sender + 1) % ranks],
        payload_bytes=payload_bytes,
        channel=channel,
        step=step,
        origin=hops.orders[channel, place] if copies else PARTIAL_SUM,
        offset=offset,
        operation=np.where((step < ranks - 1) & (not copies), Operation.REDUCE, Operation.COPY),
        latency_ps=latency_ps[hops.crosses[channel, sender].astype(np.intp)],
        wire_rate=rates.wire_rate(steps / ranks / (len(parts) - 1)),
        edges=(waiting, waiting - 1),
        order=earlier_on_connection(queue, connection, 1),
        credit=earlier_on_connection(queue, connection, loops.slots),
    ).flows(rates.protocol)


def _slices(op: Collective, size_bytes: int, hops: RingHops, loops: Loops, parts: NDArray[np.int64]) -> _Slices:
    """A loop of a channel has one chunk of every rank; ``parts`` are `channel_offsets`."""
    ranks = hops.orders.shape[1]
    blocks = shares(size_bytes, ranks)
    found = []
    for channel, (begin, end) in enumerate(pairwise(parts.tolist())):
        if op is Collective.ALL_REDUCE:
            chunks = _buffer_chunks(begin, end, ranks, loops.chunk_bytes)
        else:
            order = hops.orders[channel]
            first, last = (np.minimum(blocks[order] + cut, blocks[order + 1]) for cut in (begin, end))
            chunks = _block_chunks(first, last, loops.chunk_bytes)
        found.append(_cut(channel, *chunks, loops.slices))
    return _Slices(*(np.concatenate(column) for column in zip(*found, strict=True)))


def _buffer_chunks(begin: int, end: int, ranks: int, chunk_bytes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """[loops, ranks] first byte of chunks and byte after the last; the last loop shares what is left."""
    count = max(0, -(-(end - begin) // (ranks * chunk_bytes)))
    first = begin + np.arange(count, dtype=np.int64) * ranks * chunk_bytes
    chunk = np.minimum(chunk_bytes, _aligned(-(-(end - first) // ranks)))
    place = np.arange(ranks)
    starts = np.minimum(first[:, None] + place * chunk[:, None], end)
    return starts, np.minimum(starts + chunk[:, None], end)


def _block_chunks(
    begin: NDArray[np.int64], end: NDArray[np.int64], chunk_bytes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """[loops, ranks] first byte of the chunks of each rank's part of its block, and byte after the last."""
    count = -(-int((end - begin).max()) // chunk_bytes)
    starts = np.minimum(begin + np.arange(count, dtype=np.int64)[:, None] * chunk_bytes, end)
    return starts, np.minimum(starts + chunk_bytes, end)


def _cut(channel: int, starts: NDArray[np.int64], ends: NDArray[np.int64], slices: int) -> _Slices:
    length = _aligned(-(-(ends - starts) // slices))[..., None]
    begin = np.minimum(starts[..., None] + np.arange(slices) * length, ends[..., None])
    size = np.minimum(begin + length, ends[..., None]) - begin
    loop, place, part = np.nonzero(size)
    kept = (loop, place, part)
    return _Slices(np.full(len(loop), channel), *kept, begin[kept], size[kept])


def _aligned(value: Size) -> Size:
    """Up to whole LL lines and the alignment of vector loads."""
    return -(-value // _ALIGN_BYTES) * _ALIGN_BYTES
