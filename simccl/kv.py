"""Hand-off of one request's KV cache from the GPUs of a prefill instance to those of a decode instance.

Who holds what, per layer: with grouped-query attention the KV heads are divided over the tensor-parallel ranks, and
repeated where there are more ranks than heads; the latent of multi-head latent attention is whole on every rank. A
pipeline stage holds its own layers. Every decode rank fetches exactly what it will hold, once: copies of a head or
latent on several prefill ranks serve different decode ranks. So the bytes that cross are S for as many ranks as heads
or fewer, S · tp / heads beyond, and S · tp for a latent (S: one full copy).

The recurrent state of hybrid models is divided by its own heads and leaves at the end of prefill.

Assumed: decode starts empty (leave out layers' bytes that it already has). Ignored unless given: the control messages
that precede the first byte (``setup_ps``), and the cost of posting each descriptor (`Descriptors`). A pair of GPUs uses
the NICs of its two GPUs, or several rails of its nodes (`Striping`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from netsim.flow import FlowGraph
from simccl.collective import shares
from simccl.edges import ranges
from simccl.errors import InputError


@dataclass(frozen=True, slots=True)
class KvLayout:
    """Where one request's KV lives in an instance: ``gpus[stage · tp + rank]``, ``tp`` GPUs per pipeline stage.

    With data-parallel attention these are the GPUs of the one attention rank that has the request.
    """

    gpus: tuple[int, ...]
    tp: int
    pp: int = 1
    stage_layers: tuple[int, ...] | None = None
    """Layers of each stage; ``None``: as even as possible, the surplus on the first stages."""

    def __post_init__(self) -> None:
        if self.tp < 1 or self.pp < 1:
            raise InputError(f"tp, pp: found {self.tp}, {self.pp}, expected at least 1")
        if len(self.gpus) != self.tp * self.pp or len(set(self.gpus)) != len(self.gpus):
            raise InputError(f"gpus: found {list(self.gpus)}, expected tp·pp = {self.tp * self.pp} different GPUs")
        if self.stage_layers is not None and (len(self.stage_layers) != self.pp or min(self.stage_layers) < 0):
            raise InputError(f"stage_layers: found {list(self.stage_layers)}, expected {self.pp} counts, one per stage")

    def stage_of_layer(self, layers: int) -> NDArray[np.int64]:
        """[layers] pipeline stage that holds each layer.

        Raises:
            InputError: if ``stage_layers`` do not sum to ``layers``.
        """
        counts = np.diff(shares(layers, self.pp)) if self.stage_layers is None else np.array(self.stage_layers)
        if counts.sum() != layers:
            raise InputError(f"stage_layers: found {counts.sum()} layers in all, expected {layers}")
        return np.repeat(np.arange(self.pp), counts)


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Something that layers keep for a request: KV of its tokens, or a recurrent state."""

    layer_bytes: tuple[int, ...]
    """Bytes of one full copy per layer of the model; 0 where a layer keeps none."""
    heads: int | None
    """Heads it is divided by over tensor-parallel ranks; ``None``: whole on every rank (latent)."""

    def __post_init__(self) -> None:
        if self.heads is not None and self.heads < 1:
            raise InputError(f"heads: found {self.heads}, expected at least 1, or None for a latent")
        for layer, size in enumerate(self.layer_bytes):
            if size < 0 or (self.heads is not None and size % self.heads):
                raise InputError(
                    f"layer_bytes[{layer}]: found {size}, expected a multiple of {self.heads or 1} (heads), at least 0"
                )


@dataclass(frozen=True, slots=True)
class Descriptors:
    """Reads or writes that a connector posts: one per KV block, layer and region, each at a cost of its own."""

    size_bytes: int
    """Of one descriptor; NIXL: a block of one layer on one rank."""
    cost_ps: int
    """To post and complete one, besides the transfer; they are posted one after the other before a flow leaves."""

    def __post_init__(self) -> None:
        if self.size_bytes < 1 or self.cost_ps < 0:
            raise InputError(f"descriptors: found {self}, expected at least 1 byte and 0 ps")


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
            delay_ps=self.posting_ps[flow] + np.where(waits, 0, self.setup_ps),
            dep_offsets=np.concatenate(([0], np.cumsum(dep_counts))).astype(np.int64),
            deps=ranges(first[before[waits]], counts[before[waits]]),
            flow_label=np.zeros(len(flow), dtype=np.uint32),
            notify=np.zeros(len(flow), dtype=np.bool_),
        )

    def _legs(self) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
        """Source and destination of each leg, and how many legs each flow has."""
        if self.striping is None:
            return self.src, self.dst, np.ones(len(self.src), dtype=np.int64)
        flows = zip(self.src.tolist(), self.dst.tolist(), self.rail.tolist(), strict=True)
        legs = [list(pairwise(self.striping.stops(*flow))) for flow in flows]
        ends = np.array([leg for of_flow in legs for leg in of_flow], dtype=np.int32).reshape(-1, 2)
        return ends[:, 0], ends[:, 1], np.array([len(of_flow) for of_flow in legs], dtype=np.int64)


