"""What every backend owes to `netsim.backend.NetworkBackend`, whatever its model of the network."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsim import (
    BackendError,
    BackendUnavailable,
    Completion,
    FlowGraph,
    FlowGraphError,
    GraphHandle,
    NetworkBackend,
    NodeKind,
    Topology,
    create_backend,
)
from netsim.ns3 import load_extension
from netsim.routing import Router
from tests.netsim.packet_times import Hop, Wire, serialization_ps, transfer_ps
from tests.netsim.strategies import GBPS, LATENCY_PS, networks_with_flows, star

FAR_PS = 10**18
PATH_LATENCY_PS = 2 * LATENCY_PS
KB400 = 400_000


def _is_ns3_built() -> bool:
    try:
        load_extension()
    except BackendUnavailable:
        return False
    return True


BACKENDS = ("fluid", "analytical", "packet", *(["ns3"] if _is_ns3_built() else []))
PACKET_LEVEL = ("packet", "ns3")
ONE_PER_PROCESS = ("ns3",)

Start = Callable[[Topology], NetworkBackend]


@dataclass(frozen=True, slots=True)
class FluidTimes:
    """Of a flow alone between hosts of a star at 400 Gbit/s, where bytes flow: 20 ps each."""

    def sending_ps(self, size_bytes: int) -> int:
        """From its first byte leaving the host to its last."""
        return 20 * size_bytes

    def transfer_ps(self, size_bytes: int) -> int:
        """From its first byte leaving to its last arriving."""
        return self.sending_ps(size_bytes) + PATH_LATENCY_PS

    def carried_bytes(self, sending_for_ps: int) -> int:
        """On a link that has been busy with a flow for so long."""
        return sending_for_ps // 20

    def finishing_ps(self, sending_for_ps: int) -> int:
        """Time that a link is busy with what the flow had begun to send by then."""
        return sending_for_ps

    hop_ps = 0
    """A flow occupies its second link so much later than its first."""


@dataclass(frozen=True, slots=True)
class PacketTimes:
    """The same with packets of 4096 B and headers, stored and forwarded by the switch."""

    def sending_ps(self, size_bytes: int) -> int:
        return sum(serialization_ps(wire_bytes, 400 * GBPS) for wire_bytes in Wire().packets(size_bytes))

    def transfer_ps(self, size_bytes: int) -> int:
        return transfer_ps([Hop(400 * GBPS, LATENCY_PS)] * 2, size_bytes)

    def carried_bytes(self, sending_for_ps: int) -> int:
        """A packet counts from when it begins to be sent."""
        return 4096 * -(-sending_for_ps // serialization_ps(4148, 400 * GBPS))

    def finishing_ps(self, sending_for_ps: int) -> int:
        return self.sending_ps(self.carried_bytes(sending_for_ps))

    hop_ps = serialization_ps(4148, 400 * GBPS) + LATENCY_PS


Times = FluidTimes | PacketTimes


@pytest.fixture(params=BACKENDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def timing(kind: str) -> Times:
    return PacketTimes() if kind in PACKET_LEVEL else FluidTimes()


@pytest.fixture
def start(kind: str) -> Iterator[Start]:
    """Starts backends of the kind under test and closes them."""
    opened: list[NetworkBackend] = []

    def create(topology: Topology) -> NetworkBackend:
        opened.append(create_backend(kind, topology))
        return opened[-1]

    yield create
    for backend in opened:
        backend.close()


@pytest.fixture
def backend(start: Start) -> NetworkBackend:
    """On a star of four hosts at 400 Gbit/s."""
    return start(star(4))


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


@pytest.mark.parametrize(
    ("deps", "after", "message"),
    [([[1], []], [-1, 0], "found a cycle"), ([[], [], []], [-1, 0, 0], "found flows 1 and 2 after the same flow")],
)
def test_queues_that_cannot_be_are_refused(
    backend: NetworkBackend, deps: list[list[int]], after: list[int], message: str
) -> None:
    graph = FlowGraph.from_lists([0] * len(after), [1] * len(after), [1] * len(after), deps=deps, after=after)
    with pytest.raises(FlowGraphError, match=message):
        backend.submit(graph, 0)


@given(networks_with_flows(), st.sampled_from(BACKENDS))
@settings(max_examples=60, deadline=None)
def test_queues_never_overtake_and_all_bytes_arrive(case: tuple[Topology, FlowGraph], name: str) -> None:
    topology, graph = case
    queued = dataclasses.replace(graph, after=np.arange(-1, len(graph) - 1))
    _, (start_ps, end_ps, *_) = _run(name, topology, queued, FAR_PS)
    assert (end_ps >= 0).all()
    assert (np.diff(start_ps) >= 0).all()


def completions_until_idle(backend: NetworkBackend, step: Callable[[int], int]) -> list[Completion]:
    """Advances in steps chosen by ``step(now_ps)`` until nothing is left to happen."""
    found: list[Completion] = []
    while backend.next_event_ps() is not None:
        found += backend.advance(step(backend.now_ps))
    return found


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


def test_a_cancelled_graph_leaves_the_network_and_never_completes(backend: NetworkBackend, timing: Times) -> None:
    """What it had begun to send goes on to the end of its path, and no further byte follows."""
    graph = FlowGraph.from_lists([0, 1], [1, 2], [400_000, 400_000], deps=[[], [0]])
    handle = backend.submit(graph, 0)
    half = timing.sending_ps(KB400) // 2
    backend.advance(half)
    backend.cancel(handle)
    assert backend.advance(FAR_PS) == []
    assert backend.next_event_ps() is None
    assert backend.flow_times(handle).end_ps.tolist() == [-1, -1]
    assert backend.link_stats().carried_bytes[[0, 3]].tolist() == [timing.carried_bytes(half)] * 2
    assert backend.link_stats().busy_ps[[0, 3]].tolist() == [timing.finishing_ps(half)] * 2
    backend.forget(handle)


def test_a_graph_may_be_cancelled_before_it_starts_and_while_it_propagates(
    backend: NetworkBackend, timing: Times
) -> None:
    waiting = backend.submit(FlowGraph.from_lists([0], [1], [400_000]), FAR_PS)
    propagating = backend.submit(FlowGraph.from_lists([0], [1], [400_000]), 0)
    backend.advance(timing.sending_ps(KB400) + 1)
    for handle in (waiting, propagating):
        backend.cancel(handle)
        backend.cancel(handle)
        backend.forget(handle)
    assert backend.advance(FAR_PS) == []
    assert backend.next_event_ps() is None


@given(
    name=st.sampled_from(BACKENDS),
    case=networks_with_flows(),
    moments_ps=st.lists(st.integers(0, 60_000_000), min_size=1, max_size=6),
)
@settings(max_examples=60, deadline=None)
def test_graphs_may_be_cancelled_and_forgotten_at_any_moment(
    name: str, case: tuple[Topology, FlowGraph], moments_ps: list[int]
) -> None:
    """Flows queue one behind the other; a later graph sees an idle network again, whatever was taken off it."""
    topology, graph = case
    queued = dataclasses.replace(graph, after=np.arange(-1, len(graph) - 1))
    _, (_, alone_end_ps, *_) = _run(name, topology, queued, FAR_PS)
    with contextlib.closing(create_backend(name, topology)) as backend:
        _cancel_and_forget(backend, queued, sorted(moments_ps))
        start_ps = backend.now_ps
        last = backend.submit(queued, start_ps)
        completions_until_idle(backend, lambda _: 2 * FAR_PS)
        assert (backend.flow_times(last).end_ps - start_ps).tolist() == alone_end_ps.tolist()


def _cancel_and_forget(backend: NetworkBackend, queued: FlowGraph, moments_ps: list[int]) -> None:
    for moment in moments_ps:
        backend.advance(max(moment, backend.now_ps))
        handle = backend.submit(queued, backend.now_ps)
        backend.advance(backend.now_ps + moment // 2)
        backend.cancel(handle)
        backend.forget(handle)
    completions_until_idle(backend, lambda _: FAR_PS)


def test_cancelling_a_completed_graph_keeps_its_times(backend: NetworkBackend, timing: Times) -> None:
    handle = backend.submit(FlowGraph.from_lists([0], [1], [400_000]), 0)
    backend.advance(FAR_PS)
    backend.cancel(handle)
    assert backend.flow_times(handle).end_ps.tolist() == [timing.transfer_ps(KB400)]


def test_forget_takes_completed_graphs_only_and_ends_their_handle(backend: NetworkBackend) -> None:
    handle = backend.submit(FlowGraph.from_lists([0], [1], [400_000]), 0)
    with pytest.raises(BackendError, match="running"):
        backend.forget(handle)
    backend.advance(FAR_PS)
    backend.forget(handle)
    for use in (backend.flow_times, backend.forget, backend.cancel):
        with pytest.raises(BackendError, match="unknown handle"):
            use(handle)
    assert backend.submit(FlowGraph.from_lists([0], [1], [1]), FAR_PS) != handle


def test_misuse_raises_and_leaves_the_backend_usable(backend: NetworkBackend, timing: Times) -> None:
    one = FlowGraph.from_lists([0], [1], [400_000])
    backend.advance(1_000)
    misuses: list[Callable[[], object]] = [
        lambda: backend.submit(one, 999),
        lambda: backend.advance(999),
        lambda: backend.advance(-1),
        lambda: backend.submit(one, -1),
        lambda: backend.advance(2e3),  # type: ignore[arg-type]
        lambda: backend.advance(2**63 - 1),
        lambda: backend.advance(2**63),
        lambda: backend.submit(one, 2**63 - 1),
        lambda: backend.submit(FlowGraph.from_lists([], [], []), 2**63 - 1),
        lambda: backend.submit(one, -(2**70)),
        lambda: backend.submit(FlowGraph.from_lists([-1], [1], [1]), 1_000),
        lambda: backend.submit(FlowGraph.from_lists([0], [9], [1]), 1_000),
        lambda: backend.submit(FlowGraph.from_lists([-1], [1], [1]), 1_000),
        lambda: backend.submit(FlowGraph.from_lists([0], [1], [1], ready_ps=[2**63 - 1]), 1_000),
        lambda: backend.flow_times(GraphHandle(7)),
        lambda: backend.flow_times(GraphHandle(-1)),
    ]
    for misuse in misuses:
        with pytest.raises(BackendError, match="expected"):
            misuse()
    assert backend.next_event_ps() is None
    backend.submit(one, 1_000)
    assert backend.advance(FAR_PS)[0].at_ps == 1_000 + timing.transfer_ps(KB400)


def test_a_second_thread_is_refused_while_one_is_inside(start: Start, timing: Times) -> None:
    """A chain of flows that takes long enough to run into; it releases the interpreter lock meanwhile."""
    backend = start(star(4))
    flows = 200_000
    chain = FlowGraph.from_lists([0] * flows, [1] * flows, [1] * flows, deps=[[], *([i] for i in range(flows - 1))])
    handle = backend.submit(chain, 0)
    runner = threading.Thread(target=backend.advance, args=(FAR_PS,))
    runner.start()
    refused = False
    while runner.is_alive():
        try:
            backend.link_stats()
        except BackendError as error:
            refused = "one thread at a time" in str(error)
    runner.join()
    assert refused
    assert backend.flow_times(handle).end_ps[-1] == flows * timing.transfer_ps(1)


def test_what_cannot_arrive_before_the_clock_ends_never_does(start: Start) -> None:
    """10⁶ bytes at 1 bit/s take 8·10¹⁸ ps of the 9.2·10¹⁸ that a clock has; from 2·10¹⁸ on that is too late."""
    backend = start(star(2, nic_bps=1))
    handle = backend.submit(FlowGraph.from_lists([0], [1], [10**6]), 2 * 10**18)
    assert completions_until_idle(backend, lambda _: 2**63 - 2) == []
    assert backend.flow_times(handle).end_ps.tolist() == [-1]


def test_use_after_close_raises(backend: NetworkBackend) -> None:
    backend.close()
    backend.close()
    with pytest.raises(BackendError, match="close"):
        backend.advance(1)


def test_a_cycle_is_refused_at_submission(backend: NetworkBackend) -> None:
    graph = FlowGraph.from_lists([0, 1, 2], [1, 2, 3], [1, 1, 1], deps=[[], [2], [1]])
    with pytest.raises(FlowGraphError, match="cycle"):
        backend.submit(graph, 0)
    assert backend.next_event_ps() is None


def test_nodes_without_a_path_are_refused_at_submission(start: Start) -> None:
    apart = Topology.from_cables([(NodeKind.GPU, "a"), (NodeKind.GPU, "b")], [], gpus_per_node=1)
    with pytest.raises(BackendError, match="no path"):
        start(apart).submit(FlowGraph.from_lists([0], [1], [1]), 0)


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
@settings(max_examples=40, deadline=None)
def test_the_step_size_does_not_change_results(name: str, case: tuple[Topology, FlowGraph], step_ps: int) -> None:
    topology, graph = case
    whole = _run(name, topology, graph, FAR_PS)
    stepped = _run(name, topology, graph, step_ps)
    assert whole[0] == stepped[0]
    for one, other in zip(whole[1], stepped[1], strict=True):
        assert np.array_equal(one, other)


def _run(
    name: str, topology: Topology, graph: FlowGraph, step_ps: int
) -> tuple[list[Completion], tuple[np.ndarray, ...]]:
    """What a graph alone leaves behind."""
    with contextlib.closing(create_backend(name, topology)) as backend:
        handle = backend.submit(graph, 0)
        completions = completions_until_idle(backend, lambda now: now + step_ps)
        return completions, _record(backend, handle)


@pytest.mark.parametrize("name", BACKENDS)
def test_steps_of_a_nanosecond_give_the_same_as_one_step(name: str) -> None:
    """Three flows into one host (a share that is no whole number of bit per ps), 30 µs of 1 ns steps."""
    graph = FlowGraph.from_lists([0, 1, 2], [3, 3, 3], [300_001, 400_003, 500_007])
    whole, stepped = (_run(name, star(4), graph, step_ps) for step_ps in (FAR_PS, 1_000))
    for one, other in zip(whole[1], stepped[1], strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("name", BACKENDS)
@given(case=networks_with_flows())
@settings(max_examples=60, deadline=None)
def test_every_flow_obeys_its_dependencies_and_its_path(name: str, case: tuple[Topology, FlowGraph]) -> None:
    """No flow ends before its bytes could have crossed its path alone, and none starts before what it waits for."""
    topology, graph = case
    _, (start_ps, end_ps, *_) = _run(name, topology, graph, FAR_PS)
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


@pytest.mark.parametrize("name", ["rdma"])
def test_backends_that_are_not_built_say_so(name: str) -> None:
    with pytest.raises(BackendUnavailable, match=name):
        create_backend(name, star(2))


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(BackendError, match="'fluyd'"):
        create_backend("fluyd", star(2))


def _record(backend: NetworkBackend, handle: GraphHandle) -> tuple[np.ndarray, ...]:
    times, stats = backend.flow_times(handle), backend.link_stats()
    return times.start_ps, times.end_ps, stats.carried_bytes, stats.busy_ps
