"""What every backend owes to `netsim.backends.contract.NetworkBackend`, whatever its model of the network."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsim import Completion, FlowGraph, NetworkBackend, Topology
from netsim.routing import Router
from tests.netsim.conformance import (
    BACKENDS,
    FAR_PS,
    KB400,
    ONE_PER_PROCESS,
    Start,
    Times,
    completions_until_idle,
    run_alone,
)
from tests.netsim.strategies import networks_with_flows, star


def test_a_flow_behind_another_starts_when_its_last_byte_has_left(backend: NetworkBackend, timing: Times) -> None:
    """Three queue: 8 µs each and headers, without the 1 µs of latency between them. The third is ready at
    30 µs only; the fourth queues behind it although it was ready at once, and pays its own delay while it waits."""
    graph = FlowGraph.from_lists(
        [0] * 4,
        [1] * 4,
        [400_000] * 4,
        ready_ps=[0, 0, 30_000_000, 0],
        delay_ps=[0, 5_000_000, 0, 5_000_000],
        after=[-1, 0, 1, 2],
    )
    sending = timing.sending_ps(KB400)
    handle = backend.submit(graph, 0)
    backend.advance(FAR_PS)
    assert backend.flow_times(handle).start_ps.tolist() == [0, sending, 30_000_000, 30_000_000 + sending]


def test_an_empty_flow_holds_nobody_up(backend: NetworkBackend) -> None:
    graph = FlowGraph.from_lists([0, 0, 2], [1, 1, 2], [0, 400_000, 400_000], after=[2, 0, -1])
    handle = backend.submit(graph, 0)
    backend.advance(FAR_PS)
    assert backend.flow_times(handle).start_ps.tolist() == [0, 0, 0]


@given(networks_with_flows(), st.sampled_from(BACKENDS))
@settings(max_examples=60)
def test_queues_never_overtake_and_all_bytes_arrive(case: tuple[Topology, FlowGraph], name: str) -> None:
    topology, graph = case
    queued = dataclasses.replace(graph, after=np.arange(-1, len(graph) - 1))
    _, (start_ps, end_ps, *_) = run_alone(name, topology, queued, FAR_PS)
    assert (end_ps >= 0).all()
    assert (np.diff(start_ps) >= 0).all()


def test_a_flow_ends_after_its_transmission_and_the_latency_of_its_path(backend: NetworkBackend, timing: Times) -> None:
    handle = backend.submit(FlowGraph.from_lists([0], [1], [400_000]), 0)
    assert backend.advance(FAR_PS) == [Completion(handle, None, timing.transfer_ps(KB400))]
    times = backend.flow_times(handle)
    assert (times.start_ps.tolist(), times.end_ps.tolist()) == ([0], [timing.transfer_ps(KB400)])


def test_a_flow_starts_at_submission_plus_readiness_plus_delay(backend: NetworkBackend) -> None:
    graph = FlowGraph.from_lists([0], [1], [400_000], ready_ps=[70], delay_ps=[7])
    handle = backend.submit(graph, 1_000)
    backend.advance(FAR_PS)
    assert backend.flow_times(handle).start_ps.tolist() == [1_077]


def test_a_dependent_flow_starts_a_delay_after_the_last_arrival_it_waits_for(
    backend: NetworkBackend, timing: Times
) -> None:
    """Flow 1 is twice as long as flow 0; flow 2 waits for both, and 5 ps more."""
    graph = FlowGraph.from_lists(
        [0, 2, 1], [1, 3, 2], [400_000, 800_000, 400_000], deps=[[], [], [0, 1]], delay_ps=[0, 0, 5]
    )
    handle = backend.submit(graph, 0)
    backend.advance(FAR_PS)
    assert backend.flow_times(handle).start_ps.tolist() == [0, 0, timing.transfer_ps(2 * KB400) + 5]


def test_readiness_later_than_the_dependencies_holds_a_flow_back(backend: NetworkBackend) -> None:
    graph = FlowGraph.from_lists([0, 1], [1, 2], [1, 1], deps=[[], [0]], ready_ps=[0, 10**9])
    handle = backend.submit(graph, 3)
    backend.advance(FAR_PS)
    assert backend.flow_times(handle).start_ps.tolist() == [3, 3 + 10**9]


def test_flows_of_no_bytes_and_flows_to_oneself_take_only_their_delay(backend: NetworkBackend) -> None:
    graph = FlowGraph.from_lists([0, 2], [1, 2], [0, 10**9], delay_ps=[3, 4], deps=[[], [0]])
    handle = backend.submit(graph, 10)
    assert backend.advance(FAR_PS) == [Completion(handle, None, 17)]
    assert backend.flow_times(handle).end_ps.tolist() == [13, 17]
    assert not backend.link_stats().carried_bytes.any()


def test_an_empty_graph_completes_when_it_is_submitted_for(backend: NetworkBackend) -> None:
    handle = backend.submit(FlowGraph.from_lists([], [], []), 5)
    assert backend.next_event_ps() == 5
    assert backend.advance(4) == []
    assert backend.advance(5) == [Completion(handle, None, 5)]


def test_advance_is_inclusive(backend: NetworkBackend, timing: Times) -> None:
    end = timing.transfer_ps(KB400)
    handle = backend.submit(FlowGraph.from_lists([0], [1], [400_000]), 0)
    assert backend.advance(end - 1) == []
    assert backend.now_ps == end - 1
    assert backend.advance(end) == [Completion(handle, None, end)]


def test_advance_stops_at_the_first_completion_and_continues_when_called_again(
    backend: NetworkBackend, timing: Times
) -> None:
    late = backend.submit(FlowGraph.from_lists([0], [1], [800_000]), 0)
    early = backend.submit(FlowGraph.from_lists([2], [3], [400_000]), 0)
    assert [c.handle for c in backend.advance(FAR_PS)] == [early]
    assert backend.now_ps == timing.transfer_ps(KB400)
    assert [c.handle for c in backend.advance(FAR_PS)] == [late]
    assert backend.advance(FAR_PS) == []
    assert backend.now_ps == FAR_PS


def test_completions_of_one_instant_come_together_ordered_by_graph_and_flow(start: Start, timing: Times) -> None:
    """All end at the same picosecond: flow 1 of the first graph, itself, then the flows of the second and itself."""
    backend = start(star(6))
    first = backend.submit(FlowGraph.from_lists([0, 0], [1, 0], [400_000, 1], notify=[True, False]), 0)
    second = backend.submit(FlowGraph.from_lists([2, 4], [3, 5], [400_000, 400_000], notify=[True, True]), 0)
    end = timing.transfer_ps(KB400)
    assert backend.advance(FAR_PS) == [
        Completion(first, 0, end),
        Completion(first, None, end),
        Completion(second, 0, end),
        Completion(second, 1, end),
        Completion(second, None, end),
    ]


def test_only_flows_marked_notify_interrupt_a_graph(backend: NetworkBackend, timing: Times) -> None:
    graph = FlowGraph.from_lists([0, 2, 0], [1, 3, 1], [400_000] * 3, deps=[[], [0], [1]], notify=[False, True, False])
    handle = backend.submit(graph, 0)
    hop = timing.transfer_ps(KB400)
    assert backend.advance(FAR_PS) == [Completion(handle, 1, 2 * hop)]
    assert backend.advance(FAR_PS) == [Completion(handle, None, 3 * hop)]


def test_next_event_is_a_lower_bound_and_none_when_idle(backend: NetworkBackend, timing: Times) -> None:
    assert backend.next_event_ps() is None
    backend.submit(FlowGraph.from_lists([0], [1], [400_000]), 100)
    bounds, completions = [], []
    while (bound := backend.next_event_ps()) is not None:
        assert bound >= backend.now_ps
        bounds.append(bound)
        completions += backend.advance(bound)
    assert bounds == sorted(bounds)
    assert [c.at_ps for c in completions] == [100 + timing.transfer_ps(KB400)]


def test_times_of_unfinished_flows_are_minus_one(backend: NetworkBackend) -> None:
    graph = FlowGraph.from_lists([0, 1], [1, 2], [400_000, 400_000], deps=[[], [0]])
    handle = backend.submit(graph, 0)
    backend.advance(1_000_000)
    times = backend.flow_times(handle)
    assert (times.start_ps.tolist(), times.end_ps.tolist()) == ([0, -1], [-1, -1])


def test_link_statistics_follow_the_clock_between_events(backend: NetworkBackend, timing: Times) -> None:
    """After 2 µs of a transfer of 8 µs: 100 kB on both links (in packets, those begun, later on the second link), which
    were busy all the time; later 8 µs and no more."""
    backend.submit(FlowGraph.from_lists([0], [1], [400_000]), 1_000_000)
    backend.advance(3_000_000)
    used = [0, 3]  # host 0 to the switch, switch to host 1
    busy = [2_000_000, 2_000_000 - timing.hop_ps]
    stats = backend.link_stats()
    assert stats.carried_bytes[used].tolist() == [timing.carried_bytes(ps) for ps in busy]
    assert stats.busy_ps[used].tolist() == busy
    backend.advance(FAR_PS)
    stats = backend.link_stats()
    assert stats.carried_bytes.tolist() == [400_000, 0, 0, 400_000, 0, 0, 0, 0]
    assert stats.busy_ps[used].tolist() == [timing.sending_ps(KB400)] * 2
    some = backend.link_stats(np.array([3, 1]))
    assert (some.carried_bytes.tolist(), some.busy_ps.tolist()) == ([400_000, 0], stats.busy_ps[[3, 1]].tolist())


def test_what_cannot_arrive_before_the_clock_ends_never_does(start: Start) -> None:
    """10⁶ bytes at 1 bit/s take 8·10¹⁸ ps of the 9.2·10¹⁸ that a clock has; from 2·10¹⁸ on that is too late."""
    backend = start(star(2, nic_bps=1))
    handle = backend.submit(FlowGraph.from_lists([0], [1], [10**6]), 2 * 10**18)
    assert completions_until_idle(backend, lambda _: 2**63 - 2) == []
    assert backend.flow_times(handle).end_ps.tolist() == [-1]


def test_two_backends_do_not_share_state(kind: str, start: Start) -> None:
    if kind in ONE_PER_PROCESS:
        pytest.skip(f"{kind} has one network per process")
    topology = star(3)
    first, second = start(topology), start(topology)
    first.submit(FlowGraph.from_lists([0], [1], [400_000]), 0)
    assert second.next_event_ps() is None
    second.submit(FlowGraph.from_lists([0], [1], [400_000]), 0)
    assert first.advance(FAR_PS) == second.advance(FAR_PS)


@pytest.mark.parametrize("name", BACKENDS)
@given(case=networks_with_flows(), step_ps=st.integers(100_000, 10_000_000))
@settings(max_examples=40)
def test_the_step_size_does_not_change_results(name: str, case: tuple[Topology, FlowGraph], step_ps: int) -> None:
    topology, graph = case
    whole = run_alone(name, topology, graph, FAR_PS)
    stepped = run_alone(name, topology, graph, step_ps)
    assert whole[0] == stepped[0]
    for one, other in zip(whole[1], stepped[1], strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("name", BACKENDS)
def test_steps_of_a_nanosecond_give_the_same_as_one_step(name: str) -> None:
    """Three flows into one host (a share that is no whole number of bit per ps), 30 µs of 1 ns steps."""
    graph = FlowGraph.from_lists([0, 1, 2], [3, 3, 3], [300_001, 400_003, 500_007])
    whole, stepped = (run_alone(name, star(4), graph, step_ps) for step_ps in (FAR_PS, 1_000))
    for one, other in zip(whole[1], stepped[1], strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("name", BACKENDS)
@given(case=networks_with_flows())
@settings(max_examples=60)
def test_every_flow_obeys_its_dependencies_and_its_path(name: str, case: tuple[Topology, FlowGraph]) -> None:
    """No flow ends before its bytes could have crossed its path alone, and none starts before what it waits for."""
    topology, graph = case
    _, (start_ps, end_ps, *_) = run_alone(name, topology, graph, FAR_PS)
    router = Router(topology)
    for i in range(len(graph)):
        deps = graph.deps[graph.dep_offsets[i] : graph.dep_offsets[i + 1]]
        ready = max([int(graph.ready_ps[i]), *end_ps[deps].tolist()])
        assert start_ps[i] == ready + graph.delay_ps[i]
        key = int(graph.src[i]), int(graph.dst[i]), int(graph.flow_label[i])
        size = int(graph.size_bytes[i])
        alone = 0
        if size and key[0] != key[1]:
            alone = -(-size * 8 * 10**12 // router.bottleneck_bps(*key)) + router.path_latency_ps(*key)
        assert end_ps[i] - start_ps[i] >= alone
