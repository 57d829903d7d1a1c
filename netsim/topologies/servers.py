"""Servers: GPUs, the NVSwitches among them, and the NIC ports to the fabric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from netsim.topologies.defaults import LinkRates
from netsim.topology import CableTable, LinkKind, NodeKind, Topology

NodeBlock = tuple[NodeKind, Sequence[str]]
"""Nodes of one kind, by name."""


@dataclass(frozen=True, slots=True)
class Servers:
    """``nodes`` servers of ``gpus_per_node`` GPUs; they are the first nodes of a topology, NVSwitches behind the GPUs.

    The NVLink rate of a GPU is spread over the NVSwitches of its server, the rate of its NIC over the NIC's ports; what
    does not divide is lost (less than 1 bit/s per link).
    """

    nodes: int
    gpus_per_node: int
    nvswitches_per_node: int

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def nvswitches(self) -> int:
        return self.nodes * self.nvswitches_per_node

    @property
    def first_switch(self) -> int:
        """Number of the first node behind the servers."""
        return self.gpus + self.nvswitches

    def cables(self, ports: NDArray[np.integer], rates: LinkRates) -> CableTable:
        """GPU by GPU, cables to its NVSwitches and then to its switches, ``ports`` [gpus, NIC ports]."""
        gpu = np.arange(self.gpus)[:, None]
        planes = np.arange(self.nvswitches_per_node)
        nvswitches = self.gpus + gpu // self.gpus_per_node * self.nvswitches_per_node + planes
        is_nic = np.repeat([False, True], [self.nvswitches_per_node, ports.shape[1]])
        nvlink_bps = rates.nvlink_bps // max(1, self.nvswitches_per_node)
        nic_bps = rates.nic_bps // max(1, ports.shape[1])
        return CableTable.between(
            gpu,
            np.concatenate((nvswitches, ports), axis=1),
            capacity_bps=np.where(is_nic, nic_bps, nvlink_bps),
            latency_ps=np.where(is_nic, rates.nic_latency_ps, rates.nvlink_latency_ps),
            kind=np.where(is_nic, LinkKind.NIC, LinkKind.NVLINK),
        )

    def with_fabric(self, switches: Sequence[NodeBlock], cables: Sequence[CableTable]) -> Topology:
        """The topology of these servers with further nodes behind them."""
        blocks: list[NodeBlock] = [
            (NodeKind.GPU, [f"gpu{gpu}" for gpu in range(self.gpus)]),
            (NodeKind.NVSWITCH, [f"nvswitch{nvswitch}" for nvswitch in range(self.nvswitches)]),
            *switches,
        ]
        return Topology.from_table(
            np.repeat([kind for kind, _ in blocks], [len(names) for _, names in blocks]),
            [name for _, names in blocks for name in names],
            CableTable.joined(cables),
            gpus_per_node=self.gpus_per_node,
        )
