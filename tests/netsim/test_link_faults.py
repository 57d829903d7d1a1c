"""Links that fail, are repaired and lose capacity: what every backend owes to `netsim.FailsLinks`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsim import (
    BackendError,
    Completion,
    FailsLinks,
    FlowGraph,
    NetworkBackend,
    NoPath,
    Topology,
    WireFormat,
    create_backend,
    rail_optimized,
    single_switch,
)
from netsim.backends.fluid import FluidBackend
from netsim.backends.packet import PacketBackend
from netsim.backends.packet.memo import MemoisedBackend
from netsim.roce.config import RoceConfig
from netsim.routing import Router
from tests.netsim.strategies import star
from tests.netsim.test_packet_failures import two_ways

US = 1_000_000
FAR_PS = 10**15
QUICK = RoceConfig(
    congestion_control="none", retransmission_timeout="50us", max_retries=3, reroute_delay="10us", window="fixed"
)
MB4 = 4_000_000
SENDING_PS = 80 * US
"""4 MB at 400 Gbit/s."""
LATENCY_PS = 500_000
BACKENDS = ("fluid", "analytical", "packet")


@pytest.fixture(params=BACKENDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def backend_of(kind: str, topology: Topology) -> NetworkBackend:
    return create_backend(kind, topology, QUICK)


def faults(backend: NetworkBackend) -> FailsLinks:
    assert isinstance(backend, FailsLinks)
    return backend


def set_cable(backend: NetworkBackend, link: int, is_up: bool) -> None:
    for direction in (link & ~1, link | 1):
        faults(backend).set_link_up(direction, is_up)


def finish(backend: NetworkBackend) -> list[Completion]:
    found: list[Completion] = []
    while backend.next_event_ps() is not None:
        found += backend.advance(backend.now_ps + FAR_PS)
    return found


def first_uplink(topology: Topology) -> int:
    """Of `two_ways`: the link from leaf 0 that the flow from 0 to 1 takes."""
    return int(Router(topology).route(0, 1)[1])


def test_a_flow_on_a_link_that_fails_goes_on_over_the_other_spine(kind: str) -> None:
    """Fluids lose nothing and take no longer; packets lose what was under way and what they sent for 10 µs."""
    topology = two_ways()
    backend = backend_of(kind, topology)
    handle = backend.submit(FlowGraph.from_lists([0], [1], [MB4]), 0)
    backend.advance(20 * US)
    set_cable(backend, first_uplink(topology), False)
    [completion] = finish(backend)
    assert not completion.is_failed
    assert backend.sent_bytes(handle).tolist() == [MB4]
    alone_ps = SENDING_PS + 4 * LATENCY_PS
    if kind == "packet":
        assert alone_ps + 10 * US < completion.at_ps < alone_ps + 150 * US
    else:
        assert completion.at_ps == alone_ps
        other = 10 - first_uplink(topology)
        carried = backend.link_stats().carried_bytes
        assert carried[[first_uplink(topology), other]].tolist() == [MB4 // 4, 3 * MB4 // 4]


def test_a_flow_without_another_path_fails_with_what_has_got_through(kind: str) -> None:
    """The only cable of host 0 fails at 20 µs; a flow of other hosts goes on, one that waits for it never starts.

    A quarter of the bytes is through: of packets, those that have arrived by then.
    """
    backend = backend_of(kind, star(4))
    graph = FlowGraph.from_lists([0, 2, 1], [1, 3, 2], [MB4, MB4, 1], deps=[[], [], [0]])
    handle = backend.submit(graph, 0)
    backend.advance(20 * US)
    set_cable(backend, 0, False)
    [completion] = finish(backend)
    assert completion.is_failed
    assert backend.flow_times(handle).has_failed.tolist() == [True, False, True]
    through = backend.sent_bytes(handle)
    assert through[1:].tolist() == [MB4, 0]
    if kind == "packet":
        assert MB4 // 4 - 3 * 82_960 <= through[0] <= MB4 // 4
    else:
        assert through[0] == MB4 // 4
        assert backend.link_stats().carried_bytes[0] == MB4 // 4


def test_a_flow_that_starts_without_a_path_fails_and_one_after_the_repair_does_not(kind: str) -> None:
    """Submitted while there was one: the first is ready at 1 ms, the second at 10 ms; the cable is out until 5 ms."""
    backend = backend_of(kind, star(3))
    handle = backend.submit(FlowGraph.from_lists([0, 0], [1, 1], [4096, 4096], ready_ps=[1000 * US, 10_000 * US]), 0)
    set_cable(backend, 0, False)
    assert backend.advance(5000 * US) == []
    set_cable(backend, 0, True)
    [completion] = finish(backend)
    assert completion.is_failed
    assert backend.flow_times(handle).has_failed.tolist() == [True, False]
    assert backend.sent_bytes(handle).tolist() == [0, 4096]


def test_what_is_submitted_without_a_path_is_refused(kind: str) -> None:
    backend = backend_of(kind, star(3))
    set_cable(backend, 0, False)
    backend.advance(20 * US)
    with pytest.raises(NoPath, match="no path"):
        backend.submit(FlowGraph.from_lists([0], [1], [1]), 20 * US)
    set_cable(backend, 0, True)
    backend.advance(40 * US)
    backend.submit(FlowGraph.from_lists([0], [1], [1]), 40 * US)
    assert [completion.is_failed for completion in finish(backend)] == [False]


def test_a_flow_on_an_nvlink_that_fails_fails_at_once_and_a_later_one_takes_the_fabric(kind: str) -> None:
    backend = backend_of(kind, single_switch(1, 2))
    handle = backend.submit(FlowGraph.from_lists([0], [1], [MB4]), 0)
    backend.advance(US)
    set_cable(backend, int(Router(single_switch(1, 2)).route(0, 1)[0]), False)
    assert backend.advance(FAR_PS) == [Completion(handle, None, US, True)]
    backend.advance(30 * US)
    backend.submit(FlowGraph.from_lists([0], [1], [MB4]), 30 * US)
    [completion] = finish(backend)
    assert not completion.is_failed
    assert completion.at_ps > 30 * US + SENDING_PS


def test_a_link_with_half_its_capacity_takes_twice_as_long(kind: str) -> None:
    """From the moment on: 1 MB at 400 Gbit/s, 3 MB at 200 Gbit/s. A packet that is being sent goes on as it was."""
    ends = {}
    for share in (1.0, 0.5):
        backend = backend_of(kind, star(2))
        backend.submit(FlowGraph.from_lists([0], [1], [MB4]), 0)
        backend.advance(20 * US)
        faults(backend).set_capacity_share(0, share)
        [completion] = finish(backend)
        ends[share] = completion.at_ps
    slower_ps = 60 * US * (4148 / 4096 if kind == "packet" else 1)
    assert ends[0.5] - ends[1.0] == pytest.approx(slower_ps, rel=5e-3 if kind == "packet" else 1e-9)


def test_a_repaired_capacity_is_that_of_before(kind: str) -> None:
    backend = backend_of(kind, star(2))
    faults(backend).set_capacity_share(0, 0.1)
    faults(backend).set_capacity_share(0, 1.0)
    backend.submit(FlowGraph.from_lists([0], [1], [MB4]), 0)
    fresh = backend_of(kind, star(2))
    fresh.submit(FlowGraph.from_lists([0], [1], [MB4]), 0)
    assert finish(backend) == finish(fresh)


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1, float("nan")])
def test_a_share_that_is_none_is_refused(kind: str, share: float) -> None:
    with pytest.raises(BackendError, match="expected above 0 and at most 1"):
        faults(backend_of(kind, star(2))).set_capacity_share(0, share)


def test_unknown_links_are_refused(kind: str) -> None:
    for call in (lambda b: b.set_link_up(99, False), lambda b: b.set_capacity_share(-1, 0.5)):
        with pytest.raises(BackendError, match="expected 0 to"):
            call(faults(backend_of(kind, star(2))))


def test_a_graph_with_a_failed_flow_may_be_cancelled_before_anyone_looks(kind: str) -> None:
    backend = backend_of(kind, star(4))
    graphs = [backend.submit(FlowGraph.from_lists([0, 2], [1, 3], [MB4, MB4]), 0) for _ in range(2)]
    backend.advance(20 * US)
    set_cable(backend, 0, False)
    backend.cancel(graphs[0])
    through = backend.sent_bytes(graphs[0])
    assert 0 < through[0] <= MB4 // 4
    backend.forget(graphs[0])
    [completion] = finish(backend)
    assert (completion.handle, completion.is_failed) == (graphs[1], True)


def test_background_and_a_smaller_capacity_are_taken_together() -> None:
    """Half of 400 Gbit/s, less a background of 100: 4 MB take 320 µs."""
    backend = FluidBackend(star(2))
    backend.set_background_bps(np.array([0]), np.array([100e9]))
    backend.set_capacity_share(0, 0.5)
    backend.submit(FlowGraph.from_lists([0], [1], [MB4]), 0)
    [completion] = finish(backend)
    assert completion.at_ps == 4 * SENDING_PS + 2 * LATENCY_PS


def test_acknowledgements_and_headers_move_with_the_flow() -> None:
    """A flow with a wire format that moves at 20 µs takes as long as one that does not, and ACKs use the way back."""
    topology, wire = two_ways(), WireFormat(mtu_bytes=4096, header_bytes=52, ack_bytes=60, packets_per_ack=1)
    ends = []
    for fails in (False, True):
        backend = FluidBackend(topology, wire)
        handle = backend.submit(FlowGraph.from_lists([0], [1], [MB4]), 0)
        backend.advance(20 * US)
        if fails:
            set_cable(backend, first_uplink(topology), False)
            assert backend.sent_bytes(handle)[0] == pytest.approx(MB4 / 4 * 4096 / 4148, rel=1e-3)
        [completion] = finish(backend)
        ends.append(completion.at_ps)
    assert ends[0] == ends[1]
    carried = backend.link_stats().carried_bytes
    assert carried[4:8:2].sum() == pytest.approx(carried[0], abs=2)


@pytest.mark.parametrize("change", ["down", "slow", "storm"])
def test_what_was_remembered_of_a_sound_fabric_is_not_replayed_on_another(change: str) -> None:
    """The graph runs, is replayed, and meets a fabric that changes in the middle of a replay: all as without memory."""
    ends = {}
    for memoise in (False, True):
        backend = create_backend("packet", two_ways(), QUICK.model_copy(update={"memoise": memoise}))
        assert isinstance(backend, PacketBackend | MemoisedBackend)
        handles = []
        for turn in range(4):
            start_ps = turn * 10_000 * US
            run_until(backend, start_ps)
            handles.append(backend.submit(FlowGraph.from_lists([0], [1], [MB4]), start_ps))
            if turn != 2:
                continue
            run_until(backend, start_ps + 20 * US)
            if change == "down":
                set_cable(backend, first_uplink(two_ways()), False)
            elif change == "slow":
                backend.set_capacity_share(0, 0.5)
            else:
                backend.set_storm(0, 3, True)
                run_until(backend, start_ps + 50 * US)
                backend.set_storm(0, 3, False)
            assert 0 < backend.sent_bytes(handles[-1])[0] < MB4
        run_until(backend, 40_000 * US)
        ends[memoise] = [int(backend.flow_times(handle).end_ps[0]) for handle in handles]
        assert getattr(backend, "hits", 1) == 1
    assert ends[True] == ends[False]


def run_until(backend: NetworkBackend, at_ps: int) -> None:
    while backend.now_ps < at_ps:
        backend.advance(at_ps)


@given(data=st.data())
@settings(max_examples=60)
def test_whatever_fails_bytes_add_up_and_every_graph_comes_to_an_end(data: st.DataObject) -> None:
    """Random flows, failures, repairs and slow links on a small rail-optimised fabric. What has got through of flows is
    what links into GPUs have carried, whole or not, and steps do not matter."""
    topology = rail_optimized(2, 2, nodes_per_segment=1, spines=2)
    kind = data.draw(st.sampled_from(["fluid", "analytical"]))
    gpu = st.integers(0, topology.gpus - 1)
    flow = st.tuples(gpu, gpu, st.integers(0, 6_000_000), st.integers(0, 40 * US))
    flows = data.draw(st.lists(flow, min_size=1, max_size=10))
    src, dst, sizes, ready = zip(*flows, strict=True)
    deps = [data.draw(st.lists(st.integers(0, i - 1), max_size=1)) if i else [] for i in range(len(flows))]
    graph = FlowGraph.from_lists(src, dst, sizes, ready_ps=ready, deps=deps)
    link = st.integers(0, topology.links - 1)
    actions = data.draw(
        st.lists(st.tuples(st.integers(0, 50 * US), link, st.sampled_from([False, False, True, 0.3, 1.0])), max_size=12)
    )
    cuts = data.draw(st.lists(st.integers(1, 600 * US), max_size=5))
    runs = []
    for stops in ([], cuts):
        backend = create_backend(kind, topology)
        handle = backend.submit(graph, 0)
        completions: list[Completion] = []
        at_ps = 0
        for wait_ps, on, change in actions:
            at_ps += wait_ps
            for until_ps in [*sorted(stop for stop in stops if backend.now_ps < stop < at_ps), at_ps]:
                while backend.now_ps < until_ps:
                    completions += backend.advance(until_ps)
            if isinstance(change, bool):
                faults(backend).set_link_up(on, change)
            else:
                faults(backend).set_capacity_share(on, change)
        completions += finish(backend)
        times = backend.flow_times(handle)
        assert [completion.handle for completion in completions] == [handle]
        assert ((times.end_ps >= 0) != times.has_failed).all()
        assert completions[0].is_failed == bool(times.has_failed.any())
        through = backend.sent_bytes(handle)
        assert (through[~times.has_failed] == graph.size_bytes[~times.has_failed]).all()
        assert (through <= graph.size_bytes).all()
        crosses = graph.src != graph.dst
        into_gpus = backend.link_stats().carried_bytes[topology.link_dst < topology.gpus].sum()
        assert into_gpus == pytest.approx(through[crosses].sum(), abs=len(flows))
        runs.append((completions, times.start_ps.tolist(), times.end_ps.tolist(), through.tolist()))
    assert runs[0] == runs[1]
