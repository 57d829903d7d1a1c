"""NCCL's choice of algorithm, protocol, channels, threads and chunk size for one collective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError
from simccl.arrangement import Arrangement
from simccl.calibration import Calibrated, Calibration, Case, calibration_for, thread_share
from simccl.collective import PROTOCOLS, Algorithm, Collective, Protocol
from simccl.communicator import Communicator
from simccl.tuning import AlgorithmCosts, cost_model
from simccl.work_split import channels_and_threads, chunk_bytes


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """How NCCL would run one collective, and the costs behind it."""

    algorithm: Algorithm
    protocol: Protocol
    channels: int
    threads: int
    """Per channel."""
    chunk_bytes: int
    """Largest piece that one channel handles at a time, user bytes."""
    time_us: float
    """NCCL's own estimate, or what measurements make of it."""
    latency_us: float
    """The part of it that does not grow with the bytes."""
    gbytes_per_s: float
    """Algorithm bandwidth of large collectives, 10⁹ B/s."""
    costs: AlgorithmCosts
    """With all latencies and bandwidths scaled alike, so that they give ``time_us``."""


class PairTimes(NamedTuple):
    """One algorithm and protocol, one entry per size."""

    time_us: NDArray[np.float64]
    latency_us: NDArray[np.float64]
    channels: NDArray[np.int64]


def pair_times(
    op: Collective,
    size_bytes: NDArray[np.int64],
    costs: AlgorithmCosts,
    protocol: Protocol,
    at: Arrangement,
    calibration: Calibration | None,
) -> PairTimes:
    """Times of one enabled pair, corrected where the calibration knows it."""
    p = PROTOCOLS.index(protocol)
    channels, threads = channels_and_threads(size_bytes, costs, protocol, at)
    time_us, latency_us = costs.times_us(size_bytes)[p], costs.latencies_us(size_bytes)[p]
    case = Case(op, at.ranks, at.nodes, costs.algorithm, protocol)
    correction = None if calibration is None else calibration.correction(case)
    if correction is None:
        return PairTimes(time_us, latency_us, channels)
    corrected = correction.time_us(latency_us, time_us - latency_us, thread_share(threads))
    return PairTimes(corrected, np.minimum(latency_us * correction.latency_factor, corrected), channels)


def choose(
    op: Collective,
    size_bytes: int,
    communicator: Communicator,
    *,
    algorithm: Algorithm | None = None,
    protocol: Protocol | None = None,
    calibration: Calibrated = "shipped",
) -> Choice:
    """The fastest enabled pair of NCCL's cost model, or the fastest with the wanted algorithm or protocol.

    A calibration changes times, never the choice. For collectives with a ring over two or more ranks; NCCL has no
    choice to make for point-to-point operations.

    Raises:
        InputError: where NCCL disables what is wanted, or has no cost model for the op.
    """
    at = communicator.arrangement()
    return choose_at(op, size_bytes, at, algorithm=algorithm, protocol=protocol, calibration=calibration)


def choose_at(
    op: Collective,
    size_bytes: int,
    at: Arrangement,
    *,
    algorithm: Algorithm | None = None,
    protocol: Protocol | None = None,
    calibration: Calibrated = "shipped",
) -> Choice:
    """`choose` for ranks of which only the arrangement is known."""
    if not op.has_ring:
        raise InputError(f"op: found {op}, expected a collective that NCCL has a cost model for")
    size = np.array([size_bytes], dtype=np.int64)
    candidates = [
        (float(time_us), costs, kind)
        for costs in cost_model(op, at)
        for kind, time_us in zip(PROTOCOLS, costs.times_us(size)[:, 0], strict=True)
        if algorithm in (None, costs.algorithm) and protocol in (None, kind) and np.isfinite(time_us)
    ]
    if not candidates:
        wanted = " ".join(x for x in (algorithm, protocol) if x is not None)
        where = f"{at.nodes} node{'s' if at.nodes > 1 else ''} of {at.gpus_per_node} {at.gpu.name}"
        raise InputError(f"algorithm: found {wanted}, which NCCL disables for {op} on {where}")
    time_us, costs, kind = min(candidates, key=lambda candidate: candidate[0])
    p = PROTOCOLS.index(kind)
    channels, threads = (int(column[0]) for column in channels_and_threads(size, costs, kind, at))
    timed = pair_times(op, size, costs, kind, at, calibration_for(at.gpu.name, calibration))
    costs = costs.slowed(float(timed.time_us[0]) / time_us)
    return Choice(
        algorithm=costs.algorithm,
        protocol=kind,
        channels=channels,
        threads=threads,
        chunk_bytes=chunk_bytes(op, -(-size_bytes // channels), costs, kind, at),
        time_us=float(timed.time_us[0]),
        latency_us=float(costs.latencies_us(size)[p, 0]),
        gbytes_per_s=float(costs.algorithm_gbytes_per_s[p]),
        costs=costs,
    )
