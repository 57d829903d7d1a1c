"""Real transfers between agents on loopback: order, contents, times, and nothing left behind."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from boundary.errors import InputError
from netsim import FlowGraph
from netsim.backends.rdma.errors import TransferFailure
from netsim.backends.rdma.hosts import Hosts
from netsim.backends.rdma.session import Session
from tests.netsim.rdma.conftest import loopback
from tests.netsim.rdma.needs import needs_ucx

pytestmark = needs_ucx
Open = Callable[..., Session]


def has_cuda_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def test_a_flow_starts_after_all_that_it_waits_for_wherever_that_happens(open_session: Open) -> None:
    """Flow 3 waits for arrivals at its own sender (1) and elsewhere (2), flow 4 queues behind 3, and flow 5 waits for a
    buffer that flow 4 fills. All of these are real edges, so that starts follow ends; ranks share one clock here."""
    graph = FlowGraph.from_lists(
        src=[0, 0, 1, 1, 1, 2],
        dst=[1, 1, 2, 0, 2, 0],
        size_bytes=[8, 3_000_000, 1_000_000, 2_000_000, 500_000, 0],
        deps=[[], [], [0], [1, 2], [], []],
        after=[-1, -1, -1, -1, 3, -1],
        credits=[[], [], [], [], [], [4]],
    )
    measured = open_session(loopback(3), must_verify=True).execute(graph)
    assert measured.failure is None
    assert (measured.end_ps >= 0).all()
    slack_ps = measured.clock_error_ps.max()
    for before, after in ((0, 2), (1, 3), (2, 3), (4, 5)):
        assert measured.start_ps[after] >= measured.end_ps[before] - slack_ps
    assert measured.start_ps[4] >= measured.left_ps[3]
    assert set(measured.lane) == {"tcp/lo"}
    assert measured.statuses() == ["completed"] * 6


def test_delays_and_starts_are_really_waited(open_session: Open) -> None:
    """30 ms after the start of the graph; and 20 ms after the arrival of that."""
    graph = FlowGraph.from_lists(
        [0, 1], [1, 0], [8, 8], deps=[[], [0]], ready_ps=[30 * 10**9, 0], delay_ps=[0, 20 * 10**9]
    )
    measured = open_session(loopback()).execute(graph)
    assert measured.start_ps[0] >= 30 * 10**9
    assert measured.start_ps[1] - measured.end_ps[0] >= 20 * 10**9 - measured.clock_error_ps.max()


def test_a_highest_rate_is_kept(open_session: Open) -> None:
    """1 MB at 80 Mbit/s takes 100 ms; its last piece of 64 KiB leaves a piece's time, 6.6 ms, before the end."""
    graph = FlowGraph.from_lists([0, 0], [1, 1], [10**6, 8], max_rate_bps=[80 * 10**6, 0], after=[-1, 0])
    measured = open_session(loopback()).execute(graph)
    assert measured.end_ps[0] - measured.start_ps[0] >= (100 - 6.6) * 10**9
    assert measured.start_ps[1] - measured.start_ps[0] >= 100 * 10**9


def test_flows_inside_an_agent_and_between_channels_arrive_with_their_contents(open_session: Open) -> None:
    """Nodes 0 and 1 have one agent. 200 flows of all sizes up to 200 kB, on two connections per pair."""
    hosts = loopback().model_copy(update={"channels": 2})
    places = (hosts.agents[0].model_copy(update={"nodes": (0, 1)}), hosts.agents[1].model_copy(update={"nodes": (2,)}))
    rng = np.random.default_rng(1)
    ends = rng.integers(0, 3, size=(2, 200))
    ends[1] = np.where(ends[0] == ends[1], (ends[1] + 1) % 3, ends[1])
    graph = FlowGraph.from_lists(ends[0], ends[1], rng.integers(0, 200_000, 200), flow_label=rng.integers(0, 9, 200))
    session = open_session(hosts.model_copy(update={"agents": places}), must_verify=True)
    for _ in range(2):
        assert session.execute(graph).statuses() == ["completed"] * 200


