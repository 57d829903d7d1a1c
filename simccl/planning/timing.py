"""Closed-form times of collectives on an idle system, for one collective or a table of many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError
from simccl.algorithms.registry import name_of, names
from simccl.collective import MAX_BYTES, PROTOCOLS, Algorithm, Collective, Protocol, check_size
from simccl.communicator.communicator import Communicator
from simccl.communicator.gpus import gpu_named
from simccl.communicator.shape import CommunicatorShape
from simccl.engines.all_reduce import AllReduceKernels, engine_all_reduce
from simccl.nccl.point_to_point import MessageCosts, channels_used, message_costs
from simccl.planning.calibration import Calibrated, Calibration, Case, calibration_for
from simccl.planning.choice import choose, pair_times
from simccl.planning.cost_model import cost_model

_PS_PER_US = 1_000_000
_PS_PER_S = 1_000_000_000_000


@dataclass(frozen=True, slots=True)
class CollectiveTime:
    """Time of one collective by the cost model."""

    time_ps: int
    algorithm: Algorithm
    protocol: Protocol
    channels: int
    latency_ps: int
    """Part of the time that does not grow with the bytes."""
    algbw_bytes_per_s: float
    """Size over time, as nccl-tests reports it; 0 where nothing is moved."""


@dataclass(frozen=True, slots=True, eq=False)
class TimeTable:
    """Columns of times, one entry per collective, in the order asked for."""

    time_us: NDArray[np.float64]
    latency_us: NDArray[np.float64]
    algorithm: NDArray[np.str_]
    protocol: NDArray[np.str_]
    channels: NDArray[np.int64]


def collective_time(
    op: str,
    size_bytes: int,
    communicator: Communicator,
    *,
    calibration: Calibrated = "shipped",
    stack: AllReduceKernels = AllReduceKernels.NCCL,
) -> CollectiveTime:
    """Time of one collective on an idle system, in closed form; sizes as in nccl-tests.

    ``stack`` names the inference engine whose own all_reduce kernels run where it would use them.

    Raises:
        InputError: an unknown op, or a size below 0 or from 2⁶².
    """
    collective = Collective.parse(op)
    check_size(size_bytes, MAX_BYTES)
    table = _empty_table(1)
    at = communicator.shape()
    corrections = calibration_for(at.gpu.name, calibration)
    _fill(table, np.array([0]), collective, np.array([size_bytes], dtype=np.int64), at, corrections, stack)
    time_ps = round(float(table.time_us[0]) * _PS_PER_US)
    return CollectiveTime(
        time_ps=time_ps,
        algorithm=_name(table.algorithm[0]),
        protocol=Protocol(table.protocol[0]),
        channels=int(table.channels[0]),
        latency_ps=round(float(table.latency_us[0]) * _PS_PER_US),
        algbw_bytes_per_s=size_bytes * _PS_PER_S / time_ps if time_ps else 0.0,
    )


def following_time_ps(op: str, size_bytes: int, communicator: Communicator) -> int:
    """What one more collective of a group of calls adds behind a larger one: its time but for the launch they share.

    NCCL deals the calls of a group out over channels by falling traffic (``scheduleCollTasksToPlan``), so that small
    ones come one behind another on the last channel, each with the latency of its own steps.

    Raises:
        InputError: as `collective_time`; an op without rings.
    """
    choice = choose(Collective.parse(op), size_bytes, communicator)
    found = collective_time(op, size_bytes, communicator)
    protocol = PROTOCOLS.index(choice.protocol)
    latency_us = choice.costs.latencies_us(np.array([size_bytes], dtype=np.int64))[protocol, 0]
    return found.time_ps - round(found.latency_ps * float(choice.costs.base_latency_us[protocol] / latency_us))


def time_table(
    ops: Sequence[str] | NDArray[np.str_],
    size_bytes: Sequence[int] | NDArray[np.integer],
    ranks: Sequence[int] | NDArray[np.integer],
    nodes: Sequence[int] | NDArray[np.integer],
    gpus: Sequence[str] | NDArray[np.str_] | str,
    *,
    calibration: Calibrated = "shipped",
    stack: AllReduceKernels = AllReduceKernels.NCCL,
    may_use_nvls: bool = True,
) -> TimeTable:
    """Times of many collectives on idle systems: equal nodes of the GPU type, one common NIC per GPU.

    All arguments have one entry per collective; ``gpus`` may be one name for all. ``may_use_nvls``: as
    `CommunicatorShape.may_use_nvls`.

    Raises:
        InputError: naming the row (from 0) and the field.
    """
    sizes, rank_counts, node_counts = (np.asarray(values, dtype=np.int64) for values in (size_bytes, ranks, nodes))
    names = np.full(len(sizes), gpus) if isinstance(gpus, str) else np.asarray(gpus, dtype=np.str_)
    op_names = np.asarray(ops, dtype=np.str_)
    for field, column in (("op", op_names), ("ranks", rank_counts), ("nodes", node_counts), ("gpu", names)):
        if len(column) != len(sizes):
            raise InputError(f"{field}: found {len(column)} entries, expected {len(sizes)} (as bytes)")
    _check_rows(sizes, rank_counts, node_counts)
    table = _empty_table(len(sizes))
    for rows in _equal_rows(op_names, names, rank_counts, node_counts):
        row = int(rows[0])
        try:
            op, gpu = Collective.parse(str(op_names[row])), gpu_named(str(names[row]))
        except InputError as error:
            raise type(error)(f"row {row}: {error}") from None
        n, k = int(rank_counts[row]), int(node_counts[row])
        at = CommunicatorShape(gpu, n, k, n // k, gpu.nic_gbytes_per_s, may_use_nvls=may_use_nvls)
        _fill(table, rows, op, sizes[rows], at, calibration_for(gpu.name, calibration), stack)
    return table


def _name(found: str) -> Algorithm:
    return Algorithm.NONE if found == Algorithm.NONE else name_of(found)


def _check_rows(sizes: NDArray[np.int64], ranks: NDArray[np.int64], nodes: NDArray[np.int64]) -> None:
    checks = (
        ("bytes", sizes, sizes >= 0, "at least 0"),
        ("ranks", ranks, ranks >= 1, "at least 1"),
        ("nodes", nodes, (nodes >= 1) & (ranks % np.maximum(nodes, 1) == 0), "a positive divisor of the ranks"),
    )
    for field, values, is_good, expected in checks:
        if not is_good.all():
            row = int(np.argmin(is_good))
            raise InputError(f"row {row}: {field}: found {values[row]}, expected {expected}")


def _equal_rows(
    ops: NDArray[np.str_], gpus: NDArray[np.str_], ranks: NDArray[np.int64], nodes: NDArray[np.int64]
) -> list[NDArray[np.intp]]:
    """Groups of rows that differ in size only, in the order of their first rows."""
    key = np.zeros(len(ops), dtype=np.int64)
    for column in (ops, gpus, ranks, nodes):
        values, codes = np.unique(column, return_inverse=True)
        key = np.unique(key * len(values) + codes, return_inverse=True)[1].astype(np.int64)
    order = np.argsort(key, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(key[order])) + 1) if len(order) else []
    return sorted(groups, key=lambda rows: int(rows[0]))


def _empty_table(rows: int) -> TimeTable:
    return TimeTable(
        time_us=np.zeros(rows),
        latency_us=np.zeros(rows),
        algorithm=np.full(rows, str(Algorithm.NONE), dtype=f"U{max(map(len, names()))}"),
        protocol=np.full(rows, str(Protocol.SIMPLE), dtype="U6"),
        channels=np.zeros(rows, dtype=np.int64),
    )


def _fill(
    table: TimeTable,
    rows: NDArray[np.intp],
    op: Collective,
    sizes: NDArray[np.int64],
    at: CommunicatorShape,
    calibration: Calibration | None,
    stack: AllReduceKernels,
) -> None:
    """Writes the rows of one op on one shape of communicator; rows of zero bytes or a single rank stay at zero."""
    moves = (sizes > 0) & (at.ranks > 1)
    rows, sizes = rows[moves], sizes[moves]
    if op is Collective.ALL_REDUCE and stack is not AllReduceKernels.NCCL:
        own = engine_all_reduce(stack, sizes, at)
        used = rows[own.is_used]
        table.time_us[used], table.latency_us[used] = own.time_us[own.is_used], own.latency_us[own.is_used]
        table.algorithm[used] = own.algorithm[own.is_used]
        rows, sizes = rows[~own.is_used], sizes[~own.is_used]
    if len(rows):
        (_fill_collective if op.has_ring else _fill_messages)(table, rows, op, sizes, at, calibration)


def _fill_collective(
    table: TimeTable,
    rows: NDArray[np.intp],
    op: Collective,
    sizes: NDArray[np.int64],
    at: CommunicatorShape,
    calibration: Calibration | None,
) -> None:
    costs = cost_model(op, at)
    best = np.argmin(np.concatenate([of_one.times_us(sizes) for of_one in costs]), axis=0)
    for pair in np.unique(best).tolist():
        of_one, protocol = costs[pair // len(PROTOCOLS)], PROTOCOLS[pair % len(PROTOCOLS)]
        picked = rows[best == pair]
        times = pair_times(op, sizes[best == pair], of_one, protocol, at, calibration)
        table.time_us[picked], table.latency_us[picked] = times.time_us, times.latency_us
        table.channels[picked] = times.channels
        table.algorithm[picked], table.protocol[picked] = str(of_one.algorithm), str(protocol)


def message_slowdown(
    op: Collective, size_bytes: int, at: CommunicatorShape, calibration: Calibrated = "shipped"
) -> float:
    """Corrected over uncorrected time of a point-to-point operation; for sizes above zero."""
    costs = message_costs(op, np.array([size_bytes], dtype=np.int64), at)
    corrected_us, _ = _corrected_messages(op, costs, at, calibration_for(at.gpu.name, calibration))
    return float(corrected_us[0] / costs.times_us[0])


def _corrected_messages(
    op: Collective, costs: MessageCosts, at: CommunicatorShape, calibration: Calibration | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[sizes] corrected time, and its latency part."""
    time_us, latency_us = costs.times_us, costs.latency_us.copy()
    for protocol, mine in ((Protocol.LL, costs.is_ll), (Protocol.SIMPLE, ~costs.is_ll)):
        case = Case(op, at.ranks, at.nodes, Algorithm.PAIRWISE, protocol)
        correction = None if calibration is None else calibration.correction(case)
        if correction is not None and mine.any():
            time_us[mine] = costs.corrected_us(correction)[mine]
            latency_us[mine] *= correction.latency_factor
    return time_us, latency_us


def _fill_messages(
    table: TimeTable,
    rows: NDArray[np.intp],
    op: Collective,
    sizes: NDArray[np.int64],
    at: CommunicatorShape,
    calibration: Calibration | None,
) -> None:
    costs = message_costs(op, sizes, at)
    time_us, latency_us = _corrected_messages(op, costs, at, calibration)
    table.time_us[rows], table.latency_us[rows] = time_us, np.minimum(latency_us, time_us)
    table.algorithm[rows] = str(Algorithm.PAIRWISE)
    table.protocol[rows] = np.where(costs.is_ll, str(Protocol.LL), str(Protocol.SIMPLE))
    table.channels[rows] = channels_used(op, sizes, at)
