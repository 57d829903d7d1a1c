"""Slowdowns of short flows on the fat tree of the HPCC paper (Li et al., SIGCOMM 2019, section 5.1).

320 hosts at 100 Gbit/s below 20 leaves, 20 aggregation and 16 core switches in five pods; 160 links of 400 Gbit/s
between switches, 1 us each, 1:1. Flows arrive at every host as a Poisson process and go to another host, uniformly.
Sizes follow WebSearch (Alizadeh et al., DCTCP, SIGCOMM 2010, figure 4) or FB_Hadoop (Roy et al., Inside the Social
Network's (Datacenter) Network, SIGCOMM 2015, figure 6), at the points at which the traffic generator of the HPCC
simulator tabulates them and straight between them.

As in the simulator's run.py: packets of 1,000 B, ECN and steps of each scheme, 32 MB per switch; telemetry takes 42 B
of a packet (HPCC) and 8 B (TIMELY). Not as there: 400 Gbit/s links mark from 800 KB instead of 1,600 KB on, a flow ends
with its last byte and not with the last ACK, and runs are milliseconds long instead of a tenth of a second.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from netsim import FlowGraph, LinkKind, NodeKind, Topology, WireFormat, create_backend
from netsim.roce.config import RoceConfig
from netsim.topology import DuplexLink

HOSTS: Final = 320
NIC_BPS: Final = 100 * 10**9
PODS, LEAVES_PER_POD, CORES = 5, 4, 16

SIZES: Final = {
    "WebSearch": (
        (0, 10_000, 20_000, 30_000, 50_000, 80_000, 200_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000, 30_000_000),
        (0, 15, 20, 30, 40, 53, 60, 70, 80, 90, 97, 100),
    ),
    "FB_Hadoop": (
        (0, 100, 200, 300, 350, 400, 500, 600, 700, 1_000, 2_000, 7_000, 30_000, 50_000, 80_000, 120_000, 300_000,
         1_000_000, 2_000_000, 10_000_000),
        (0, 1, 2, 5, 15, 20, 30, 40, 50, 60, 67, 70, 72, 82, 87, 90, 95, 97.5, 99, 100),
    ),
}  # fmt: skip
"""Bytes and the percentage of flows up to them."""

SCHEMES: Final[dict[str, dict[str, Any]]] = {
    "HPCC": {"congestion_control": "hpcc", "header_bytes": 52 + 42},
    "DCTCP": {"congestion_control": "dctcp"},
    "DCQCN+win": {"congestion_preset": "hpcc_vwin"},
    "DCQCN": {"congestion_preset": "hpcc"},
    "TIMELY+win": {"congestion_control": "timely", "header_bytes": 52 + 8},
    "TIMELY": {"congestion_control": "timely", "congestion_preset": "hpcc", "header_bytes": 52 + 8},
}


def fat_tree_of_hpcc() -> Topology:
    leaves = PODS * LEAVES_PER_POD
    nodes = [(NodeKind.GPU, f"host{i}") for i in range(HOSTS)]
    nodes += [(NodeKind.LEAF, f"leaf{i}") for i in range(leaves)]
    nodes += [(NodeKind.SPINE, f"aggregation{i}") for i in range(leaves)]
    nodes += [(NodeKind.SPINE, f"core{i}") for i in range(CORES)]
    first_leaf, first_aggregation, first_core = HOSTS, HOSTS + leaves, HOSTS + 2 * leaves
    per_leaf = HOSTS // leaves
    cables = [DuplexLink(i, first_leaf + i // per_leaf, NIC_BPS, 10**6, LinkKind.NIC) for i in range(HOSTS)]
    for pod in range(PODS):
        of_pod = range(pod * LEAVES_PER_POD, (pod + 1) * LEAVES_PER_POD)
        pairs = [(first_leaf + leaf, first_aggregation + up) for leaf in of_pod for up in of_pod]
        pairs += [(first_aggregation + up, first_core + 4 * (up % 4) + k) for up in of_pod for k in range(4)]
        cables += [DuplexLink(a, b, 4 * NIC_BPS, 10**6, LinkKind.FABRIC) for a, b in pairs]
    return Topology.from_cables(nodes, cables, gpus_per_node=1)


def traffic(workload: str, load: float, duration_ps: int, seed: int = 1) -> FlowGraph:
    """Flows of all hosts that together offer ``load`` of their NICs in payload, as the simulator's generator counts."""
    rng = np.random.default_rng(seed)
    sizes, percent = (np.array(column, dtype=np.float64) for column in SIZES[workload])
    mean_bytes = float(np.sum(np.diff(percent) / 100 * (sizes[1:] + sizes[:-1]) / 2))
    count = rng.poisson(HOSTS * load * NIC_BPS * duration_ps / (8e12 * mean_bytes))
    bytes_ = np.maximum(np.interp(rng.uniform(0, 100, count), percent, sizes), 1).astype(np.int64)
    src = rng.integers(HOSTS, size=count)
    dst = (src + rng.integers(1, HOSTS, size=count)) % HOSTS
    starts = np.sort(rng.integers(duration_ps, size=count))
    return FlowGraph.from_lists(src.tolist(), dst.tolist(), bytes_.tolist(), ready_ps=starts.tolist())


def durations_ps(backend_name: str, topology: Topology, graph: FlowGraph, **options: Any) -> NDArray[np.int64]:
    """[flows] from start to the last byte."""
    backend = create_backend(backend_name, topology, **options)
    handle = backend.submit(graph, 0)
    while not any(c.flow is None for c in backend.advance(10**13)):
        assert backend.now_ps < 10**13, "flows that never end"
    return backend.flow_times(handle).end_ps - graph.ready_ps


def slowdowns(topology: Topology, graph: FlowGraph, scheme: str) -> NDArray[np.float64]:
    """[flows] time over the time alone with headers of 52 B, at least 1."""
    alone = durations_ps("analytical", topology, graph, wire=WireFormat(mtu_bytes=1000, ack_bytes=0))
    config = RoceConfig.model_validate({"mtu_bytes": 1000, **SCHEMES[scheme]})
    return np.maximum(durations_ps("packet", topology, graph, roce=config) / alone, 1)
