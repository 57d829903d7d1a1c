"""From a plan to a flow graph: ranks become GPUs, user bytes become what the links carry.

NCCL moves user bytes through a port more slowly than the port's line rate: rings use few channels, LL spends half of
the wire on flags, copies pass through buffers. The network knows line rates only. So a flow is given
``max(wire bytes, user bytes · line rate / usable rate)`` bytes, where the usable rate is what the cost model says a
port carries of user bytes in this algorithm and protocol. An idle network then takes the model's time, and a network
that is slower than the model decides by its own capacity.

This treats a port as fully taken while a collective uses it. Where NCCL leaves part of the line rate free (LL rings
across nodes above all), other traffic on the same port is slowed more than in reality.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from netsim.flow import FlowGraph
from netsim.routing import Router
from netsim.topology import LinkKind, Topology
from simccl.communicator import port_bytes_per_s

if TYPE_CHECKING:
    from simccl.plan import Plan


@dataclass(frozen=True, slots=True)
class PortRates:
    """User bytes per second that one GPU's ports carry in one direction under an algorithm and protocol."""

    nvlink_bytes_per_s: float
    network_bytes_per_s: float


def lower(plan: Plan) -> FlowGraph:
    """The flow graph of a plan on its communicator's GPUs.

    The base latency comes once, before everything: it is part of the ready times. The hop latency is a flow's delay,
    less the path's propagation, which the network adds, and never below zero.
    """
    flows, communicator = plan.flows, plan.communicator
    gpus, node = communicator.gpu_ids(), communicator.node_of_rank()
    src, dst = gpus[flows.src], gpus[flows.dst]
    crosses = node[flows.src] != node[flows.dst]
    usable = np.where(crosses, plan.port_rates.network_bytes_per_s, plan.port_rates.nvlink_bytes_per_s)
    occupied_bytes = np.ceil(flows.payload_bytes * (_line_bytes_per_s(plan, src, dst, crosses) / usable))
    propagation_ps = path_latencies_ps(communicator.topology, src, dst)
    return FlowGraph(
        src=src,
        dst=dst,
        size_bytes=np.maximum(flows.wire_bytes, occupied_bytes.astype(np.int64)),
        ready_ps=plan.base_latency_ps + flows.not_before_ps,
        delay_ps=np.maximum(flows.latency_ps - propagation_ps, 0),
        dep_offsets=flows.dep_offsets,
        deps=flows.deps,
        flow_label=flows.channel.astype(np.uint32),
        notify=np.zeros(len(flows), dtype=np.bool_),
    )


def _line_bytes_per_s(
    plan: Plan, src: NDArray[np.int32], dst: NDArray[np.int32], crosses: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """[flows] line rate of the slower end port: NIC between nodes, NVLink inside, the NIC where there is no NVLink."""
    nic, nvlink = (port_bytes_per_s(plan.communicator.topology, kind) for kind in (LinkKind.NIC, LinkKind.NVLINK))
    inside = np.where(nvlink > 0, nvlink, nic)
    return np.where(crosses, np.minimum(nic[src], nic[dst]), np.minimum(inside[src], inside[dst]))


def path_latencies_ps(topology: Topology, src: NDArray[np.int32], dst: NDArray[np.int32]) -> NDArray[np.int64]:
    """[flows] propagation from GPU to GPU, looked up once per pair; equally short paths count as equally long."""
    pairs, inverse = np.unique(src.astype(np.int64) * topology.gpus + dst, return_inverse=True)
    router = _router(topology)
    senders, receivers = (ends.tolist() for ends in divmod(pairs, topology.gpus))
    latencies = [router.path_latency_ps(a, b) for a, b in zip(senders, receivers, strict=True)]
    return np.array(latencies, dtype=np.int64)[inverse]


@lru_cache(maxsize=16)
def _router(topology: Topology) -> Router:
    """Topologies are immutable, and routers answer alike whoever asks; keeping a few saves their distance tables."""
    return Router(topology)
