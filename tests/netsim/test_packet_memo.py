"""Replayed flow graphs give what simulating them again gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsim import BackendError, FlowGraph, rail_optimized
from netsim.backends.packet import PacketBackend
from netsim.backends.packet.memo import MemoisedBackend
from netsim.roce.config import RoceConfig

FAR_PS = 10**15
ACKNOWLEDGED_PS = 10_000_000
TOPOLOGY = rail_optimized(nodes=4, gpus_per_node=2, spines=2)
NO_MARKS = RoceConfig(congestion_control="none", ecn=False)


def memoised() -> MemoisedBackend:
    return MemoisedBackend(PacketBackend(TOPOLOGY, NO_MARKS), has_fixed_routes=True)


def exchange(gpus: list[int], size_bytes: int) -> FlowGraph:
    pairs = [(a, b) for a in gpus for b in gpus if a != b]
    return FlowGraph.from_lists([a for a, _ in pairs], [b for _, b in pairs], [size_bytes] * len(pairs))


def test_the_same_graph_is_simulated_once_and_takes_the_same_time_again() -> None:
    backend = memoised()
    graph = exchange([0, 2, 4], 100_000)
    first = backend.submit(graph, 0)
    (end,) = backend.advance(FAR_PS)
    hops = backend.counters().packets.sum()
    second = backend.submit(graph, 10**9)
    (again,) = backend.advance(FAR_PS)
    assert again.at_ps - 10**9 == end.at_ps
    assert backend.hits == 1
    first_times, second_times = backend.flow_times(first), backend.flow_times(second)
    np.testing.assert_array_equal(first_times.end_ps + 10**9, second_times.end_ps)
    assert backend.counters().packets.sum() == 2 * hops


def test_other_gpus_in_the_same_position_share_the_memory() -> None:
    """GPUs 0, 2, 4 are rail 0 of servers 0 to 2; GPUs 3, 5, 7 rail 1 of servers 1 to 3: one leaf each, one path."""
    backend = memoised()
    backend.submit(exchange([0, 2, 4], 100_000), 0)
    (end,) = backend.advance(FAR_PS)
    backend.submit(exchange([3, 5, 7], 100_000), end.at_ps)
    (again,) = backend.advance(FAR_PS)
    assert (again.at_ps - end.at_ps, backend.hits) == (end.at_ps, 1)
    carried = backend.link_stats().carried_bytes
    assert carried.sum() == 2 * 6 * 2 * 100_000


@pytest.mark.parametrize("change", ["size", "one more flow", "another position"])
def test_different_traffic_is_simulated(change: str) -> None:
    graphs = {
        "size": exchange([0, 2, 4], 100_001),
        "one more flow": exchange([0, 2, 4, 6], 100_000),
        "another position": exchange([0, 3, 4], 100_000),
    }
    backend = memoised()
    backend.submit(exchange([0, 2, 4], 100_000), 0)
    backend.advance(FAR_PS)
    backend.submit(graphs[change], backend.now_ps)
    backend.advance(FAR_PS)
    assert backend.hits == 0


@settings(max_examples=25)
@given(interrupted_at_us=st.integers(0, 30), size=st.integers(1, 300_000), cancels=st.booleans())
def test_a_replay_that_is_disturbed_is_simulated_after_all(interrupted_at_us: int, size: int, cancels: bool) -> None:
    """The same submissions on a backend without memory end at the same picosecond. Where the replay is over
    before the other graph comes, this waits until the last acknowledgements are back."""
    graph, other = exchange([0, 2, 4, 6], 150_000), exchange([2, 4], size)
    ends = []
    for backend in (memoised(), PacketBackend(TOPOLOGY, NO_MARKS)):
        backend.submit(graph, 0)
        backend.advance(FAR_PS)
        backend.advance(10**9)
        second = backend.submit(graph, 10**9)
        if backend.advance(10**9 + interrupted_at_us * 10**6):
            backend.advance(backend.now_ps + ACKNOWLEDGED_PS)
        third = backend.submit(other, backend.now_ps)
        if cancels:
            backend.cancel(second)
        while backend.next_event_ps() is not None:
            backend.advance(FAR_PS)
        ends.append([backend.flow_times(handle).end_ps.tolist() for handle in (second, third)])
    assert ends[0] == ends[1]


def test_packets_of_a_cancelled_graph_are_traffic() -> None:
    """What runs among them is not remembered, and what is remembered is not replayed among them."""
    cancelled, graph = exchange([0, 2, 4, 6], 300_000), exchange([2, 4], 50_000)
    found = []
    for backend in (memoised(), PacketBackend(TOPOLOGY, NO_MARKS)):
        durations_ps = []
        for start_ps, is_among_them in ((0, True), (10**9, False), (2 * 10**9, True), (3 * 10**9, False)):
            backend.advance(start_ps)
            if is_among_them:
                handle = backend.submit(cancelled, start_ps)
                backend.advance(start_ps + 5_000_000)
                backend.cancel(handle)
            begin_ps = backend.now_ps
            backend.submit(graph, begin_ps)
            durations_ps.append(backend.advance(FAR_PS)[0].at_ps - begin_ps)
        found.append(durations_ps)
        if isinstance(backend, MemoisedBackend):
            assert backend.hits == 1
    assert found[0] == found[1]
    assert found[0][0] == found[0][2] > found[0][1] == found[0][3]


def test_flows_that_notify_do_so_in_a_replay() -> None:
    pairs = FlowGraph.from_lists([0, 2], [2, 4], [100_000, 200_000], notify=[True, True])
    backend = memoised()
    runs = []
    for start in (0, 10**9):
        backend.advance(start)
        backend.submit(pairs, start)
        runs.append([(c.flow, c.at_ps - start) for _ in range(2) for c in backend.advance(FAR_PS)])
    assert backend.hits == 1
    assert runs[0] == runs[1]


def test_misuse_is_refused() -> None:
    backend = memoised()
    handle = backend.submit(exchange([0, 2], 1000), 0)
    with pytest.raises(BackendError, match="running"):
        backend.forget(handle)
    with pytest.raises(BackendError, match="unknown handle"):
        backend.flow_times(handle + 1)
    backend.advance(FAR_PS)
    with pytest.raises(BackendError, match="before now"):
        backend.submit(exchange([0, 2], 1000), 0)
    backend.forget(handle)
    backend.close()
    with pytest.raises(BackendError, match="after close"):
        backend.submit(exchange([0, 2], 1000), FAR_PS)
