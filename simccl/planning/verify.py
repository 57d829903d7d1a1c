"""Proof that a plan performs its collective: symbolic execution over every order that its dependencies allow.

Each byte range of each rank is a set of contributions. A flow reads the range at its sender and, at the receiver,
adds to it (reduce) or replaces it (copy). The proof has two parts. First, a read and a write of one range at one rank,
or two writes that do not commute, must be ordered by data dependencies through flows of that range, unless the write
copies what the read finds anyway; then all orders of execution give the same result. Second, one order is executed:
every flow must find data at its sender, no reduction may count a contribution twice, and at the end every rank must
hold exactly the contributions that the collective demands. Also, data, order and credit edges together must have no
cycle, and the number of bytes sent must be that of the algorithm's theory.

An NVSwitch counts as a rank without data of its own. Timing, wire bytes and the network play no part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simccl.algorithms.registry import find
from simccl.collective import Algorithm
from simccl.plan.edges import Edges, csr, joined, ranges
from simccl.plan.flows import Operation, PlannedFlows
from simccl.plan.plan import Plan
from simccl.plan.postcondition import Contributions, MessagePostcondition, PlanError, Postcondition


@dataclass(frozen=True, slots=True)
class VerifiedPlan:
    """Result of a proof: the size of what was proved."""

    flows: int
    ranges: int
    """Number of byte ranges that were followed separately."""
    depth: int
    """Number of flows on the longest chain of data dependencies."""
    payload_bytes: int
    """User bytes sent over all hops."""


def verify_plan(plan: Plan, matrix_bytes: NDArray[np.int64] | None = None) -> VerifiedPlan:
    """Proof that the plan is correct; ``matrix_bytes`` replaces the matrix that a plan of messages states itself.

    Raises:
        PlanError: naming what is wrong: a cycle, missing or doubled data, an unordered access, a byte count that the
            algorithm's theory does not allow.
    """
    flows = plan.flows
    if len(empty := np.flatnonzero(flows.payload_bytes < 1)):
        raise PlanError(
            f"payload_bytes: flow {empty[0]} carries {flows.payload_bytes[empty[0]]} bytes, expected 1 or more"
        )
    postcondition = plan.postcondition if matrix_bytes is None else MessagePostcondition(np.asarray(matrix_bytes))
    _levels(joined([flows.data_edges(), flows.order_edges(), flows.credit_edges()]), len(flows))
    level = _levels(flows.data_edges(), len(flows))
    _check_payload(plan, postcondition)
    count = 0
    extents = _Extents.of(flows, postcondition)
    for origin, begin, end, members in _ranges(extents, level):
        where = f"{plan.op} bytes {begin}…{end - 1}" + (f" of rank {origin}" if origin >= 0 else "")
        holders = postcondition.contributions(origin, begin, end)
        overlaps = _check_order(flows, members, where)
        _execute(flows, members, holders, overlaps, where)
        count += 1
    if plan.algorithm != Algorithm.NONE:
        _check_coverage(plan, postcondition, extents)
    return VerifiedPlan(len(flows), count, int(level.max(initial=-1)) + 1, int(flows.payload_bytes.sum()))


@dataclass(frozen=True, slots=True, eq=False)
class _Extents:
    """Byte ranges that flows carry, one entry each."""

    flow: NDArray[np.int64]
    origin: NDArray[np.int32]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]

    @classmethod
    def of(cls, flows: PlannedFlows, postcondition: Postcondition) -> _Extents:
        origin = postcondition.origins(flows.origin)
        pieces = flows.pieces
        if pieces is None:
            return cls(np.arange(len(flows)), origin, flows.offset, flows.offset + flows.payload_bytes)
        flow = np.repeat(np.arange(len(flows)), np.diff(pieces.offsets))
        carried = np.bincount(flow, weights=pieces.size_bytes, minlength=len(flows))
        if not np.array_equal(carried, flows.payload_bytes):
            raise PlanError("pieces: found other bytes than payload_bytes")
        return cls(flow, origin[flow], pieces.begin, pieces.begin + pieces.size_bytes)


def _levels(edges: Edges, count: int) -> NDArray[np.int64]:
    """[flows] longest chain of dependencies before each flow, by Kahn's algorithm, a level at a time."""
    waiting = np.bincount(edges[0], minlength=count)
    offsets, waiter = csr((edges[1], edges[0]), count)
    level = np.full(count, -1, dtype=np.int64)
    front, depth = np.flatnonzero(waiting == 0), 0
    while len(front):
        level[front] = depth
        touched = waiter[ranges(offsets[front], offsets[front + 1] - offsets[front])]
        np.subtract.at(waiting, touched, 1)
        front = np.unique(touched[waiting[touched] == 0])
        depth += 1
    if (level < 0).any():
        raise PlanError(f"dependencies: found a cycle through flow {int(np.argmax(level < 0))}")
    return level


