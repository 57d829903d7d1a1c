"""NCCL's choice of algorithm, protocol, channels, threads and chunk size for one collective."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simccl.arrangement import Arrangement
from simccl.collective import PROTOCOLS, Algorithm, Collective, Protocol
from simccl.communicator import Communicator
from simccl.errors import InputError
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
    """NCCL's own estimate."""
    latency_us: float
    """The part of it that does not grow with the bytes."""
    gbytes_per_s: float
    """Algorithm bandwidth of large collectives, 10⁹ B/s."""
    costs: AlgorithmCosts


def choose(
    op: Collective,
    size_bytes: int,
    communicator: Communicator,
    *,
    algorithm: Algorithm | None = None,
    protocol: Protocol | None = None,
) -> Choice:
    """The fastest enabled pair of NCCL's cost model, or the fastest with the wanted algorithm or protocol.

    For collectives with a ring over two or more ranks; NCCL has no choice to make for point-to-point operations.

    Raises:
        InputError: where NCCL disables what is wanted, or has no cost model for the op.
    """
    return choose_at(op, size_bytes, communicator.arrangement(), algorithm=algorithm, protocol=protocol)


def choose_at(
    op: Collective,
    size_bytes: int,
    at: Arrangement,
    *,
    algorithm: Algorithm | None = None,
    protocol: Protocol | None = None,
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
    return Choice(
        algorithm=costs.algorithm,
        protocol=kind,
        channels=channels,
        threads=threads,
        chunk_bytes=chunk_bytes(op, -(-size_bytes // channels), costs, kind, at),
        time_us=time_us,
        latency_us=float(costs.latencies_us(size)[p, 0]),
        gbytes_per_s=float(costs.algorithm_gbytes_per_s[p]),
        costs=costs,
    )
