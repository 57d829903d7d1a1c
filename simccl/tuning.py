"""NCCL's cost model for rings: latency and bandwidth of each protocol, and the choice among them.

``time = latency + B / algorithm bandwidth`` with B the larger of what a rank sends and receives. The constants and
rules are those of NCCL 2.30.7 (src/graph/tuning.cc) restricted to the Ring column: the base latency is paid once per
collective, a hardware latency once per ring step. Tested against values computed by NCCL's own code.

Assumed: the arrangement of `simccl.search`; no tuner plug-in; no user limits on channels, algorithms or protocols;
data types other than fp8. Not modelled: Tree, NVLS, NVLSTree, PAT and CollNet, which NCCL prefers for all_reduce on
an NVSwitch from about 2 MiB up and between nodes; the times here are therefore those of the best *ring*.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from simccl.collective import PROTOCOLS, Collective, Protocol
from simccl.hardware import Gpu
from simccl.search import RingChannels, search_rings


class Cpu(StrEnum):
    """CPU vendor of the nodes; NCCL's latency and LL limits depend on it once there are several nodes."""

    INTEL = "intel"
    AMD = "amd"


# All tables: NCCL 2.30.7, src/graph/tuning.cc. Columns LL, LL128, Simple; latencies in µs, bandwidths in GB/s.
_BASE_LATENCY_US = np.array([6.6, 14.0, 8.4])
_NVLINK_LATENCY_US = np.array([0.6, 1.9, 3.4])
_NETWORK_LATENCY_US = np.array([2.7, 4.0, 14.0])
_NETWORK_LATENCY_ONE_RANK_PER_NODE_US = np.array([5.0, 8.5, 14.0])  # the Tree row
_HOST_OVERHEAD_US = {Cpu.INTEL: 1.0, Cpu.AMD: 2.0}
_HOST_OVERHEAD_FACTOR = np.array([1.0, 1.0, 3.0])
_LL_MAX_GBYTES_PER_S = {  # columns N = 1, 2, 3 and more
    "volta": (39.0, 39.0, 20.4),
    80: (87.7, 22.5, 19.0),
    90: (141.0, 45.0, 35.0),
    100: (282.0, 90.0, 70.0),
}
_LL128_CHANNEL_GBYTES_PER_S = {80: 20.0, 90: 36.7, 100: 40.0}
_SIMPLE_NETWORK_LATENCY_FACTOR = 1.4
_SIMPLE_NETWORK_MIN_BYTES = 64  # per channel and rank, for that factor to apply

