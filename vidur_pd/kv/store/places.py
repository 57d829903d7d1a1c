"""Placement of a rank's KV: its GPUs with their shares of a token, the hosts, and the flows between them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from aicb import Model, Precision, stage_layers
from boundary.errors import InputError
from netsim import NO_FLOW, FlowGraph, NodeKind, Topology
from vidur_pd.execution.instances.placement import Placement
from vidur_pd.kv.transfer.rank_pairs import cache_sizes


@dataclass(frozen=True, slots=True)
class Share:
    """Share of the KV that one GPU of a rank holds."""

    gpu: int
    host: int
    """Node of its server's host."""
    layer_bytes: tuple[int, ...]
    """[layers] bytes of a token."""
    is_stored: bool
    """The GPU writes its share; a latent, which every GPU of a tensor-parallel group has whole, is the first one's."""

    @property
    def token_bytes(self) -> int:
        """Bytes of a token in all layers."""
        return sum(self.layer_bytes)


@dataclass(frozen=True, slots=True)
class RemoteHost:
    """Host of a server, as ranks on other servers reach it: over the network."""

    node: int
    gpus: range
    """GPUs of its server, whose NICs it uses."""


class RankPlace:
    """GPUs of one rank, and the flows between them and hosts."""

    def __init__(self, shares: tuple[Share, ...]) -> None:
        self.shares = shares
        self._of_token: dict[tuple[RemoteHost | None, bool], FlowGraph] = {}
        """Flows of one token, by host and whether GPUs load."""
        self._of_layers: dict[RemoteHost | None, FlowGraph] = {}
        """Flows of one token that is loaded layer by layer, by host."""

    @property
    def hosts(self) -> tuple[int, ...]:
        """Nodes of its servers, rising."""
        return tuple(sorted({share.host for share in self.shares}))

    @property
    def layers(self) -> int:
        """Number of layers; of the first pipeline stage."""
        return len(self.shares[0].layer_bytes)

    @cached_property
    def loaded_token_bytes(self) -> int:
        """Bytes that GPUs load for a token, all together."""
        return sum(share.token_bytes for share in self.shares)

    @cached_property
    def stored_token_bytes(self) -> int:
        """Bytes of a token in a tier, and in a write."""
        return sum(share.token_bytes for share in self.shares if share.is_stored)

    def load(self, tokens: int, *, delay_ps: int = 0, host: RemoteHost | None = None) -> FlowGraph:
        """Flows of a load of so many tokens; ``host``: ``None`` for that of each GPU's own server."""
        graph = self._flows(tokens, host, is_load=True)
        return replace(graph, delay_ps=np.full(len(graph), delay_ps)) if delay_ps else graph

    def load_layers(self, tokens: int, *, delay_ps: int = 0, host: RemoteHost | None = None) -> FlowGraph:
        """Flows of a layer-wise load, a layer behind the one before it: [legs][layers]."""
        of_token = self._of_layers.get(host)
        if of_token is None:
            of_token = self._of_layers[host] = self._layer_flows(host)
        graph = of_token.with_flows(size_bytes=tokens * of_token.size_bytes)
        return replace(graph, delay_ps=np.full(len(graph), delay_ps)) if delay_ps else graph

    def _layer_flows(self, host: RemoteHost | None) -> FlowGraph:
        """Flows of one token, layer by layer."""
        src, dst, sizes, after = list[int](), list[int](), list[int](), list[int]()
        for share in self.shares:
            for leg_src, leg_dst in self._legs(share, host, is_load=True):
                for layer, size_bytes in enumerate(share.layer_bytes):
                    after.append(len(src) - 1 if layer else NO_FLOW)
                    src.append(leg_src)
                    dst.append(leg_dst)
                    sizes.append(size_bytes)
        return replace(FlowGraph.from_lists(src, dst, sizes), after=np.array(after, dtype=np.int64))

    def store(self, tokens: int, *, host: RemoteHost | None = None) -> FlowGraph:
        """Flows of a write of so many tokens."""
        return self._flows(tokens, host, is_load=False)

    def fetch(self, tokens: int, host: RemoteHost, *, delay_ps: int = 0) -> FlowGraph:
        """Flows of a prefetch, from another server's host to that of the rank's server, by way of the GPUs' NICs."""
        flows = [
            (*leg, tokens * share.token_bytes)
            for share in self.shares
            if share.is_stored and host.node != share.host
            for leg in [*self._legs(share, host, is_load=True), (share.gpu, share.host)]
        ]
        src, dst, sizes = (list(column) for column in zip(*flows, strict=True)) if flows else ([], [], [])
        return FlowGraph.from_lists(src, dst, sizes, delay_ps=[delay_ps] * len(flows))

    def _flows(self, tokens: int, host: RemoteHost | None, *, is_load: bool) -> FlowGraph:
        of_token = self._of_token.get((host, is_load))
        if of_token is None:
            flows = [
                (*leg, share.token_bytes)
                for share in self.shares
                if is_load or share.is_stored
                for leg in self._legs(share, host, is_load=is_load)
            ]
            src, dst, sizes = (list(column) for column in zip(*flows, strict=True))
            of_token = self._of_token[host, is_load] = FlowGraph.from_lists(src, dst, sizes)
        return of_token.with_flows(size_bytes=tokens * of_token.size_bytes)

    def _legs(self, share: Share, host: RemoteHost | None, *, is_load: bool) -> list[tuple[int, int]]:
        """(source, destination) of the flows of one share, which run at the same time. Another server takes two: its
        host uses the NIC of the GPU there that is on the same rail."""
        if host is None or host.node == share.host:
            legs = [(share.host, share.gpu)]
        else:
            other = host.gpus[share.gpu % len(host.gpus)]
            legs = [(host.node, other), (other, share.gpu)]
        return legs if is_load else [(dst, src) for src, dst in legs]


