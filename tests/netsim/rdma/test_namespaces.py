"""Flows over links of a known rate: times follow from bytes, plans of collectives agree with `fluid`.

Each time is the shortest of `RUNS` runs, and of up to `MOST_RUNS` as long as it is late: other processes share the
cores, and can only delay an arrival. Calibrations, whose medians count, are taken again for the same reason.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

import simccl
from netsim import FlowGraph, create_backend, rail_optimized
from netsim.backends.rdma.hosts import Hosts
from netsim.backends.rdma.measurement import Measurement
from netsim.backends.rdma.message_times import PairMeasurement, measure_pair
from netsim.backends.rdma.session import Session
from netsim.units import PS_PER_S
from tests.netsim.rdma.namespaces import (
    BURST_BYTES,
    JUMBO_MTU,
    RATE_BPS,
    Namespace,
    as_topology,
    shaped_hosts,
    wire_of,
)
from tests.netsim.rdma.needs import needs_ucx

pytestmark = needs_ucx
Open = Callable[..., Session]
IsLate = Callable[[list[Measurement]], bool]
RANKS = 8
RUNS = 3
MOST_RUNS = 12
MOST_CALIBRATIONS = 4
MIB = 1 << 20
FRAME_SHARE = 1514 / 1448
"""Bytes that the shaper counts over those of the payload: an MTU of 1500, TCP with time stamps, Ethernet's header."""
ONE_GRAPH_PS = 10**15


def agents_in(namespaces: Sequence[Namespace], nodes_each: int = 1, **settings: object) -> Hosts:
    """One agent per namespace, with so many nodes."""
    places = [
        {
            "nodes": list(range(i * nodes_each, (i + 1) * nodes_each)),
            "address": each.address,
            "device": each.device,
            "namespace": each.name,
        }
        for i, each in enumerate(namespaces)
    ]
    return Hosts.model_validate(
        {"launcher": "netns", "transports": "tcp", "rndv_threshold": "inf", "agents": places, **settings}
    )


def least_disturbed(session: Session, graph: FlowGraph, is_late: IsLate) -> list[Measurement]:
    """Runs of a graph, until the shortest is not late."""
    measured: list[Measurement] = []
    while len(measured) < RUNS or (len(measured) < MOST_RUNS and is_late(measured)):
        measured.append(session.execute(graph))
        assert measured[-1].failure is None
    return measured


def frames_ns_of(found: PairMeasurement) -> NDArray[np.float64]:
    """[sizes] what the frames of a message take at the rate of the link."""
    return np.array([sample.size_bytes for sample in found.samples]) * (FRAME_SHARE * 8e9 / RATE_BPS)


def least_disturbed_calibration(session: Session, sizes_bytes: Sequence[int]) -> PairMeasurement:
    """The calibration whose medians are shortest: the first, unless one of its medians is late."""
    found: list[PairMeasurement] = []
    while len(found) < MOST_CALIBRATIONS:
        found.append(measure_pair(session, (1, 0), sizes_bytes, 2 * RUNS + 1))
        medians_ns = np.array([sample.median_ns for sample in found[-1].samples])
        if (medians_ns <= 1.02 * frames_ns_of(found[-1])).all():
            return found[-1]
    return min(found, key=lambda each: sum(sample.median_ns for sample in each.samples))


def shortest_bytes(measured: list[Measurement]) -> NDArray[np.float64]:
    """[flows] what the link carries in the shortest time of each."""
    times = [each.end_ps - each.start_ps for each in measured]
    return np.asarray(np.min(times, axis=0) * (RATE_BPS / 8 / PS_PER_S))


def last_ps(measured: list[Measurement]) -> int:
    """End of the last flow, in the shortest run."""
    return min(int(each.end_ps.max()) for each in measured)


@pytest.mark.parametrize("hosts", [2, 4])
@pytest.mark.parametrize("size_bytes", [MIB, 4 * MIB])
def test_flows_take_what_their_frames_take_at_the_rate_of_the_link(
    open_session: Open, hosts: int, size_bytes: int
) -> None:
    """Each alone on the links, one after another. Every 1448 bytes of payload are a frame of 1514; the bucket may hold
    up to its burst. 2 % around that band, for every flow."""
    with shaped_hosts(hosts) as namespaces:
        graph = FlowGraph.from_lists(
            list(range(hosts)),
            [(i + 1) % hosts for i in range(hosts)],
            [size_bytes] * hosts,
            deps=[[i - 1] if i else [] for i in range(hosts)],
        )
        session = open_session(agents_in(namespaces), must_verify=True)
        frames_bytes = size_bytes * FRAME_SHARE
        most_bytes = 1.02 * frames_bytes
        measured = least_disturbed(session, graph, lambda runs: bool((shortest_bytes(runs) > most_bytes).any()))
    took_bytes = shortest_bytes(measured)
    assert (took_bytes >= 0.98 * (frames_bytes - BURST_BYTES)).all(), took_bytes / frames_bytes
    assert (took_bytes <= most_bytes).all(), took_bytes / frames_bytes


