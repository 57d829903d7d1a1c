"""Traffic on which the network models are compared: topologies, flows and the settings of the packet model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from netsim import FlowGraph, LinkKind, NodeKind, Topology
from netsim.topology import DuplexLink

GBPS, MB = 10**9, 10**6
US, S = 10**6, 10**12
RATE_BPS: Final = 400 * GBPS
LATENCY_PS: Final = 500_000
EP_FLOW_BYTES: Final = 114_688
"""16 tokens of 7,168 B: a batch of 128 tokens per GPU, hidden size 7,168 in FP8, 8 of 64 experts (one per GPU)."""
TOKEN_BYTES: Final = 7_168


@dataclass(frozen=True, slots=True)
class Case:
    """Flows that several models carry, and what the packet model is set to."""

    name: str
    topology: Topology
    graphs: Sequence[FlowGraph]
    """Independent runs, such as seeds."""
    config: dict[str, Any] = field(default_factory=dict)
    """Of `netsim.roce.config.RoceConfig`."""


def star(hosts: int, rate_bps: int = RATE_BPS, latency_ps: int = LATENCY_PS) -> Topology:
    """Hosts on one switch."""
    nodes = [(NodeKind.GPU, f"host{i}") for i in range(hosts)] + [(NodeKind.LEAF, "switch")]
    cables = [DuplexLink(i, hosts, rate_bps, latency_ps, LinkKind.NIC) for i in range(hosts)]
    return Topology.from_cables(nodes, cables, gpus_per_node=1)


def clos(hosts: int = 64, leaves: int = 8, spines: int = 8) -> Topology:
    """Neighbouring hosts share a leaf; every leaf has a link to every spine."""
    return _two_tiers(leaves, spines, [host // (hosts // leaves) for host in range(hosts)], gpus_per_node=1)


def rails(gpus: int = 64, rail_count: int = 8, spines: int = 8) -> Topology:
    """GPU i is on rail i mod 8: eight servers of eight GPUs without NVLink, as only traffic between them counts."""
    return _two_tiers(rail_count, spines, [gpu % rail_count for gpu in range(gpus)], gpus_per_node=rail_count)


def _two_tiers(leaves: int, spines: int, leaf_of: Sequence[int], *, gpus_per_node: int) -> Topology:
    hosts = len(leaf_of)
    nodes = [(NodeKind.GPU, f"gpu{i}") for i in range(hosts)]
    nodes += [(NodeKind.LEAF, f"leaf{i}") for i in range(leaves)] + [
        (NodeKind.SPINE, f"spine{i}") for i in range(spines)
    ]
    cables = [DuplexLink(i, hosts + leaf, RATE_BPS, LATENCY_PS, LinkKind.NIC) for i, leaf in enumerate(leaf_of)]
    cables += [
        DuplexLink(hosts + leaf, hosts + leaves + spine, RATE_BPS, LATENCY_PS, LinkKind.FABRIC)
        for leaf in range(leaves)
        for spine in range(spines)
    ]
    return Topology.from_cables(nodes, cables, gpus_per_node=gpus_per_node)


def permutation(hosts: int, size_bytes: int, seed: int) -> FlowGraph:
    """Every host sends to another one, and every host receives once."""
    rng = np.random.default_rng(seed)
    while (to := rng.permutation(hosts))[to == np.arange(hosts)].size:
        pass
    return FlowGraph.from_lists(range(hosts), to.tolist(), [size_bytes] * hosts)


def incast(senders: int, size_bytes: int) -> FlowGraph:
    return FlowGraph.from_lists(range(1, senders + 1), [0] * senders, [size_bytes] * senders)


def expert_all_to_all(loads: NDArray[np.float64] | None = None, at_ps: int = 0) -> FlowGraph:
    """Dispatch of 64 ranks on 8 servers: 3,584 flows between different servers, 16 tokens each where loads are even.

    ``loads`` [64] is the share of tokens that each rank's expert receives, with a mean of 1.
    """
    ranks = np.arange(64)
    src, dst = (side.ravel() for side in np.meshgrid(ranks, ranks, indexing="ij"))
    is_sent = src // 8 != dst // 8
    tokens = np.full(64, EP_FLOW_BYTES // TOKEN_BYTES) if loads is None else np.rint(loads * 16).astype(np.int64)
    is_sent &= tokens[dst] > 0
    src, dst = src[is_sent], dst[is_sent]
    sizes = tokens[dst] * TOKEN_BYTES
    return FlowGraph.from_lists(src.tolist(), dst.tolist(), sizes.tolist(), ready_ps=[at_ps] * len(src))


def dirichlet_loads(seed: int, concentration: float = 2) -> NDArray[np.float64]:
    """[64] shares of the experts of 64 ranks; the smaller the concentration, the more skewed."""
    return np.random.default_rng(seed).dirichlet(np.full(64, concentration)) * 64


def kv_transfers(
    senders: Sequence[int], receivers: Sequence[int], count: int, per_second: float, seed: int
) -> FlowGraph:
    """KV caches of 100 MB to 1 GB (log-uniform) from random prefill to random decode GPUs, Poisson arrivals."""
    rng = np.random.default_rng(seed)
    arrivals_ps = np.cumsum(rng.exponential(S / per_second, count)).astype(np.int64)
    sizes = np.exp(rng.uniform(np.log(100 * MB), np.log(1000 * MB), count)).astype(np.int64)
    src, dst = rng.choice(senders, count), rng.choice(receivers, count)
    return FlowGraph.from_lists(src.tolist(), dst.tolist(), sizes.tolist(), ready_ps=arrivals_ps.tolist())


def expert_and_kv(seed: int) -> FlowGraph:
    """Four skewed dispatches, 1.2 ms apart, on servers that also receive KV caches of 20 MB to 60 MB."""
    rng = np.random.default_rng(seed)
    rows: list[tuple[int, int, int, int]] = []
    for step in range(4):
        graph = expert_all_to_all(dirichlet_loads(seed * 100 + step), step * 1200 * US)
        rows += zip(
            graph.src.tolist(), graph.dst.tolist(), graph.size_bytes.tolist(), graph.ready_ps.tolist(), strict=True
        )
    for _ in range(24):
        src, dst = rng.choice(8, 2, replace=False) * 8 + rng.integers(8, size=2)
        rows.append((int(src), int(dst), int(rng.integers(20 * MB, 60 * MB)), int(rng.integers(0, 4000 * US))))
    src_, dst_, sizes, ready = zip(*rows, strict=True)
    return FlowGraph.from_lists(src_, dst_, sizes, ready_ps=ready)


def all_cases(*, is_short: bool = False) -> list[Case]:
    """Those of the table; short ones have fewer runs and smaller transfers, for tests."""
    seeds = range(1 if is_short else 3)
    no_control = {"congestion_control": "none"}
    no_window = {"congestion_preset": "hpcc"}
    prefill, decode = range(32), range(32, 64)
    transfers = 4 if is_short else 60
    skewed = [expert_all_to_all(dirichlet_loads(seed)) for seed in seeds]
    return [
        Case("permutation of 64, 5 MB", clos(), [permutation(64, 5 * MB, seed) for seed in seeds]),
        Case("permutation of 64, 100 MB", clos(), [permutation(64, (5 if is_short else 100) * MB, 0)]),
        Case("all-to-all of 16, 1 MB", star(16), [_all_to_all(16, MB)]),
        Case("incast 15:1, 20 MB, no control", star(16), [incast(15, 20 * MB)], no_control),
        Case("incast 15:1, 20 MB, DCQCN", star(16), [incast(15, 20 * MB)]),
        Case("incast 15:1, 20 MB, DCQCN without window", star(16), [incast(15, 20 * MB)], no_window),
        Case("incast 63:1, 2 MB, no control", star(64), [incast(63, 2 * MB)], no_control),
        Case("incast 63:1, 2 MB, DCQCN", star(64), [incast(63, 2 * MB)]),
        Case("incast 63:1, 2 MB, DCQCN without window", star(64), [incast(63, 2 * MB)], no_window),
        Case("expert all-to-all of 64, even", rails(), [expert_all_to_all()]),
        Case("expert all-to-all, skewed, no control", rails(), skewed, no_control),
        Case("expert all-to-all, skewed", rails(), skewed),
        Case("KV transfers", clos(), [kv_transfers(prefill, decode, transfers, 8000, seed) for seed in (0,)]),
        Case("experts and KV together", rails(), [expert_and_kv(seed) for seed in (seeds if is_short else (0, 1))]),
    ]


def _all_to_all(hosts: int, size_bytes: int) -> FlowGraph:
    pairs = [(a, b) for a in range(hosts) for b in range(hosts) if a != b]
    src, dst = zip(*pairs, strict=True)
    return FlowGraph.from_lists(src, dst, [size_bytes] * len(pairs))
