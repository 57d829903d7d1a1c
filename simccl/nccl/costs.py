"""Costs of one algorithm by NCCL's model, and NCCL's choice for one collective.

``time = latency + B / algorithm bandwidth`` with B the larger of what a rank sends and receives: the base latency is
paid once per collective, a hardware latency once per hop (NCCL 2.30.7, src/graph/tuning.cc, src/enqueue.cc).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simccl.collective import PROTOCOLS, Algorithm, Protocol
from simccl.nccl.search import Graph

_SIMPLE_NETWORK_MIN_BYTES = 64
"""Bytes per channel and rank from which on the slow start of a Simple ring applies."""


class Latencies(NamedTuple):
    """Latencies of an algorithm in µs, one entry per protocol."""

    base: NDArray[np.float64]
    """Latency paid once."""
    inside: NDArray[np.float64]
    """Latency of a step inside a node."""
    between: NDArray[np.float64]
    """Latency of a step between nodes."""


@dataclass(frozen=True, slots=True, eq=False)
class AlgorithmCosts:
    """Cost model of one algorithm for one collective; arrays have one entry per protocol, in `PROTOCOLS` order."""

    algorithm: Algorithm
    graph: Graph
    executed: int
    """Channels that a large ring or tree of the communicator runs on."""
    ranks: int
    base_latency_us: NDArray[np.float64]
    """Latency paid once; for PAT and CollNet direct it includes the part that grows with the ranks."""
    nvlink_step_us: NDArray[np.float64]
    """Latency of a step inside a node."""
    network_step_us: NDArray[np.float64]
    """Latency of a step between nodes."""
    steps: int
    """Number of consecutive steps."""
    network_steps: int
    """Number of those steps that cross between nodes."""
    algorithm_gbytes_per_s: NDArray[np.float64]
    """Algorithm bandwidth: size over time of a large collective."""
    bus_gbytes_per_s: NDArray[np.float64]
    """Rate of all channels together over one hop, user bytes."""
    is_enabled: NDArray[np.bool_]
    slow_start_factor: float
    """Factor on the latency of a Simple ring from 64 bytes per channel and rank on."""
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
        """[protocols, sizes] part of the time that does not grow with the bytes."""
        return self.latency_us[:, None] * self.latency_factors(size_bytes)

    def latency_factors(self, size_bytes: NDArray[np.int64]) -> NDArray[np.float64]:
        """[protocols, sizes] factor on the whole latency: Simple ring all_reduce between nodes starts more slowly."""
        factors = np.ones((len(PROTOCOLS), len(size_bytes)))
        is_large = size_bytes // (self.executed * self.ranks) >= _SIMPLE_NETWORK_MIN_BYTES
        factors[PROTOCOLS.index(Protocol.SIMPLE), is_large] = self.slow_start_factor
        return factors

    def slowed(self, latency: float, transfer: float) -> AlgorithmCosts:
        """Costs with every latency longer by a factor, and every bandwidth smaller by another."""
        return replace(
            self,
            base_latency_us=self.base_latency_us * latency,
            nvlink_step_us=self.nvlink_step_us * latency,
            network_step_us=self.network_step_us * latency,
            algorithm_gbytes_per_s=self.algorithm_gbytes_per_s / transfer,
            bus_gbytes_per_s=self.bus_gbytes_per_s / transfer,
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


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """Choice of NCCL for one collective, and the costs behind it."""

    algorithm: Algorithm
    protocol: Protocol
    channels: int
    threads: int
    """Threads per channel."""
    chunk_bytes: int
    """Largest piece that one channel handles at a time, user bytes."""
    time_us: float
    """Time by NCCL's own estimate, corrected by measurements where there are some."""
    latency_us: float
    """Part of the time that does not grow with the bytes."""
    gbytes_per_s: float
    """Algorithm bandwidth of large collectives, 10⁹ B/s."""
    costs: AlgorithmCosts
    """Costs of the chosen algorithm, latencies and bandwidths scaled by one factor so that they give ``time_us``."""
