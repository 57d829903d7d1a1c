"""NCCL's cost model: latency and bandwidth of each algorithm and protocol on a communicator, and which are enabled.

``time = latency + B / algorithm bandwidth`` with B the larger of what a rank sends and receives. Constants and rules
are those of NCCL 2.30.7 (src/graph/tuning.cc, src/enqueue.cc): the base latency is paid once per collective, a hardware
latency once per hop. Tested against values computed by NCCL's own code, except for CollNet.

Assumed: the channels of `simccl.search`; no tuner plug-in; no user limits; data types other than fp8; one collective
at a time. Not modelled: symmetric-memory kernels on registered windows and copy-engine collectives.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from simccl.arrangement import Arrangement, Cpu
from simccl.collective import PROTOCOLS, Algorithm, Collective, Protocol
from simccl.search import Channels, Graph, PathType, Pattern, search

A, P = Algorithm, Protocol

# All tables: NCCL 2.30.7, src/graph/tuning.cc. Columns LL, LL128, Simple; latencies in µs, bandwidths in GB/s.
_BASE_LATENCY_US = {
    A.TREE: (6.8, 14.0, 8.4),
    A.RING: (6.6, 14.0, 8.4),
    A.COLLNET_DIRECT: (0.0, 0.0, 0.0),
    A.COLLNET_CHAIN: (0.0, 0.0, 0.0),
    A.NVLS: (0.0, 0.0, 0.0),
    A.NVLS_TREE: (0.0, 0.0, 0.0),
    A.PAT: (8.0, 8.0, 8.0),
}
_NVLINK_LATENCY_US = {
    A.TREE: (0.6, 1.25, 4.0),
    A.RING: (0.6, 1.9, 3.4),
    A.COLLNET_DIRECT: (0.0, 0.0, 3.7),
    A.COLLNET_CHAIN: (0.0, 0.0, 2.8),
    A.NVLS: (0.0, 0.0, 25.0),
    A.NVLS_TREE: (0.0, 0.0, 25.0),
    A.PAT: (0.0, 0.0, 4.0),
}
_NETWORK_LATENCY_US = {
    A.TREE: (5.0, 8.5, 14.0),
    A.RING: (2.7, 4.0, 14.0),
    A.COLLNET_DIRECT: (0.0, 0.0, 31.0),
    A.COLLNET_CHAIN: (0.0, 0.0, 30.0),
    A.NVLS: (0.0, 0.0, 18.0),
    A.NVLS_TREE: (0.0, 0.0, 20.9),
    A.PAT: (0.0, 0.0, 14.0),
}
_HOST_OVERHEAD_US = {Cpu.INTEL: 1.0, Cpu.AMD: 2.0, Cpu.ARM: 1.0}
_HOST_OVERHEAD_FACTOR = np.array([1.0, 1.0, 3.0])

# Bandwidth limits in GB/s; keys are GPU generations, columns N = 1, 2, 3 and more nodes.
_LL_MAX = {70: (39.0, 39.0, 20.4), 80: (87.7, 22.5, 19.0), 90: (141.0, 45.0, 35.0), 100: (282.0, 90.0, 70.0)}
_CHANNEL_RING_LL128 = {80: (20.0, 20.0, 20.0), 90: (36.7, 36.7, 36.7), 100: (40.0, 40.0, 40.0)}
_CHANNEL_TREE_LL128 = {80: (20.0, 20.0, 20.0), 90: (36.7, 36.7, 29.0), 100: (55.6, 31.67, 20.0)}
_CHANNEL_TREE = {80: (24.0, 23.6, 17.8), 90: (38.7, 41.4, 36.0), 100: (70.0, 42.8, 24.0)}
_CHANNEL_NVLS_TREE = {80: (24.0, 23.6, 17.8), 90: (0.0, 57.7, 45.5), 100: (0.0, 96.0, 80.0)}
_NVLS_EFFICIENCY = {80: 0.0, 90: 0.85, 100: 0.74}

# Factors on the bandwidth of trees, index ⌊log2⌊B/64⌋⌋; beyond the end 1.
_TREE_FACTORS = {
    P.LL: (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1),
    P.LL128: (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7) + 6 * (0.6,) + (0.8, 0.9, 0.9, 0.9, 0.9, 1, 1),
    P.SIMPLE: 7 * (0.9,) + (0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
}
_NVLS_TREE_FACTORS = (*_TREE_FACTORS[P.SIMPLE], 0.9)

_SIMPLE_NETWORK_LATENCY_FACTOR = 1.4
_SIMPLE_NETWORK_MIN_BYTES = 64  # per channel and rank, for that factor to apply

ALGORITHMS = (A.TREE, A.RING, A.COLLNET_DIRECT, A.COLLNET_CHAIN, A.NVLS, A.NVLS_TREE, A.PAT)
"""The order in which NCCL compares them; of equal times the first wins."""

_USED_BY = {
    Collective.ALL_REDUCE: tuple(a for a in ALGORITHMS if a is not A.PAT),
    Collective.ALL_GATHER: (A.RING, A.COLLNET_DIRECT, A.NVLS, A.PAT),
    Collective.REDUCE_SCATTER: (A.RING, A.COLLNET_DIRECT, A.NVLS, A.PAT),
    Collective.BROADCAST: (A.RING,),
    Collective.REDUCE: (A.RING,),
}


@dataclass(frozen=True, slots=True, eq=False)
class AlgorithmCosts:
    """Cost model of one algorithm for one collective; arrays have one entry per protocol, in `PROTOCOLS` order."""

    algorithm: Algorithm
    graph: Graph
    executed: int
    """Channels that a large ring or tree of the communicator runs on."""
    ranks: int
    base_latency_us: NDArray[np.float64]
    """Paid once; for PAT and CollNet direct with the part that grows with the ranks."""
    nvlink_step_us: NDArray[np.float64]
    """Latency of a step inside a node."""
    network_step_us: NDArray[np.float64]
    """Latency of a step between nodes."""
    steps: int
    """Steps one after the other."""
    network_steps: int
    """Steps between nodes, of all."""
    algorithm_gbytes_per_s: NDArray[np.float64]
    """Size over time of a large collective."""
    bus_gbytes_per_s: NDArray[np.float64]
    """What all channels together carry over one hop, user bytes."""
    is_enabled: NDArray[np.bool_]
    slow_start_factor: float
    """Factor on the latency of a Simple ring once every channel and rank has 64 bytes."""
    bandwidth_factors: tuple[tuple[float, ...], ...] | None
    """Per protocol, factors on the bandwidth by size; None for none."""

    @property
    def latency_us(self) -> NDArray[np.float64]:
        """[protocols] base latency and all steps, before the slow start factor."""
        inside = (self.steps - self.network_steps) * self.nvlink_step_us
        return self.base_latency_us + inside + self.network_steps * self.network_step_us

    def times_us(self, size_bytes: NDArray[np.int64]) -> NDArray[np.float64]:
        """[protocols, sizes] time of each protocol, infinite where it is not enabled."""
        with np.errstate(divide="ignore"):
            transfer = size_bytes / (1e3 * self.algorithm_gbytes_per_s[:, None] * self._factors(size_bytes))
        return np.where(self.is_enabled[:, None], self.latencies_us(size_bytes) + transfer, np.inf)

    def latencies_us(self, size_bytes: NDArray[np.int64]) -> NDArray[np.float64]:
        """[protocols, sizes] the part of the time that does not grow with the bytes."""
        return self.latency_us[:, None] * self.latency_factors(size_bytes)

    def latency_factors(self, size_bytes: NDArray[np.int64]) -> NDArray[np.float64]:
        """[protocols, sizes] factor on the whole latency: Simple ring all_reduce between nodes starts more slowly."""
        factors = np.ones((len(PROTOCOLS), len(size_bytes)))
        is_large = size_bytes // (self.executed * self.ranks) >= _SIMPLE_NETWORK_MIN_BYTES
        factors[PROTOCOLS.index(P.SIMPLE), is_large] = self.slow_start_factor
        return factors

    def slowed(self, factor: float) -> AlgorithmCosts:
        """The same with every latency longer and every bandwidth smaller by a factor."""
        return replace(
            self,
            base_latency_us=self.base_latency_us * factor,
            nvlink_step_us=self.nvlink_step_us * factor,
            network_step_us=self.network_step_us * factor,
            algorithm_gbytes_per_s=self.algorithm_gbytes_per_s / factor,
            bus_gbytes_per_s=self.bus_gbytes_per_s / factor,
        )

    def _factors(self, size_bytes: NDArray[np.int64]) -> NDArray[np.float64]:
        """[protocols, sizes] factor on the bandwidth."""
        if self.bandwidth_factors is None:
            return np.ones((len(PROTOCOLS), len(size_bytes)))
        lines = size_bytes // 64
        octave = np.frexp(np.maximum(lines, 1).astype(np.float64))[1] - 1
        rows = []
        for table in self.bandwidth_factors:
            padded = np.array([*table, 1.0])
            rows.append(np.where(lines > 0, padded[np.minimum(octave, len(table))], 1.0))
        return np.array(rows)


@lru_cache(maxsize=1024)
def cost_model(op: Collective, at: Arrangement) -> tuple[AlgorithmCosts, ...]:
    """Costs of the algorithms that NCCL could use for a collective with a ring over two or more ranks.

    Raises:
        UnsupportedTopology: where no search result exists.
    """
    channels = search(at)
    found = (_costs(op, at, channels, algorithm) for algorithm in _USED_BY[op])
    return tuple(costs for costs in found if costs is not None)


def algorithm_costs(op: Collective, at: Arrangement, algorithm: Algorithm) -> AlgorithmCosts | None:
    """Costs of one algorithm, None where NCCL has no channels for it or does not use it for the collective."""
    return next((costs for costs in cost_model(op, at) if costs.algorithm is algorithm), None)


def ring_costs(op: Collective, at: Arrangement) -> AlgorithmCosts:
    """Costs of rings, which every collective of the cost model can use."""
    costs = algorithm_costs(op, at, A.RING)
    assert costs is not None
    return costs


def ring_steps(op: Collective, ranks: int) -> int:
    """Steps that NCCL's formulas count for a ring; broadcast and reduce are pipelined, their bandwidth is not cut."""
    match op:
        case Collective.ALL_REDUCE:
            return 2 * (ranks - 1)
        case Collective.BROADCAST | Collective.REDUCE:
            return ranks
        case _:
            return ranks - 1


