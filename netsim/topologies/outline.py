"""The nested groups of a topology (servers in segments in pods), as far as a picture shows them.

Groups follow from the cables: what hangs together without the cables of a tier is a group below that tier. So a fabric
of leaves and spines without its spines falls into segments, and a segment without its leaves into servers. Routers of
one tier that are linked among themselves form groups where they are densely linked (cliques of a dragonfly).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components

from netsim.topology import NodeKind, Topology

TIERS: Final = {
    NodeKind.GPU: 0,
    NodeKind.NVSWITCH: 0,
    NodeKind.LEAF: 1,
    NodeKind.SWITCH: 1,
    NodeKind.SPINE: 2,
    NodeKind.CORE: 3,
}
"""Row of a kind of node, from the GPUs up."""

_Item = TypeVar("_Item")

_LEAST_GPUS_SHOWN: Final = 8
_LEAST_SWITCHES_SHOWN: Final = 16


@dataclass(frozen=True, slots=True)
class Row:
    """Nodes side by side: the first ones, ``hidden`` that are not shown, and the last; see `gap_at`."""

    shown: tuple[int, ...]
    hidden: int

    @property
    def places(self) -> int:
        """Places that the row needs; the hidden ones share one."""
        return len(self.shown) + (self.hidden > 0)


@dataclass(frozen=True, slots=True)
class Group:
    """Servers, segments or pods that belong together, and the switches above them."""

    name: str
    tier: int
    """Of the switches; 0 for a server."""
    gpus: Row
    nvswitches: Row
    switches: Row
    children: tuple[Group, ...]
    hidden_children: int
    """See `gap_at`."""


def gap_at(shown: int) -> int:
    """Place of those that are hidden: half of the shown ones are before them."""
    return (shown + 1) // 2


def outlines(topology: Topology, limits: Sequence[int]) -> Iterator[Group]:
    """The groups of a topology, for one limit after the other: at most so many children of each are shown.

    Of the GPUs of a server at least 8 are shown, of the switches of a group at least 16.
    """
    levels, labels = _levels(topology)
    for limit in limits:
        splitter = _Splitter(topology, levels, labels, limit)
        yield splitter.group(np.arange(topology.nodes), len(levels), "")


def _levels(topology: Topology) -> tuple[list[int], list[NDArray[np.int32]]]:
    """Levels upwards, and [nodes] the component of each node by cables up to that level.

    A level is twice a tier, plus one for cables among groups of that tier.
    """
    kind_tier = np.zeros(max(NodeKind) + 1, dtype=np.int64)
    kind_tier[list(TIERS)] = list(TIERS.values())
    tier = kind_tier[topology.node_kind]
    a, b = topology.link_src.astype(np.int64), topology.link_dst.astype(np.int64)
    level = 2 * np.maximum(tier[a], tier[b])
    level[_among_groups(a, b, tier)] += 1
    gpu = np.arange(topology.gpus)
    a = np.concatenate((a, gpu))
    b = np.concatenate((b, gpu // topology.gpus_per_node * topology.gpus_per_node))
    level = np.concatenate((level, np.zeros_like(gpu)))
    levels = np.unique(np.concatenate((level, 2 * tier))).tolist()
    labels = []
    for most in levels:
        is_in = level <= most
        graph = coo_array((np.ones(is_in.sum(), dtype=np.int8), (a[is_in], b[is_in])), shape=(topology.nodes,) * 2)
        labels.append(connected_components(graph, directed=False)[1])
    return levels, labels


def _among_groups(a: NDArray[np.int64], b: NDArray[np.int64], tier: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[links] of one tier, whose ends have few common neighbours there: not half as many as the densest link has."""
    is_flat = (tier[a] == tier[b]) & (tier[a] > 0)
    between = np.zeros(len(a), dtype=bool)
    if not is_flat.any():
        return between
    ends = (a[is_flat], b[is_flat])
    adjacency: csr_array = coo_array((np.ones(len(ends[0])), ends), shape=(len(tier),) * 2).tocsr()
    adjacency.data[:] = 1
    common = np.asarray((adjacency @ adjacency)[ends]).ravel()
    between[is_flat] = 2 * common < common.max()
    return between


@dataclass(frozen=True, slots=True)
class _Splitter:
    topology: Topology
    levels: list[int]
    labels: list[NDArray[np.int32]]
    limit: int

    def group(self, members: NDArray[np.int64], depth: int, name: str) -> Group:
        """The group of ``members``, which hang together by the cables of ``levels[:depth]`` (or do not, at the top)."""
        if depth == 1:
            return self._server(members)
        level = self.levels[depth - 1]
        kinds = self.topology.node_kind[members]
        own_kinds = [kind for kind, tier in TIERS.items() if 2 * tier == level]
        is_own = np.isin(kinds, own_kinds)
        rest = members[~is_own]
        parts = self._parts(rest, depth - 1)
        if not is_own.any() and len(parts) == 1:
            return self.group(parts[0], depth - 1, name)
        shown, hidden = _sampled(list(enumerate(parts)), self.limit)
        return Group(
            name,
            level // 2,
            gpus=Row((), 0),
            nvswitches=Row((), 0),
            switches=_row(members[is_own], max(self.limit, _LEAST_SWITCHES_SHOWN)),
            children=tuple(self.group(part, depth - 1, self._name(depth - 1, level, index)) for index, part in shown),
            hidden_children=hidden,
        )

    def _server(self, members: NDArray[np.int64]) -> Group:
        parts = self._parts(members, 1)
        if len(parts) > 1:  # servers that nothing connects
            shown, hidden = _sampled(list(enumerate(parts)), self.limit)
            children = tuple(self._server(part) for _, part in shown)
            return Group("", 0, Row((), 0), Row((), 0), Row((), 0), children, hidden)
        kinds = self.topology.node_kind[members]
        return Group(
            f"server {members[0] // self.topology.gpus_per_node}",
            0,
            gpus=_row(members[kinds == NodeKind.GPU], max(self.limit, _LEAST_GPUS_SHOWN)),
            nvswitches=_row(members[kinds == NodeKind.NVSWITCH], max(self.limit, _LEAST_GPUS_SHOWN)),
            switches=Row((), 0),
            children=(),
            hidden_children=0,
        )

    def _parts(self, members: NDArray[np.int64], depth: int) -> list[NDArray[np.int64]]:
        """Members by the component they are in up to ``levels[depth - 1]``, in the order of the first of each."""
        label = self.labels[depth - 1][members]
        order = np.argsort(label, kind="stable")
        borders = np.flatnonzero(np.diff(label[order])) + 1
        parts = np.split(members[order], borders) if len(members) else []
        return sorted(parts, key=lambda part: int(part[0]))

    def _name(self, depth: int, parent_level: int, index: int) -> str:
        if parent_level % 2:
            return f"group {index}"
        return f"{'segment' if self.levels[depth - 1] <= 2 else 'pod'} {index}"


def _row(nodes: NDArray[np.int64], limit: int) -> Row:
    shown, hidden = _sampled(nodes.tolist(), limit)
    return Row(tuple(shown), hidden)


def _sampled(items: Sequence[_Item], limit: int) -> tuple[list[_Item], int]:
    """At most ``limit`` items, the first and the last, and how many are left out between."""
    if len(items) <= limit:
        return list(items), 0
    first = gap_at(limit)
    return [*items[:first], *items[len(items) - limit + first :]], len(items) - limit