def test_a_calibration_finds_the_frames_of_the_link_in_its_beta(open_session: Open) -> None:
    """Sizes of 1, 2 and 4 MiB, so far above the bucket that β is what frames take: 2 % around 83.6 ns per byte. The
    bucket, which each message finds full, spares up to 1.3 ms of it, 1.5 % at 1 MiB."""
    with shaped_hosts(2) as namespaces:
        found = least_disturbed_calibration(open_session(agents_in(namespaces)), [MIB, 2 * MIB, 4 * MIB])
    (line,) = found.ranges
    assert found.lane == "tcp/eth0"
    assert line.ns_per_byte == pytest.approx(FRAME_SHARE * 8e9 / RATE_BPS, rel=0.02)
    frames_ns = frames_ns_of(found)
    shortest_ns = np.array([sample.shortest_ns for sample in found.samples])
    assert (shortest_ns >= 0.98 * (frames_ns - BURST_BYTES * 8e9 / RATE_BPS)).all()
    assert (shortest_ns <= 1.02 * frames_ns).all()


def test_an_incast_of_three_takes_three_times_as_long_as_one(open_session: Open) -> None:
    """3 × 2 MiB into one host: 6 MiB over its link, less the buckets of the link and of the senders."""
    with shaped_hosts(4) as namespaces:
        graph = FlowGraph.from_lists([1, 2, 3], [0, 0, 0], [2 * MIB] * 3)
        session = open_session(agents_in(namespaces), must_verify=True)
        frames_ps = 6 * MIB * FRAME_SHARE * 8 * PS_PER_S / RATE_BPS
        measured = least_disturbed(session, graph, lambda runs: last_ps(runs) > 1.05 * frames_ps)
        assert last_ps(measured) == pytest.approx(frames_ps, rel=0.05)


@pytest.mark.parametrize("hosts", [2, 4])
@pytest.mark.parametrize(
    ("op", "algorithm", "size_bytes"), [("all_reduce", "ring", 4 * MIB), ("all_to_all", None, 8 * MIB)]
)
def test_plans_of_collectives_take_what_fluid_says(
    open_session: Open, hosts: int, op: str, algorithm: str | None, size_bytes: int
) -> None:
    """Eight ranks on two or four hosts, whose links decide; `fluid` has the same links and TCP's frames. 5 %."""
    communicator = simccl.Communicator(tuple(range(RANKS)), rail_optimized(hosts, gpus_per_node=RANKS // hosts), "h100")
    graph = simccl.plan_collective(op, size_bytes, communicator, algorithm=algorithm, protocol="simple").graph()
    with shaped_hosts(hosts, JUMBO_MTU) as namespaces:
        session = open_session(agents_in(namespaces, RANKS // hosts), must_verify=True)
        expected_ps = _fluid_ps(graph, hosts)
        measured = least_disturbed(session, graph, lambda runs: last_ps(runs) > 1.05 * expected_ps)
    assert {status for each in measured for status in each.statuses()} == {"completed"}
    assert last_ps(measured) == pytest.approx(expected_ps, rel=0.05)


def _fluid_ps(graph: FlowGraph, hosts: int) -> int:
    backend = create_backend("fluid", as_topology(hosts, RANKS // hosts), wire=wire_of(JUMBO_MTU))
    handle = backend.submit(graph, 0)
    while backend.next_event_ps() is not None:
        backend.advance(ONE_GRAPH_PS)
    return int(backend.flow_times(handle).end_ps.max())


SILENT = r"rank 0: link to rank 1: silent for 3 s|rank 1: link to rank 0: silent for 3 s"


@pytest.mark.parametrize(
    ("fails", "expected"),
    [(Namespace.cut_off, SILENT), (Namespace.take_down, rf"{SILENT}|rank [01]: connection to rank [01]: .*")],
)
def test_a_link_that_fails_is_noticed_within_the_deadline(
    open_session: Open, fails: Callable[[Namespace], None], expected: str
) -> None:
    """32 MiB take 2.8 s; half a second after the start frames are dropped beyond the host's device, or that goes down,
    which whoever sends over it may notice at once."""
    with shaped_hosts(2) as namespaces:
        session = open_session(agents_in(namespaces, link_timeout_s=3.0))
        timer = threading.Timer(0.7, fails, (namespaces[1],))
        timer.start()
        started_s = time.monotonic()
        measured = session.execute(FlowGraph.from_lists([0, 0], [1, 1], [32 * MIB, 8], deps=[[], [0]]))
        timer.join()
        assert time.monotonic() - started_s < 15.0
        assert measured.failure is not None
        assert re.fullmatch(expected, measured.failure)
        assert measured.statuses() == [f"failed: {measured.failure}", "failed: waits for a failed flow"]