# Work split (NCCL 2.30.7, src/enqueue.cc): most threads per channel, and bytes per thread below which channels are
# given up; Ring LL counts its threshold per rank.
_MAX_THREADS = np.array([512, 640, 512])
_BYTES_PER_THREAD = np.array([8, 8, 64])


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Where the ranks of a communicator are and what connects them; all that the cost model looks at."""

    gpu: Gpu
    ranks: int
    nodes: int
    gpus_per_node: int
    """Ranks on the node that has fewest."""
    nic_gbytes_per_s: float
    cpu: Cpu = Cpu.INTEL


@dataclass(frozen=True, slots=True, eq=False)
class RingCosts:
    """Cost model of one collective on one arrangement; arrays have one entry per protocol, in `PROTOCOLS` order."""

    search: RingChannels
    base_latency_us: NDArray[np.float64]
    nvlink_step_us: NDArray[np.float64]
    """Latency of a ring step inside a node."""
    network_step_us: NDArray[np.float64]
    """Latency of a ring step between nodes."""
    steps: int
    network_steps: int
    """Steps between nodes, of all."""
    algorithm_gbytes_per_s: NDArray[np.float64]
    bus_gbytes_per_s: NDArray[np.float64]
    """What all rings together carry over one hop, user bytes."""
    is_enabled: NDArray[np.bool_]
    slow_start_factor: float
    """Factor on the latency of Simple once every channel and rank has 64 bytes."""
    ranks: int

    @property
    def latency_us(self) -> NDArray[np.float64]:
        """[protocols] base latency and all steps, before the slow start factor."""
        inside = (self.steps - self.network_steps) * self.nvlink_step_us
        return self.base_latency_us + inside + self.network_steps * self.network_step_us

    def times_us(self, size_bytes: NDArray[np.int64]) -> NDArray[np.float64]:
        """[protocols, sizes] time of each protocol, infinite where it is not enabled."""
        times = self.latencies_us(size_bytes) + size_bytes / (1e3 * self.algorithm_gbytes_per_s[:, None])
        return np.where(self.is_enabled[:, None], times, np.inf)

    def latencies_us(self, size_bytes: NDArray[np.int64]) -> NDArray[np.float64]:
        """[protocols, sizes] the part of the time that does not grow with the bytes."""
        return self.latency_us[:, None] * self.latency_factors(size_bytes)

    def latency_factors(self, size_bytes: NDArray[np.int64]) -> NDArray[np.float64]:
        """[protocols, sizes] factor on the whole latency: Simple all_reduce between nodes starts more slowly."""
        is_large = size_bytes // (self.search.executed * self.ranks) >= _SIMPLE_NETWORK_MIN_BYTES
        factors = np.ones((len(PROTOCOLS), len(size_bytes)))
        factors[PROTOCOLS.index(Protocol.SIMPLE), is_large] = self.slow_start_factor
        return factors

    def channels(self, size_bytes: NDArray[np.int64], protocol: NDArray[np.intp]) -> NDArray[np.int64]:
        """[sizes] channels that each operation runs on: fewer than all where a thread would have too few bytes."""
        threshold = _MAX_THREADS * _BYTES_PER_THREAD * np.array([self.ranks, 1, 1])
        channels: NDArray[np.int64] = np.clip(size_bytes // threshold[protocol], 1, self.search.executed)
        return channels


def ring_costs(op: Collective, arrangement: Arrangement) -> RingCosts:
    """The Ring column of NCCL's tuning table for all_reduce, all_gather or reduce_scatter over two or more ranks.

    Raises:
        UnsupportedTopology: where no ring search result exists.
    """
    at = arrangement
    search = search_rings(at.gpu, gpus_per_node=at.gpus_per_node, nodes=at.nodes, nic_gbytes_per_s=at.nic_gbytes_per_s)
    rounds = 2 if op is Collective.ALL_REDUCE else 1
    steps = rounds * (at.ranks - 1)
    bus = _bus_gbytes_per_s(search, at)
    inside, between = _step_latencies_us(at)
    return RingCosts(
        search=search,
        base_latency_us=_BASE_LATENCY_US,
        nvlink_step_us=inside,
        network_step_us=between,
        steps=steps,
        network_steps=rounds * (at.nodes - 1),
        algorithm_gbytes_per_s=bus * at.ranks / steps,
        bus_gbytes_per_s=bus,
        is_enabled=np.array([True, _has_ll128(at), True]),
        slow_start_factor=_SIMPLE_NETWORK_LATENCY_FACTOR if rounds == 2 and at.nodes > 1 else 1.0,
        ranks=at.ranks,
    )


def _step_latencies_us(at: Arrangement) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Latency of a ring step inside a node and between nodes, per protocol."""
    network = _NETWORK_LATENCY_ONE_RANK_PER_NODE_US if at.ranks == at.nodes else _NETWORK_LATENCY_US
    if at.nodes == 1:
        return _NVLINK_LATENCY_US, network
    return np.maximum(_NVLINK_LATENCY_US, _HOST_OVERHEAD_US[at.cpu] * _HOST_OVERHEAD_FACTOR), network


def _bus_gbytes_per_s(search: RingChannels, at: Arrangement) -> NDArray[np.float64]:
    total = search.channels * search.gbytes_per_s
    column = min(at.nodes, 3) - 1
    generation = at.gpu.compute_capability
    if at.nodes > 1:  # across nodes NCCL indexes the LL limit by CPU vendor, not by GPU
        ll_max = _LL_MAX_GBYTES_PER_S[80 if at.cpu is Cpu.AMD else "volta"][column]
    else:
        ll_max = _LL_MAX_GBYTES_PER_S[generation][column]
    ll128_max = search.channels * _LL128_CHANNEL_GBYTES_PER_S[generation]
    return np.array([min(ll_max, 0.5 * total), min(0.92 * total, ll128_max), total])


def _has_ll128(at: Arrangement) -> bool:
    """Before Hopper LL128 needs a NIC path without a detour over another GPU, which rings of several GPUs take."""
    return at.nodes == 1 or at.gpu.compute_capability >= 90 or at.gpus_per_node == 1