def _costs(op: Collective, at: Arrangement, channels: Channels, algorithm: Algorithm) -> AlgorithmCosts | None:
    graph = _graph(channels, algorithm)
    is_enabled = _is_enabled(at, algorithm, graph)
    if graph is None or not is_enabled.any():
        return None
    bus = _bus_gbytes_per_s(op, at, algorithm, graph)
    base, inside, between = _latencies_us(op, at, algorithm)
    steps, network_steps = _steps(op, at, algorithm)
    return AlgorithmCosts(
        algorithm=algorithm,
        graph=graph,
        executed=channels.executed,
        ranks=at.ranks,
        base_latency_us=base,
        nvlink_step_us=inside,
        network_step_us=between,
        steps=steps,
        network_steps=network_steps,
        algorithm_gbytes_per_s=bus * _algorithm_share(op, at, algorithm),
        bus_gbytes_per_s=bus,
        is_enabled=is_enabled & (bus > 0),
        slow_start_factor=_slow_start_factor(op, at, algorithm),
        bandwidth_factors=_bandwidth_factors(op, at, algorithm),
    )


def _graph(channels: Channels, algorithm: Algorithm) -> Graph | None:
    match algorithm:
        case A.RING:
            return channels.ring
        case A.TREE | A.PAT:
            return channels.tree
        case A.NVLS | A.NVLS_TREE:
            return channels.nvls
        case _:
            return channels.collnet


