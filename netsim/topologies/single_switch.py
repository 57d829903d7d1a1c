"""Hosts behind one switch."""

from __future__ import annotations

from netsim.errors import InputError
from netsim.topologies.defaults import LinkRates
from netsim.topology import DuplexLink, LinkKind, NodeKind, Topology


def single_switch(nodes: int, gpus_per_node: int = 1, *, rates: LinkRates | None = None) -> Topology:
    """Every GPU has a NIC on one non-blocking switch.

    With one GPU per node, nodes are plain hosts and have no NVLink. With more, each node has an NVSwitch, which its
    GPUs use among themselves. Nodes are numbered GPUs, NVSwitches, switch.
    """
    rates = rates or LinkRates()
    for name, value in (("nodes", nodes), ("gpus_per_node", gpus_per_node)):
        if value < 1:
            raise InputError(f"single_switch {name}: found {value}, expected at least 1")
    gpus = nodes * gpus_per_node
    nvswitches = nodes if gpus_per_node > 1 else 0
    cables = []
    for gpu in range(gpus):
        if nvswitches:
            nvswitch = gpus + gpu // gpus_per_node
            cables.append(DuplexLink(gpu, nvswitch, rates.nvlink_bps, rates.nvlink_latency_ps, LinkKind.NVLINK))
        cables.append(DuplexLink(gpu, gpus + nvswitches, rates.nic_bps, rates.nic_latency_ps, LinkKind.NIC))
    names = [(NodeKind.GPU, f"gpu{gpu}") for gpu in range(gpus)]
    names += [(NodeKind.NVSWITCH, f"nvswitch{node}") for node in range(nvswitches)]
    names.append((NodeKind.SWITCH, "switch0"))
    return Topology.from_cables(names, cables, gpus_per_node=gpus_per_node)
