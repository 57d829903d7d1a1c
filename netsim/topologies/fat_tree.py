"""Three-tier fat tree of k-port switches."""

from __future__ import annotations

import numpy as np

from boundary.errors import InputError
from netsim.topologies.checks import check_counts, check_size, least, uplink_rate_bps
from netsim.topologies.defaults import LinkRates
from netsim.topologies.servers import NodeBlock, Servers
from netsim.topology import CableTable, LinkKind, NodeKind, Topology


def fat_tree(
    k: int,
    *,
    nodes: int | None = None,
    gpus_per_node: int = 1,
    hosts_per_edge: int | None = None,
    oversubscription: float = 1,
    rates: LinkRates | None = None,
) -> Topology:
    """The k-ary fat tree of Al-Fares, Loukissas and Vahdat (SIGCOMM 2008), with GPUs as its hosts.

    ``k`` pods have k/2 edge and k/2 aggregation switches each, all pairs of which are connected; aggregation switch
    ``j`` of every pod has a cable to the k/2 core switches from ``j·k/2`` on. An edge switch has ``hosts_per_edge``
    NICs (default k/2; then switches have k ports throughout and there are k³/4 hosts), filled in the order of GPUs.
    Cables between switches have one rate: those of an edge switch upwards carry what all its NIC ports carry, divided
    by ``oversubscription``.

    With ``gpus_per_node`` above 1, GPUs come in servers with an NVSwitch. The tree is always complete; ``nodes``
    (default: as many as fit) says how many servers it has. Nodes are numbered GPUs, NVSwitches, edge switches by pod,
    aggregation switches by pod, core switches; cables come GPU by GPU, then edge to aggregation, then aggregation to
    core.

    Raises:
        InputError: naming the field that is out of range.
    """
    if k < 2 or k % 2:
        raise InputError(f"fat_tree k: found {k}, expected an even number of at least 2")
    half = k // 2
    per_edge = half if hosts_per_edge is None else hosts_per_edge
    check_counts("fat_tree", gpus_per_node=gpus_per_node, hosts_per_edge=per_edge)
    most = fat_tree_hosts(k, per_edge) // gpus_per_node
    node_count = most if nodes is None else nodes
    if not 1 <= node_count <= most:
        raise InputError(
            f"fat_tree nodes: found {node_count}, expected 1 to {most}: {k} pods of {half} edge switches with "
            f"{per_edge} hosts each hold {fat_tree_hosts(k, per_edge)} GPUs, {gpus_per_node} to a node"
        )
    rates = rates or LinkRates()
    servers = Servers(node_count, gpus_per_node, int(gpus_per_node > 1))
    check_size("fat_tree", servers.first_switch + 5 * half * half, 2 * servers.gpus + 2 * k * half * half)
    edges = k * half
    ports = servers.first_switch + np.arange(servers.gpus)[:, None] // per_edge
    uplink_bps = uplink_rate_bps("fat_tree", per_edge * rates.nic_bps, half, oversubscription)
    fabric = _between_switches(half, servers.first_switch, uplink_bps, rates.nic_latency_ps)
    switches: list[NodeBlock] = [
        (NodeKind.LEAF, [f"edge{edge // half}.{edge % half}" for edge in range(edges)]),
        (NodeKind.SPINE, [f"aggregation{switch // half}.{switch % half}" for switch in range(edges)]),
        (NodeKind.CORE, [f"core{core}" for core in range(half * half)]),
    ]
    return servers.with_fabric(switches, [servers.cables(ports, rates), *fabric])


def fat_tree_hosts(k: int, hosts_per_edge: int | None = None) -> int:
    """NICs that a complete tree has ports for."""
    return k * (k // 2) * (k // 2 if hosts_per_edge is None else hosts_per_edge)


def smallest_fat_tree(hosts: int, hosts_per_edge: int | None = None) -> int:
    """Least k of a tree that holds so many."""
    return 2 * least(lambda half: fat_tree_hosts(2 * half, hosts_per_edge) >= hosts)


def _between_switches(half: int, first_edge: int, rate_bps: int, latency_ps: int) -> list[CableTable]:
    """Edge to aggregation, then aggregation to core, of ``2·half`` pods."""
    edge = np.arange(2 * half * half)[:, None]
    pod, place = np.divmod(edge, half)
    first_aggregation = first_edge + len(edge)
    first_core = first_aggregation + len(edge)
    port = np.arange(half)
    return [
        CableTable.between(a, b, capacity_bps=rate_bps, latency_ps=latency_ps, kind=LinkKind.FABRIC)
        for a, b in (
            (first_edge + edge, first_aggregation + pod * half + port),
            (first_aggregation + edge, first_core + place * half + port),
        )
    ]
