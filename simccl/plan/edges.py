"""Dependencies as pairs of arrays: (flow, flow it waits for), one entry per dependency."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from netsim.flow import NO_FLOW

Edges = tuple[NDArray[np.int64], NDArray[np.int64]]


def joined(edges: list[Edges]) -> Edges:
    """All edges of a list."""
    if not edges:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    waiting, awaited = zip(*edges, strict=True)
    return np.concatenate(waiting), np.concatenate(awaited)


def without_duplicates(edges: Edges) -> Edges:
    """Each edge once, in the order of flows."""
    waiting, awaited = edges
    if not len(waiting):
        return edges
    span = int(max(waiting.max(), awaited.max())) + 1
    keys = waiting * span
    keys += awaited
    keys.sort()
    keys = keys[np.concatenate(([True], keys[1:] != keys[:-1]))]
    return keys // span, keys % span


def csr(edges: Edges, flows: int) -> Edges:
    """Offsets [flows + 1] and awaited flows of edges in any order; those of one flow keep theirs."""
    waiting, awaited = edges
    if len(waiting) > 1 and (np.diff(waiting) < 0).any():
        order = np.argsort(waiting, kind="stable")
        waiting, awaited = waiting[order], awaited[order]
    counts = np.bincount(waiting, minlength=flows)
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64), awaited.astype(np.int64, copy=False)


def ranges(first: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """``first[i] … first[i] + counts[i] - 1`` for every i, one after the other."""
    return np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())


def earlier_on_connection(queue: NDArray[np.int64], connection: NDArray[np.int64], distance: int) -> NDArray[np.int64]:
    """[flows] the flow that many places before each on its connection, or `NO_FLOW`.

    ``queue`` are the flows, connection by connection in the order of sending; ``connection`` names theirs.
    """
    earlier = np.full(len(queue), NO_FLOW, dtype=np.int64)
    same = connection[distance:] == connection[:-distance] if distance < len(queue) else np.zeros(0, dtype=np.bool_)
    earlier[queue[distance:][same]] = queue[: len(queue) - distance][same] if distance < len(queue) else 0
    return earlier
