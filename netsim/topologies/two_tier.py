"""Servers on a two-tier Clos fabric: leaves with the NICs, spines above them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError
from netsim.topologies.checks import check_counts, check_size
from netsim.topologies.defaults import LinkRates
from netsim.topologies.servers import Servers
from netsim.topology import CableTable, LinkKind, NodeKind, Topology

_LETTERS = "ab"


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoTierFabric:
    """A leaf–spine fabric with or without rails, with NICs of one or two ports (dual ToR), in one or two planes.

    GPU ``i`` of a server is on rail ``i mod rails``. The NICs of a rail fill leaves in the order of GPUs,
    ``nics_per_leaf`` to a leaf. With two ports, port ``a`` of a NIC goes to a leaf of list ``a`` and port ``b`` to the
    leaf at the same place in list ``b``. In one plane every leaf has one uplink to every spine; in two, list ``a`` goes
    to the first half of the spines and list ``b`` to the second.

    Nodes are numbered GPUs, NVSwitches, leaves (list ``a`` then ``b``; by segment, then rail), spines; cables come GPU
    by GPU, NVLink then NIC, then leaf by leaf: the order of SimAI's generator.
    """

    builder: str
    """Whose fields messages name."""
    servers: Servers
    rails: int
    nics_per_leaf: int
    ports_per_nic: int = 1
    planes: int = 1
    spines: int
    """Of all planes together."""
    spine_ports: int | None = None
    """Largest number of leaves of a spine."""
    uplink_bps: int
    rates: LinkRates

    def build(self) -> Topology:
        """The topology.

        Raises:
            InputError: naming the builder and the field that does not fit.
        """
        self._check()
        leaves = self._leaves_per_list * self.ports_per_nic
        first_leaf = self.servers.first_switch
        cables = [
            self.servers.cables(first_leaf + self._leaf_of_nic_ports(), self.rates),
            self._uplinks(first_leaf, first_leaf + leaves),
        ]
        switches = [
            (NodeKind.LEAF, [self._leaf_name(leaf) for leaf in range(leaves)]),
            (NodeKind.SPINE, [f"spine{spine}" for spine in range(self.spines)]),
        ]
        return self.servers.with_fabric(switches, cables)

    @property
    def _leaves_per_list(self) -> int:
        nics_per_rail = self.servers.gpus // self.rails
        return -(-nics_per_rail // self.nics_per_leaf) * self.rails

    def _check(self) -> None:
        check_counts(
            self.builder,
            nodes=self.servers.nodes,
            gpus_per_node=self.servers.gpus_per_node,
            nvswitches_per_node=self.servers.nvswitches_per_node,
            rails=self.rails,
            nics_per_leaf=self.nics_per_leaf,
            spines=self.spines,
        )
        for field, value in (("tors", self.ports_per_nic), ("planes", self.planes)):
            if value not in (1, 2):
                raise InputError(f"{self.builder} {field}: found {value}, expected 1 or 2")
        if self.planes > self.ports_per_nic:
            raise InputError(f"{self.builder} planes: found 2 with tors 1, expected 1, or tors 2 (a port per plane)")
        if self.spines % self.planes:
            raise InputError(f"{self.builder} spines: found {self.spines}, expected an even number for two planes")
        if self.servers.gpus_per_node % self.rails:
            width = self.servers.gpus_per_node
            raise InputError(f"{self.builder} rails: found {self.rails}, expected a divisor of {width} GPUs per node")
        leaves = self._leaves_per_list * self.ports_per_nic
        leaves_per_spine = leaves // self.planes
        if self.spine_ports is not None and leaves_per_spine > self.spine_ports:
            raise InputError(
                f"{self.builder} nodes: found {self.servers.nodes}, with {leaves_per_spine} leaves on a spine, "
                f"expected at most {self.spine_ports} (spine_ports)"
            )
        gpu_cables = self.servers.gpus * (self.servers.nvswitches_per_node + self.ports_per_nic)
        uplinks = leaves_per_spine * self.spines
        check_size(self.builder, self.servers.first_switch + leaves + self.spines, gpu_cables + uplinks)

    def _leaf_of_nic_ports(self) -> NDArray[np.int64]:
        """[gpus, ports] leaf, counted from the first."""
        node, gpu_of_node = np.divmod(np.arange(self.servers.gpus), self.servers.gpus_per_node)
        of_rail, rail = np.divmod(gpu_of_node, self.rails)
        nic_of_rail = node * (self.servers.gpus_per_node // self.rails) + of_rail
        leaf = nic_of_rail // self.nics_per_leaf * self.rails + rail
        return leaf[:, None] + self._leaves_per_list * np.arange(self.ports_per_nic)

    def _uplinks(self, first_leaf: int, first_spine: int) -> CableTable:
        leaf = np.arange(self._leaves_per_list * self.ports_per_nic)
        spines_per_plane = self.spines // self.planes
        plane = leaf // self._leaves_per_list if self.planes > 1 else np.zeros_like(leaf)
        spine = plane[:, None] * spines_per_plane + np.arange(spines_per_plane)
        return CableTable.between(
            first_leaf + leaf[:, None],
            first_spine + spine,
            capacity_bps=self.uplink_bps,
            latency_ps=self.rates.nic_latency_ps,
            kind=LinkKind.FABRIC,
        )

    def _leaf_name(self, leaf: int) -> str:
        port, place = divmod(leaf, self._leaves_per_list)
        segment, rail = divmod(place, self.rails)
        return f"leaf{segment}.{rail}{_LETTERS[port] if self.ports_per_nic > 1 else ''}"
