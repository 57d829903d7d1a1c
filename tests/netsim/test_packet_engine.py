"""The event engine behind `packet`: order, steps, determinism, ends of the clock, and misuse."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsim import BackendError, FlowGraph, FlowTimes, GraphHandle, InputError, LinkKind, NodeKind, Topology
from netsim.backends.packet import PacketBackend
from netsim.backends.packet.backend import LinkCounters
from netsim.roce.config import RoceConfig
from netsim.topology import DuplexLink
from tests.netsim.packet_times import ALONE, FAR_PS, Hop, chain, run, transfer_ps
from tests.netsim.strategies import GBPS, networks_with_flows, star

H400 = Hop(400 * GBPS, 500_000)
CONFIGS = st.builds(
    RoceConfig,
    congestion_control=st.sampled_from(["dcqcn", "hpcc", "timely", "dctcp", "none"]),
    load_balancing=st.sampled_from(["ecmp", "flowlet", "adaptive"]),
    packets_per_ack=st.sampled_from([1, 8]),
    cell_packets=st.sampled_from([1, 4]),
    ecn_thresholds=st.just({"kmin_bytes": 10_000, "kmax_bytes": 60_000, "pmax": 0.5}),
    switch_buffer_bytes=st.just(2_000_000),
    seed=st.integers(0, 3),
)


def rest(backend: PacketBackend, step: Callable[[int], int]) -> None:
    while backend.next_event_ps() is not None:
        backend.advance(step(backend.now_ps))


def assert_same(one: PacketBackend, other: PacketBackend, handle: GraphHandle) -> None:
    """Times of flows, acknowledgements, pauses and all counters."""
    for kind, a, b in (
        (FlowTimes, one.flow_times(handle), other.flow_times(handle)),
        (LinkCounters, one.counters(), other.counters()),
    ):
        for name in kind.__slots__:
            assert np.array_equal(getattr(a, name), getattr(b, name)), name
    flows = len(one.flow_times(handle).end_ps)
    assert np.array_equal(one.acknowledged_ps(handle, flows), other.acknowledged_ps(handle, flows))
    assert one.pauses() == other.pauses()
    assert one.packet_hops() == other.packet_hops()


def pair(topology: Topology, config: RoceConfig, graph: FlowGraph) -> tuple[PacketBackend, PacketBackend, GraphHandle]:
    one, other = PacketBackend(topology, config), PacketBackend(topology, config)
    for backend in (one, other):
        backend.keep_log()
        handle = backend.submit(graph, 0)
    return one, other, handle


@given(case=networks_with_flows(), config=CONFIGS, step_ps=st.sampled_from([9_973, 100_000, 1_000_000, 10**9]))
@settings(max_examples=60)
def test_steps_of_any_size_give_the_same(case: tuple[Topology, FlowGraph], config: RoceConfig, step_ps: int) -> None:
    """To the picosecond, packet and mark, whatever scheme, balancing, cells or coalescing."""
    topology, graph = case
    whole, stepped, handle = pair(topology, config, graph)
    rest(whole, lambda now: now + 10**12)
    rest(stepped, lambda now: now + step_ps)
    assert_same(whole, stepped, handle)


@pytest.mark.parametrize("step_ps", [1_000, 1_000_000, 10**9])
def test_an_incast_with_pauses_and_marks_is_the_same_in_steps_of_1_ns_and_1_ms(step_ps: int) -> None:
    config = RoceConfig(
        switch_buffer_bytes=1_000_000,
        ecn_thresholds={"kmin_bytes": 10_000, "kmax_bytes": 60_000, "pmax": 0.5},
    )
    graph = FlowGraph.from_lists([0, 1, 2], [3, 3, 3], [300_001, 400_003, 500_007])
    whole, stepped, handle = pair(star(4), config, graph)
    rest(whole, lambda now: now + 10**12)
    rest(stepped, lambda now: now + step_ps)
    assert whole.counters().pauses.sum() > 0
    assert whole.counters().marks.sum() > 0
    assert_same(whole, stepped, handle)


@given(networks_with_flows(), CONFIGS)
@settings(max_examples=30)
def test_the_same_again_gives_the_same(case: tuple[Topology, FlowGraph], config: RoceConfig) -> None:
    """Two instances side by side, in turns of different lengths."""
    topology, graph = case
    one, other, handle = pair(topology, config, graph)
    while one.next_event_ps() is not None or other.next_event_ps() is not None:
        one.advance(one.now_ps + 700_000)
        other.advance(other.now_ps + 1_900_000)
    assert_same(one, other, handle)


@given(case=networks_with_flows(), config=CONFIGS, idle_cables=st.sampled_from([1, 30, 300]))
@settings(max_examples=30)
def test_links_that_are_not_used_change_nothing(
    case: tuple[Topology, FlowGraph], config: RoceConfig, idle_cables: int
) -> None:
    """The event queue chooses its bucket width by the number of links: with 1 to 300 more cables elsewhere, events fall
    into other buckets and cross the wheel's reach at other moments, and everything happens at the same
    picosecond."""
    topology, graph = case
    config = config.model_copy(update={"load_balancing": "ecmp", "recovery": None})
    larger, links = with_idle_cables(topology, idle_cables)
    small, large = PacketBackend(topology, config), PacketBackend(larger, config)
    handle = small.submit(graph, 0)
    large.submit(graph, 0)
    rest(small, lambda now: now + 10**12)
    rest(large, lambda now: now + 10**12)
    assert np.array_equal(small.flow_times(handle).end_ps, large.flow_times(handle).end_ps)
    assert np.array_equal(small.counters().packets, large.counters().packets[:links])


def with_idle_cables(topology: Topology, count: int) -> tuple[Topology, int]:
    """The topology with further switches in a row behind its own nodes, and the number of its own links. Nodes keep
    their numbers, which ECMP hashes."""
    nodes = list(zip(map(NodeKind, topology.node_kind.tolist()), topology.node_name, strict=True))
    nodes += [(NodeKind.SWITCH, f"idle{i}") for i in range(count + 1)]
    both = topology.directed_links()
    columns = (both.a, both.b, both.capacity_bps, both.latency_ps, both.kind)
    cables = [DuplexLink(*row) for row in zip(*(column[0::2].tolist() for column in columns), strict=True)]
    first = topology.nodes
    idle = [DuplexLink(first + i, first + i + 1, GBPS, 0, LinkKind.FABRIC) for i in range(count)]
    return Topology.from_cables(nodes, [*cables, *idle], gpus_per_node=topology.gpus_per_node), topology.links


def test_flows_far_in_the_future_start_on_time_and_in_order() -> None:
    """Starts from now to 10¹⁷ ps ahead, many at the same instants and submitted in no order: far beyond the reach of
    the event wheel. Each finds the network idle, or the flows of its own instant in front of it."""
    rng = np.random.default_rng(5)
    instants = np.array([0, 3, 10**6, 10**9, 10**12, 10**12 + 1_000_000_000, 10**15, 10**17], dtype=np.int64)
    ready = rng.permutation(np.repeat(instants, 4))
    graph = FlowGraph.from_lists([0] * 32, [1] * 32, [4096] * 32, ready_ps=ready)
    _, times = run(star(2), graph, ALONE)
    assert (times.start_ps == ready).all()
    for instant in instants[2:]:
        expected = [instant + (k + 2) * 82_960 + 1_000_000 for k in range(4)]
        assert times.end_ps[ready == instant].tolist() == expected  # at one instant in the order of the graph


def test_ties_are_broken_by_the_order_in_which_things_were_asked_for() -> None:
    """Sixteen equal senders meet at one port at the same picosecond, packet after packet: flow k is k-th every time."""
    graph = FlowGraph.from_lists(range(16), [16] * 16, [10 * 4096] * 16)
    _, times = run(star(17), graph, ALONE)
    last = 10 * 16 * 82_960 + 82_960 + 1_000_000
    assert times.end_ps.tolist() == [last - (15 - k) * 82_960 for k in range(16)]


def test_an_idle_instance_can_wait_for_days_and_go_on() -> None:
    backend = PacketBackend(chain([H400] * 3), ALONE)
    for wait_ps in (1, 10**6, 10**12, 10**15, 8 * 10**18):
        start = backend.now_ps
        handle = backend.submit(FlowGraph.from_lists([0], [1], [400_000]), start)
        backend.advance(start + 10**9)
        backend.advance(start + 10**9)
        assert backend.flow_times(handle).end_ps[0] == start + transfer_ps([H400] * 3, 400_000)
        backend.advance(start + 10**9 + wait_ps)
        assert backend.next_event_ps() is None


def test_many_instances_live_side_by_side() -> None:
    backends = [PacketBackend(star(4), ALONE) for _ in range(50)]
    graph = FlowGraph.from_lists([0, 1], [3, 3], [400_000, 400_000])
    handles = [backend.submit(graph, 0) for backend in backends]
    for backend in reversed(backends):
        backend.advance(FAR_PS)
    ends = {tuple(b.flow_times(h).end_ps.tolist()) for b, h in zip(backends, handles, strict=True)}
    assert len(ends) == 1


def test_samples_come_at_regular_instants_and_do_not_depend_on_steps() -> None:
    """Two flows with 1 ms of nothing between them: samples from the start of each while anything is under way, and one
    for the last, partial interval."""
    graph = FlowGraph.from_lists([0, 0], [1, 1], [400_000, 400_000], ready_ps=[0, 10**9])
    series = []
    for step_ps in (10**12, 333_333):
        backend = PacketBackend(star(2), ALONE)
        backend.sample_every(1_000_000)
        backend.submit(graph, 0)
        while backend.next_event_ps() is not None:
            backend.advance(backend.now_ps + step_ps)
        backend.advance(backend.now_ps + 10**12)
        series.append(backend.time_series())
    whole, stepped = series
    assert whole.at_ps.tolist() == [k * 10**6 for k in range(12)] + [10**9 + k * 10**6 for k in range(12)]
    for name in ("at_ps", "wire_bytes", "queued_bytes", "paused_ps", "pauses", "marks"):
        assert np.array_equal(getattr(whole, name), getattr(stepped, name)), name


MISUSES: dict[str, Callable[[PacketBackend], object]] = {
    "link -1": lambda b: b.set_link_up(-1, False),
    "link 8": lambda b: b.set_link_up(8, False),
    "storm on link 8": lambda b: b.set_storm(8, 3, True),
    "storm of class 0": lambda b: b.set_storm(0, 0, True),
    "storm of class 8": lambda b: b.set_storm(0, 8, True),
    "storm of class -1": lambda b: b.set_storm(0, -1, True),
    "storm of class 300": lambda b: b.set_storm(0, 300, True),
    "samples before now": lambda b: b.sample_every(-1),
}


@pytest.mark.parametrize("misuse", MISUSES.values(), ids=MISUSES.keys())
def test_misuse_raises_and_the_instance_goes_on(misuse: Callable[[PacketBackend], object]) -> None:
    backend = PacketBackend(star(4), ALONE)
    backend.submit(FlowGraph.from_lists([0], [1], [4096]), 0)
    backend.advance(100_000)
    with pytest.raises(BackendError, match="expected"):
        misuse(backend)
    assert backend.advance(FAR_PS)[0].at_ps == transfer_ps([H400] * 2, 4096)


def test_everything_raises_after_close() -> None:
    backend = PacketBackend(star(2), ALONE)
    handle = backend.submit(FlowGraph.from_lists([0], [1], [10**6]), 0)
    backend.advance(10**6)
    backend.close()
    for use in (
        lambda: backend.now_ps,
        backend.next_event_ps,
        backend.counters,
        backend.packet_hops,
        backend.time_series,
        backend.pauses,
        backend.link_stats,
        lambda: backend.keep_log(),
        lambda: backend.sample_every(1),
        lambda: backend.cancel(handle),
        lambda: backend.acknowledged_ps(handle, 1),
        lambda: backend.set_link_up(0, False),
        lambda: backend.set_storm(0, 3, True),
    ):
        with pytest.raises(BackendError, match="close"):
            use()


@pytest.mark.parametrize("priority", [0, 8, 255])
def test_a_class_that_does_not_exist_is_refused(priority: int) -> None:
    with pytest.raises(InputError, match="priority"):
        FlowGraph.from_lists([0], [1], [1], priority=[priority])


def test_a_link_without_a_way_back_is_refused() -> None:
    one_way = Topology(
        node_kind=np.array([0, 0], dtype=np.int8),
        node_name=("a", "b"),
        link_src=np.array([0], dtype=np.int32),
        link_dst=np.array([1], dtype=np.int32),
        capacity_bps=np.array([GBPS], dtype=np.int64),
        latency_ps=np.array([0], dtype=np.int64),
        link_kind=np.array([LinkKind.NIC], dtype=np.int8),
        gpus_per_node=1,
    )
    with pytest.raises(BackendError, match="no link back"):
        PacketBackend(one_way)


def test_a_switch_whose_memory_does_not_hold_its_headroom_is_refused() -> None:
    with pytest.raises(InputError, match=r"switch_buffer_bytes: found 1000, expected at least \d+ .* of switch0"):
        PacketBackend(star(4), RoceConfig(switch_buffer_bytes=1000))


def test_constants_that_make_no_sense_are_refused() -> None:
    for config in (
        RoceConfig(congestion_preset="nobody"),
        RoceConfig(congestion={"gain": -1.0}),
        RoceConfig(congestion={"no_such_constant": 1}),
    ):
        with pytest.raises(InputError, match="congestion"):
            PacketBackend(star(2), config)


def test_a_second_thread_is_refused_and_the_first_one_is_not_disturbed() -> None:
    """Every call of another thread while one is inside raises; results are those of an undisturbed run."""
    graph = FlowGraph.from_lists(list(range(8)), [8] * 8, [20_000_000] * 8)
    backend = PacketBackend(star(9), ALONE)
    handle = backend.submit(graph, 0)
    runner = threading.Thread(target=backend.advance, args=(FAR_PS,))
    runner.start()
    refused = 0
    while runner.is_alive():
        try:
            backend.counters()
        except BackendError as error:
            refused += "one thread at a time" in str(error)
    runner.join()
    assert refused > 0
    _, times = run(star(9), graph, ALONE)
    assert (backend.flow_times(handle).end_ps == times.end_ps).all()


@given(case=networks_with_flows(), config=CONFIGS)
@settings(max_examples=60)
def test_every_flow_ends_and_nothing_stays_in_the_network(case: tuple[Topology, FlowGraph], config: RoceConfig) -> None:
    topology, graph = case
    backend, times = run(topology, graph, config)
    assert (times.end_ps >= 0).all()
    assert not times.has_failed.any()
    counters = backend.counters()
    assert counters.queued_bytes.sum() == 0
    assert counters.packets.sum() == backend.packet_hops()
    assert (counters.busy_ps <= backend.now_ps).all()
    assert (backend.acknowledged_ps(GraphHandle(0), len(graph)) < backend.now_ps + 1).all()
