"""KV transfers on the network: what is sent between two ranks, and which links carry it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

import simccl
from aicb import Model, Precision, stage_layers
from aicb.model.architecture import GatedDeltaNet, GroupedQueryAttention, LatentAttention
from aicb.model.precision import ELEMENT_BYTES
from netsim import FlowGraph, GraphHandle, NetworkBackend, NoPath, Topology
from netsim.routing import Router as PathFinder
from vidur_pd._core import Loop
from vidur_pd.execution.network_clock import catch_up
from vidur_pd.instance import Rank

LANES_KEPT: Final = 16_384
"""Pairs of ranks whose flows and links are kept; a lane has 2 to 4 KB."""


class _Contents(NamedTuple):
    """What of a request a transfer carries, and how."""

    with_tokens: bool
    with_state: bool
    layer_by_layer: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Lane:
    """Transfers of some contents from one rank to another: their flows, and the links of these."""

    flows: simccl.KvFlows
    links: NDArray[np.int64]
    """[links] all that flows cross, ascending."""
    pairs_on_link: NDArray[np.int64]
    """[links] pairs that cross each."""


@dataclass(frozen=True, slots=True, eq=False)
class _OnTheWay:
    """A transfer on the network."""

    lane: _Lane
    graph: FlowGraph
    ends: tuple[Rank, Rank, _Contents]


@dataclass(frozen=True, slots=True)
class Sent:
    """A transfer that has been put on the network."""

    handle: GraphHandle
    size_bytes: int
    first_byte_ps: int


@dataclass(frozen=True, slots=True)
class Computation:
    """When the layers of a chunk of prompt are computed: evenly spread over this time."""

    start_ps: int
    end_ps: int

    def layers_after(self, now_ps: int, layers: int) -> NDArray[np.int64]:
        """[layers] time from ``now_ps`` until each layer is ready, 0 for those that are."""
        computed_ps = (self.end_ps - self.start_ps) * np.arange(1, layers + 1) // layers
        return np.maximum(computed_ps + (self.start_ps - now_ps), 0)


@dataclass(frozen=True, slots=True)
class FlowRow:
    """One flow of an arrived transfer."""

    src: int
    dst: int
    size_bytes: int
    start_ps: int
    end_ps: int


@dataclass(frozen=True, slots=True)
class _Kept:
    """What the layers of a model keep for a request: KV per token, and a recurrent state."""

    token_bytes: tuple[int, ...]
    """[layers] one copy"""
    kv_heads: int | None
    """Heads the KV is divided by; ``None``: a latent, whole on every rank."""
    state: simccl.LayerCache | None


class KvWire:
    """Sends the KV cache of requests between the GPUs of two ranks over the shared network.

    The GPUs of a prefill rank all hold an MLA latent; the one on the destination's rail sends it, which spreads
    transfers over NICs and keeps them off the spines. Set-up (descriptors, first round trip) precedes the first byte.
    """

    def __init__(
        self,
        model: Model,
        precision: Precision,
        network: NetworkBackend,
        topology: Topology,
        loop: Loop,
        *,
        setup_ps: int,
        keep_flows: bool,
    ) -> None:
        self._model = model
        self._kept = _kept_by_layers(model, precision)
        self._network = network
        self._topology = topology
        self._paths = PathFinder(topology)
        self._loop = loop
        self._setup_ps = setup_ps
        self._on_the_way: dict[GraphHandle, _OnTheWay] = {}
        self._layouts: dict[tuple[Rank, int], simccl.KvLayout] = {}
        self._templates: dict[tuple[int, ...], simccl.KvTemplate] = {}
        self._lane = lru_cache(LANES_KEPT)(self._new_lane)
        self.flows: list[FlowRow] | None = [] if keep_flows else None

    @property
    def active(self) -> int:
        """Transfers on the network."""
        return len(self._on_the_way)

    @property
    def has_state(self) -> bool:
        """The model keeps a recurrent state that travels once, whatever the prompt."""
        return self._kept.state is not None

    def send(
        self,
        source: Rank,
        destination: Rank,
        tokens: int,
        *,
        with_state: bool,
        now_ps: int,
        computed: Computation | None,
    ) -> Sent:
        """Puts the KV of ``tokens`` on the network, each layer once it is ready; ``None``: all are."""
        contents = _Contents(tokens > 0, with_state and self.has_state, computed is not None)
        lane = self._lane(source, destination, contents)
        ready_ps = None if computed is None else computed.layers_after(now_ps, len(self._model.pattern))
        graph = lane.flows.graph(tokens, ready_ps)
        handle = self._network.submit(graph, now_ps)
        self._put(handle, _OnTheWay(lane, graph, (source, destination, contents)))
        first_ready_ps = int(graph.ready_ps.min()) if len(graph) else 0
        return Sent(handle, int(graph.size_bytes.sum()), now_ps + first_ready_ps + self._setup_ps)

    def arrived(self, handle: GraphHandle) -> None:
        """A transfer is no longer under way."""
        graph = self._off_the_way(handle).graph
        if self.flows is not None:
            times = self._network.flow_times(handle)
            columns = (graph.src, graph.dst, graph.size_bytes, times.start_ps, times.end_ps)
            self.flows += [FlowRow(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
        self._network.forget(handle)

    def abandon(self, handle: GraphHandle, now_ps: int) -> int:
        """Takes a transfer off the network, or forgets one that failed; returns the bytes that have not got through."""
        catch_up(self._network, now_ps)
        sent = self._off_the_way(handle)
        self._network.cancel(handle)
        got_through = self._network.sent_bytes(handle)
        self._network.forget(handle)
        return int((sent.graph.size_bytes - got_through).sum())

    def links_change(self, links: Sequence[int], *, is_up: bool) -> None:
        """Links have failed or returned: flows are taken to use the paths that hold now."""
        left = {handle: self._off_the_way(handle) for handle in list(self._on_the_way)}
        for link in links:
            self._paths.set_link_up(link, is_up)
        self._lane.cache_clear()
        for handle, sent in left.items():
            self._put(handle, replace(sent, lane=self._lane(*sent.ends)))

    def _put(self, handle: GraphHandle, sent: _OnTheWay) -> None:
        self._on_the_way[handle] = sent
        self._loop.add_transfer(sent.lane.links, sent.lane.pairs_on_link)

    def _off_the_way(self, handle: GraphHandle) -> _OnTheWay:
        sent = self._on_the_way.pop(handle)
        self._loop.add_transfer(sent.lane.links, -sent.lane.pairs_on_link)
        return sent

    def _new_lane(self, source: Rank, destination: Rank, contents: _Contents) -> _Lane:
        source_layout, destination_layout = self._source_layout(source, destination), self._layout(destination)
        flows = self._template(source_layout, destination_layout, contents).between(source_layout, destination_layout)
        first = np.flatnonzero(flows.template.previous < 0)
        pairs = zip(flows.src[first].tolist(), flows.dst[first].tolist(), strict=True)
        # All flows of a hand-off have label 0.
        hops = np.array([link for ends in pairs for link in self._route(*ends)], dtype=np.int64)
        return _Lane(flows, *np.unique(hops, return_counts=True))

    def _route(self, src: int, dst: int) -> list[int]:
        """Links from one GPU to another; none where there is no path."""
        try:
            links: list[int] = self._paths.route(src, dst).tolist()
        except NoPath:
            return []
        return links

    def _template(
        self, source: simccl.KvLayout, destination: simccl.KvLayout, contents: _Contents
    ) -> simccl.KvTemplate:
        """What lanes between layouts of these shapes have in common."""
        key = (source.tp, source.pp, destination.tp, destination.pp, *contents)
        if key not in self._templates:
            token_bytes = self._kept.token_bytes if contents.with_tokens else (0,) * len(self._kept.token_bytes)
            self._templates[key] = simccl.kv_template(
                source,
                destination,
                kv=simccl.LayerCache(token_bytes, self._kept.kv_heads),
                state=self._kept.state if contents.with_state else None,
                layers_per_flow=1 if contents.layer_by_layer else None,
                setup_ps=self._setup_ps,
            )
        return self._templates[key]

    def _layout(self, rank: Rank) -> simccl.KvLayout:
        return self._layout_of(rank, shift=0)

    def _source_layout(self, source: Rank, destination: Rank) -> simccl.KvLayout:
        """The source's GPUs, turned so that a latent comes from the GPU on the destination's rail."""
        if self._kept.kv_heads is not None or source.instance.placement.partition.tp == 1:
            return self._layout(source)
        own_rail, other_rail = (
            self._topology.rail_of(rank.instance.placement.rank_gpus(rank.index)[0][0])
            for rank in (source, destination)
        )
        return self._layout_of(source, shift=other_rail - own_rail)

    def _layout_of(self, rank: Rank, *, shift: int) -> simccl.KvLayout:
        key = (rank, shift % rank.instance.placement.partition.tp)
        if key not in self._layouts:
            self._layouts[key] = self._new_layout(rank, shift)
        return self._layouts[key]

    def _new_layout(self, rank: Rank, shift: int) -> simccl.KvLayout:
        """GPUs of a rank by stage and tensor rank, turned by ``shift`` within each stage."""
        placement = rank.instance.placement
        tp, pp = placement.partition.tp, placement.partition.pp
        stages = [[gpus[(i + shift) % tp] for i in range(tp)] for gpus in placement.rank_gpus(rank.index)]
        return simccl.KvLayout(
            gpus=tuple(gpu for stage in stages for gpu in stage),
            tp=tp,
            pp=pp,
            stage_layers=tuple(len(layers) for layers in stage_layers(self._model, pp)),
        )


def _kept_by_layers(model: Model, precision: Precision) -> _Kept:
    token_bytes, state_bytes = [], []
    kv_heads: int | None = None
    state_heads: int | None = None
    for layer in model.layers:
        in_layer = state_in_layer = 0
        match layer.attention:
            case GroupedQueryAttention() as attention:
                in_layer, kv_heads = attention.kv_bytes(precision.kv), attention.kv_heads
            case LatentAttention() as attention:
                in_layer = attention.kv_bytes(precision.kv)
            case GatedDeltaNet() as attention:
                state_in_layer = ELEMENT_BYTES[precision.state] * attention.state_elements
                state_in_layer += ELEMENT_BYTES["bf16"] * attention.conv_state_elements
                state_heads = attention.key_heads
        token_bytes.append(in_layer)
        state_bytes.append(state_in_layer)
    state = simccl.LayerCache(tuple(state_bytes), state_heads) if any(state_bytes) else None
    return _Kept(tuple(token_bytes), kv_heads, state)
