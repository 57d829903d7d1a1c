"""Collectives within one server stand for those within all servers that are alike."""

from __future__ import annotations

import numpy as np
import pytest

from aicb import Communication
from netsim import Topology, rail_optimized
from netsim.topologies import single_switch
from vidur_pd.execution.communication.pricer import CommunicationPricer
from vidur_pd.execution.communication.servers import IdenticalServers

SERVERS, WIDTH = 5, 8
LAST = tuple(range((SERVERS - 1) * WIDTH, SERVERS * WIDTH))


def with_slow_link(topology: Topology, gpu: int) -> Topology:
    """The same with half the rate of the first link out of a GPU."""
    capacity_bps = topology.capacity_bps.copy()
    capacity_bps[np.flatnonzero(topology.link_src == gpu)[0]] //= 2
    return Topology(
        topology.node_kind,
        topology.node_name,
        topology.link_src,
        topology.link_dst,
        capacity_bps,
        topology.latency_ps,
        topology.link_kind,
        topology.gpus_per_node,
    )


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "all_to_all"])
@pytest.mark.parametrize("gpus", [LAST, LAST[2:6], (LAST[5], LAST[1], LAST[2])])
def test_a_moved_cost_is_the_cost_there(op: str, gpus: tuple[int, ...]) -> None:
    fabric = rail_optimized(SERVERS, WIDTH)
    what = Communication(op, 1_500_000, "tp")
    pricer = CommunicationPricer(fabric, "fluid", "h200")
    moved = pricer.cost(what, gpus)
    other = CommunicationPricer(fabric, "fluid", "h200")
    there = other._interpolated((what, gpus), other._whole)
    assert IdenticalServers(fabric).canonical(gpus) != gpus
    assert moved.duration_ps == there.duration_ps
    assert moved.links.tolist() == there.links.tolist()
    for name in ("link_bytes", "link_flows", "link_busy_ps"):
        assert getattr(moved, name).tolist() == getattr(there, name).tolist()
    assert {key[1] for key in pricer._whole.exact} == {IdenticalServers(fabric).canonical(gpus)}, (
        "the last server was run as well"
    )


def test_groups_over_servers_and_servers_unlike_the_first_stay() -> None:
    fabric = rail_optimized(SERVERS, WIDTH)
    assert IdenticalServers(fabric).canonical((7, 8)) == (7, 8)
    assert IdenticalServers(fabric).canonical((1, 3)) == (1, 3)
    slow = IdenticalServers(with_slow_link(fabric, LAST[3]))
    assert slow.canonical(LAST) == LAST
    assert slow.canonical((8, 9)) == (0, 1)


def test_servers_without_nvlink_or_with_several_switches_stay() -> None:
    """Several NVSwitches leave a choice of paths, which hashes of addresses decide differently in each server."""
    assert IdenticalServers(rail_optimized(3, 8, nvswitches_per_node=4)).canonical((8, 9)) == (8, 9)
    assert IdenticalServers(single_switch(3, 1)).canonical((2,)) == (2,)
