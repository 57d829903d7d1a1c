"""Proves that a plan performs its collective: symbolic execution over every order that its dependencies allow.

Each byte range of each rank is a set of contributions. A flow reads the range at its sender and, at the receiver,
adds to it (reduce) or replaces it (copy). The proof has two parts. First, any read and write, or two writes that do
not commute, of one range at one rank must be ordered by dependencies through flows of that range; then all orders of
execution give the same result. Second, one order is executed: every flow must find data at its sender, no reduction
may count a contribution twice, and at the end every rank must hold exactly what the collective promises.

Timing, wire bytes and the network play no part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simccl.algorithms.send_recv import neighbour_matrix
from simccl.collective import Algorithm, Collective, shares
from simccl.errors import PlanError
from simccl.plan import Operation, Plan, PlannedFlows


@dataclass(frozen=True, slots=True)
class VerifiedPlan:
    """What the proof went through."""

    flows: int
    ranges: int
    """Byte ranges that were followed separately."""
    depth: int
    """Flows on the longest dependency chain."""
    payload_bytes: int
    """User bytes sent over all hops."""


def verify_plan(plan: Plan, matrix_bytes: NDArray[np.int64] | None = None) -> VerifiedPlan:
    """Proves the plan correct, or raises; pass the matrix for a plan of `simccl.all_to_all_v`.

    Raises:
        PlanError: naming what is wrong: a cycle, missing or doubled data, an unordered access, a byte count that the
            algorithm's theory does not allow.
    """
    flows = plan.flows
    level = _levels(flows)
    matrix = _message_matrix(plan) if matrix_bytes is None else matrix_bytes
    _check_payload(plan, matrix)
    ranges = 0
    for origin, begin, end, members in _ranges(plan, level):
        initial, final = _promise(plan, matrix, origin, begin, end)
        where = f"{plan.op} bytes {begin}…{end - 1}" + (f" of rank {origin}" if origin >= 0 else "")
        _check_order(flows, members, where)
        _execute(flows, members, initial, final, where)
        ranges += 1
    if plan.algorithm is not Algorithm.NONE:
        _check_coverage(plan, matrix)
    return VerifiedPlan(len(flows), ranges, int(level.max(initial=-1)) + 1, int(flows.payload_bytes.sum()))


def _levels(flows: PlannedFlows) -> NDArray[np.int64]:
    """[flows] longest chain of dependencies before each flow, by Kahn's algorithm, a level at a time."""
    count = len(flows)
    waiting = np.diff(flows.dep_offsets).astype(np.int64)
    waiter = np.repeat(np.arange(count), waiting)
    order = np.argsort(flows.deps, kind="stable")
    released_by = np.concatenate(([0], np.cumsum(np.bincount(flows.deps, minlength=count))))
    waiter = waiter[order]
    level = np.full(count, -1, dtype=np.int64)
    front, depth = np.flatnonzero(waiting == 0), 0
    while len(front):
        level[front] = depth
        lengths = released_by[front + 1] - released_by[front]
        picks = np.repeat(released_by[front] - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
        touched = waiter[picks]
        np.subtract.at(waiting, touched, 1)
        front = np.unique(touched[waiting[touched] == 0])
        depth += 1
    if (level < 0).any():
        raise PlanError(f"dependencies: found a cycle through flow {int(np.argmax(level < 0))}")
    return level


def _ranges(plan: Plan, level: NDArray[np.int64]) -> Iterator[tuple[int, int, int, list[int]]]:
    """Origin, begin, end and flows (dependencies first) of every range that flows treat alike."""
    flows = plan.flows
    for origin in np.unique(flows.origin).tolist():
        mine = np.flatnonzero(flows.origin == origin)
        begin, end = flows.offset[mine], flows.offset[mine] + flows.payload_bytes[mine]
        cuts = np.unique(np.concatenate((begin, end)))
        first, last = np.searchsorted(cuts, begin), np.searchsorted(cuts, end)
        lengths = last - first
        piece = np.repeat(first - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
        flow = np.repeat(mine, lengths)
        order = np.lexsort((flow, level[flow], piece))
        pieces, starts = np.unique(piece[order], return_index=True)
        for k, members in zip(pieces.tolist(), np.split(flow[order], starts[1:]), strict=True):
            yield origin, int(cuts[k]), int(cuts[k + 1]), members.tolist()


def _check_order(flows: PlannedFlows, members: list[int], where: str) -> None:
    """Every conflicting pair of accesses at one rank is ordered by dependencies within the range's flows."""
    place = {flow: i for i, flow in enumerate(members)}
    before = [0] * len(members)
    """Bit j of entry i: member j completes before member i starts."""
    seen: dict[int, list[tuple[int, bool, bool]]] = {}
    """Per rank, (member, is a write, adds up) of its accesses so far."""
    for i, flow in enumerate(members):
        for dep in flows.deps[flows.dep_offsets[flow] : flows.dep_offsets[flow + 1]].tolist():
            if dep in place:
                before[i] |= before[place[dep]] | 1 << place[dep]
        adds = bool(flows.operation[flow] == Operation.REDUCE)
        for rank, is_write in ((int(flows.src[flow]), False), (int(flows.dst[flow]), True)):
            accesses = seen.setdefault(rank, [])
            for other, other_writes, other_adds in accesses:
                conflicts = (is_write or other_writes) and not (is_write and other_writes and adds and other_adds)
                if conflicts and not before[i] >> other & 1:
                    raise PlanError(f"{where}: flows {members[other]} and {flow} meet at rank {rank} in no order")
            accesses.append((i, is_write, adds))


def _execute(
    flows: PlannedFlows, members: list[int], initial: dict[int, int], final: dict[int, int], where: str
) -> None:
    """Runs the flows of a range; states are bit masks of the ranks that contributed."""
    held = dict(initial)
    for flow in members:
        src, dst = int(flows.src[flow]), int(flows.dst[flow])
        value = held.get(src, 0)
        if not value:
            raise PlanError(f"{where}: flow {flow} sends from rank {src}, which does not hold them")
        if flows.operation[flow] == Operation.REDUCE:
            if held.get(dst, 0) & value:
                raise PlanError(f"{where}: flow {flow} makes rank {dst} count a contribution twice")
            value |= held.get(dst, 0)
        held[dst] = value
    for rank, expected in final.items():
        if held.get(rank, 0) != expected:
            raise PlanError(f"{where}: rank {rank} ends with contributions {held.get(rank, 0):b}, not {expected:b}")


def _promise(
    plan: Plan, matrix: NDArray[np.int64], origin: int, begin: int, end: int
) -> tuple[dict[int, int], dict[int, int]]:
    """Contributions that each rank starts and must end with, for one range."""
    ranks = range(plan.communicator.size)
    everyone = (1 << len(ranks)) - 1
    match plan.op:
        case Collective.ALL_REDUCE:
            return {r: 1 << r for r in ranks}, dict.fromkeys(ranks, everyone)
        case Collective.REDUCE_SCATTER:
            bounds = shares(plan.size_bytes, len(ranks))
            return {r: 1 << r for r in ranks}, {_owner(bounds, begin, end): everyone}
        case Collective.ALL_GATHER:
            owner = _owner(shares(plan.size_bytes, len(ranks)), begin, end)
            return {owner: 1 << owner}, dict.fromkeys(ranks, 1 << owner)
        case _:
            receiver = _owner(np.concatenate(([0], np.cumsum(matrix[origin]))), begin, end)
            if receiver == origin:
                raise PlanError(f"{plan.op} bytes {begin}…{end - 1} of rank {origin}: found its own part being sent")
            return {origin: 1 << origin}, {receiver: 1 << origin}


def _owner(bounds: NDArray[np.int64], begin: int, end: int) -> int:
    """The rank whose block holds the range."""
    rank = int(np.searchsorted(bounds, begin, side="right")) - 1
    if rank < 0 or rank >= len(bounds) - 1 or end > bounds[rank + 1]:
        raise PlanError(f"bytes {begin}…{end - 1}: found across blocks {bounds.tolist()}, expected inside one")
    return rank


def _message_matrix(plan: Plan) -> NDArray[np.int64]:
    ranks = plan.communicator.size
    if plan.op is Collective.SEND_RECV:
        return neighbour_matrix(plan.size_bytes, ranks)
    return np.tile(np.diff(shares(plan.size_bytes, ranks)), (ranks, 1))


def _check_coverage(plan: Plan, matrix: NDArray[np.int64]) -> None:
    """Every byte that must move is carried by some flow: of each origin, as many different bytes as must move.

    No other bytes can be among them: messages' ranges lie in blocks that must move, a ring's inside the buffer.
    """
    flows = plan.flows
    if plan.algorithm is Algorithm.RING and (flows.offset + flows.payload_bytes).max() > plan.size_bytes:
        raise PlanError(f"{plan.op}: found bytes beyond the {plan.size_bytes} of the buffer")
    expected = matrix - np.diag(np.diag(matrix))
    for origin in range(plan.communicator.size) if plan.algorithm is Algorithm.PAIRWISE else (None,):
        mine = np.full(len(flows), True) if origin is None else flows.origin == origin
        begin = flows.offset[mine]
        end = begin + flows.payload_bytes[mine]
        found = _union_bytes(begin, end)
        needed = plan.size_bytes if origin is None else int(expected[origin].sum())
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


def _check_payload(plan: Plan, matrix: NDArray[np.int64]) -> None:
    """Bytes sent match theory: (n−1)·S over all ranks per ring pass, evenly; every message once, and once per proxy."""
    sent, ranks = plan.sent_bytes(), plan.communicator.size
    total = int(sent.sum())
    if plan.algorithm is Algorithm.RING:
        passes = 2 if plan.op is Collective.ALL_REDUCE else 1
        expected = passes * (ranks - 1) * plan.size_bytes
        # Per pass a rank leaves out one share per ring, together a block up to rounding by one byte per ring.
        rings = int(plan.flows.channel.max()) + 1
        low, high = passes * (plan.size_bytes - -(-plan.size_bytes // ranks) - rings), passes * plan.size_bytes
        if total != expected or sent.min() < low or sent.max() > high:
            raise PlanError(f"{plan.op}: found {total} bytes sent ({sent.min()}…{sent.max()}), expected {expected}")
    elif plan.algorithm is Algorithm.PAIRWISE:
        flows = plan.flows
        arrived = np.zeros(ranks, dtype=np.int64)
        own = flows.origin == flows.src
        np.add.at(arrived, flows.src[own], flows.payload_bytes[own])
        expected_rows = matrix.sum(axis=1) - np.diag(matrix)
        if not np.array_equal(arrived, expected_rows):
            raise PlanError(f"{plan.op}: found {arrived.tolist()} bytes sent, expected {expected_rows.tolist()}")
