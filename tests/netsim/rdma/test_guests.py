"""Real verbs without an RDMA NIC: Soft-RoCE inside of guests that are emulated.

Emulation shows function; of times only those that follow from a shaped rate, in the least disturbed of up to
`MOST_RUNS` runs: another is taken as long as all are late, or have sent something again.
"""

from __future__ import annotations

import shlex
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from netsim import FlowGraph
from netsim.rdma import Measurement
from netsim.rdma.share import share_of
from tests.netsim.rdma.guest.agents import SessionOfAgents, write_sessions
from tests.netsim.rdma.guest.image import Image, MissingError, guest_image
from tests.netsim.rdma.guest.machine import Machine
from tests.netsim.rdma.guest.sessions import free_ports, open_session
from tests.netsim.rdma.needs import needs_ucx, needs_verbs

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
END_S = 60.0
MOST_RUNS = 9

RATE_BPS = 20_000_000
BURST_BYTES = 65536
"""What the shaper catches up with after the emulator has had to wait for a core: 26 ms."""
SHAPED_FLOWS = 10
SHAPED_BYTES = 262_144
MTU_BYTES = 4096
HEADER_BYTES = 14 + 20 + 8 + 12 + 4
"""Ethernet, IPv4, UDP, base transport header and its CRC, for each packet."""
WRITE_BYTES = 16 + 4
"""RDMA extended transport header and immediate data, for each message."""
WIRE_BYTES = SHAPED_BYTES + HEADER_BYTES * -(-SHAPED_BYTES // MTU_BYTES) + WRITE_BYTES
"""That the shaper counts for a flow."""
SHAPED_PS = (SHAPED_FLOWS * WIRE_BYTES - BURST_BYTES) * 8e12 / RATE_BPS
"""Of flows posted at once, whose bucket is full in the beginning."""


@pytest.fixture(scope="module")
def image() -> Image:
    try:
        return guest_image()
    except MissingError as reason:
        pytest.skip(str(reason))


def script(*set_up: str) -> str:
    """Sets up networks, runs the agents of ``/job/sessions``, and keeps what the devices have counted."""
    lines = [
        "set -e",
        f"cd {shlex.quote(str(ROOT))}",
        ". tests/netsim/rdma/guest/networks.sh",
        "control",
        *set_up,
        'read -r up _ </proc/uptime; echo "guest: $up s: devices"',
        "export PYTHONDONTWRITEBYTECODE=1 OPENBLAS_NUM_THREADS=1",
        f"{shlex.quote(sys.executable)} -m tests.netsim.rdma.guest.agents /job/sessions",
        "grep -r . /sys/class/infiniband/*/ports/1/hw_counters/ >/job/counters",
        "grep -r . /sys/class/net/*/statistics/tx_bytes >/job/sent",
    ]
    return "".join(f"{line}\n" for line in lines)


def counted(file: Path) -> dict[str, int]:
    """What ``script`` has kept, by path."""
    return {path: int(value) for path, _, value in (line.partition(":") for line in file.read_text().splitlines())}


def mixed_graph(nodes: Sequence[int], count: int) -> FlowGraph:
    """Flows among these nodes, of no byte, one byte, and up to 60 kB; each waits for the last but one to arrive."""
    rng = np.random.default_rng(1)
    src = rng.integers(0, len(nodes), count)
    dst = (src + rng.integers(1, len(nodes), count)) % len(nodes)
    sizes = rng.integers(2, 60_000, count)
    sizes[:2] = (0, 1)
    deps = [[i - 2] if i >= 2 else [] for i in range(count)]
    ends = np.array(nodes)
    return FlowGraph.from_lists(ends[src], ends[dst], sizes, deps=deps, flow_label=rng.integers(0, 9, count))


@dataclass(frozen=True)
class LoopedGuest:
    """What one guest with two devices that are joined by a cable has done."""

    mixed: list[Measurement]
    misplaced: Measurement
    """Of one flow that its sender has written to another place."""
    shaped: list[Measurement]
    counters_between: dict[str, int]
    """Of the devices, when all mixed graphs were done."""
    counters: dict[str, int]
    sent_bytes: dict[str, int]


NODES = (0, 1, 2)
"""The first two are those of rank 0."""
QUEUE_PAIRS = 3
SMALL_MTU_BYTES = 1024


def span_ps(measured: Measurement) -> int:
    """From the first start to the last acknowledgement."""
    return int(measured.left_ps.max() - measured.start_ps.min())


def retransmits(measured: Measurement) -> int:
    """Packets that devices have sent again during the run."""
    return int(measured.retransmits.max())


def is_disturbed(shaped: Sequence[Measurement]) -> bool:
    """Whether every run is late, or something was sent again in each."""
    return min(map(span_ps, shaped)) > 1.02 * SHAPED_PS or min(map(retransmits, shaped)) > 0


@pytest.fixture(scope="module")
def looped(image: Image, tmp_path_factory: pytest.TempPathFactory) -> LoopedGuest:
    job = tmp_path_factory.mktemp("looped")
    shape = f"tc qdisc add dev va root tbf rate {RATE_BPS}bit burst {BURST_BYTES} latency 4s"
    keep = "grep -r . /sys/class/infiniband/*/ports/1/hw_counters/ >/job/between"
    ports = free_ports(3)
    sessions = [
        SessionOfAgents(ports[0], (0, 1)),
        SessionOfAgents(ports[1], (0, 1), keep, is_misplaced=True),
        SessionOfAgents(ports[2], (0, 1), shape),
    ]
    write_sessions(job / "sessions", sessions)
    addressed = [{"nodes": [0, 1], "address": "10.77.1.1"}, {"nodes": [2], "address": "10.77.1.2", "device": "rxe1:1"}]
    split = {"queue_pairs": QUEUE_PAIRS, "split": True, "mtu_bytes": SMALL_MTU_BYTES}
    with Machine(image, job, script("two_devices")) as machine:
        with open_session(ports[0], addressed, engine="verbs", channels=2, verbs=split) as session:
            mixed = [session.execute(mixed_graph(NODES, 40))]
            while min(map(retransmits, mixed)) > 0 and len(mixed) < MOST_RUNS:
                mixed.append(session.execute(mixed_graph(NODES, 40)))
        with open_session(ports[1], addressed, engine="verbs") as session:
            misplaced = session.execute(FlowGraph.from_lists([0], [2], [1000]))
        graph = FlowGraph.from_lists([0] * SHAPED_FLOWS, [2] * SHAPED_FLOWS, [SHAPED_BYTES] * SHAPED_FLOWS)
        with open_session(ports[2], addressed, engine="verbs") as session:
            shaped = [session.execute(graph)]
            while is_disturbed(shaped) and len(shaped) < MOST_RUNS:
                shaped.append(session.execute(graph))
        print(f"guest with two devices: {machine.wait(END_S):.1f} s")
    return LoopedGuest(mixed, misplaced, shaped, *(counted(job / name) for name in ("between", "counters", "sent")))


def device_counters(counters: dict[str, int], name: str) -> int:
    """Sum over the devices of a guest."""
    return sum(value for path, value in counters.items() if path.endswith(f"/hw_counters/{name}"))


@needs_verbs
def test_verbs_send_every_payload_as_it_is_over_queue_pairs_that_share_flows(looped: LoopedGuest) -> None:
    """Payloads are compared where they arrive. With three queue pairs a flow is up to three messages, of equal parts in
    units of 128 bytes; each message, and each message of an event, takes one receive."""
    assert {each.failure for each in looped.mixed} == {None}
    assert {status for each in looped.mixed for status in each.statuses()} == {"completed"}
    lanes = {f"rc/rxe{rank}:1 gid 1 mtu {SMALL_MTU_BYTES} queue_pairs {QUEUE_PAIRS}" for rank in (0, 1)}
    assert {lane for each in looped.mixed for lane in each.lane} == lanes
    graph = mixed_graph(NODES, 40)
    part_bytes = -(-np.maximum(graph.size_bytes, 1) // (128 * QUEUE_PAIRS)) * 128
    messages = np.maximum(1, -(-graph.size_bytes // part_bytes)).sum()
    events = sum(int(str(share_of(graph, np.array([0, 0, 1]), rank).columns["expected_messages"])) for rank in (0, 1))
    assert events > 0
    assert device_counters(looped.counters_between, "rdma_recvs") == len(looped.mixed) * (messages + events)


@needs_verbs
def test_a_payload_that_is_not_where_it_belongs_ends_the_run(looped: LoopedGuest) -> None:
    assert looped.misplaced.failure == "rank 1: flow 0 arrived with another payload than was sent"


@needs_verbs
def test_the_mtu_of_the_hosts_file_is_that_of_the_packets(looped: LoopedGuest) -> None:
    """At least one packet for each 1024 bytes; with the devices' own 4096 there were a third as many, acknowledgements
    included."""
    packets = len(looped.mixed) * (-(-mixed_graph(NODES, 40).size_bytes // SMALL_MTU_BYTES)).sum()
    assert packets <= device_counters(looped.counters_between, "sent_pkts") < 2 * packets


@needs_verbs
def test_flows_over_a_shaped_cable_take_what_their_packets_take(looped: LoopedGuest) -> None:
    """S + 58 · ceil(S / 4096) + 20 bytes per flow pass the shaper, whose bucket is full in the beginning: ten flows of
    256 KiB at 20 Mbit/s, posted at once, are acknowledged after 10 · 106.35 - 26.2 ms. 2 %."""
    assert {each.failure for each in looped.shaped} == {None}
    assert min(map(span_ps, looped.shaped)) == pytest.approx(SHAPED_PS, rel=0.02)
    on_the_cable = sum(value for path, value in looped.sent_bytes.items() if "/va/" in path)
    assert on_the_cable >= len(looped.shaped) * SHAPED_FLOWS * WIRE_BYTES


@needs_verbs
def test_counters_of_the_devices_show_no_retransmission(looped: LoopedGuest) -> None:
    """In the least disturbed runs: emulated processors may stand still for longer than acknowledgements may take."""
    assert min(map(retransmits, looped.mixed)) == 0
    assert min(map(retransmits, looped.shaped)) == 0
    assert device_counters(looped.counters, "out_of_seq_request") == 0
    assert device_counters(looped.counters, "retry_exceeded_err") == 0


@pytest.fixture(scope="module")
def joined(image: Image, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Measurement]:
    """The mixed graph by each engine between two guests that are joined by a cable."""
    jobs = [tmp_path_factory.mktemp(f"joined{rank}") for rank in (0, 1)]
    ports = free_ports(2)
    for rank, job in enumerate(jobs):
        write_sessions(job / "sessions", [SessionOfAgents(port, (rank,)) for port in ports])
    places = [
        {"nodes": nodes, "address": f"10.78.0.{rank + 1}", "device": "rxe0:1"}
        for rank, nodes in enumerate(([0, 1], [2]))
    ]
    ends = socket.socketpair()
    with (
        Machine(image, jobs[0], script("one_device 10.78.0.1"), ends[0]) as first,
        Machine(image, jobs[1], script("one_device 10.78.0.2"), ends[1], number=1) as second,
    ):
        for end in ends:
            end.close()
        measured = {}
        for port, engine, settings in zip(ports, ("ucx", "verbs"), ({"transports": "rc"}, {}), strict=True):
            with open_session(port, places, engine=engine, **settings) as session:
                measured[engine] = session.execute(mixed_graph(NODES, 12))
        print(f"two guests: {first.wait(END_S):.1f} and {second.wait(END_S):.1f} s")
    return measured


@needs_ucx
@needs_verbs
@pytest.mark.parametrize(("engine", "lane"), [("ucx", "rc_verbs/rxe0:1"), ("verbs", "rc/rxe0:1 gid 1")])
def test_two_guests_exchange_payloads_through_each_engine(
    joined: dict[str, Measurement], engine: str, lane: str
) -> None:
    measured = joined[engine]
    assert measured.failure is None
    assert set(measured.statuses()) == {"completed"}
    assert all(lane in each for each in measured.lane)