def test_clocks_of_one_host_agree_within_the_error_that_is_stated(open_session: Open) -> None:
    """Both ranks read the same clock, so that the true offset is 0; a flow cannot take less than no time."""
    graph = FlowGraph.from_lists([0, 1] * 50, [1, 0] * 50, [64] * 100, deps=[[i - 1] if i else [] for i in range(100)])
    measured = open_session(loopback()).execute(graph)
    assert 0 < measured.clock_error_ps.max() < 10**9
    assert (np.diff(measured.start_ps) >= -measured.clock_error_ps.max()).all()


def test_ten_thousand_dependent_flows_leave_neither_memory_nor_descriptors(open_session: Open) -> None:
    """Each flow waits for the one before, back and forth. Allocators have what they need after five runs; what an
    agent holds then it holds after eight more. 2 MiB is far below the 80,000 headers and requests that they would lose
    otherwise (8 MB for 100 bytes each), and above what allocators move by."""
    count = 10_000
    graph = FlowGraph.from_lists(
        [i % 2 for i in range(count)],
        [1 - i % 2 for i in range(count)],
        [512] * count,
        deps=[[i - 1] if i else [] for i in range(count)],
    )
    session = open_session(loopback(), must_verify=True)
    held: list[list[tuple[int, int]]] = []
    for run in range(13):
        measured = session.execute(graph)
        assert (measured.end_ps >= 0).all(), measured.failure
        if run in (4, 12):
            held.append([_held(pid) for pid in session.process_ids.values()])
    for (memory, descriptors), (later_memory, later_descriptors) in zip(*held, strict=True):
        assert later_descriptors == descriptors
        assert later_memory - memory < 2 << 20


def _held(pid: int) -> tuple[int, int]:
    """Resident anonymous memory and open descriptors of a process."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]) * 1024, len(os.listdir(f"/proc/{pid}/fd"))


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (FlowGraph.from_lists([0], [2], [1]), "node 2 at the end of a flow, expected an agent"),
        (FlowGraph.from_lists([0, 1], [1, 0], [1, 1], deps=[[1], [0]]), "circle"),
        (FlowGraph.from_lists([0], [1], [1], deps=[[0]]), "circle"),
        (FlowGraph.from_lists([0, 0], [1, 1], [1, 1], priority=[3, 4]), "classes 3 and 4"),
    ],
)
def test_graphs_that_cannot_be_executed_are_refused_and_the_session_goes_on(
    open_session: Open, graph: FlowGraph, message: str
) -> None:
    session = open_session(loopback())
    with pytest.raises(InputError, match=message):
        session.execute(graph)
    assert session.execute(FlowGraph.from_lists([0], [1], [1])).failure is None


def test_an_empty_graph_ends_at_once(open_session: Open) -> None:
    assert open_session(loopback()).execute(FlowGraph.from_lists([], [], [])).statuses() == []


def test_a_gpu_without_a_driver_ends_the_run_in_one_clause(open_session: Open) -> None:
    if has_cuda_driver():
        pytest.skip("this machine has a CUDA driver")
    hosts = loopback()
    places = tuple(place.model_copy(update={"gpu": 0}) for place in hosts.agents)
    with pytest.raises(TransferFailure, match=r"gpu: libcuda\.so\.1: .*, expected the library of NVIDIA's driver"):
        open_session(hosts.model_copy(update={"agents": places}))


def test_payloads_of_gpus_arrive_as_they_were_sent(open_session: Open) -> None:
    """From the memory of each of two GPUs into that of the other; the host only compares."""
    if not has_cuda_driver():
        pytest.skip("needs two CUDA devices, and UCX with CUDA")
    agents = [{"nodes": gpu, "gpu": gpu} for gpu in (0, 1)]
    hosts = Hosts.model_validate({"agents": agents, "progress": "spin"})
    graph = FlowGraph.from_lists([0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 100_000, 30_000_000])
    measured = open_session(hosts, must_verify=True).execute(graph)
    assert measured.failure is None
    assert all("cuda_ipc/" in lane for lane in measured.lane)
