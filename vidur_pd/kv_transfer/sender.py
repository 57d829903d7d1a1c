"""The sender of KV: transfers between two ranks as flow graphs on the shared network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from aicb import Model, Precision
from netsim import FlowGraph, GraphHandle, NetworkBackend, Topology
from vidur_pd._core import Loop
from vidur_pd.cluster.instance import Rank
from vidur_pd.execution.network_clock import catch_up
from vidur_pd.kv_transfer.rank_pairs import Contents, RankPairRoute, RankPairRoutes
from vidur_pd.kv_transfer.transfer import LayerTimes


@dataclass(frozen=True, slots=True, eq=False)
class InTransit:
    """A transfer on the network."""

    route: RankPairRoute
    graph: FlowGraph
    ends: tuple[Rank, Rank, Contents]


@dataclass(frozen=True, slots=True)
class Sent:
    """A transfer that has been put on the network."""

    handle: GraphHandle
    size_bytes: int
    first_byte_ps: int


@dataclass(frozen=True, slots=True)
class FlowRow:
    """One flow of an arrived transfer."""

    src: int
    dst: int
    size_bytes: int
    start_ps: int
    end_ps: int


class KvSender:
    """Sends the KV cache of requests between the GPUs of two ranks over the shared network.

    Set-up (descriptors, first round trip) precedes the first byte.
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
        self._layers = len(model.pattern)
        self._routes = RankPairRoutes(model, precision, topology, setup_ps=setup_ps)
        self._network = network
        self._loop = loop
        self._setup_ps = setup_ps
        self._in_transit: dict[GraphHandle, InTransit] = {}
        self.flows: list[FlowRow] | None = [] if keep_flows else None

    @property
    def active(self) -> int:
        """Transfers on the network."""
        return len(self._in_transit)

    @property
    def has_state(self) -> bool:
        """The model keeps a recurrent state that travels once, whatever the prompt."""
        return self._routes.has_state

    def send(
        self,
        source: Rank,
        destination: Rank,
        tokens: int,
        *,
        with_state: bool,
        now_ps: int,
        layers: LayerTimes | None,
    ) -> Sent:
        """Puts the KV of ``tokens`` on the network, each layer once it is computed; ``None``: all are.

        Raises: NoPath, where links have cut the ranks off from each other.
        """
        contents = Contents(tokens > 0, with_state and self.has_state, layers is not None)
        route = self._routes.between(source, destination, contents)
        ready_ps = None if layers is None else layers.ready_after(now_ps, self._layers)
        graph = route.flows.graph(tokens, ready_ps)
        handle = self._network.submit(graph, now_ps)
        self._add(handle, InTransit(route, graph, (source, destination, contents)))
        first_ready_ps = int(graph.ready_ps.min()) if len(graph) else 0
        return Sent(handle, int(graph.size_bytes.sum()), now_ps + first_ready_ps + self._setup_ps)

    def arrived(self, handle: GraphHandle) -> None:
        """A transfer is on the network no longer."""
        graph = self._remove(handle).graph
        if self.flows is not None:
            times = self._network.flow_times(handle)
            columns = (graph.src, graph.dst, graph.size_bytes, times.start_ps, times.end_ps)
            self.flows += [FlowRow(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
        self._network.forget(handle)

    def abandon(self, handle: GraphHandle, now_ps: int) -> int:
        """Takes a transfer off the network, or forgets one that failed; returns the bytes that have not got through."""
        catch_up(self._network, now_ps)
        sent = self._remove(handle)
        self._network.cancel(handle)
        got_through = self._network.sent_bytes(handle)
        self._network.forget(handle)
        return int((sent.graph.size_bytes - got_through).sum())

    def links_change(self, links: Sequence[int], *, is_up: bool) -> None:
        """Links have failed or returned: flows are taken to use the paths that hold now."""
        left = {handle: self._remove(handle) for handle in list(self._in_transit)}
        self._routes.links_change(links, is_up=is_up)
        for handle, sent in left.items():
            self._add(handle, replace(sent, route=self._routes.between(*sent.ends)))

    def _add(self, handle: GraphHandle, sent: InTransit) -> None:
        self._in_transit[handle] = sent
        self._loop.add_transfer(sent.route.links, sent.route.pairs_on_link)

    def _remove(self, handle: GraphHandle) -> InTransit:
        sent = self._in_transit.pop(handle)
        self._loop.add_transfer(sent.route.links, -sent.route.pairs_on_link)
        return sent
