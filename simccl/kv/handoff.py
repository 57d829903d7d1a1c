"""The flows of a KV hand-off, what precedes each, and how they are spread over the NICs of a node."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError
from netsim.flow import FlowGraph
from netsim.units import PS_PER_S
from simccl.collective import shares
from simccl.plan.edges import ranges


@dataclass(frozen=True, slots=True)
class Descriptors:
    """Reads or writes that a connector posts: one per KV block, layer and region, each at a cost of its own."""

    size_bytes: int
    """Of one descriptor; NIXL: a block of one layer and region on one rank."""
    cost_ps: int
    """To post and complete one, besides the transfer; they are posted one after the other."""
    regions: int = 1
    """Places that a layer is kept in, in equal parts: two where keys and values are apart."""

    def __post_init__(self) -> None:
        if self.size_bytes < 1 or self.cost_ps < 0 or self.regions < 1:
            raise InputError(f"descriptors: found {self}, expected at least 1 byte, 0 ps and 1 region")

    def counts(self, layer_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
        """[layers] descriptors of each layer."""
        return -(-layer_bytes // (self.size_bytes * self.regions)) * self.regions


def posting_rates_bps(size_bytes: NDArray[np.int64], posting_ps: NDArray[np.int64]) -> NDArray[np.int64]:
    """[flows] the rate at which the bytes of each are posted, at least 1 bit/s; 0, no limit, where it takes no time."""
    takes = posting_ps > 0
    rates = np.divide(8.0 * size_bytes * PS_PER_S, posting_ps, out=np.zeros(len(posting_ps)), where=takes)
    return np.where(takes, np.maximum(rates, 1), 0).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Striping:
    """Transfers between nodes spread over several NICs of the nodes, as Mooncake's transfer engine does.

    Rail r of a node is the NIC of its GPU r: a stripe goes over NVLink to that GPU, over its NIC to GPU r of the other
    node, and over NVLink to its destination, all at the same time.
    """

    gpus_per_node: int
    rails: int
    """NICs that a transfer is divided over, the sender's own first."""
    slice_bytes: int = 64 * 1024
    """Least that is worth a stripe; Mooncake divides transfers into slices of 64 KiB."""

    def __post_init__(self) -> None:
        if not 1 <= self.rails <= self.gpus_per_node or self.slice_bytes < 1:
            raise InputError(f"striping: found {self}, expected 1…gpus_per_node rails and slices of at least 1 byte")

    def stripes(self, src: int, dst: int, size_bytes: int) -> list[tuple[int, int]]:
        """(rail, bytes) of each stripe of a transfer; inside a node one, on the sender's rail."""
        own = src % self.gpus_per_node
        if src // self.gpus_per_node == dst // self.gpus_per_node:
            return [(own, size_bytes)]
        slices = -(-size_bytes // self.slice_bytes)
        cuts = np.minimum(shares(slices, min(self.rails, slices)) * self.slice_bytes, size_bytes)
        return [((own + k) % self.gpus_per_node, size) for k, size in enumerate(np.diff(cuts).tolist())]

    def stops(self, src: int, dst: int, rail: int) -> list[int]:
        """GPUs that a stripe passes, ends included."""
        if src // self.gpus_per_node == dst // self.gpus_per_node:
            return [src, dst]
        first, last = (gpu // self.gpus_per_node * self.gpus_per_node + rail for gpu in (src, dst))
        return list(dict.fromkeys((src, first, last, dst)))


@dataclass(frozen=True, slots=True, eq=False)
class KvHandoff:
    """The flows of a hand-off, GPU to GPU; what source and destination share a GPU for is `local_bytes`."""

    src: NDArray[np.int32]
    """[flows] GPU that sends."""
    dst: NDArray[np.int32]
    """[flows] GPU that receives."""
    size_bytes: NDArray[np.int64]
    """[flows]"""
    first_layer: NDArray[np.int64]
    """[flows] first layer carried."""
    last_layer: NDArray[np.int64]
    """[flows] last layer carried; layers between that belong to other stages are not."""
    is_state: NDArray[np.bool_]
    """[flows] recurrent state rather than KV."""
    ready_ps: NDArray[np.int64]
    """[flows] when its last layer is computed, relative to submission."""
    previous: NDArray[np.int64]
    """[flows] flow of the same pair and rail that goes first, or -1."""
    posting_ps: NDArray[np.int64]
    """[flows] to post its descriptors."""
    is_posting_overlapped: bool
    """A flow leaves at once, and is as fast as its descriptors are posted, at most."""
    rail: NDArray[np.int64]
    """[flows] NIC of the sender's node that it leaves by; without meaning where transfers are not striped."""
    striping: Striping | None
    setup_ps: int
    local_bytes: int
    """Bytes that stay on a GPU that is in both layouts."""

    @property
    def total_bytes(self) -> int:
        """Bytes that cross links."""
        return int(self.size_bytes.sum())

    def graph(self) -> FlowGraph:
        """The flow graph: flows of one pair in order, ``setup_ps`` before each pair's first.

        A stripe over another rail is two or three flows, its legs, which all run at the same time.
        """
        src, dst, counts = self._legs()
        first = np.cumsum(counts) - counts
        flow = np.repeat(np.arange(len(counts)), counts)
        before = self.previous[flow]
        waits = before >= 0
        dep_counts = np.where(waits, counts[before], 0) if len(flow) else waits.astype(np.int64)
        return FlowGraph(
            src=src,
            dst=dst,
            size_bytes=self.size_bytes[flow],
            ready_ps=self.ready_ps[flow],
            delay_ps=np.where(self.is_posting_overlapped, 0, self.posting_ps[flow]) + np.where(waits, 0, self.setup_ps),
            max_rate_bps=self._max_rates_bps()[flow],
            dep_offsets=np.concatenate(([0], np.cumsum(dep_counts))).astype(np.int64),
            deps=ranges(first[before[waits]], counts[before[waits]]),
            flow_label=np.zeros(len(flow), dtype=np.uint32),
            notify=np.zeros(len(flow), dtype=np.bool_),
        )

    def _max_rates_bps(self) -> NDArray[np.int64]:
        if not self.is_posting_overlapped:
            return np.zeros(len(self.src), dtype=np.int64)
        return posting_rates_bps(self.size_bytes, self.posting_ps)

    def _legs(self) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
        """Source and destination of each leg, and how many legs each flow has."""
        if self.striping is None:
            return self.src, self.dst, np.ones(len(self.src), dtype=np.int64)
        flows = zip(self.src.tolist(), self.dst.tolist(), self.rail.tolist(), strict=True)
        legs = [list(pairwise(self.striping.stops(*flow))) for flow in flows]
        ends = np.array([leg for of_flow in legs for leg in of_flow], dtype=np.int32).reshape(-1, 2)
        return ends[:, 0], ends[:, 1], np.array([len(of_flow) for of_flow in legs], dtype=np.int64)


def striped(whole: KvHandoff, striping: Striping) -> KvHandoff:
    """Its flows divided over rails, each stripe with its share of the descriptors.

    Where posting is overlapped the stripes of a flow are posted in turns, and each takes as long as all of them.
    """
    ends = zip(whole.src.tolist(), whole.dst.tolist(), whole.size_bytes.tolist(), strict=True)
    stripes = [(flow, *stripe) for flow, transfer in enumerate(ends) for stripe in striping.stripes(*transfer)]
    flow, rail, size_bytes = np.array(stripes, dtype=np.int64).reshape(-1, 3).T
    src, dst = whole.src[flow], whole.dst[flow]
    posting_ps, whole_bytes = whole.posting_ps.tolist(), whole.size_bytes.tolist()
    return replace(
        whole,
        src=src,
        dst=dst,
        size_bytes=size_bytes,
        first_layer=whole.first_layer[flow],
        last_layer=whole.last_layer[flow],
        is_state=whole.is_state[flow],
        ready_ps=whole.ready_ps[flow],
        previous=previous_of_same(zip(src.tolist(), dst.tolist(), rail.tolist(), strict=True)),
        posting_ps=np.array(
            [
                posting_ps[f] if whole.is_posting_overlapped else -(-posting_ps[f] * size // whole_bytes[f])
                for f, _, size in stripes
            ],
            dtype=np.int64,
        ),
        rail=rail,
        striping=striping,
    )


def previous_of_same(keys: Iterable[Hashable]) -> NDArray[np.int64]:
    """[flows] the last flow before each that has the same key, or -1."""
    last: dict[Hashable, int] = {}
    previous = []
    for flow, key in enumerate(keys):
        previous.append(last.get(key, -1))
        last[key] = flow
    return np.array(previous, dtype=np.int64)
