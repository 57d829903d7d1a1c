"""KV transfers on the network: what is sent between two ranks, and which links carry it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

import simccl
from aicb import Model, Precision, stage_layers
from aicb.model import GatedDeltaNet, GroupedQueryAttention, LatentAttention
from aicb.precision import ELEMENT_BYTES
from netsim import FlowGraph, GraphHandle, NetworkBackend, NoPath, Topology
from netsim.routing import Router as PathFinder
from vidur_pd.instance import Rank
from vidur_pd.metrics.links import LinkLog

NO_LINKS = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class _OnTheWay:
    """A transfer on the network."""

    graph: FlowGraph
    since_ps: int
    """Up to when links have been booked."""
    pair_links: NDArray[np.int64]
    """Links of each pair of GPUs, one after another."""
    booked_bytes: NDArray[np.int64]
    """[flows] of the sizes, what has been booked on links."""


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

    def layers_after(self, now_ps: int, layers: int) -> list[int]:
        """[layers] time from ``now_ps`` until each layer is ready, 0 for those that are."""
        lasts_ps = self.end_ps - self.start_ps
        return [max(0, self.start_ps + lasts_ps * (layer + 1) // layers - now_ps) for layer in range(layers)]


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
        link_log: LinkLog,
        *,
        setup_ps: int,
        keep_flows: bool,
    ) -> None:
        self._model = model
        self._kept = _kept_by_layers(model, precision)
        self._network = network
        self._topology = topology
        self._paths = PathFinder(topology)
        self._link_log = link_log
        self._setup_ps = setup_ps
        self._on_the_way: dict[GraphHandle, _OnTheWay] = {}
        self._routes: dict[tuple[int, int], NDArray[np.int64]] = {}
        self._flows_on_links = np.zeros(topology.links)
        self._layouts: dict[tuple[int, int, int], simccl.KvLayout] = {}
        self.flows: list[FlowRow] | None = [] if keep_flows else None

    @property
    def active(self) -> int:
        """Transfers on the network."""
        return len(self._on_the_way)

    @property
    def flows_on_links(self) -> NDArray[np.float64]:
        """[links] pairs of GPUs with a transfer over each link; flows of a pair follow one another."""
        return self._flows_on_links

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
        layers = len(self._model.pattern)
        plan = simccl.kv_handoff_plan(
            self._source_layout(source, destination),
            self._layout(destination),
            kv=simccl.LayerCache(tuple(size * tokens for size in self._kept.token_bytes), self._kept.kv_heads),
            state=self._kept.state if with_state else None,
            layer_ready_ps=computed.layers_after(now_ps, layers) if computed is not None else None,
            layers_per_flow=1 if computed is not None else None,
            setup_ps=self._setup_ps,
        )
        graph = plan.graph()
        handle = self._network.submit(graph, now_ps)
        self._enter(handle, _OnTheWay(graph, now_ps, self._pair_links(graph), np.zeros(len(graph), dtype=np.int64)))
        first_ready_ps = int(plan.ready_ps.min()) if len(plan.ready_ps) else 0
        return Sent(handle, plan.total_bytes, now_ps + first_ready_ps + self._setup_ps)

    def arrived(self, handle: GraphHandle, now_ps: int) -> None:
        """Books the links of an arrived transfer."""
        graph = self._on_the_way[handle].graph
        self._book(self._leave(handle), graph.size_bytes, now_ps)
        if self.flows is not None:
            times = self._network.flow_times(handle)
            columns = (graph.src, graph.dst, graph.size_bytes, times.start_ps, times.end_ps)
            self.flows += [FlowRow(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
        self._network.forget(handle)

    def abandon(self, handle: GraphHandle, now_ps: int) -> int:
        """Takes a transfer off the network, or forgets one that failed; returns the bytes that have not got through.

        What has got through is booked on the links of its flows.
        """
        sent = self._leave(handle)
        self._network.cancel(handle)
        got_through = self._network.sent_bytes(handle)
        self._network.forget(handle)
        self._book(sent, got_through, now_ps)
        return int((sent.graph.size_bytes - np.maximum(got_through, sent.booked_bytes)).sum())

    def links_change(self, links: Sequence[int], now_ps: int, *, is_up: bool, apply: Callable[[], None]) -> None:
        """Links fail or return when ``apply`` is called: what they have carried is booked before, and after it flows
        are taken to use the paths that hold then."""
        for handle in list(self._on_the_way):
            sent = self._leave(handle)
            got_through = np.maximum(self._network.sent_bytes(handle), sent.booked_bytes)
            self._book(sent, got_through, now_ps)
            self._on_the_way[handle] = replace(sent, since_ps=now_ps, booked_bytes=got_through)
        apply()
        for link in links:
            self._paths.set_link_up(link, is_up)
        self._routes.clear()
        for handle, sent in list(self._on_the_way.items()):
            self._enter(handle, replace(sent, pair_links=self._pair_links(sent.graph)))

    def _enter(self, handle: GraphHandle, sent: _OnTheWay) -> None:
        self._on_the_way[handle] = sent
        np.add.at(self._flows_on_links, sent.pair_links, 1)

    def _leave(self, handle: GraphHandle) -> _OnTheWay:
        sent = self._on_the_way.pop(handle)
        np.add.at(self._flows_on_links, sent.pair_links, -1)
        return sent

    def _pair_links(self, graph: FlowGraph) -> NDArray[np.int64]:
        pairs = set(zip(graph.src.tolist(), graph.dst.tolist(), strict=True))
        return np.concatenate([NO_LINKS, *(self._route(*pair) for pair in sorted(pairs))])

    def _book(self, sent: _OnTheWay, until_bytes: NDArray[np.int64], now_ps: int) -> None:
        """Books ``until_bytes`` [flows] on the links of the flows, less what has been booked."""
        carried: dict[int, int] = defaultdict(int)
        new_bytes = np.maximum(until_bytes - sent.booked_bytes, 0)
        for src, dst, size in zip(sent.graph.src.tolist(), sent.graph.dst.tolist(), new_bytes.tolist(), strict=True):
            for link in self._route(src, dst).tolist() if size else ():
                carried[link] += size
        links = sorted(carried)
        link_bytes = np.array([carried[link] for link in links], dtype=np.float64)
        self._link_log.add("kv", np.array(links, dtype=np.int64), link_bytes, (sent.since_ps, now_ps))

    def _route(self, src: int, dst: int) -> NDArray[np.int64]:
        """Links from one GPU to another, none where there is no path; all flows of a hand-off have label 0."""
        if (src, dst) not in self._routes:
            try:
                self._routes[src, dst] = self._paths.route(src, dst)
            except NoPath:
                self._routes[src, dst] = NO_LINKS
        return self._routes[src, dst]

    def _layout(self, rank: Rank) -> simccl.KvLayout:
        return self._layout_of(rank, shift=0)

    def _source_layout(self, source: Rank, destination: Rank) -> simccl.KvLayout:
        """The source's GPUs, turned so that a latent comes from the GPU on the destination's rail."""
        if self._kept.kv_heads is not None:
            return self._layout(source)
        own_rail, other_rail = (
            self._topology.rail_of(rank.instance.placement.rank_gpus(rank.index)[0][0])
            for rank in (source, destination)
        )
        return self._layout_of(source, shift=other_rail - own_rail)

    def _layout_of(self, rank: Rank, *, shift: int) -> simccl.KvLayout:
        key = (rank.instance.index, rank.index, shift)
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
