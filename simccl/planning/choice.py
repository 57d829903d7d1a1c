"""NCCL's choice of algorithm, protocol, channels, threads and chunk size for one collective."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError
from simccl.algorithms.registry import algorithm_of, nccl_algorithms
from simccl.collective import PROTOCOLS, Algorithm, Collective, Protocol
from simccl.communicator.communicator import Communicator
from simccl.communicator.shape import CommunicatorShape
from simccl.nccl.correction import thread_share
from simccl.nccl.costs import AlgorithmCosts, Choice
from simccl.planning.calibration import Calibrated, Calibration, Case, calibration_for
from simccl.planning.cost_model import cost_model


class PairTimes(NamedTuple):
    """Times of one algorithm and protocol, one entry per size."""

    time_us: NDArray[np.float64]
    latency_us: NDArray[np.float64]
    channels: NDArray[np.int64]
    transfer_factor: float = 1.0
    """That of the correction."""


def pair_times(
    op: Collective,
    size_bytes: NDArray[np.int64],
    costs: AlgorithmCosts,
    protocol: Protocol,
    at: CommunicatorShape,
    calibration: Calibration | None,
) -> PairTimes:
    """Times of one enabled pair of algorithm and protocol, corrected where the calibration has measurements of it."""
    p = PROTOCOLS.index(protocol)
    channels, threads = algorithm_of(costs).channels_and_threads(size_bytes, costs, protocol, at)
    time_us, latency_us = costs.times_us(size_bytes)[p], costs.latencies_us(size_bytes)[p]
    case = Case(op, at.ranks, at.nodes, costs.algorithm, protocol)
    correction = None if calibration is None else calibration.correction(case)
    if correction is None:
        return PairTimes(time_us, latency_us, channels)
    corrected = correction.time_us(latency_us, time_us - latency_us, thread_share(threads))
    latency_us = np.minimum(latency_us * correction.latency_factor, corrected)
    return PairTimes(corrected, latency_us, channels, correction.transfer_factor)


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
    at = communicator.shape()
    return choose_at(op, size_bytes, at, algorithm=algorithm, protocol=protocol, calibration=calibration)


def choose_at(
    op: Collective,
    size_bytes: int,
    at: CommunicatorShape,
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
        able = [str(each.name) for each in nccl_algorithms() if op in each.ops]
        if algorithm is not None and algorithm not in able:
            raise InputError(f"algorithm: found {algorithm}, expected one that carries out {op}: {', '.join(able)}")
        wanted = " ".join(x for x in (algorithm, protocol) if x is not None)
        where = f"{at.nodes} node{'s' if at.nodes > 1 else ''} of {at.gpus_per_node} {at.gpu.name}"
        raise InputError(f"algorithm: found {wanted}, which NCCL disables for {op} on {where}")
    _, costs, kind = min(candidates, key=lambda candidate: candidate[0])
    p, chosen = PROTOCOLS.index(kind), algorithm_of(costs)
    channels, threads = (int(column[0]) for column in chosen.channels_and_threads(size, costs, kind, at))
    timed = pair_times(op, size, costs, kind, at, calibration_for(at.gpu.name, calibration))
    costs = _with_time(costs, size, kind, timed)
    return Choice(
        algorithm=costs.algorithm,
        protocol=kind,
        channels=channels,
        threads=threads,
        chunk_bytes=chosen.chunk_bytes(op, -(-size_bytes // channels), costs, kind, at),
        time_us=float(timed.time_us[0]),
        latency_us=float(costs.latencies_us(size)[p, 0]),
        gbytes_per_s=float(costs.algorithm_gbytes_per_s[p]),
        costs=costs,
    )


def _with_time(
    costs: AlgorithmCosts, size_bytes: NDArray[np.int64], protocol: Protocol, timed: PairTimes
) -> AlgorithmCosts:
    """Costs that give the corrected time of one size.

    Longer times are so by one factor for latency and transfer. Of shorter ones bandwidth is at most that of large
    sizes, by NCCL or by measurement, and the latency is what is left: by one factor, flows of few bytes would want more
    than links have.
    """
    p = PROTOCOLS.index(protocol)
    time_us, latency_us = float(costs.times_us(size_bytes)[p, 0]), float(costs.latencies_us(size_bytes)[p, 0])
    corrected_us = float(timed.time_us[0])
    transfer = max(corrected_us / time_us, min(1.0, timed.transfer_factor))
    return costs.slowed((corrected_us - transfer * (time_us - latency_us)) / latency_us, transfer)