def _ranges(extents: _Extents, level: NDArray[np.int64]) -> Iterator[tuple[int, int, int, list[int]]]:
    """(origin, begin, end, flows with dependencies first) of every range that flows carry in whole or not at all."""
    if not len(extents.flow):
        return
    by_origin = np.argsort(extents.origin, kind="stable")
    origins, starts = np.unique(extents.origin[by_origin], return_index=True)
    for origin, mine in zip(origins.tolist(), np.split(by_origin, starts[1:]), strict=True):
        begin, end = extents.begin[mine], extents.end[mine]
        cuts = np.unique(np.concatenate((begin, end)))
        first, last = np.searchsorted(cuts, begin), np.searchsorted(cuts, end)
        piece = ranges(first, last - first)
        flow = np.repeat(extents.flow[mine], last - first)
        order = np.lexsort((flow, level[flow], piece))
        pieces, starts_of = np.unique(piece[order], return_index=True)
        for k, members in zip(pieces.tolist(), np.split(flow[order], starts_of[1:]), strict=True):
            yield origin, int(cuts[k]), int(cuts[k + 1]), members.tolist()


def _check_order(flows: PlannedFlows, members: list[int], where: str) -> list[tuple[int, int, int]]:
    """Every conflicting pair of accesses at one rank is ordered by dependencies within the range's flows.

    Returns (read, copy, rank) of reads and copies without order, harmless only where the copy changes nothing.
    """
    place = {flow: i for i, flow in enumerate(members)}
    before = [0] * len(members)
    """Bit j of entry i: member j completes before member i starts."""
    seen: dict[int, list[tuple[int, bool, bool]]] = {}
    """Per rank, (member, is a write, adds up) of its accesses so far."""
    overlaps: list[tuple[int, int, int]] = []
    for i, flow in enumerate(members):
        for dep in flows.deps[flows.dep_offsets[flow] : flows.dep_offsets[flow + 1]].tolist():
            if dep in place:
                before[i] |= before[place[dep]] | 1 << place[dep]
        adds = bool(flows.operation[flow] == Operation.REDUCE)
        for rank, is_write in ((int(flows.src[flow]), False), (int(flows.dst[flow]), True)):
            accesses = seen.setdefault(rank, [])
            for other, other_writes, other_adds in accesses:
                conflicts = (is_write or other_writes) and not (is_write and other_writes and adds and other_adds)
                if not conflicts or before[i] >> other & 1:
                    continue
                if (is_write and other_writes) or (adds if is_write else other_adds):
                    raise PlanError(_no_order(where, members[other], flow, rank))
                read, copy = (members[other], flow) if is_write else (flow, members[other])
                overlaps.append((read, copy, rank))
            accesses.append((i, is_write, adds))
    return overlaps


def _no_order(where: str, one: int, other: int, rank: int) -> str:
    return (
        f"{where}: flows {one} and {other} meet at rank {rank} in no order, expected a dependency between them, "
        "as one writes what the other reads or writes"
    )


def _execute(
    flows: PlannedFlows, members: list[int], holders: Contributions, overlaps: list[tuple[int, int, int]], where: str
) -> None:
    """Executes the flows of a range; the state of a rank is a bit mask of the contributions that it holds."""
    held = dict(holders.initial)
    sent: dict[int, int] = {}
    for flow in members:
        src, dst = int(flows.src[flow]), int(flows.dst[flow])
        value = held.get(src, 0)
        if not value:
            raise PlanError(f"{where}: flow {flow} sends from rank {src}, which does not hold them")
        sent[flow] = value
        if flows.operation[flow] == Operation.REDUCE:
            if held.get(dst, 0) & value:
                raise PlanError(f"{where}: flow {flow} makes rank {dst} count a contribution twice")
            value |= held.get(dst, 0)
        held[dst] = value
    for read, copy, rank in overlaps:
        if sent[read] != sent[copy]:
            raise PlanError(_no_order(where, read, copy, rank))
    for rank, expected in holders.final.items():
        if held.get(rank, 0) != expected:
            raise PlanError(f"{where}: rank {rank} ends with contributions {held.get(rank, 0):b}, not {expected:b}")


def _check_coverage(plan: Plan, postcondition: Postcondition, extents: _Extents) -> None:
    """Checks that flows carry every byte that must move: as many distinct bytes of each origin as it has to send."""
    gathered = np.unique(postcondition.origins(np.arange(plan.communicator.size, dtype=np.int32)))
    for origin in gathered.tolist():
        mine = extents.origin == origin
        found = _union_bytes(extents.begin[mine], extents.end[mine])
        needed = postcondition.moved_bytes(origin)
        if found != needed:
            raise PlanError(f"{plan.op}: flows carry {found} different bytes of rank {origin}, expected {needed}")


def _union_bytes(begin: NDArray[np.int64], end: NDArray[np.int64]) -> int:
    if not len(begin):
        return 0
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], end[order]
    reach = np.maximum.accumulate(end)
    covered_before = np.concatenate((begin[:1], reach[:-1]))
    return int((reach - np.maximum(begin, covered_before)).clip(min=0).sum())


def _check_payload(plan: Plan, postcondition: Postcondition) -> None:
    """Checks the bytes sent by all ranks against the theory of the algorithm, which may check more."""
    algorithm, sent = find(plan.algorithm), int(plan.sent_bytes().sum())
    expected = expected_payload_bytes(plan)
    if expected is not None and sent != expected:
        raise PlanError(f"{plan.op}: found {sent} bytes sent, expected {expected}")
    if algorithm is not None:
        algorithm.check_sent(plan, postcondition)


def expected_payload_bytes(plan: Plan) -> int | None:
    """User bytes that all ranks together must send; None where that depends on the matrix of messages."""
    if plan.algorithm == Algorithm.NONE:
        return 0
    algorithm = find(plan.algorithm)
    return None if algorithm is None else algorithm.payload_bytes(plan)
