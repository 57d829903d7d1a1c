"""Chunks of NCCL, into which the merged flows of pipelined algorithms are cut."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simccl.algorithms.flow_rates import Lanes
from simccl.collective import check_flows
from simccl.plan.edges import earlier_on_connection, ranges

_SLOTS = 8
"""FIFO steps per connection, one chunk each (NCCL 2.30.7, NCCL_STEPS)."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """Chunks into which NCCL cuts the data of a pipelined algorithm."""

    chunk_bytes: int
    channels: int
    """Channels among which the flows' connections are divided."""
    passes_on_parts: bool
    """Whether a chunk is passed on while it arrives: LL and LL128 have flags in every line, NVLS works on registers.
    Simple has one flag per chunk."""


def chunked(whole: Lanes, chunks: Chunks) -> Lanes:
    """The flows cut into chunks that follow each other on every flow's connection, with eight credits per channel.

    Flows that wait for each other carry the same bytes, so that chunk j of one waits for chunk j of the other. The
    connections of channels with the same ring, tree or head are one, faster and with more credits.
    """
    chunk_bytes = chunks.chunk_bytes
    slots = _SLOTS * max(1, chunks.channels // len(np.unique(whole.channel)))
    counts = -(-whole.payload_bytes // chunk_bytes)
    check_flows(int(counts.sum()), f"chunks of {chunk_bytes} bytes")
    first = np.cumsum(counts) - counts
    of_flow = np.repeat(np.arange(len(counts)), counts)
    chunk = ranges(np.zeros_like(counts), counts)
    waiting, awaited = whole.edges
    edge_counts = counts[waiting]
    queue = np.arange(len(of_flow))
    rest = whole.payload_bytes[of_flow] - chunk * chunk_bytes
    return replace(
        whole,
        src=whole.src[of_flow],
        dst=whole.dst[of_flow],
        payload_bytes=np.minimum(rest, chunk_bytes),
        channel=whole.channel[of_flow],
        step=whole.step[of_flow],
        origin=_picked(whole.origin, of_flow),
        offset=whole.offset[of_flow] + chunk * chunk_bytes,
        operation=_picked(whole.operation, of_flow),
        latency_ps=whole.latency_ps[of_flow],
        wire_rate=np.broadcast_to(whole.wire_rate, len(counts))[of_flow],
        edges=(ranges(first[waiting], edge_counts), ranges(first[awaited], edge_counts)),
        streams=chunks.passes_on_parts,
        order=earlier_on_connection(queue, of_flow, 1),
        credit=earlier_on_connection(queue, of_flow, slots),
    )


def _picked(values: NDArray[np.integer] | int, of_flow: NDArray[np.int64]) -> NDArray[np.integer] | int:
    return values[of_flow] if isinstance(values, np.ndarray) else values
