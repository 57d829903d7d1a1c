"""Sender of KV: transfers between two ranks as flow graphs on the shared network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from aicb import Model, Precision
from netsim import FlowGraph, GraphHandle, NetworkBackend, Topology
from vidur_pd.cluster.instance import Rank
from vidur_pd.execution.network_clock import catch_up
from vidur_pd.kv_transfer.rank_pairs import Contents, RankPairRoutes
from vidur_pd.kv_transfer.transfer import LayerTimes


class Sent(NamedTuple):
    """Receipt for KV that has been put on the network."""

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
        *,
        setup_ps: int,
        keep_flows: bool,
        draft_layers: int = 0,
    ) -> None:
        """``draft_layers``: layers that draft, behind the model, whose KV goes with it."""
        self._layers = len(model.pattern) + draft_layers
        self._routes = RankPairRoutes(model, precision, topology, setup_ps=setup_ps, draft_layers=draft_layers)
        self._network = network
        self._setup_ps = setup_ps
        self._in_transit: dict[GraphHandle, FlowGraph] = {}
        self.flows: list[FlowRow] | None = [] if keep_flows else None

    @property
    def active(self) -> int:
        """Number of graphs on the network."""
        return len(self._in_transit)

    @property
    def has_state(self) -> bool:
        """Whether the model has a recurrent state, which is sent once, whatever the length of the prompt."""
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
        """Puts the KV of ``tokens`` on the network, each layer once it is computed (``layers`` None: all are).

        Raises: NoPath, where links that are down leave no path between the ranks.
        """
        contents = Contents(tokens > 0, with_state and self.has_state, layers is not None)
        flows = self._routes.between(source, destination, contents)
        ready_ps = None if layers is None else layers.ready_after(now_ps, self._layers)
        graph = flows.graph(tokens, ready_ps)
        handle = self._network.submit(graph, now_ps)
        self._in_transit[handle] = graph
        first_ready_ps = 0 if ready_ps is None or not len(graph) else int(graph.ready_ps.min())
        return Sent(handle, int(graph.size_bytes.sum()), now_ps + first_ready_ps + self._setup_ps)

    def arrived(self, handle: GraphHandle) -> None:
        """Forgets a graph that has arrived, after its flows are recorded."""
        graph = self._in_transit.pop(handle)
        if self.flows is not None:
            times = self._network.flow_times(handle)
            columns = (graph.src, graph.dst, graph.size_bytes, times.start_ps, times.end_ps)
            self.flows += [FlowRow(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
        self._network.forget(handle)

    def abandon(self, handle: GraphHandle, now_ps: int) -> int:
        """Takes a graph off the network, or forgets one that failed; returns the bytes that were not delivered."""
        catch_up(self._network, now_ps)
        graph = self._in_transit.pop(handle)
        self._network.cancel(handle)
        delivered_bytes = self._network.sent_bytes(handle)
        self._network.forget(handle)
        return int((graph.size_bytes - delivered_bytes).sum())
