"""What every backend owes to those who leave early or ask for what cannot be."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsim import (
    BackendError,
    BackendUnavailable,
    FlowGraph,
    FlowGraphError,
    GraphHandle,
    NetworkBackend,
    NodeKind,
    Topology,
    create_backend,
)
from tests.netsim.conformance import BACKENDS, FAR_PS, KB400, Start, Times, completions_until_idle, run_alone
from tests.netsim.strategies import networks_with_flows, star


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
@settings(max_examples=60)
def test_graphs_may_be_cancelled_and_forgotten_at_any_moment(
    name: str, case: tuple[Topology, FlowGraph], moments_ps: list[int]
) -> None:
    """Flows queue one behind the other; a later graph sees an idle network again, whatever was taken off it."""
    topology, graph = case
    queued = dataclasses.replace(graph, after=np.arange(-1, len(graph) - 1))
    _, (_, alone_end_ps, *_) = run_alone(name, topology, queued, FAR_PS)
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


@pytest.mark.parametrize("name", ["rdma"])
def test_backends_that_are_not_built_say_so(name: str) -> None:
    with pytest.raises(BackendUnavailable, match=name):
        create_backend(name, star(2))


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(BackendError, match="'fluyd'"):
        create_backend("fluyd", star(2))