def _is_enabled(at: Arrangement, algorithm: Algorithm, graph: Graph | None) -> NDArray[np.bool_]:
    """[protocols]"""
    match algorithm:
        case A.RING | A.TREE:
            farthest = PathType.PXN if at.gpu.compute_capability >= 90 else PathType.PIX
            has_ll128 = graph is not None and (at.nodes == 1 or graph.nic_path <= farthest)
            return np.array([True, has_ll128, True])
        case A.NVLS:
            usable = at.nodes == 1 or at.has_collnet
        case A.NVLS_TREE:
            usable = at.nodes > 1
        case A.PAT:
            usable = at.nodes == at.ranks > 1
        case _:
            usable = at.has_collnet and at.nodes > 1
    many_heads = algorithm not in (A.NVLS, A.NVLS_TREE) or (graph is not None and graph.channels >= 2)
    return np.array([False, False, usable and many_heads])


def _steps(op: Collective, at: Arrangement, algorithm: Algorithm) -> tuple[int, int]:
    """Steps one after the other, and those of them between nodes."""
    doublings, per_node = at.nodes.bit_length() - 1, at.ranks // at.nodes
    match algorithm:
        case A.RING if op in (Collective.BROADCAST, Collective.REDUCE):
            return (1, 0) if at.nodes == 1 else (at.ranks, at.ranks)
        case A.RING:
            rounds = 2 if op is Collective.ALL_REDUCE else 1
            return rounds * (at.ranks - 1), rounds * (at.nodes - 1)
        case A.TREE:
            return 2 * (per_node - 1 + doublings), 2 * doublings
        case A.NVLS:
            return (1, 0) if at.nodes == 1 else (2, 1)
        case A.NVLS_TREE:
            return 1 + 2 * doublings, 2 * doublings
        case A.PAT:
            return doublings, doublings
        case A.COLLNET_DIRECT:
            return (3, 1) if at.gpus_per_node > 1 else (1, 1)
        case _:
            return 2 * (at.gpus_per_node - 1) + 1, 1