class Places:
    """Places of all ranks of a cluster."""

    def __init__(self, model: Model, topology: Topology) -> None:
        """Raises: InputError, where the topology has no hosts."""
        self._model, self._topology = model, topology
        self._hosts = np.flatnonzero(topology.node_kind == NodeKind.HOST).tolist()
        if not self._hosts:
            raise InputError("kv_cache.tiers: found with a topology without hosts, expected cluster.topology.pcie")

    def host_of_server(self, field: str, server: int) -> RemoteHost:
        """The host of a server, by its number. Raises: InputError, where there is no such server."""
        if server >= len(self._hosts):
            raise InputError(f"{field}: found {server}, expected one of the {len(self._hosts)} servers, from 0 on")
        return self.hosts[server]

    @property
    def hosts(self) -> tuple[RemoteHost, ...]:
        """[servers] all hosts."""
        width = self._topology.gpus_per_node
        return tuple(
            RemoteHost(node, range(server * width, (server + 1) * width)) for server, node in enumerate(self._hosts)
        )

    def of(self, placement: Placement, rank: int, precision: Precision, draft_layers: int) -> RankPlace:
        """The place of a rank; KV of ``draft_layers`` further layers is in its last stage."""
        partition, sizes = placement.partition, cache_sizes(self._model, precision, draft_layers)
        stages = [list(layers) for layers in stage_layers(self._model, partition.pp)]
        stages[-1] += range(len(self._model.pattern), len(sizes.token_bytes))
        shares = []
        for layers, gpus in zip(stages, placement.rank_gpus(rank), strict=True):
            own = tuple(_of_rank(sizes.token_bytes[layer], sizes.kv_heads, len(gpus)) for layer in layers)
            for place, gpu in enumerate(gpus):
                host = self._hosts[gpu // self._topology.gpus_per_node]
                shares.append(Share(gpu, host, own, is_stored=sizes.kv_heads is not None or place == 0))
        return RankPlace(tuple(share for share in shares if share.token_bytes))


def _of_rank(token_bytes: int, kv_heads: int | None, ranks: int) -> int:
    """Bytes of a layer's token on one GPU of a tensor-parallel group: its KV heads, at least one, or a latent whole."""
    return token_bytes if kv_heads is None else token_bytes * max(1, kv_heads // ranks) // kv_heads
