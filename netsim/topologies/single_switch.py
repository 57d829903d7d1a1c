"""Hosts behind one switch."""

from __future__ import annotations

import numpy as np

from netsim.topologies.checks import check_counts, check_size
from netsim.topologies.defaults import LinkRates
from netsim.topologies.servers import Servers
from netsim.topology import NodeKind, Topology


def single_switch(nodes: int, gpus_per_node: int = 1, *, rates: LinkRates | None = None) -> Topology:
    """Every GPU has a NIC on one non-blocking switch.

    With one GPU per node, nodes are plain hosts and have no NVLink. With more, each node has an NVSwitch, which its
    GPUs use among themselves. Nodes are numbered GPUs, NVSwitches, switch.
    """
    check_counts("single_switch", nodes=nodes, gpus_per_node=gpus_per_node)
    check_size("single_switch", nodes * gpus_per_node, 2 * nodes * gpus_per_node)
    servers = Servers(nodes, gpus_per_node, nvswitches_per_node=int(gpus_per_node > 1))
    ports = np.full((servers.gpus, 1), servers.first_switch)
    return servers.with_fabric([(NodeKind.SWITCH, ["switch0"])], [servers.cables(ports, rates or LinkRates())])
