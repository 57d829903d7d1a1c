"""Times of the packet model by hand: store and forward, one packet after another on every link of one path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from netsim import FlowGraph, FlowTimes, LinkKind, NodeKind, Topology
from netsim.backends.packet import PacketBackend
from netsim.roce.config import RoceConfig
from netsim.topology import DuplexLink

FAR_PS = 10**18
ALONE = RoceConfig(congestion_control="none", window="unbounded")
"""Nothing but packets, links and queues."""


@dataclass(frozen=True, slots=True)
class Hop:
    """One link of a path."""

    bps: int
    latency_ps: int


@dataclass(frozen=True, slots=True)
class Wire:
    """Sizes of packets."""

    mtu_bytes: int = 4096
    header_bytes: int = 52
    ack_bytes: int = 60

    def packets(self, size_bytes: int) -> list[int]:
        """Wire bytes of a message's packets, the last of which may be shorter."""
        full, rest = divmod(size_bytes, self.mtu_bytes)
        return [self.mtu_bytes + self.header_bytes] * full + ([rest + self.header_bytes] if rest else [])


def serialization_ps(wire_bytes: int, bps: int) -> int:
    """To the nearest picosecond, as every packet's is."""
    return (wire_bytes * 8 * 10**12 + bps // 2) // bps


def arrivals_ps(hops: Sequence[Hop], packets: Sequence[int]) -> list[int]:
    """When each packet of a message has come in, if all are ready at 0: it leaves a node when all of it is there and
    the one in front of it has left."""
    is_free_at = [0] * len(hops)
    arrivals = []
    for wire_bytes in packets:
        at = 0
        for k, hop in enumerate(hops):
            is_free_at[k] = max(at, is_free_at[k]) + serialization_ps(wire_bytes, hop.bps)
            at = is_free_at[k] + hop.latency_ps
        arrivals.append(at)
    return arrivals


def transfer_ps(hops: Sequence[Hop], size_bytes: int, wire: Wire | None = None) -> int:
    """From the first byte sent to the last byte received."""
    return arrivals_ps(hops, (wire or Wire()).packets(size_bytes))[-1]


def ack_ps(hops: Sequence[Hop], wire: Wire | None = None) -> int:
    """An acknowledgement on its way back through idle links."""
    return sum(hop.latency_ps + serialization_ps((wire or Wire()).ack_bytes, hop.bps) for hop in hops)


def chain(hops: Sequence[Hop]) -> Topology:
    """GPU 0, switches, GPU 1, in a row; link ``2k`` is hop ``k`` forward, ``2k + 1`` backward."""
    nodes = [(NodeKind.GPU, "gpu0"), (NodeKind.GPU, "gpu1")]
    nodes += [(NodeKind.SWITCH, f"switch{i}") for i in range(len(hops) - 1)]
    row = [0, *range(2, len(hops) + 1), 1]
    cables = [
        DuplexLink(row[k], row[k + 1], hop.bps, hop.latency_ps, LinkKind.NIC if k == 0 else LinkKind.FABRIC)
        for k, hop in enumerate(hops)
    ]
    return Topology.from_cables(nodes, cables, gpus_per_node=1)


def run(topology: Topology, graph: FlowGraph, config: RoceConfig) -> tuple[PacketBackend, FlowTimes]:
    """The graph from 0 until everything has come to rest, acknowledgements included."""
    backend = PacketBackend(topology, config)
    backend.keep_log()
    handle = backend.submit(graph, 0)
    while backend.next_event_ps() is not None:
        backend.advance(FAR_PS)
    return backend, backend.flow_times(handle)


def jain(shares: np.ndarray) -> float:
    """Fairness index: 1 if all are equal, 1/n if one has all (Jain, Chiu, Hawe 1984)."""
    return float(shares.sum() ** 2 / (len(shares) * (shares**2).sum()))
