"""Lowering of a plan to a flow graph: ranks become GPUs, user bytes become bytes on the wire.

A flow has the bytes that its protocol puts on the wire, and its channel's rate as a cap: NCCL moves user bytes more
slowly than the line rate of a port, as rings use few channels, LL spends half of the wire on flags, and copies pass
through buffers. On an idle network a plan therefore takes the cost model's time, links carry the true bytes, and other
traffic can use the capacity that a slow channel leaves free.

Streaming. A flow that passes data on while it arrives (trees, NVLS, broadcasts, PXN) does not wait for the flow before
it, but for the dependencies of that flow, plus one hop latency. With equal caps the two then advance together. Where
the network slows one of them, the other does not slow down with it, but dependents of the second wait for both.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from netsim.flow import NO_FLOW, FlowGraph
from netsim.routing import Router
from netsim.topology import LinkKind, NodeKind, Topology
from simccl.communicator.communicator import Communicator
from simccl.plan.edges import Edges, csr, joined, ranges, without_duplicates
from simccl.plan.flows import PlannedFlows


@dataclass(frozen=True, slots=True)
class PortRates:
    """User bytes per second that one GPU's ports carry in one direction."""

    nvlink_bytes_per_s: float
    network_bytes_per_s: float


def lower(flows: PlannedFlows, communicator: Communicator, base_latency_ps: int) -> FlowGraph:
    """The flow graph of a plan on its communicator's GPUs.

    The base latency is paid once, before everything: it is part of the ready times. The delay of a flow is its hop
    latency less the propagation of its path, which the network adds, but at least zero.
    """
    place = _places(flows, communicator)
    src, dst = place[flows.src], place[flows.dst]
    propagation_ps = path_latencies_ps(communicator.topology, src, dst)
    delay_ps = np.maximum(flows.latency_ps - propagation_ps, 0)
    edges, credit_edges = flows.data_edges(), flows.credit_edges()
    if flows.streams.any():
        delay_ps = _first_byte_ps(flows, delay_ps, propagation_ps)
        edges = _without_streams(flows, edges)
    dep_offsets, deps = csr(edges, len(flows))
    credit_offsets, credits = csr(credit_edges, len(flows))
    return FlowGraph(
        src=src,
        dst=dst,
        size_bytes=flows.wire_bytes,
        ready_ps=np.full(len(flows), base_latency_ps, dtype=np.int64),
        delay_ps=delay_ps,
        dep_offsets=dep_offsets,
        deps=deps,
        flow_label=flows.channel.astype(np.uint32),
        notify=np.zeros(len(flows), dtype=np.bool_),
        max_rate_bps=np.ceil(8 * flows.max_rate_bytes_per_s).astype(np.int64),
        after=np.full(len(flows), NO_FLOW, dtype=np.int64) if flows.order is None else flows.order,
        credit_offsets=credit_offsets,
        credits=credits,
    )


def path_latencies_ps(topology: Topology, src: NDArray[np.int32], dst: NDArray[np.int32]) -> NDArray[np.int64]:
    """[flows] propagation between nodes, looked up once per pair; equally short paths count as equally long."""
    pair = src.astype(np.int64) * topology.nodes + dst
    if topology.nodes**2 > 8 * len(pair):
        pairs, inverse = np.unique(pair, return_inverse=True)
        return _pair_latencies_ps(topology, pairs)[inverse]
    latency_ps = np.zeros(topology.nodes**2, dtype=np.int64)
    latency_ps[pair] = 1
    pairs = np.flatnonzero(latency_ps)
    latency_ps[pairs] = _pair_latencies_ps(topology, pairs)
    of_flows: NDArray[np.int64] = latency_ps[pair]
    return of_flows


