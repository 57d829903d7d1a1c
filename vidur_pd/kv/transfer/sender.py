"""Sender of KV: transfers between two ranks as flow graphs on the shared network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from aicb import Model, Precision
from netsim import FlowGraph, GraphHandle, NetworkBackend, Topology
from netsim.units import PS_PER_MS
from vidur_pd.config import KvTransferConfig
from vidur_pd.execution.instances.instance import Instance, Rank
from vidur_pd.execution.network_clock import catch_up
from vidur_pd.kv.transfer.connector import Connector, ConnectorTime
from vidur_pd.kv.transfer.link_loads import LinkLoads, Links
from vidur_pd.kv.transfer.posting import KvMemory
from vidur_pd.kv.transfer.rank_pairs import Contents, RankPairRoutes
from vidur_pd.kv.transfer.transfer import LayerTimes
from vidur_pd.workload.pacing import NOBODY


class Sent(NamedTuple):
    """Receipt for KV that has been put on the network."""

    handle: GraphHandle
    size_bytes: int
    first_byte_ps: int
    handshake_ps: int
    """Wait for the first contact of the two instances."""
    posting_ps: int
    """Time to post its descriptors."""


class InTransit(NamedTuple):
    """KV on the network."""

    graph: FlowGraph
    size_bytes: int
    """Of the KV, which passes several links as several flows where it is striped over NICs."""
    links: Links | None
    """Of its flows, where somebody wants to know."""


@dataclass(frozen=True, slots=True)
class FlowRow:
    """One flow of an arrived transfer."""

    src: int
    dst: int
    size_bytes: int
    start_ps: int
    end_ps: int
    request: int
    """Row of the request in the workload."""


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
        config: KvTransferConfig,
        *,
        block_tokens: int,
        keep_flows: bool,
        slowness: Mapping[str, float],
        draft_layers: int = 0,
        loads: LinkLoads | None = None,
    ) -> None:
        """``block_tokens``: of a KV block; ``draft_layers``: layers that draft, behind the model, sent with it;
        ``slowness``: of each pool, by which its host takes longer for a transfer than the connector says.

        ``loads`` hears of what is on the network, where somebody asks what a transfer would take.
        """
        self._loads = loads
        setup_ps = round(config.setup_ms * PS_PER_MS)
        self._routes = RankPairRoutes(model, precision, topology, setup_ps=setup_ps, draft_layers=draft_layers)
        layers = len(model.pattern) + draft_layers
        memory = KvMemory(layers, block_tokens, self._routes.regions)
        self._connector = Connector(config.connector, memory, topology.gpus_per_node, slowness)
        self._network = network
        self._setup_ps = setup_ps
        self._in_transit: dict[GraphHandle, InTransit] = {}
        self.flows: list[FlowRow] | None = [] if keep_flows else None

    @property
    def active(self) -> int:
        """Number of graphs on the network."""
        return len(self._in_transit)

    @property
    def connector_time(self) -> ConnectorTime:
        """Time that transfers have cost engines and each other."""
        return self._connector.time

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
        posted = self._connector.post(source, destination, flows, tokens, layers, now_ps)
        graph = posted.graph
        handle = self._network.submit(graph, now_ps)
        first_byte_ps = now_ps + posted.first_ready_ps + self._setup_ps
        size_bytes = flows.template.total_bytes(tokens)  # stripes pass other GPUs, and are several flows
        links = None if self._loads is None else self._loads.enter(graph)
        self._in_transit[handle] = InTransit(graph, size_bytes, links)
        return Sent(handle, size_bytes, first_byte_ps, posted.handshake_ps, posted.posting_ps)

    def expected_s(self, source: Rank, destination: Rank, tokens: int) -> float:
        """Seconds that the KV of ``tokens`` would take, with links as transfers load them now."""
        assert self._loads is not None, "somebody asks"
        flows = self._routes.between(source, destination, Contents(True, False, False))
        return self._loads.expected_s(flows.src, flows.dst, flows.template.size_bytes(tokens))

    def _take(self, handle: GraphHandle) -> InTransit:
        """A graph leaves the network."""
        found = self._in_transit.pop(handle)
        if self._loads is not None and found.links is not None:
            self._loads.leave(found.links)
        return found

    def forget(self, instance: Instance) -> None:
        """An instance has failed: others have to make contact with it again."""
        self._connector.forget(instance)

    def arrived(self, handle: GraphHandle, request: int = NOBODY) -> None:
        """Forgets a graph that has arrived; its flows are recorded with the row of their request."""
        graph = self._take(handle).graph
        if self.flows is not None:
            times = self._network.flow_times(handle)
            columns = (graph.src, graph.dst, graph.size_bytes, times.start_ps, times.end_ps)
            rows = zip(*(column.tolist() for column in columns), [request] * len(graph), strict=True)
            self.flows += [FlowRow(*row) for row in rows]
        self._network.forget(handle)

    def abandon(self, handle: GraphHandle, now_ps: int) -> int:
        """Takes a graph off the network, or forgets one that failed; returns the bytes that were not delivered."""
        catch_up(self._network, now_ps)
        in_transit = self._take(handle)
        self._network.cancel(handle)
        delivered_bytes = int(self._network.sent_bytes(handle).sum())
        self._network.forget(handle)
        on_links_bytes = int(in_transit.graph.size_bytes.sum())
        lost_bytes = on_links_bytes - delivered_bytes
        return lost_bytes * in_transit.size_bytes // on_links_bytes if on_links_bytes else 0
