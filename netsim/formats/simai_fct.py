"""SimAI's and HPCC's text of flow completion times.

One line per flow, in the order of completion: ``sip dip sport dport bytes start_ns fct_ns standalone_fct_ns``.
Addresses are eight hexadecimal digits, ports those that ECMP hashes (`netsim.routing`). A flow completes when its
sender has the last acknowledgement; over NVLink, which has none, when its last byte arrives. The standalone time is
that of the originals (``qp_finish`` of HPCC's and SimAI's ns-3 drivers):

    base RTT + (bytes + packets * header) * 8 / rate
    base RTT = 2 * sum of latencies + sum over hops of payload * 8 / rate

with the lowest rate of the path and the payload of a full packet. As there, the RTT has a full packet without its
header on every hop, which a flow alone does not take exactly. Unlike there, hops are not rounded to nanoseconds, and
byte totals do not wrap at 4 GiB.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from netsim.flow import FlowGraph
from netsim.roce.config import RoceConfig
from netsim.routing import Router
from netsim.topology import NodeKind, Topology
from netsim.units import BITS_PER_BYTE, PS_PER_NS, PS_PER_S

FIRST_SOURCE_PORT = 10_000
DESTINATION_PORT = 100


def fct_text(
    graph: FlowGraph,
    start_ps: NDArray[np.int64],
    acknowledged_ps: NDArray[np.int64],
    topology: Topology,
    config: RoceConfig,
) -> str:
    """The file; flows that crossed no link, or have not completed (``acknowledged_ps`` -1), have no line.

    ``start_ps`` and ``acknowledged_ps`` are [flows].
    """
    standalone = StandaloneTimes(topology, config)
    lines = []
    for flow in np.argsort(acknowledged_ps, kind="stable").tolist():
        if acknowledged_ps[flow] < 0:
            continue
        src, dst, label = int(graph.src[flow]), int(graph.dst[flow]), int(graph.flow_label[flow])
        size, started = int(graph.size_bytes[flow]), int(start_ps[flow])
        times = (started, int(acknowledged_ps[flow]) - started, standalone.time_ps(src, dst, label, size))
        source_port, destination_port = ports(label)
        start_ns, fct_ns, standalone_ns = (_nanoseconds(time) for time in times)
        what = f"{address(src):08x} {address(dst):08x} {source_port} {destination_port} {size}"
        lines.append(f"{what} {start_ns} {fct_ns} {standalone_ns}\n")
    return "".join(lines)


def address(node: int) -> int:
    """11.(node div 256).(node mod 256).1, the IPv4 address of a node."""
    return 0x0B000001 + (node // 256 << 16) + (node % 256 << 8)


def ports(flow_label: int) -> tuple[int, int]:
    """Source and destination port of a flow label; 16 bits each, so the former wraps after 55,536 flows of a pair."""
    return (FIRST_SOURCE_PORT + flow_label) % 2**16, (DESTINATION_PORT + (flow_label >> 16)) % 2**16


class StandaloneTimes:
    """What flows would take alone by the formula above; NVLink packets have no header."""

    def __init__(self, topology: Topology, config: RoceConfig) -> None:
        self._router = Router(topology, ecmp_seed=config.ecmp_seed)
        self._capacity_bps = topology.capacity_bps.tolist()
        self._latency_ps = topology.latency_ps.tolist()
        is_nvswitch = topology.node_kind == NodeKind.NVSWITCH
        self._is_nvlink = (is_nvswitch[topology.link_src] | is_nvswitch[topology.link_dst]).tolist()
        self._payload_bytes = config.mtu_bytes
        self._header_bytes = config.header_bytes

    def time_ps(self, src: int, dst: int, flow_label: int, size_bytes: int) -> int:
        links = self._router.route(src, dst, flow_label).tolist()
        rates = [self._capacity_bps[link] for link in links]
        header_bytes = 0 if all(self._is_nvlink[link] for link in links) else self._header_bytes
        packets = -(-size_bytes // self._payload_bytes)
        rtt_ps = 2 * sum(self._latency_ps[link] for link in links)
        rtt_ps += sum(_sending_ps(self._payload_bytes, rate) for rate in rates)
        alone_ps: int = rtt_ps + _sending_ps(size_bytes + packets * header_bytes, min(rates))
        return alone_ps


def _sending_ps(size_bytes: int, rate_bps: int) -> int:
    return (size_bytes * BITS_PER_BYTE * PS_PER_S + rate_bps // 2) // rate_bps


def _nanoseconds(time_ps: int) -> int:
    """To the nearest one."""
    return (time_ps + PS_PER_NS // 2) // PS_PER_NS
