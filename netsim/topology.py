"""The network as data: nodes and directed links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from boundary.errors import InputError
from boundary.plain_text import first_faulty, name_fault
from boundary.quoting import quoted
from netsim.units import MOST_LATENCY_PS, MOST_RATE_BPS

if TYPE_CHECKING:
    import networkx


class NodeKind(IntEnum):
    """What a node is. GPUs and hosts never forward; the codes are shared with the C++ core.

    A host is the memory of a server's CPUs, which GPUs reach over PCIe switches.

    Leaves have the GPUs, spines the leaves and cores the spines below them; a plain switch is on no such tier.
    """

    GPU = 0
    NVSWITCH = 1
    LEAF = 2
    SPINE = 3
    SWITCH = 4
    CORE = 5
    HOST = 6
    PCIE_SWITCH = 7


class LinkKind(IntEnum):
    """What a link is made of: inside a node (NVLink, PCIe), from a GPU to the fabric, or between switches."""

    NVLINK = 0
    NIC = 1
    FABRIC = 2
    PCIE = 3


def is_fabric_switch(node_kind: NDArray[np.integer]) -> NDArray[np.bool_]:
    """[nodes] whether each is a switch between servers, with the buffers and marks of Ethernet."""
    inside = (NodeKind.GPU, NodeKind.NVSWITCH, NodeKind.HOST, NodeKind.PCIE_SWITCH)
    return ~np.isin(node_kind, inside)


@dataclass(frozen=True, slots=True)
class DuplexLink:
    """A cable: the same capacity and latency in both directions."""

    a: int
    b: int
    capacity_bps: int
    latency_ps: int
    kind: LinkKind


@dataclass(frozen=True, slots=True, eq=False)
class CableTable:
    """Cables as columns; `DuplexLink` is one row."""

    a: NDArray[np.int32]
    """[cables] node at one end"""
    b: NDArray[np.int32]
    """[cables] node at the other end"""
    capacity_bps: NDArray[np.int64]
    """[cables] of each direction"""
    latency_ps: NDArray[np.int64]
    """[cables] of each direction"""
    kind: NDArray[np.int8]
    """[cables] `LinkKind`"""

    def __len__(self) -> int:
        return len(self.a)

    @classmethod
    def between(
        cls, a: ArrayLike, b: ArrayLike, *, capacity_bps: ArrayLike, latency_ps: ArrayLike, kind: ArrayLike
    ) -> CableTable:
        """From columns; a single value stands for all rows."""
        columns = np.broadcast_arrays(
            np.asarray(a, dtype=np.int32),
            np.asarray(b, dtype=np.int32),
            np.asarray(capacity_bps, dtype=np.int64),
            np.asarray(latency_ps, dtype=np.int64),
            np.asarray(kind, dtype=np.int8),
        )
        return cls(*(column.ravel() for column in columns))

    @classmethod
    def joined(cls, tables: Sequence[CableTable]) -> CableTable:
        """The rows of all tables, in order."""
        return cls(
            np.concatenate([table.a for table in tables]),
            np.concatenate([table.b for table in tables]),
            np.concatenate([table.capacity_bps for table in tables]),
            np.concatenate([table.latency_ps for table in tables]),
            np.concatenate([table.kind for table in tables]),
        )

    def take(self, rows: slice | NDArray[np.integer] | NDArray[np.bool_]) -> CableTable:
        """Some of the rows, chosen as numpy does."""
        return CableTable(self.a[rows], self.b[rows], self.capacity_bps[rows], self.latency_ps[rows], self.kind[rows])

    @classmethod
    def from_rows(cls, rows: Sequence[DuplexLink]) -> CableTable:
        """One row per cable."""
        return cls(
            np.array([row.a for row in rows], dtype=np.int32),
            np.array([row.b for row in rows], dtype=np.int32),
            np.array([row.capacity_bps for row in rows], dtype=np.int64),
            np.array([row.latency_ps for row in rows], dtype=np.int64),
            np.array([row.kind for row in rows], dtype=np.int8),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Topology:
    """Nodes and directed links; immutable.

    GPUs are the nodes 0 … ``gpus - 1`` in rank order, ``gpus_per_node`` of them to a server ("node" in the sense of
    `node_of`). Links are directed; a cable is two of them.

    Raises:
        InputError: where an array has the wrong length, a link names an unknown node, a capacity is not in
            1 … 10¹⁵ bit/s, a latency not in 0 … 1 s, a link leads back to its own start, or GPUs do not come first or
            do not fill whole servers.
    """

    node_kind: NDArray[np.int8]
    """[nodes] `NodeKind`"""
    node_name: tuple[str, ...]
    """[nodes] unique"""
    link_src: NDArray[np.int32]
    """[links]"""
    link_dst: NDArray[np.int32]
    """[links]"""
    capacity_bps: NDArray[np.int64]
    """[links] of this direction"""
    latency_ps: NDArray[np.int64]
    """[links] propagation and forwarding"""
    link_kind: NDArray[np.int8]
    """[links] `LinkKind`"""
    gpus_per_node: int
    _gpus: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_gpus", int((self.node_kind == NodeKind.GPU).sum()))
        self._check_nodes()
        self._check_links()
        for name in ("node_kind", "link_src", "link_dst", "capacity_bps", "latency_ps", "link_kind"):
            getattr(self, name).flags.writeable = False

    def _check_nodes(self) -> None:
        is_gpu, gpus = self.node_kind == NodeKind.GPU, self.gpus
        if len(self.node_name) != len(self.node_kind) or len(set(self.node_name)) != len(self.node_name):
            raise InputError(f"Topology.node_name: expected {len(self.node_kind)} unique names, one per node")
        if (faulty := first_faulty(self.node_name)) is not None:
            raise InputError(f"Topology.node_name of node {faulty}: {name_fault(self.node_name[faulty])}")
        if not is_gpu[:gpus].all():
            raise InputError("Topology.node_kind: found a GPU after another kind of node, expected GPUs first")
        if self.gpus_per_node < 1 or gpus % self.gpus_per_node:
            raise InputError(
                f"Topology.gpus_per_node: found {self.gpus_per_node} with {gpus} GPUs, expected a positive divisor"
            )

    def _check_links(self) -> None:
        links = len(self.link_src)
        for name in ("link_dst", "capacity_bps", "latency_ps", "link_kind"):
            if len(getattr(self, name)) != links:
                raise InputError(f"Topology.{name}: found {len(getattr(self, name))} entries, expected {links}")
        if not links:
            return
        ends = np.concatenate((self.link_src, self.link_dst))
        if ends.min() < 0 or ends.max() >= self.nodes:
            raise InputError(f"Topology links: found an unknown node, expected 0…{self.nodes - 1}")
        if self.capacity_bps.min() < 1 or self.capacity_bps.max() > MOST_RATE_BPS:
            raise InputError("Topology.capacity_bps: expected 1 bit/s to 1 Pbit/s")
        if self.latency_ps.min() < 0 or self.latency_ps.max() > MOST_LATENCY_PS:
            found = self.latency_ps.min() if self.latency_ps.min() < 0 else self.latency_ps.max()
            raise InputError(f"Topology.latency_ps: found {found}, expected 0 to {MOST_LATENCY_PS} (1 s)")
        self._check_pcie()
        if (loops := np.flatnonzero(self.link_src == self.link_dst)).size:
            name = self.node_name[self.link_src[loops[0]]]
            raise InputError(f"Topology links: found a link from {quoted(name)} to itself, expected two nodes")

    def _check_pcie(self) -> None:
        """PCIe leads from GPUs and hosts to PCIe switches; neither hosts nor PCIe switches have other links."""
        src, dst = self.node_kind[self.link_src], self.node_kind[self.link_dst]
        is_pcie = self.link_kind == LinkKind.PCIE
        has_switch, has_host = ((src == kind) | (dst == kind) for kind in (NodeKind.PCIE_SWITCH, NodeKind.HOST))
        is_wrong = np.where(is_pcie, ~has_switch, has_switch | has_host)
        if is_wrong.any():
            link = int(np.flatnonzero(is_wrong)[0])
            ends = " to ".join(quoted(self.node_name[end[link]]) for end in (self.link_src, self.link_dst))
            kind = LinkKind(int(self.link_kind[link])).name.lower()
            raise InputError(
                f"Topology links: found a link of kind {kind} from {ends}, expected pcie where one end is a "
                "pcie_switch, and nowhere else; hosts have no other links"
            )

    def hosts_of(self, node: int) -> NDArray[np.int64]:
        """Hosts of the GPUs of a server, rising: those behind their PCIe switches; none without PCIe."""
        first = node * self.gpus_per_node
        mine = (self.link_src >= first) & (self.link_src < first + self.gpus_per_node)
        switches = self.link_dst[mine & (self.link_kind == LinkKind.PCIE)]
        behind = self.link_dst[np.isin(self.link_src, switches)]
        return np.unique(behind[self.node_kind[behind] == NodeKind.HOST]).astype(np.int64)

    @classmethod
    def from_table(
        cls, node_kind: ArrayLike, node_name: Sequence[str], cables: CableTable, *, gpus_per_node: int
    ) -> Topology:
        """From kind and name of each node and the cables; cable ``k`` gives links ``2k`` (a to b) and ``2k + 1``."""
        ends = np.stack((cables.a, cables.b), axis=1)
        return cls(
            node_kind=np.array(node_kind, dtype=np.int8),
            node_name=tuple(node_name),
            link_src=ends.ravel(),
            link_dst=ends[:, ::-1].ravel(),
            capacity_bps=np.repeat(cables.capacity_bps, 2),
            latency_ps=np.repeat(cables.latency_ps, 2),
            link_kind=np.repeat(cables.kind, 2),
            gpus_per_node=gpus_per_node,
        )

    @classmethod
    def from_cables(
        cls, nodes: Sequence[tuple[NodeKind, str]], cables: Sequence[DuplexLink], *, gpus_per_node: int
    ) -> Topology:
        """`from_table` of (kind, name) of each node and one row per cable."""
        kinds, names = [kind for kind, _ in nodes], [name for _, name in nodes]
        return cls.from_table(kinds, names, CableTable.from_rows(cables), gpus_per_node=gpus_per_node)

    def cables(self) -> CableTable | None:
        """The inverse of `from_table`; ``None`` where links do not come in such pairs."""
        paired = len(self.link_src) % 2 == 0 and bool(
            np.array_equal(self.link_src[0::2], self.link_dst[1::2])
            and np.array_equal(self.link_dst[0::2], self.link_src[1::2])
            and all(np.array_equal(x[0::2], x[1::2]) for x in (self.capacity_bps, self.latency_ps, self.link_kind))
        )
        return self.directed_links().take(slice(0, None, 2)) if paired else None

    def directed_links(self) -> CableTable:
        """Every link by itself, from ``a`` to ``b``."""
        return CableTable(self.link_src, self.link_dst, self.capacity_bps, self.latency_ps, self.link_kind)

    @property
    def nodes(self) -> int:
        """Number of nodes of the graph: GPUs and switches."""
        return len(self.node_kind)

    @property
    def links(self) -> int:
        """Number of directed links."""
        return len(self.link_src)

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return self._gpus

    def node_of(self, gpu: int) -> int:
        """Server that holds the GPU."""
        return self._checked(gpu) // self.gpus_per_node

    def rail_of(self, gpu: int) -> int:
        """Index of the GPU in its server, which is its rail in a rail-optimised fabric."""
        return self._checked(gpu) % self.gpus_per_node

    def _checked(self, gpu: int) -> int:
        if not 0 <= gpu < self.gpus:
            raise InputError(f"gpu: found {gpu}, expected 0…{self.gpus - 1}")
        return gpu

    def to_networkx(self) -> networkx.MultiDiGraph[int]:
        """Nodes carry ``name`` and ``kind``, the graph ``gpus_per_node``.

        Edges are directed, keyed by link id, and carry ``capacity_bps`` (bit/s), ``latency_ps`` (ps) and ``kind``; the
        kinds are the lower-case names of `NodeKind` and `LinkKind`.
        """
        import networkx

        graph: networkx.MultiDiGraph[int] = networkx.MultiDiGraph(gpus_per_node=self.gpus_per_node)
        node_kinds = {int(kind): kind.name.lower() for kind in NodeKind}
        link_kinds = {int(kind): kind.name.lower() for kind in LinkKind}
        for node, (name, kind) in enumerate(zip(self.node_name, self.node_kind.tolist(), strict=True)):
            graph.add_node(node, name=name, kind=node_kinds[kind])
        columns = (self.link_src, self.link_dst, self.capacity_bps, self.latency_ps, self.link_kind)
        for link, (src, dst, bps, ps, kind) in enumerate(zip(*(x.tolist() for x in columns), strict=True)):
            graph.add_edge(src, dst, key=link, capacity_bps=bps, latency_ps=ps, kind=link_kinds[kind])
        return graph