def kv_handoff_plan(
    source: KvLayout,
    destination: KvLayout,
    *,
    kv: LayerCache,
    state: LayerCache | None = None,
    layer_ready_ps: Sequence[int] | None = None,
    layers_per_flow: int | None = None,
    setup_ps: int = 0,
    descriptors: Descriptors | None = None,
    striping: Striping | None = None,
) -> KvHandoff:
    """The hand-off of one request: ``kv`` of the tokens that decode lacks, and the recurrent ``state`` if there is one.

    Without ``layers_per_flow`` each pair of GPUs has one flow; with it, one per so many layers, so that a flow can
    leave as soon as its last layer is ready. ``layer_ready_ps`` are times after submission, in the order of layers and
    not decreasing; the state leaves with the last of them. A flow posts the ``descriptors`` of its layers before it
    leaves; ``striping`` divides flows between nodes over several NICs.

    Raises:
        InputError: layouts, layers or times that do not fit together.
    """
    layers = len(kv.layer_bytes)
    ready = np.zeros(layers, dtype=np.int64) if layer_ready_ps is None else np.asarray(layer_ready_ps, dtype=np.int64)
    if state is not None and len(state.layer_bytes) != layers:
        raise InputError(f"state.layer_bytes: found {len(state.layer_bytes)} layers, expected {layers} as in kv")
    _check_schedule(layers, ready, layers_per_flow, setup_ps)
    stages = list(zip(source.stage_of_layer(layers).tolist(), destination.stage_of_layer(layers).tolist(), strict=True))
    transfers = []
    for cache in [kv] if state is None else [kv, state]:
        is_state = cache is state
        span = layers if is_state or layers_per_flow is None else layers_per_flow
        pairs = _rank_pairs(source.tp, destination.tp, cache.heads)
        for members in _layer_groups(cache, stages, span):
            from_stage, to_stage = stages[members[0]]
            copy_bytes = sum(cache.layer_bytes[layer] for layer in members)
            at_ps = int(ready[-1 if is_state else members[-1]])
            for i, j, heads in pairs:
                src, dst = source.gpus[from_stage * source.tp + i], destination.gpus[to_stage * destination.tp + j]
                size = copy_bytes * heads // (cache.heads or 1)
                layer_sizes = [cache.layer_bytes[layer] * heads // (cache.heads or 1) for layer in members]
                posting_ps = _posting_ps(layer_sizes, descriptors)
                whole = _Transfer(src, dst, size, members[0], members[-1], is_state, at_ps, posting_ps)
                transfers += [whole] if striping is None else _striped(whole, striping)
    return _handoff(transfers, setup_ps, striping)


class _Transfer(NamedTuple):
    """One flow, or a copy that stays on its GPU; the columns of `KvHandoff`."""

    src: int
    dst: int
    size_bytes: int
    first_layer: int
    last_layer: int
    is_state: bool
    ready_ps: int
    posting_ps: int
    rail: int = 0


def _posting_ps(layer_sizes: list[int], descriptors: Descriptors | None) -> int:
    if descriptors is None:
        return 0
    return descriptors.cost_ps * sum(-(-size // descriptors.size_bytes) for size in layer_sizes)


def _striped(whole: _Transfer, striping: Striping) -> list[_Transfer]:
    """Stripes of a transfer, each with its share of the descriptors."""
    return [
        whole._replace(size_bytes=size, rail=rail, posting_ps=-(-whole.posting_ps * size // whole.size_bytes))
        for rail, size in striping.stripes(whole.src, whole.dst, whole.size_bytes)
    ]


def _check_schedule(layers: int, ready: NDArray[np.int64], layers_per_flow: int | None, setup_ps: int) -> None:
    if len(ready) != layers or (layers and (ready[0] < 0 or (np.diff(ready) < 0).any())):
        raise InputError(f"layer_ready_ps: found {ready.tolist()}, expected {layers} times from 0, not decreasing")
    if layers_per_flow is not None and layers_per_flow < 1:
        raise InputError(f"layers_per_flow: found {layers_per_flow}, expected at least 1")
    if setup_ps < 0:
        raise InputError(f"setup_ps: found {setup_ps}, expected at least 0")


def _layer_groups(cache: LayerCache, stages: list[tuple[int, int]], span: int) -> list[list[int]]:
    """Layers that go in one flow: same pair of stages, same run of ``span`` layers, with something to send."""
    groups: dict[tuple[tuple[int, int], int], list[int]] = {}
    for layer, size in enumerate(cache.layer_bytes):
        if size:
            groups.setdefault((stages[layer], layer // span), []).append(layer)
    return list(groups.values())


def _rank_pairs(source_tp: int, destination_tp: int, heads: int | None) -> list[tuple[int, int, int]]:
    """(source rank, destination rank, heads carried): what each destination rank fetches, from whom.

    A latent is fetched from source rank ``i mod tp``. Of the copies of a head, destination ranks that hold it use
    different ones as far as there are: with a common divisor this is NIXL's rule floor(i · tp_source / tp_destination).
    """
    if heads is None:
        return [(j % source_tp, j, 1) for j in range(destination_tp)]
    holders: list[list[int]] = [[] for _ in range(heads)]
    for i in range(source_tp):
        for head in _heads_of(i, source_tp, heads):
            holders[head].append(i)
    readers: list[list[int]] = [[] for _ in range(heads)]
    for j in range(destination_tp):
        for head in _heads_of(j, destination_tp, heads):
            readers[head].append(j)
    carried: dict[tuple[int, int], int] = {}
    for head in range(heads):
        for place, j in enumerate(readers[head]):
            i = holders[head][place * len(holders[head]) // len(readers[head])]
            carried[i, j] = carried.get((i, j), 0) + 1
    return [(i, j, count) for (i, j), count in carried.items()]


def _heads_of(rank: int, tp: int, heads: int) -> range:
    """Heads of a tensor-parallel rank: an equal share, or one head that several ranks hold.

    Raises:
        InputError: unless ranks divide heads or heads divide ranks.
    """
    if heads % tp == 0:
        return range(rank * heads // tp, (rank + 1) * heads // tp)
    if tp % heads == 0:
        return range(rank * heads // tp, rank * heads // tp + 1)
    raise InputError(f"tp: found {tp} ranks for {heads} heads, expected one to divide the other")


def _handoff(transfers: list[_Transfer], setup_ps: int, striping: Striping | None) -> KvHandoff:
    """Columns of what crosses links, each pair's flows on a rail linked in the order in which they become ready."""
    crossing = sorted((t for t in transfers if t.src != t.dst), key=lambda t: t.ready_ps)
    last_of_pair: dict[tuple[int, int, int], int] = {}
    previous = []
    for flow, transfer in enumerate(crossing):
        pair = (transfer.src, transfer.dst, transfer.rail)
        previous.append(last_of_pair.get(pair, -1))
        last_of_pair[pair] = flow
    return KvHandoff(
        src=np.array([t.src for t in crossing], dtype=np.int32),
        dst=np.array([t.dst for t in crossing], dtype=np.int32),
        size_bytes=np.array([t.size_bytes for t in crossing], dtype=np.int64),
        first_layer=np.array([t.first_layer for t in crossing], dtype=np.int64),
        last_layer=np.array([t.last_layer for t in crossing], dtype=np.int64),
        is_state=np.array([t.is_state for t in crossing], dtype=np.bool_),
        ready_ps=np.array([t.ready_ps for t in crossing], dtype=np.int64),
        previous=np.array(previous, dtype=np.int64),
        posting_ps=np.array([t.posting_ps for t in crossing], dtype=np.int64),
        rail=np.array([t.rail for t in crossing], dtype=np.int64),
        striping=striping,
        setup_ps=setup_ps,
        local_bytes=sum(t.size_bytes for t in transfers if t.src == t.dst),
    )
