"""The packet model beside published figures of other packet simulators: csg-htsim, ns-3-alibabacloud, HPCC's ns-3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from netsim import FlowGraph, Topology
from netsim.backends.packet import PacketBackend
from netsim.roce.config import RoceConfig
from tests.validation.hpcc_fat_tree import SCHEMES, SIZES, fat_tree_of_hpcc, slowdowns, traffic
from tests.validation.network_cases import MB, clos, expert_all_to_all, incast, rails

HTSIM_INCAST_US: Final = 6098.0
"""csg-htsim, RoCE with PFC on a three-tier fat tree, 15 flows of 20 MB to one host, 400 Gbit/s, 4,096 B."""
ALIBABACLOUD_US: Final = {1000: (147.7, 166.1), 4096: (135.8, 154.9), 9000: (135.4, 155.1)}
"""MTU: mean flow time and makespan of the even expert all-to-all in ns-3-alibabacloud, release build."""
SHORT_BYTES: Final = 30_000
LOAD: Final = 0.5
RUN_PS: Final = {"WebSearch": 4 * 10**9, "FB_Hadoop": 2 * 10**9}


def ends_us(topology: Topology, graph: FlowGraph, **config: Any) -> NDArray[np.float64]:
    """[flows] microseconds until the last byte in `packet`."""
    backend = PacketBackend(topology, RoceConfig.model_validate(config))
    handle = backend.submit(graph, 0)
    while not any(c.flow is None for c in backend.advance(10**13)):
        assert backend.now_ps < 10**13, "flows that never end"
    return backend.flow_times(handle).end_ps / 1e6


def htsim_table() -> str:
    """An incast inside a Clos of 16 hosts, whose cross-leaf paths have four links."""
    lines = ["| header | csg-htsim | `packet` | difference |", "|---|---|---|---|"]
    for header_bytes in (52, 64):
        config = {"congestion_control": "none", "window": "unbounded", "header_bytes": header_bytes}
        found = float(ends_us(clos(16, 4, 4), incast(15, 20 * MB), **config).max())
        lines.append(
            f"| {header_bytes} B | 6,098 µs | {found:,.0f} µs | {100 * (found / HTSIM_INCAST_US - 1):+.1f} % |"
        )
    return "\n".join(lines)


def alibabacloud_table() -> str:
    lines = [
        "| MTU | mean flow, alibabacloud | `packet` | | makespan, alibabacloud | `packet` | |",
        "|---|---|---|---|---|---|---|",
    ]
    for mtu_bytes, (mean_us, makespan_us) in ALIBABACLOUD_US.items():
        found = ends_us(rails(), expert_all_to_all(), mtu_bytes=mtu_bytes)
        mean, makespan = float(found.mean()), float(found.max())
        lines.append(
            f"| {mtu_bytes} B | {mean_us} µs | {mean:.1f} µs | {100 * (mean / mean_us - 1):+.1f} % "
            f"| {makespan_us} µs | {makespan:.1f} µs | {100 * (makespan / makespan_us - 1):+.1f} % |"
        )
    return "\n".join(lines)


def short_and_long(
    workload: str, schemes: list[str], run_ps: int
) -> dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Slowdowns of flows of up to 30 KB and of those above 1 MB, for each scheme on the same traffic."""
    topology, graph = fat_tree_of_hpcc(), traffic(workload, LOAD, run_ps)
    is_short, is_long = graph.size_bytes <= SHORT_BYTES, graph.size_bytes > MB
    found = {scheme: slowdowns(topology, graph, scheme) for scheme in schemes}
    return {scheme: (of_flows[is_short], of_flows[is_long]) for scheme, of_flows in found.items()}


def hpcc_table() -> str:
    lines = [
        "| workload | scheme | up to 30 KB: median, p95, p99 | above 1 MB: median, p95, p99 |",
        "|---|---|---|---|",
    ]
    for workload in SIZES:
        for scheme, parts in short_and_long(workload, list(SCHEMES), RUN_PS[workload]).items():
            columns = [" / ".join(f"{np.quantile(part, q):.2f}" for q in (0.5, 0.95, 0.99)) for part in parts]
            lines.append(f"| {workload} | {scheme} | {columns[0]} | {columns[1]} |")
    return "\n".join(lines)


def reference_tables() -> dict[str, Callable[[], str]]:
    """By section of docs/accuracy/network.md."""
    return {"htsim": htsim_table, "ns-3-alibabacloud": alibabacloud_table, "HPCC": hpcc_table}
