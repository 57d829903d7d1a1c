"""Flows and flow graphs: what a network backend is asked to carry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError

NO_FLOW: Final = -1
"""Entry of ``after`` for a flow that queues behind no other."""

DEFAULT_PRIORITY: Final = 3
"""Traffic class of RoCE: the one that HPCC's and SimAI's ns-3 models and usual switch configurations make lossless."""

FEW_FLOWS: Final = 32
"""Of fewer the least is found faster in a list than in an array: of 8 in 0.37 instead of 0.77 us."""

_PER_FLOW: Final = (
    "dst", "size_bytes", "ready_ps", "delay_ps", "flow_label", "notify", "max_rate_bps", "after", "priority",
)  # fmt: skip
_NOT_NEGATIVE: Final = ("size_bytes", "ready_ps", "delay_ps", "max_rate_bps")

Scalar = TypeVar("Scalar", bound=np.generic)


class FlowGraphError(InputError):
    """A flow graph is malformed: unequal lengths, an unknown dependency, a negative size or time, a cycle, two
    flows behind the same one."""


@dataclass(frozen=True, eq=False)
class FlowGraph:
    """A directed acyclic graph of point-to-point flows, executed as a whole inside a backend.

    A flow starts at ``max(submission + ready_ps, arrival of all its dependencies) + delay_ps``, but not before the
    last byte of the flow ahead of it in its queue (``after``) has left. It ends when its own last byte has arrived at
    ``dst``. Flows wait for each other by three kinds of edges: data (``deps``: arrivals), order (``after``: a queue)
    and credit (``credits``: a receiver reports a free buffer, which takes the latency of the path of the flow that had
    filled it).
    Arrays are one entry per flow; ``deps`` and ``credits`` are in CSR form: flow ``i`` waits for
    ``deps[dep_offsets[i]:dep_offsets[i + 1]]``.
    """

    src: NDArray[np.int32]
    """[flows] topology node that sends."""
    dst: NDArray[np.int32]
    """[flows] topology node that receives."""
    size_bytes: NDArray[np.int64]
    """[flows] bytes on the wire; a flow of zero bytes ends when it starts."""
    ready_ps: NDArray[np.int64]
    """[flows] earliest start, relative to the submission of the graph."""
    delay_ps: NDArray[np.int64]
    """[flows] local processing between readiness and the first byte."""
    dep_offsets: NDArray[np.int64]
    """[flows + 1]"""
    deps: NDArray[np.int64]
    """[edges] indices of flows of this graph."""
    flow_label: NDArray[np.uint32]
    """[flows] entropy for ECMP (the source port of a queue pair); equal labels of a pair share a path."""
    notify: NDArray[np.bool_]
    """[flows] ``advance`` also returns when such a flow completes."""
    max_rate_bps: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """[flows] highest rate at which its sender sends, whatever the links could carry; 0: no limit. Left out: all 0."""
    after: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """[flows] flow ahead of it in the sender's queue, at most one behind each, or `NO_FLOW`. Left out: no queues."""
    credit_offsets: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """[flows + 1] Left out: no flow waits for credits."""
    credits: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """[edges] flows whose arrival frees a buffer that this one needs."""
    priority: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, dtype=np.uint8))
    """[flows] traffic class 1…7, for backends that know queues. Left out: all `DEFAULT_PRIORITY`."""
    traffic: int = 0
    """Class of traffic, 0 or 1, under which link logs (`LinkLog`) book the flows."""

    def __len__(self) -> int:
        return len(self.src)

    def __post_init__(self) -> None:
        flows = len(self.src)
        if not len(self.max_rate_bps):
            object.__setattr__(self, "max_rate_bps", np.zeros(flows, dtype=np.int64))
        if not len(self.after):
            object.__setattr__(self, "after", np.full(flows, NO_FLOW, dtype=np.int64))
        if not len(self.credit_offsets):
            object.__setattr__(self, "credit_offsets", np.zeros(flows + 1, dtype=np.int64))
        if not len(self.priority):
            object.__setattr__(self, "priority", np.full(flows, DEFAULT_PRIORITY, dtype=np.uint8))
        self._check_lengths(*_PER_FLOW)
        self._check_not_negative(*_NOT_NEGATIVE)
        self._check_edges("dep_offsets", "deps")
        self._check_edges("credit_offsets", "credits")
        if flows and (self.after.min() < NO_FLOW or self.after.max() >= flows):
            raise FlowGraphError(f"FlowGraph.after: expected indices in 0…{flows - 1}, or {NO_FLOW}")
        if flows and not (self.priority.min() >= 1 and self.priority.max() <= 7):
            found = self.priority.min() if self.priority.min() < 1 else self.priority.max()
            raise FlowGraphError(f"FlowGraph.priority: found {found}, expected 1…7 (0 is for control packets)")

    def with_flows(
        self,
        *,
        src: NDArray[np.int32] | None = None,
        dst: NDArray[np.int32] | None = None,
        size_bytes: NDArray[np.int64] | None = None,
        ready_ps: NDArray[np.int64] | None = None,
        max_rate_bps: NDArray[np.int64] | None = None,
    ) -> FlowGraph:
        """The same graph between other nodes, with other sizes, times and rates; what is left out stays, and is not
        checked again.

        Raises:
            FlowGraphError: arrays of other lengths, or negative values.
        """
        columns = {
            "src": src,
            "dst": dst,
            "size_bytes": size_bytes,
            "ready_ps": ready_ps,
            "max_rate_bps": max_rate_bps,
        }
        given = {name: array for name, array in columns.items() if array is not None}
        changed = object.__new__(FlowGraph)
        vars(changed).update(vars(self), **given)
        for name, array in given.items():
            if len(array) != len(self):
                raise FlowGraphError(f"FlowGraph.{name}: found {len(array)} entries, expected {len(self)} as before")
            if name in _NOT_NEGATIVE:
                changed._check_not_negative(name)
        return changed

    def _check_lengths(self, *names: str) -> None:
        flows = len(self.src)
        for name in names:
            found = len(getattr(self, name))
            if found != flows:
                raise FlowGraphError(f"FlowGraph.{name}: found {found} entries, expected {flows} (as src)")

    def _check_not_negative(self, *names: str) -> None:
        for name in names:
            values = getattr(self, name)
            lowest = min(values.tolist(), default=0) if len(values) < FEW_FLOWS else values.min()
            if lowest < 0:
                raise FlowGraphError(f"FlowGraph.{name}: found {lowest}, expected no negative value")

    def _check_edges(self, offsets_name: str, edges_name: str) -> None:
        flows = len(self.src)
        offsets, edges = getattr(self, offsets_name), getattr(self, edges_name)
        if len(offsets) != flows + 1:
            raise FlowGraphError(f"FlowGraph.{offsets_name}: found {len(offsets)} entries, expected {flows + 1}")
        if offsets[0] != 0 or offsets[-1] != len(edges) or bool(np.any(np.diff(offsets) < 0)):
            raise FlowGraphError(f"FlowGraph.{offsets_name}: expected non-decreasing from 0 to len({edges_name})")
        if len(edges) and (edges.min() < 0 or edges.max() >= flows):
            raise FlowGraphError(f"FlowGraph.{edges_name}: expected indices in 0…{flows - 1}")

    @classmethod
    def from_lists(
        cls,
        src: Sequence[int] | NDArray[np.integer],
        dst: Sequence[int] | NDArray[np.integer],
        size_bytes: Sequence[int] | NDArray[np.integer],
        *,
        deps: Sequence[Sequence[int]] | None = None,
        ready_ps: Sequence[int] | NDArray[np.integer] | None = None,
        delay_ps: Sequence[int] | NDArray[np.integer] | None = None,
        flow_label: Sequence[int] | NDArray[np.integer] | None = None,
        notify: Sequence[bool] | None = None,
        max_rate_bps: Sequence[int] | NDArray[np.integer] | None = None,
        after: Sequence[int] | NDArray[np.integer] | None = None,
        credits: Sequence[Sequence[int]] | None = None,
        priority: Sequence[int] | NDArray[np.integer] | None = None,
    ) -> FlowGraph:
        """Builds a graph from per-flow lists; columns left out are zero, empty or false."""
        flows = len(src)
        dep_offsets, dep_flows = _csr(deps, flows)
        credit_offsets, credit_flows = _csr(credits, flows)
        return cls(
            src=np.asarray(src, dtype=np.int32),
            dst=np.asarray(dst, dtype=np.int32),
            size_bytes=np.asarray(size_bytes, dtype=np.int64),
            ready_ps=_or_zeros(ready_ps, flows, np.int64),
            delay_ps=_or_zeros(delay_ps, flows, np.int64),
            dep_offsets=dep_offsets,
            deps=dep_flows,
            flow_label=_or_zeros(flow_label, flows, np.uint32),
            notify=_or_zeros(notify, flows, np.bool_),
            max_rate_bps=_or_zeros(max_rate_bps, flows, np.int64),
            after=np.full(flows, NO_FLOW, dtype=np.int64) if after is None else np.asarray(after, dtype=np.int64),
            credit_offsets=credit_offsets,
            credits=credit_flows,
            priority=_or_zeros(priority, flows if priority is not None else 0, np.uint8),
        )


def _or_zeros(values: object, flows: int, dtype: type[Scalar]) -> NDArray[Scalar]:
    return np.zeros(flows, dtype=dtype) if values is None else np.asarray(values, dtype=dtype)


def _csr(lists: Sequence[Sequence[int]] | None, flows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Offsets and entries of one list per flow."""
    if lists is None:
        return np.zeros(flows + 1, dtype=np.int64), np.zeros(0, dtype=np.int64)
    lengths = np.fromiter((len(entries) for entries in lists), dtype=np.int64, count=len(lists))
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    return offsets, np.fromiter((entry for entries in lists for entry in entries), dtype=np.int64)