def _latencies_us(
    op: Collective, at: Arrangement, algorithm: Algorithm
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """[protocols] base latency, and latency of a step inside a node and between nodes."""
    base, inside = np.array(_BASE_LATENCY_US[algorithm]), np.array(_NVLINK_LATENCY_US[algorithm])
    one_per_node = at.ranks == at.nodes
    between = np.array(_NETWORK_LATENCY_US[A.TREE if one_per_node else algorithm])
    match algorithm:
        case A.RING if op in (Collective.BROADCAST, Collective.REDUCE):
            between = np.array(_NETWORK_LATENCY_US[A.RING])
            inside[2], between[2] = _NVLINK_LATENCY_US[A.TREE][2], _NETWORK_LATENCY_US[A.TREE][2]
        case A.RING if at.nodes > 1:
            inside = np.maximum(inside, _HOST_OVERHEAD_US[at.cpu] * _HOST_OVERHEAD_FACTOR)
        case A.PAT:
            base, between = base + 2.8 * at.ranks, between / 3.5
        case A.COLLNET_DIRECT:
            base = base + 0.8 * (at.gpus_per_node - 1)
        case _:
            pass
    return base, inside, between


def _bus_gbytes_per_s(op: Collective, at: Arrangement, algorithm: Algorithm, graph: Graph) -> NDArray[np.float64]:
    """[protocols]"""
    column, generation = min(at.nodes, 3) - 1, at.gpu.compute_capability
    bw = graph.intra_gbytes_per_s if at.nodes <= 2 else graph.inter_gbytes_per_s
    total, channels = graph.channels * bw, graph.channels
    # Across nodes NCCL indexes the limit of LL by CPU vendor, not by GPU.
    ll_max = _LL_MAX[generation if at.nodes == 1 else 80 if at.cpu is Cpu.AMD else 70][column]
    match algorithm:
        case A.RING:
            ll128_max = channels * _CHANNEL_RING_LL128[generation][column]
            return np.array([min(ll_max, 0.5 * total), min(0.92 * total, ll128_max), total])
        case A.TREE:
            simple = min(0.92 * total, channels * _CHANNEL_TREE[generation][column])
            ll128_max = channels * _CHANNEL_TREE_LL128[generation][column]
            ll128 = min(simple * (7 / 9 if at.nodes == 1 else 120 / 128), ll128_max)
            factor = 0.85 if graph.pattern is Pattern.TREE else 1.0
            return np.array([min(simple / 3.8, ll_max), ll128, simple]) * factor
        case A.NVLS | A.NVLS_TREE:
            return np.array([0.0, 0.0, channels * _nvls_channel_gbytes_per_s(op, at, algorithm, graph)])
        case A.PAT:
            return np.array([0.0, 0.0, 0.75 * total])
        case _:
            return np.array([0.0, 0.0, _collnet_gbytes_per_s(op, at, algorithm, graph)])


def _nvls_channel_gbytes_per_s(op: Collective, at: Arrangement, algorithm: Algorithm, graph: Graph) -> float:
    generation, heads = at.gpu.compute_capability, graph.channels
    per_node = at.ranks / at.nodes
    reach = 2.0 if op is Collective.ALL_REDUCE else (per_node - 1) / per_node
    intra = graph.intra_gbytes_per_s * _NVLS_EFFICIENCY[generation] * (heads - 1) / heads * reach
    if algorithm is A.NVLS:
        return min(intra, graph.inter_gbytes_per_s)
    inter = graph.inter_gbytes_per_s * (2 if at.nodes <= 2 else 1)
    return min(intra, inter, _CHANNEL_NVLS_TREE[generation][min(at.nodes, 3) - 1])


def _collnet_gbytes_per_s(op: Collective, at: Arrangement, algorithm: Algorithm, graph: Graph) -> float:
    per_node = at.ranks / at.nodes
    if op is not Collective.ALL_REDUCE:
        return per_node * min(graph.intra_gbytes_per_s, 0.9 * graph.inter_gbytes_per_s)
    total = graph.channels * graph.intra_gbytes_per_s
    if algorithm is A.COLLNET_CHAIN:
        return total
    shared = per_node / graph.channels
    return total / (shared - (shared - 1) / 2) * (0.85 if at.gpu.compute_capability >= 90 else 1.0)


def _algorithm_share(op: Collective, at: Arrangement, algorithm: Algorithm) -> float:
    """Algorithm bandwidth over bus bandwidth."""
    if algorithm is A.RING or (algorithm in (A.NVLS, A.NVLS_TREE) and op is Collective.ALL_REDUCE):
        return at.ranks / ring_steps(op, at.ranks)
    return 0.5 if op is Collective.ALL_REDUCE else 1.0


def _slow_start_factor(op: Collective, at: Arrangement, algorithm: Algorithm) -> float:
    is_slow = algorithm is A.RING and op is Collective.ALL_REDUCE and at.nodes > 1
    return _SIMPLE_NETWORK_LATENCY_FACTOR if is_slow else 1.0


def _bandwidth_factors(op: Collective, at: Arrangement, algorithm: Algorithm) -> tuple[tuple[float, ...], ...] | None:
    if op is not Collective.ALL_REDUCE:
        return None
    if algorithm is A.TREE:
        return tuple(_TREE_FACTORS[protocol] for protocol in PROTOCOLS)
    if algorithm is A.NVLS_TREE and at.gpu.compute_capability >= 100 and at.cpu is not Cpu.ARM:
        return ((1.0,), (1.0,), _NVLS_TREE_FACTORS)
    return None
