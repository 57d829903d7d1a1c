"""Communicator: the GPUs that take part in a collective, their nodes, and the rings NCCL lays over them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError
from netsim.topology import LinkKind, Topology
from simccl.communicator.gpus import gpu_named
from simccl.communicator.shape import CommunicatorShape


@dataclass(frozen=True, slots=True)
class Communicator:
    """Ranks 0…n−1 on GPUs of a topology; rank r runs on ``gpus[r]``.

    A node is an NVLink domain of the topology. Arrays hold ranks, never GPU ids (except `gpu_ids`). Nodes are numbered
    in the order of their first ranks; inside a node ranks are ordered by GPU id, as NCCL orders them by bus id.

    Raises:
        InputError: no GPU, a repeated one, or one that the topology does not have.
        UnsupportedTopology: a GPU type without known link rates.
    """

    gpus: tuple[int, ...]
    topology: Topology
    gpu: str
    may_use_nvls: bool = True
    """As `CommunicatorShape.may_use_nvls`."""
    ranks_of_node: tuple[tuple[int, ...], ...] = field(init=False, compare=False, repr=False)
    """Per node, its ranks ordered by GPU id."""

    def __post_init__(self) -> None:
        gpu_named(self.gpu)
        if not self.gpus:
            raise InputError("gpus: found none, expected at least one GPU")
        if len(set(self.gpus)) != len(self.gpus):
            raise InputError(f"gpus: found {list(self.gpus)}, expected each GPU once")
        available = self.topology.gpus
        outside = [g for g in self.gpus if not 0 <= g < available]
        if outside:
            raise InputError(f"gpus: found {outside[0]}, expected 0…{available - 1} (GPUs of the topology)")
        nodes: dict[int, list[int]] = {}
        for rank, gpu in enumerate(self.gpus):
            nodes.setdefault(gpu // self.topology.gpus_per_node, []).append(rank)
        ordered = tuple(tuple(sorted(ranks, key=lambda r: self.gpus[r])) for ranks in nodes.values())
        object.__setattr__(self, "ranks_of_node", ordered)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.gpus)

    @property
    def nodes(self) -> int:
        return len(self.ranks_of_node)

    def gpu_ids(self) -> NDArray[np.int32]:
        """[ranks] GPU of each rank."""
        return np.array(self.gpus, dtype=np.int32)

    def node_of_rank(self) -> NDArray[np.int64]:
        """[ranks] node of each rank, 0…nodes−1."""
        node = np.empty(self.size, dtype=np.int64)
        for k, ranks in enumerate(self.ranks_of_node):
            node[list(ranks)] = k
        return node

    def rail_of_rank(self) -> NDArray[np.int64]:
        """[ranks] rail of each rank's NIC."""
        return self.gpu_ids().astype(np.int64) % self.topology.gpus_per_node

    def shape(self) -> CommunicatorShape:
        """Shape for the cost model, with the NIC of the slowest rank, or the GPU type's where the topology has none."""
        gpu = gpu_named(self.gpu)
        nic_bytes_per_s = port_bytes_per_s(self.topology, LinkKind.NIC)[self.gpu_ids()].min()
        return CommunicatorShape(
            gpu=gpu,
            ranks=self.size,
            nodes=self.nodes,
            gpus_per_node=min(len(ranks) for ranks in self.ranks_of_node),
            nic_gbytes_per_s=nic_bytes_per_s / 1e9 if nic_bytes_per_s else gpu.nic_gbytes_per_s,
            may_use_nvls=self.may_use_nvls,
        )

    def ring_orders(self, channels: int) -> NDArray[np.int32]:
        """[channels, ranks] the ring of each channel; the last rank of a row sends to the first.

        On one node every ring is 0 1 … g−1 by GPU id. Across nodes channel c visits local GPUs c, c−1, …, c+1 if c is
        even and c, c+1, …, c−1 if it is odd, and odd nodes run the reverse: what NCCL 2.30.7 does where rings may
        change NICs (crossNic 2: odd nodes swap channel pairs). Then every NIC sends and receives in as many channels
        as any other, and every hop between nodes stays on one rail, but for the closing hop of an odd number of
        nodes. With an odd number of GPUs on a node, where pairs do not come out even, all channels descend, which
        keeps both properties. Nodes with unequal counts, or with other local GPUs, keep the order but not the rails.
        """
        if self.nodes == 1:
            return np.tile(np.array(self.ranks_of_node[0], dtype=np.int32), (channels, 1))
        rows = [
            np.concatenate([_local_order(ranks, channel, k % 2 == 1) for k, ranks in enumerate(self.ranks_of_node)])
            for channel in range(channels)
        ]
        return np.array(rows, dtype=np.int32)

    def chain_orders(self, channels: int) -> list[list[NDArray[np.int32]]]:
        """Per channel and node, the chain of ranks of a tree; its first rank is the same GPU on every node.

        On one node every chain is 0 1 … g−1 by GPU id. Across nodes channel c begins at local GPU c, so that trees of
        different channels use different rails.
        """
        if self.nodes == 1:
            return [[np.array(self.ranks_of_node[0], dtype=np.int32)]] * channels
        return [[_local_order(ranks, channel, False) for ranks in self.ranks_of_node] for channel in range(channels)]


@lru_cache(maxsize=16)
def port_bytes_per_s(topology: Topology, kind: LinkKind) -> NDArray[np.float64]:
    """[gpus] line rate of each GPU's fastest outgoing link of that kind; 0 where it has none. Looked up once."""
    rates = np.zeros(topology.nodes, dtype=np.float64)
    of_kind = topology.link_kind == kind
    np.maximum.at(rates, topology.link_src[of_kind], topology.capacity_bps[of_kind] / 8)
    rates.flags.writeable = False
    return rates[: topology.gpus]


def _local_order(ranks: tuple[int, ...], channel: int, is_odd_node: bool) -> NDArray[np.int32]:
    count = len(ranks)
    ascends = channel % 2 == 1 and count % 2 == 0
    steps = np.arange(count)
    order = np.array(ranks, dtype=np.int32)[(channel + (steps if ascends else -steps)) % count]
    return order[::-1] if is_odd_node else order
