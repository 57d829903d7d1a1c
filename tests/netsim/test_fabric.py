"""The owner of links: what several things do to one link at a time, and the network that follows."""

from __future__ import annotations

import gc
import weakref

import pytest

from netsim import BackendError, Fabric, FlowGraph, NetworkBackend, create_backend, single_switch
from netsim.fabric import INTACT, FabricState

NIC_BPS = 400 * 10**9
UP = 0
"""The link from GPU 0 to the switch."""
SIZE_BYTES = 50_000_000
"""1 ms at the rate of a NIC."""


def taken_ps(network: NetworkBackend) -> int:
    """What `SIZE_BYTES` from GPU 0 to GPU 1 take."""
    handle = network.submit(FlowGraph.from_lists(src=[0], dst=[1], size_bytes=[SIZE_BYTES]), network.now_ps)
    network.advance(network.now_ps + 10**12)
    times = network.flow_times(handle)
    return int(times.end_ps[0] - times.start_ps[0])


def carried() -> tuple[Fabric, NetworkBackend]:
    fabric = Fabric(single_switch(3))
    network = create_backend("fluid", fabric.topology)
    fabric.carry_with(network)
    return fabric, network


def test_a_link_is_up_again_when_nothing_keeps_it_down() -> None:
    fabric, _network = carried()
    assert fabric.fail([UP, 2]) == [UP, 2]
    assert fabric.fail([UP]) == []
    assert fabric.repair([UP, 2]) == [2]
    assert not fabric.is_up(UP)
    assert fabric.state == FabricState(down=frozenset([UP]))
    assert not fabric.connects((0, 1))
    assert fabric.repair([UP]) == [UP]
    assert fabric.state == INTACT
    assert fabric.connects((0, 1))


def test_slow_downs_of_one_link_multiply_and_the_network_feels_them() -> None:
    """At a half of a half of its rate a link takes four times as long."""
    fabric, network = carried()
    alone_ps = taken_ps(network)
    fabric.slow_down(UP, 0.5)
    fabric.slow_down(UP, 0.5)
    assert fabric.capacity_bps(UP) == NIC_BPS / 4
    assert taken_ps(network) == alone_ps + 3 * 10**9
    fabric.speed_up(UP, 0.5)
    fabric.speed_up(UP, 0.5)
    assert fabric.state == INTACT
    assert taken_ps(network) == alone_ps


def test_a_network_that_comes_later_gets_the_state_that_links_have() -> None:
    fabric, first = carried()
    alone_ps = taken_ps(first)
    fabric.slow_down(UP, 0.5)
    later = create_backend("fluid", fabric.topology)
    fabric.carry_with(later)
    assert taken_ps(later) == alone_ps + 10**9
    fabric.speed_up(UP, 0.5)
    assert taken_ps(later) == alone_ps
    assert taken_ps(first) == alone_ps + 10**9


def test_a_fabric_becomes_what_another_is() -> None:
    fabric, network = carried()
    alone_ps = taken_ps(network)
    state = FabricState(frozenset([4]), frozenset([(UP, 0.5)]))
    fabric.become(state)
    assert fabric.state == state
    assert taken_ps(network) == alone_ps + 10**9
    fabric.become(INTACT)
    assert taken_ps(network) == alone_ps


def test_a_fabric_does_not_keep_its_network_alive() -> None:
    """ns-3 has one per process; the fabric may be part of what only the garbage collector frees."""
    fabric, network = carried()
    gone = weakref.ref(network)
    gc.disable()
    try:
        del network
        assert gone() is None
    finally:
        gc.enable()
    fabric.fail([UP])
    assert not fabric.is_up(UP)


def test_a_network_whose_links_cannot_fail_is_refused() -> None:
    with pytest.raises(BackendError, match="found object, expected a network whose links can fail"):
        Fabric(single_switch(2)).carry_with(object())  # type: ignore[arg-type]
