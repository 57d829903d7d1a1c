"""Share of a rank in a flow graph: what it sends and receives, what each of its flows waits for, whom it informs.

Every rank computes its share from the whole graph, so that nobody has to be asked while flows are under way. An *event*
is the arrival (``2 * flow``) or the departure of the last byte (``2 * flow + 1``) of a flow, and happens on one rank.
Where a flow waits for an event of another rank than its sender's, that rank sends a message when the event happens, one
for all flows of the sender that wait for it.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from netsim.flow import NO_FLOW, FlowGraph
from netsim.units import PS_PER_NS

_COLUMNS: Final = (
    "src",
    "dst",
    "size_bytes",
    "ready_ps",
    "delay_ps",
    "dep_offsets",
    "deps",
    "flow_label",
    "notify",
    "max_rate_bps",
    "after",
    "credit_offsets",
    "credits",
    "priority",
)
_LINE_BYTES: Final = 64
"""Of a cache: no two flows write to the same one."""


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """Share of a rank; see the module."""

    sends: NDArray[np.int64]
    """[sends] flows that leave here"""
    receives: NDArray[np.int64]
    """[receives] flows that arrive here"""
    out_ranks: tuple[int, ...]
    """Ranks to which anything is sent, this one included where it sends to itself."""
    in_ranks: tuple[int, ...]
    """Ranks from which anything comes."""
    columns: dict[str, object]
    """Fields of the core's ``RankPlan``."""


def graph_bytes(graph: FlowGraph) -> bytes:
    """The columns of a graph as one ``.npz``."""
    buffer = io.BytesIO()
    np.savez(buffer, **{name: getattr(graph, name) for name in _COLUMNS})
    return buffer.getvalue()


def graph_from_bytes(content: bytes) -> FlowGraph:
    """Inverse of `graph_bytes`."""
    with np.load(io.BytesIO(content), allow_pickle=False) as columns:
        return FlowGraph(**{name: columns[name] for name in _COLUMNS})


def graph_digest(graph: FlowGraph, rank_of_node: NDArray[np.int64]) -> str:
    """SHA-256 of what is executed: the graph and who sends what."""
    digest = hashlib.sha256(np.ascontiguousarray(rank_of_node, dtype=np.int64).tobytes())
    for name in _COLUMNS:
        column = np.ascontiguousarray(getattr(graph, name))
        digest.update(f"{name} {column.dtype.str} {len(column)}\n".encode())
        digest.update(column.tobytes())
    return digest.hexdigest()


def share_of(graph: FlowGraph, rank_of_node: NDArray[np.int64], rank: int) -> Share:
    """The share of ``rank``, where node ``n`` belongs to rank ``rank_of_node[n]``."""
    sender, receiver = rank_of_node[graph.src], rank_of_node[graph.dst]
    sends, receives = np.flatnonzero(sender == rank), np.flatnonzero(receiver == rank)
    place = _places(graph, receiver)
    event, waiting = waits_of(graph)
    owner = np.where(event % 2 == 0, receiver[event // 2], sender[event // 2])
    informed_rank = sender[waiting]
    is_mine = informed_rank == rank
    dependents = _table(2 * len(graph), event[is_mine], np.searchsorted(sends, waiting[is_mine]))
    leaving = (owner == rank) & ~is_mine
    pairs = np.unique(np.column_stack((event[leaving], informed_rank[leaving])), axis=0)
    informed = _table(2 * len(graph), pairs[:, 0], pairs[:, 1])
    coming = is_mine & (owner != rank)
    out = {*receiver[sends].tolist(), *pairs[:, 1].tolist()}
    incoming = {*sender[receives].tolist(), *owner[coming].tolist()}
    columns: dict[str, object] = {
        "flows": len(graph),
        "send_flow": sends.astype(np.uint32),
        "send_peer": receiver[sends].astype(np.int32),
        "send_bytes": graph.size_bytes[sends],
        "send_place": place[sends],
        "send_label": graph.flow_label[sends],
        "send_ready_ns": graph.ready_ps[sends] // PS_PER_NS,
        "send_delay_ns": graph.delay_ps[sends] // PS_PER_NS,
        "send_max_bps": graph.max_rate_bps[sends],
        "send_waits": np.bincount(np.searchsorted(sends, waiting[is_mine]), minlength=len(sends)).astype(np.int32),
        "receive_flow": receives.astype(np.uint32),
        "receive_bytes": graph.size_bytes[receives],
        "receive_place": place[receives],
        "dependent_offsets": dependents[0],
        "dependents": dependents[1],
        "informed_offsets": informed[0],
        "informed": informed[1],
        "expected_messages": len(np.unique(event[coming])),
    }
    return Share(sends, receives, tuple(sorted(out)), tuple(sorted(incoming)), columns)


def waits_of(graph: FlowGraph) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """[edges] event, and the flow that waits for it. A credit is the arrival that frees the buffer."""
    flows = np.arange(len(graph), dtype=np.int64)
    queued = np.flatnonzero(graph.after != NO_FLOW)
    event = (2 * graph.deps, 2 * graph.credits, 2 * graph.after[queued] + 1)
    waiting = (np.repeat(flows, np.diff(graph.dep_offsets)), np.repeat(flows, np.diff(graph.credit_offsets)), queued)
    return np.concatenate(event).astype(np.int64), np.concatenate(waiting).astype(np.int64)


def _places(graph: FlowGraph, receiver: NDArray[np.int64]) -> NDArray[np.int64]:
    """[flows] place of each in the memory of its receiver, where all that arrive lie one behind the other."""
    room = -(-graph.size_bytes // _LINE_BYTES) * _LINE_BYTES
    order = np.argsort(receiver, kind="stable")
    before = np.cumsum(room[order]) - room[order]
    first = np.searchsorted(receiver[order], receiver[order])
    places = np.empty(len(graph), dtype=np.int64)
    places[order] = before - before[first]
    return places


def _table(
    events: int, event: NDArray[np.int64], entry: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Offsets [events + 1] and the entries of each event, in order."""
    order = np.argsort(event, kind="stable")
    offsets = np.concatenate(([0], np.cumsum(np.bincount(event, minlength=events)))).astype(np.int64)
    return offsets, entry[order].astype(np.int32)
