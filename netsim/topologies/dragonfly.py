"""Dragonfly: groups of fully connected routers, and global links among the groups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError
from netsim.topologies.checks import check_counts, check_size, least, uplink_rate_bps
from netsim.topologies.defaults import LinkRates
from netsim.topologies.servers import Servers
from netsim.topology import CableTable, LinkKind, NodeKind, Topology


@dataclass(frozen=True, slots=True)
class DragonflyShape:
    """``p`` hosts and ``h`` global ports to a router, ``a`` routers to a group, ``g`` groups.

    Kim, Dally, Scott and Abts, "Technology-Driven, Highly-Scalable Dragonfly Topology", ISCA 2008.
    """

    hosts_per_router: int
    routers_per_group: int
    global_ports: int
    groups: int

    @classmethod
    def balanced(
        cls,
        hosts_per_router: int,
        *,
        routers_per_group: int | None = None,
        global_ports: int | None = None,
        groups: int | None = None,
    ) -> DragonflyShape:
        """Numbers left out are those of the balanced network, a = 2p = 2h, with the most groups, a·h + 1."""
        routers = 2 * hosts_per_router if routers_per_group is None else routers_per_group
        ports = hosts_per_router if global_ports is None else global_ports
        return cls(hosts_per_router, routers, ports, routers * ports + 1 if groups is None else groups)

    @classmethod
    def smallest_for(cls, hosts: int, **given: int | None) -> DragonflyShape:
        """`balanced` with the fewest hosts per router by which there are so many, and global ports for the groups."""

        def suffices(hosts_per_router: int) -> bool:
            shape = cls.balanced(hosts_per_router, **given)
            return shape.hosts >= hosts and (shape.groups <= shape.most_groups or hosts_per_router >= shape.groups)

        return cls.balanced(least(suffices), **given)

    @property
    def routers(self) -> int:
        return self.groups * self.routers_per_group

    @property
    def hosts(self) -> int:
        return self.routers * self.hosts_per_router

    @property
    def most_groups(self) -> int:
        """So that the global ports of a group reach every other group."""
        return self.routers_per_group * self.global_ports + 1

    @property
    def cables_per_pair_of_groups(self) -> int:
        """Global cables between any two groups: what the ports of a group suffice for; ports left over stay dark."""
        return self.routers_per_group * self.global_ports // (self.groups - 1) if self.groups > 1 else 0

    def check(self) -> None:
        """Raises: InputError, for counts below 1 or more groups than the global ports of one reach."""
        check_counts(
            "dragonfly",
            hosts_per_router=self.hosts_per_router,
            routers_per_group=self.routers_per_group,
            global_ports=self.global_ports,
            groups=self.groups,
        )
        if self.groups > self.most_groups:
            raise InputError(
                f"dragonfly groups: found {self.groups}, expected at most {self.most_groups}, "
                "routers_per_group · global_ports + 1"
            )


def dragonfly(
    shape: DragonflyShape,
    *,
    nodes: int | None = None,
    gpus_per_node: int = 1,
    oversubscription: float = 1,
    global_latency_ps: int | None = None,
    rates: LinkRates | None = None,
) -> Topology:
    """A dragonfly with GPUs as hosts, filled in their order.

    Every two routers of a group have a cable at the rate of a NIC. Global ports follow the palm-tree arrangement
    (Camarero, Vallejo, Beivide, ACM TACO 11(4), 2014): port ``j`` of the group's a·h leads to the group ``j + 1``
    before its own, and arrives there at the port that looks back. With fewer than a·h + 1 groups the pattern repeats as
    often as the ports allow. The global ports of a router, dark or not, together carry what its hosts' ports carry,
    divided by ``oversubscription``.

    Routes of our backends are shortest paths in hops, so at most three links between routers in a balanced network.
    Kim's minimal routing takes exactly one global link to another group; here global links count as any other, and some
    paths of two or three hops take two or three of them (22 % of the pairs of routers with 72 hosts). There is no
    routing around a busy global link (Valiant, UGAL), as real machines do it: traffic of a whole group to the next one
    gets no more than the few cables between the two.

    With ``gpus_per_node`` above 1, GPUs come in servers with an NVSwitch. ``nodes`` (default: as many as fit) is their
    number. Nodes are numbered GPUs, NVSwitches, routers by group; cables come GPU by GPU, then those within groups,
    then global ones.

    Raises:
        InputError: naming the field that is out of range.
    """
    shape.check()
    check_counts("dragonfly", gpus_per_node=gpus_per_node)
    most = shape.hosts // gpus_per_node
    node_count = most if nodes is None else nodes
    if not 1 <= node_count <= most:
        raise InputError(
            f"dragonfly nodes: found {node_count}, expected 1 to {most}: {shape.routers} routers with "
            f"{shape.hosts_per_router} hosts each hold {shape.hosts} GPUs, {gpus_per_node} to a node"
        )
    rates = rates or LinkRates()
    servers = Servers(node_count, gpus_per_node, int(gpus_per_node > 1))
    cables = shape.routers * (shape.routers_per_group + shape.global_ports) // 2
    check_size("dragonfly", servers.first_switch + shape.routers, 2 * servers.gpus + cables)
    first = servers.first_switch
    ports_bps = shape.hosts_per_router * rates.nic_bps
    global_bps = uplink_rate_bps("dragonfly", ports_bps, shape.global_ports, oversubscription)
    global_ps = rates.nic_latency_ps if global_latency_ps is None else global_latency_ps
    fabric = [
        CableTable.between(first + a, first + b, capacity_bps=bps, latency_ps=latency_ps, kind=LinkKind.FABRIC)
        for (a, b), bps, latency_ps in (
            (_within_groups(shape), rates.nic_bps, rates.nic_latency_ps),
            (_among_groups(shape), global_bps, global_ps),
        )
    ]
    ports = first + np.arange(servers.gpus)[:, None] // shape.hosts_per_router
    names = ["router{}.{}".format(*divmod(router, shape.routers_per_group)) for router in range(shape.routers)]
    return servers.with_fabric([(NodeKind.SWITCH, names)], [servers.cables(ports, rates), *fabric])


def _within_groups(shape: DragonflyShape) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """[cables] routers at the two ends."""
    one, other = np.triu_indices(shape.routers_per_group, k=1)
    first = np.arange(shape.groups)[:, None] * shape.routers_per_group
    return (first + one).ravel(), (first + other).ravel()


def _among_groups(shape: DragonflyShape) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """[cables] routers at the two ends, each cable once, from the lower group.

    In one round of the pattern, port ``j`` of a group leads ``j + 1`` groups back. From the other end the same cable
    leads ``g − 1 − j`` groups back, so there it is port ``g − 2 − j`` of the same round.
    """
    reach = shape.groups - 1
    rounds = np.arange(shape.cables_per_pair_of_groups)[None, :, None]
    step = np.arange(reach)[None, None, :]
    group = np.arange(shape.groups)[:, None, None]
    there = (group - step - 1) % shape.groups
    here_port, there_port = rounds * reach + step, rounds * reach + (reach - 1 - step)
    here_router, there_router = np.broadcast_arrays(
        group * shape.routers_per_group + here_port // shape.global_ports,
        there * shape.routers_per_group + there_port // shape.global_ports,
    )
    is_first_end = np.broadcast_to(group < there, here_router.shape)
    return here_router[is_first_end], there_router[is_first_end]
