"""Links that fail, are repaired or flap; PFC storms; flows that are given up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsim import BackendError, Completion, FlowGraph, LinkKind, NodeKind, Topology, rail_optimized, single_switch
from netsim.backends.packet import PacketBackend
from netsim.roce.config import RoceConfig
from netsim.topology import DuplexLink
from tests.netsim.packet_times import ALONE, FAR_PS, Hop, ack_ps, transfer_ps
from tests.netsim.strategies import GBPS, star

US = 1_000_000
TIMEOUT_PS = 50 * US
QUICK = ALONE.model_copy(
    update={"window": "fixed", "retransmission_timeout": TIMEOUT_PS, "reroute_delay": 10 * US, "max_retries": 3}
)
"""Fails and recovers within some hundred microseconds."""


def two_ways(latency_ps: int = 500_000) -> Topology:
    """Two hosts on a leaf each, two spines between them; node 4 is the first spine, link 4 goes from leaf 2 to it."""
    names = [(NodeKind.GPU, "gpu0"), (NodeKind.GPU, "gpu1")]
    names += [
        (NodeKind.LEAF, "leaf0"),
        (NodeKind.LEAF, "leaf1"),
        (NodeKind.SPINE, "spine0"),
        (NodeKind.SPINE, "spine1"),
    ]
    ends = [(0, 2), (1, 3), (2, 4), (2, 5), (3, 4), (3, 5)]
    cables = [DuplexLink(a, b, 400 * GBPS, latency_ps, LinkKind.NIC if a < 2 else LinkKind.FABRIC) for a, b in ends]
    return Topology.from_cables(names, cables, gpus_per_node=1)


def set_cable(backend: PacketBackend, link: int, is_up: bool) -> None:
    for direction in (link & ~1, link | 1):
        backend.set_link_up(direction, is_up)


def finish(backend: PacketBackend) -> list[Completion]:
    found = []
    while backend.next_event_ps() is not None:
        found += backend.advance(backend.now_ps + 10**12)
    return found


def used_uplink(backend: PacketBackend) -> int:
    """Of `two_ways`: the link from leaf 0 that flows have used."""
    return 4 if backend.counters().packets[4] else 6


def test_what_is_on_a_failed_link_is_lost_and_sent_again_over_the_other_spine() -> None:
    backend = PacketBackend(two_ways(), QUICK)
    handle = backend.submit(FlowGraph.from_lists([0], [1], [4_000_000]), 0)
    backend.advance(20 * US)
    failed = used_uplink(backend)
    before = backend.counters().packets
    set_cable(backend, failed, False)
    assert not backend.advance(30 * US)
    counters = backend.counters()
    assert counters.drops.sum() > 0
    assert counters.packets[failed] == before[failed]
    [completion] = finish(backend)
    assert not completion.is_failed
    counters = backend.counters()
    assert counters.packets[failed] == before[failed]
    assert counters.packets[10 - failed] >= 977 - 242  # all that had not left the sender by 20 µs
    assert backend.flow_times(handle).end_ps[0] > 30 * US + transfer_ps([Hop(400 * GBPS, 500_000)] * 4, 3_000_000)


def test_a_repaired_link_is_used_again_after_the_delay_of_routing() -> None:
    backend = PacketBackend(two_ways(), QUICK)
    backend.submit(FlowGraph.from_lists([0], [1], [40_000_000]), 0)
    backend.advance(20 * US)
    first = used_uplink(backend)
    set_cable(backend, first, False)
    backend.advance(200 * US)
    set_cable(backend, first, True)
    idle = backend.counters().packets[first]
    backend.advance(209 * US)
    assert backend.counters().packets[first] == idle
    backend.advance(250 * US)
    assert backend.counters().packets[first] > idle + 100


def test_a_flap_shorter_than_the_delay_of_routing_costs_only_what_was_lost() -> None:
    """Both hear of it in the end, but the link is up again by then."""
    backend = PacketBackend(two_ways(), QUICK)
    backend.submit(FlowGraph.from_lists([0], [1], [4_000_000]), 0)
    backend.advance(20 * US)
    failed = used_uplink(backend)
    for _ in range(3):
        set_cable(backend, failed, False)
        backend.advance(backend.now_ps + US)
        set_cable(backend, failed, True)
        backend.advance(backend.now_ps + US)
    [completion] = finish(backend)
    assert not completion.is_failed


@pytest.mark.parametrize("link", [0, 2])
def test_a_flow_without_another_way_fails_after_its_retries(link: int) -> None:
    """The cable of the sender or of the receiver fails at 20 µs. Without progress since, timeouts of 50 µs: the flow is
    given up at the fourth, after three retries. What waits for it never starts; flow 2 goes on."""
    topology = star(4)
    graph = FlowGraph.from_lists(
        [0, 1, 2, 1, 1], [1, 2, 3, 3, 3], [4_000_000, 1000, 4_000_000, 1, 1],
        deps=[[], [0], [], [1], []], after=[-1, -1, -1, -1, 0],
    )  # fmt: skip
    backend = PacketBackend(topology, QUICK)
    handle = backend.submit(graph, 0)
    backend.advance(20 * US)
    set_cable(backend, link, False)
    [completion] = finish(backend)
    assert completion.is_failed
    assert completion.flow is None
    times = backend.flow_times(handle)
    assert times.has_failed.tolist() == [True, True, False, True, True]
    assert times.start_ps.tolist() == [0, -1, 0, -1, -1]
    assert times.end_ps[2] == transfer_ps([Hop(400 * GBPS, 500_000)] * 2, 4_000_000)
    assert times.end_ps[[0, 1, 3, 4]].tolist() == [-1] * 4
    assert 20 * US + 4 * TIMEOUT_PS - 4 * US <= completion.at_ps <= 20 * US + 4 * TIMEOUT_PS + US


def test_a_flow_that_starts_without_a_way_fails_after_its_retries_as_well() -> None:
    """Submitted while there was one; it waits for one from 1 ms on, four timeouts long."""
    backend = PacketBackend(star(3), QUICK)
    graph = FlowGraph.from_lists([0, 2], [1, 1], [4096, 4096], ready_ps=[1000 * US, 1000 * US])
    handle = backend.submit(graph, 0)
    set_cable(backend, 0, False)
    backend.advance(500 * US)
    [completion] = finish(backend)
    assert (completion.at_ps, completion.is_failed) == (1000 * US + 4 * TIMEOUT_PS, True)
    assert backend.flow_times(handle).has_failed.tolist() == [True, False]


def test_a_flow_that_starts_without_a_way_takes_the_one_that_is_repaired_in_time() -> None:
    """The cable comes back at 1.1 ms; routes follow 10 µs later."""
    backend = PacketBackend(star(2), QUICK)
    handle = backend.submit(FlowGraph.from_lists([0], [1], [4096], ready_ps=[1000 * US]), 0)
    set_cable(backend, 0, False)
    backend.advance(1100 * US)
    set_cable(backend, 0, True)
    finish(backend)
    assert backend.flow_times(handle).end_ps[0] == 1110 * US + transfer_ps([Hop(400 * GBPS, 500_000)] * 2, 4096)


@pytest.mark.parametrize("direction", [0, 1, 2, 3])
def test_one_direction_that_fails_for_a_while_holds_a_flow_up_and_no_more(direction: int) -> None:
    """Data or acknowledgements alone are lost; the other direction goes on."""
    backend = PacketBackend(star(2), QUICK.model_copy(update={"max_retries": 7}))
    backend.submit(FlowGraph.from_lists([0], [1], [4_000_000]), 0)
    backend.advance(20 * US)
    backend.set_link_up(direction, False)
    backend.advance(90 * US)
    backend.set_link_up(direction, True)
    [completion] = finish(backend)
    assert not completion.is_failed
    assert completion.at_ps > 90 * US


def test_a_graph_submitted_to_nodes_without_a_way_is_refused() -> None:
    backend = PacketBackend(star(3), QUICK)
    set_cable(backend, 0, False)
    backend.advance(20 * US)
    with pytest.raises(BackendError, match="no path"):
        backend.submit(FlowGraph.from_lists([0], [1], [1]), 20 * US)
    backend.submit(FlowGraph.from_lists([2], [1], [1]), 20 * US)
    assert len(finish(backend)) == 1


@pytest.mark.parametrize("moment_ps", [0, 30_000, 5 * US])
def test_nvlink_flows_fail_at_once(moment_ps: int) -> None:
    """Also those that wait for credits or start on the failed link; flows of other GPUs go on."""
    backend = PacketBackend(single_switch(2, 4), QUICK.model_copy(update={"nvswitch_input_bytes": 1}))
    graph = FlowGraph.from_lists(
        [0, 0, 2, 0], [1, 3, 3, 1], [4_000_000] * 3 + [1], ready_ps=[0, 0, 0, 50 * US], after=[-1, 0, -1, -1]
    )
    handle = backend.submit(graph, 0)
    backend.advance(moment_ps)
    backend.set_link_up(0, False)
    [completion] = finish(backend)
    assert completion.is_failed
    times = backend.flow_times(handle)
    assert times.has_failed.tolist() == [True, True, False, False]  # the last one takes the network
    assert times.end_ps[2] > 0


def test_nvlink_flows_that_start_on_a_failed_link_fail_before_routes_follow() -> None:
    backend = PacketBackend(single_switch(2, 4), QUICK)
    handle = backend.submit(FlowGraph.from_lists([0], [1], [1], ready_ps=[US]), 0)
    backend.set_link_up(0, False)
    assert backend.advance(FAR_PS) == [Completion(handle, None, US, True)]


def test_a_repaired_nvlink_has_all_its_credits() -> None:
    """The flow that was cut off had used them up."""
    config = QUICK.model_copy(update={"nvswitch_input_bytes": 3 * 4148})
    fresh, repaired = PacketBackend(single_switch(1, 4), config), PacketBackend(single_switch(1, 4), config)
    for _ in range(3):
        handle = repaired.submit(FlowGraph.from_lists([0], [1], [4_000_000]), repaired.now_ps)
        repaired.advance(repaired.now_ps + 60_000)
        repaired.set_link_up(0, False)
        finish(repaired)
        repaired.set_link_up(0, True)
        finish(repaired)
        assert repaired.flow_times(handle).has_failed.all()
    start_ps = repaired.now_ps
    graph = FlowGraph.from_lists([0], [1], [400_000])
    expected, found = fresh.submit(graph, 0), repaired.submit(graph, start_ps)
    finish(fresh)
    finish(repaired)
    assert repaired.flow_times(found).end_ps[0] - start_ps == fresh.flow_times(expected).end_ps[0]


def test_a_graph_that_failed_may_be_cancelled_and_forgotten_before_anyone_looks() -> None:
    backend = PacketBackend(single_switch(2, 4), QUICK)
    handle = backend.submit(FlowGraph.from_lists([0, 1], [1, 2], [4_000_000] * 2), 0)
    backend.advance(US)
    backend.set_link_up(0, False)
    backend.cancel(handle)
    backend.forget(handle)
    assert finish(backend) == []


def test_a_storm_stops_a_class_and_its_end_releases_it() -> None:
    """The pause of link 0 lasts from 1 to 31 µs; class 5 is not concerned. Nothing is lost."""
    hops = [Hop(400 * GBPS, 500_000)] * 2
    backend = PacketBackend(star(2), QUICK.model_copy(update={"congestion_control": "none"}))
    graph = FlowGraph.from_lists([0, 0], [1, 1], [400_000, 400_000], priority=[3, 5])
    handle = backend.submit(graph, 0)
    backend.advance(US)
    backend.set_storm(0, 3, True)
    backend.advance(31 * US)
    assert backend.flow_times(handle).end_ps.tolist()[0] == -1
    assert 0 < backend.flow_times(handle).end_ps[1] < transfer_ps(hops, 800_000)
    assert backend.counters().paused_ps[0] == 30 * US
    backend.set_storm(0, 3, False)
    finish(backend)
    counters = backend.counters()
    assert counters.paused_ps[0] == 30 * US
    assert counters.drops.sum() == 0
    sent_before = 6 * 82_960  # six or seven packets of class 3 in the first microsecond
    end = int(backend.flow_times(handle).end_ps[0])
    assert 31 * US + transfer_ps(hops, 400_000) - sent_before - 2 * 82_960 <= end
    assert end <= 31 * US + transfer_ps(hops, 400_000) - sent_before + 2 * 82_960


def test_a_storm_in_the_fabric_fails_flows_only_after_their_retries() -> None:
    backend = PacketBackend(star(2), QUICK)
    backend.submit(FlowGraph.from_lists([0], [1], [400_000]), 0)
    backend.set_storm(3, 3, True)
    [completion] = finish(backend)
    assert (completion.at_ps, completion.is_failed) == (4 * TIMEOUT_PS, True)


def test_a_flow_waits_at_its_own_interface_as_long_as_a_storm_lasts() -> None:
    backend = PacketBackend(star(2), QUICK)
    backend.set_storm(0, 3, True)
    handle = backend.submit(FlowGraph.from_lists([0], [1], [4096]), 0)
    assert backend.advance(1000 * US) == []
    assert backend.next_event_ps() is None
    backend.set_storm(0, 3, False)
    finish(backend)
    assert backend.flow_times(handle).end_ps[0] == 1000 * US + transfer_ps([Hop(400 * GBPS, 500_000)] * 2, 4096)


def test_a_lost_pause_or_resume_does_not_stop_a_link_for_ever() -> None:
    """Incast with pauses; the direction that carries the pause frames of host 0 fails and is repaired at many
    moments."""
    config = QUICK.model_copy(
        update={"switch_buffer_bytes": 1_200_000, "window": "unbounded", "max_retries": 50, "reroute_delay": 0}
    )
    for moment_ps in range(20 * US, 60 * US, 3 * US + 123_456):
        backend = PacketBackend(star(4), config)
        backend.submit(FlowGraph.from_lists([0, 1, 2], [3, 3, 3], [1_000_000] * 3), 0)
        for link, down_ps in ((1, 2 * US), (0, 300_000)):
            backend.advance(max(moment_ps, backend.now_ps))
            backend.set_link_up(link, False)
            backend.advance(backend.now_ps + down_ps)
            backend.set_link_up(link, True)
        [completion] = finish(backend)
        assert not completion.is_failed
        assert backend.counters().pauses.sum() > 0


@given(data=st.data())
@settings(max_examples=60)
def test_whatever_fails_every_graph_comes_to_an_end(data: st.DataObject) -> None:
    """Random flows, failures, repairs and storms on a small rail-optimised fabric; nothing hangs, crashes or stays."""
    balancing = data.draw(st.sampled_from(["ecmp", "flowlet", "adaptive"]))
    scheme = data.draw(st.sampled_from(["none", "dcqcn", "hpcc"]))
    config = RoceConfig(
        congestion_control=scheme,
        load_balancing=balancing,
        retransmission_timeout="50us",
        reroute_delay=data.draw(st.sampled_from(["0us", "5us"])),
        max_retries=2,
        switch_buffer_bytes=data.draw(st.sampled_from([4_000_000, 32 * 2**20])),
    )
    topology = rail_optimized(2, 2, nodes_per_segment=1, spines=2)
    backend = PacketBackend(topology, config)
    gpu = st.integers(0, topology.gpus - 1)
    flow = st.tuples(gpu, gpu, st.integers(0, 600_000), st.integers(0, 40 * US))
    flows = data.draw(st.lists(flow, min_size=1, max_size=10))
    src, dst, sizes, ready = zip(*flows, strict=True)
    deps = [data.draw(st.lists(st.integers(0, i - 1), max_size=1)) if i else [] for i in range(len(flows))]
    handle = backend.submit(FlowGraph.from_lists(src, dst, sizes, ready_ps=ready, deps=deps), 0)
    link = st.integers(0, topology.links - 1)
    actions = st.tuples(st.integers(0, 5 * US), link, st.booleans(), st.sampled_from(["link", "link", "storm"]))
    completions: list[Completion] = []
    storms = set()
    for wait_ps, on, is_bad, what in data.draw(st.lists(actions, max_size=12)):
        until_ps = backend.now_ps + wait_ps
        while backend.now_ps < until_ps:
            completions += backend.advance(until_ps)
        if what == "link":
            backend.set_link_up(on, not is_bad)
        else:
            backend.set_storm(on, 3, is_bad)
            storms.add(on)
    for on in sorted(storms):
        backend.set_storm(on, 3, False)
    completions += finish(backend)
    assert [c.handle for c in completions] == [handle]
    times = backend.flow_times(handle)
    assert ((times.end_ps >= 0) != times.has_failed).all()
    assert completions[0].is_failed == bool(times.has_failed.any())
    assert backend.counters().queued_bytes.sum() == 0


def test_acknowledgements_return_by_links_that_are_up() -> None:
    """A spine has lost a cable: 40 µs later, data and acknowledgements use the other one."""
    backend = PacketBackend(two_ways(), QUICK)
    backend.keep_log()
    handle = backend.submit(FlowGraph.from_lists([0], [1], [4096], ready_ps=[50 * US]), 0)
    set_cable(backend, 8, False)
    finish(backend)
    end = backend.flow_times(handle).end_ps[0]
    hops = [Hop(400 * GBPS, 500_000)] * 4
    assert end == 50 * US + transfer_ps(hops, 4096)
    assert backend.acknowledged_ps(handle, 1)[0] == end + ack_ps(hops)
    assert np.count_nonzero(backend.counters().packets[[8, 9]]) == 0
