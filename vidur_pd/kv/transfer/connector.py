"""State of a connector in a run: handshakes of instances, and who posts until when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import simccl
from netsim import FlowGraph
from netsim.units import PS_PER_US
from vidur_pd.config.kv_transfer import ConnectorConfig
from vidur_pd.execution.instances.instance import Instance, Rank
from vidur_pd.kv.transfer.posting import KvMemory, Posting, PostingCosts
from vidur_pd.kv.transfer.transfer import LayerTimes

Times = NDArray[np.int64]


class Posted(NamedTuple):
    """KV that is ready for the network, and what it took."""

    graph: FlowGraph
    first_ready_ps: int
    """From now to the set-up of its first flow; 0 without flows."""
    handshake_ps: int
    """Wait for the first contact of the instances."""
    posting_ps: int
    """Of the GPU that posts longest."""


@dataclass(slots=True)
class ConnectorTime:
    """Time of a run that transfers cost engines and each other, in all [ps]."""

    stalls_ps: int = 0
    """For which steps stood still while descriptors were posted."""
    waits_ps: int = 0
    """Of transfers for those that were posted before them."""


class Connector:
    """The state of one connector: pairs of instances that know each other, and until when each rank posts."""

    def __init__(
        self, config: ConnectorConfig, memory: KvMemory, gpus_per_node: int, slowness: Mapping[str, float]
    ) -> None:
        """``slowness``: of each pool, by which host time is longer than stated."""
        self._config = config
        self._slowness = slowness
        self._memory = memory
        self._striping = simccl.Striping(gpus_per_node, config.nics) if config.nics > 1 else None
        self._costs = PostingCosts(config, memory, gpus_per_node)
        self._host_ps = _ps(config.host_us)
        self._known_ps: dict[tuple[int, int], int] = {}
        """By indices of two instances: when they know each other."""
        self._first_ps: dict[tuple[int, int], tuple[int, int]] = {}
        """By rank that posts: from when to when it posts what has waited for a handshake."""
        self._posting_until_ps: dict[tuple[int, int], int] = {}
        """By rank whose steps post: when all that it has to post is posted."""
        self._held_until_ps: dict[tuple[int, int], int] = {}
        """The same: until when its steps stand still for that."""
        self.time = ConnectorTime()

    def post(
        self,
        source: Rank,
        destination: Rank,
        flows: simccl.KvFlows,
        tokens: int,
        layers: LayerTimes | None,
        now_ps: int,
    ) -> Posted:
        """Posts the KV of ``tokens`` (``layers`` None: all of it is computed), and keeps the host busy meanwhile."""
        poster = destination if self._config.posted_by == "decode" else source
        posting = self._costs.of(flows, tokens)
        known_ps = self._handshake(source, destination, now_ps)
        handshake_ps = known_ps - now_ps
        if handshake_ps:
            begins_ps = self._follow(poster, posting, known_ps) - now_ps
        else:
            begins_ps = self._occupy(poster, posting, now_ps) - now_ps
        begins_ps += posting.listing_ps
        graph = self._graph(flows, tokens, self._ready_ps(layers, now_ps, begins_ps), posting.flows_ps)
        first_ready_ps = 0
        if len(graph):
            first_ready_ps = begins_ps if layers is None else int(graph.ready_ps.min())
        return Posted(graph, first_ready_ps, handshake_ps, posting.gpu_ps)

    def forget(self, instance: Instance) -> None:
        """An instance has failed: nobody knows it any more."""
        self._known_ps = {pair: at for pair, at in self._known_ps.items() if instance.index not in pair}
        for by_rank in (self._first_ps, self._posting_until_ps, self._held_until_ps):
            for rank in [rank for rank in by_rank if rank[0] == instance.index]:
                del by_rank[rank]

    def _handshake(self, source: Rank, destination: Rank, now_ps: int) -> int:
        """When the two instances know each other, now at the earliest."""
        config, memory = self._config, self._memory
        pair = (source.instance.index, destination.instance.index)
        if pair not in self._known_ps:
            peer = source if config.posted_by == "decode" else destination
            pieces = peer.state.usable_blocks * memory.layers * memory.regions // peer.instance.placement.partition.pp
            self._known_ps[pair] = now_ps + _ps(config.handshake_us + pieces * config.handshake_descriptor_us)
        return max(self._known_ps[pair], now_ps)

    def _follow(self, poster: Rank, posting: Posting, known_ps: int) -> int:
        """Instant at which a rank begins to post what has waited for a handshake, after what has waited longer.

        Steps of its engine are not held up by these, which are few.
        """
        ready_ps = known_ps + self._host_time_ps(poster)
        if not posting.held_ps:
            return ready_ps
        from_ps, until_ps = self._first_ps.get(_of(poster), (ready_ps, 0))
        begins_ps = max(until_ps, ready_ps)
        self._first_ps[_of(poster)] = min(from_ps, ready_ps), begins_ps + posting.gpu_ps
        self.time.waits_ps += begins_ps - ready_ps
        return begins_ps

    def _occupy(self, poster: Rank, posting: Posting, now_ps: int) -> int:
        """Instant at which a rank begins to post, after what it posts already, where its steps do.

        An engine that runs steps takes a transfer up while the GPU computes, an idle one within its host time. Steps
        stand still for a share of the posting, from when the thread that runs them is free for it; the rest of it
        others do, after what they do already.
        """
        if not posting.held_ps:
            return now_ps + self._host_time_ps(poster)
        rank = _of(poster)
        ready_ps = now_ps + (self._host_time_ps(poster) if poster.instance.is_idle else 0)
        begins_ps = max(self._held_until_ps.get(rank, 0), ready_ps)
        self._held_until_ps[rank] = begins_ps + posting.held_ps
        self.time.stalls_ps += posting.held_ps
        poster.instance.hold(begins_ps + posting.held_ps)
        from_ps, until_ps = self._first_ps.get(rank, (0, 0))
        begins_ps = max(self._posting_until_ps.get(rank, 0), begins_ps, until_ps if from_ps <= now_ps else 0)
        self._posting_until_ps[rank] = begins_ps + posting.gpu_ps
        self.time.waits_ps += begins_ps - ready_ps
        return begins_ps

    def _host_time_ps(self, poster: Rank) -> int:
        return round(self._slowness[poster.instance.placement.pool] * self._host_ps)

    def _ready_ps(self, layers: LayerTimes | None, now_ps: int, begins_ps: int) -> Times | None:
        """[layers] when each may leave, from now; ``None``: all at once."""
        if layers is None:
            return np.full(self._memory.layers, begins_ps, dtype=np.int64) if begins_ps else None
        return np.maximum(layers.ready_after(now_ps, self._memory.layers), begins_ps)

    def _graph(self, flows: simccl.KvFlows, tokens: int, ready_ps: Times | None, posting_ps: Times | None) -> FlowGraph:
        if self._striping is None:
            rates = None
            if posting_ps is not None:
                rates = simccl.posting_rates_bps(flows.template.size_bytes(tokens), posting_ps)
            return flows.graph(tokens, ready_ps, rates)
        whole = flows.handoff(tokens, ready_ps)
        if posting_ps is not None:
            whole = replace(whole, posting_ps=posting_ps, is_posting_overlapped=True)
        return simccl.striped(whole, self._striping).graph()


def _of(rank: Rank) -> tuple[int, int]:
    """Key of a rank: each data-parallel rank of an instance is an engine that posts for itself."""
    return rank.instance.index, rank.index


def _ps(time_us: float) -> int:
    return round(time_us * PS_PER_US)