def _pair_latencies_ps(topology: Topology, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    """[pairs] propagation from node ``pair // nodes`` to node ``pair % nodes``."""
    router = _router(topology)
    senders, receivers = divmod(pairs, topology.nodes)
    offsets, links = router.routes(senders, receivers, np.zeros(len(pairs), dtype=np.uint32))
    for pair in np.flatnonzero((np.diff(offsets) == 0) & (senders != receivers))[:1].tolist():
        router.path_latency_ps(int(senders[pair]), int(receivers[pair]))  # says that there is no path
    along_ps = np.concatenate(([0], np.cumsum(topology.latency_ps[links])))
    return np.diff(along_ps[offsets])


def nvswitches(communicator: Communicator) -> NDArray[np.int32]:
    """[nodes] topology node of the NVSwitch that the node's first rank is connected to; -1 where it has none."""
    first_gpus = [communicator.gpus[ranks[0]] for ranks in communicator.ranks_of_node]
    return _nvswitch_of_gpus(communicator.topology)[first_gpus]


@lru_cache(maxsize=16)
def _nvswitch_of_gpus(topology: Topology) -> NDArray[np.int32]:
    """[gpus] topology node of the NVSwitch that each is connected to; -1 where it has none. Looked up once."""
    switches = np.full(topology.gpus, -1, dtype=np.int32)
    upward = (topology.link_kind == LinkKind.NVLINK) & (topology.node_kind[topology.link_dst] == NodeKind.NVSWITCH)
    switches[topology.link_src[upward]] = topology.link_dst[upward]
    switches.flags.writeable = False
    return switches


def _places(flows: PlannedFlows, communicator: Communicator) -> NDArray[np.int32]:
    """[ranks, and nodes where switches take part] topology node."""
    gpus = communicator.gpu_ids()
    if len(flows) and max(flows.src.max(), flows.dst.max()) >= len(gpus):
        return np.concatenate((gpus, nvswitches(communicator)))
    return gpus


def _first_byte_ps(
    flows: PlannedFlows, delay_ps: NDArray[np.int64], propagation_ps: NDArray[np.int64]
) -> NDArray[np.int64]:
    """[flows] delay from the dependencies of the head of a stream to the first byte of each flow of the stream."""
    waiting, awaited = flows.data_edges()
    of_stream = flows.streams[waiting]
    waiting, awaited = waiting[of_stream], awaited[of_stream]
    first = delay_ps
    while True:
        later = delay_ps.copy()
        np.maximum.at(later, waiting, first[awaited] + propagation_ps[awaited] + delay_ps[waiting])
        if np.array_equal(later, first):
            return first
        first = later


def _without_streams(flows: PlannedFlows, edges: Edges) -> Edges:
    """Edges after streaming flows have got the dependencies of the heads of their streams.

    A flow that waits for the end of a streaming flow also waits for the flows that feed it.
    """
    offsets, deps = flows.dep_offsets, flows.deps
    waiting, awaited = edges
    data = np.arange(len(waiting)) < len(deps)
    passed_on = data & flows.streams[waiting]
    kept = [(waiting[~passed_on], awaited[~passed_on])]
    waits = _streams_that_wait(flows, (waiting[passed_on], awaited[passed_on]))
    passed_on &= waits[awaited]
    front = (waiting[passed_on], awaited[passed_on])
    while len(front[0]):
        heads = ~flows.streams[front[1]]
        kept.append(_through((front[0][heads], front[1][heads]), offsets, deps))
        front = without_duplicates(_through((front[0][~heads], front[1][~heads]), offsets, deps))
        front = (front[0][waits[front[1]]], front[1][waits[front[1]]])
    front = kept[0]
    while len(front[0]):
        fed = flows.streams[front[1]]
        front = without_duplicates(_through((front[0][fed], front[1][fed]), offsets, deps))
        kept.append(front)
    together = joined(kept)
    kept.clear()
    return without_duplicates(together)


def _streams_that_wait(flows: PlannedFlows, edges: Edges) -> NDArray[np.bool_]:
    """[flows] whether the head of the flow's stream has dependencies; ``edges`` are those within streams.

    In merged plans no head has, which spares writing out n² pairs of flows that wait for each other through n ranks.
    """
    waiting, awaited = edges
    waits = ~flows.streams & (np.diff(flows.dep_offsets) > 0)
    while True:
        grown = waits.copy()
        grown[waiting[waits[awaited]]] = True
        if np.array_equal(grown, waits):
            return waits
        waits = grown


def _through(edges: Edges, offsets: NDArray[np.int64], deps: NDArray[np.int64]) -> Edges:
    """Edges in which each awaited flow is replaced by its own dependencies."""
    waiting, awaited = edges
    counts = offsets[awaited + 1] - offsets[awaited]
    return np.repeat(waiting, counts), deps[ranges(offsets[awaited], counts)]


@lru_cache(maxsize=16)
def _router(topology: Topology) -> Router:
    """Router of a topology, cached: topologies are immutable, and building distance tables takes time."""
    return Router(topology)
