"""Real verbs without an RDMA NIC: Soft-RoCE inside of guests that are emulated.

Emulation shows function; of times only those that follow from a shaped rate, in the least disturbed of up to
`MOST_RUNS` runs: another is taken as long as all are late, or have sent something again.
"""

from __future__ import annotations

import importlib.util
import shlex
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from netsim import FlowGraph
from netsim.backends.rdma import Measurement
from netsim.backends.rdma.share import share_of
from tests.netsim.rdma.guest.agents import SessionOfAgents, write_sessions
from tests.netsim.rdma.guest.image import Image, MissingError, guest_image
from tests.netsim.rdma.guest.machine import Machine
from tests.netsim.rdma.guest.sessions import free_ports, open_session
from tests.netsim.rdma.needs import needs_ucx, needs_verbs
from tests.once_per_run import once_per_run

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
    """Sets up networks, and runs the agents of ``/job/sessions``."""
    lines = [
        "set -e",
        f"cd {shlex.quote(str(ROOT))}",
        ". tests/netsim/rdma/guest/networks.sh",
        "control",
        *set_up,
        'read -r up _ </proc/uptime; echo "guest: $up s: devices"',
        "export PYTHONDONTWRITEBYTECODE=1 OPENBLAS_NUM_THREADS=1",
        f"{shlex.quote(sys.executable)} -m tests.netsim.rdma.guest.agents /job/sessions",
    ]
    return "".join(f"{line}\n" for line in lines)


def keep_counters(file: str) -> str:
    """A command that keeps what the devices have counted, in the folder of the job."""
    return f"grep -r . /sys/class/infiniband/*/ports/1/hw_counters/ >/job/{file}"


def counted(file: Path) -> dict[str, int]:
    """What a command has kept, by path."""
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
class Guests:
    """What one guest with two devices that are joined by a cable has done, and then with another guest."""

    mixed: list[Measurement]
    misplaced: Measurement
    """Of one flow that its sender has written to another place."""
    shaped: list[Measurement]
    counters_between: dict[str, int]
    """Of the devices, when all mixed graphs were done."""
    counters: dict[str, int]
    """Of the devices, before there was anything between guests."""
    sent_bytes: dict[str, int]
    between_guests: dict[str, Measurement]
    """A mixed graph by each engine that is built."""


ENGINES = ("ucx", "verbs") if importlib.util.find_spec("netsim._ucx") else ("verbs",)
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
def guests(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Guests:
    return once_per_run(tmp_path_factory, "guests", lambda: run_guests(image, tmp_path_factory))


def run_guests(image: Image, folders: pytest.TempPathFactory) -> Guests:
    jobs = [folders.mktemp(f"guest{rank}") for rank in (0, 1)]
    looped, joined = free_ports(3), free_ports(len(ENGINES))
    write_sessions(jobs[0] / "sessions", sessions_of_first(looped, joined))
    write_sessions(jobs[1] / "sessions", [SessionOfAgents(port, (1,)) for port in joined])
    ends = socket.socketpair()
    with (
        Machine(image, jobs[0], script("two_devices", "one_device 10.78.0.1"), ends[0]) as first,
        Machine(image, jobs[1], script("one_device 10.78.0.2"), ends[1], number=1) as second,
    ):
        for end in ends:
            end.close()
        measured = run_in_first(looped)
        between = {engine: run_between(port, engine) for port, engine in zip(joined, ENGINES, strict=True)}
        print(f"guests: {first.wait(END_S):.1f} and {second.wait(END_S):.1f} s")
    return Guests(*measured, *(counted(jobs[0] / name) for name in ("between", "counters", "sent")), between)


def sessions_of_first(looped: Sequence[int], joined: Sequence[int]) -> list[SessionOfAgents]:
    """Of the guest with two devices and a way to the other."""
    shape = f"tc qdisc add dev va root tbf rate {RATE_BPS}bit burst {BURST_BYTES} latency 4s"
    keep = f"{keep_counters('counters')}; grep -r . /sys/class/net/*/statistics/tx_bytes >/job/sent"
    return [
        SessionOfAgents(looped[0], (0, 1)),
        SessionOfAgents(looped[1], (0, 1), keep_counters("between"), is_misplaced=True),
        SessionOfAgents(looped[2], (0, 1), shape),
        *(SessionOfAgents(port, (0,), "true" if number else keep) for number, port in enumerate(joined)),
    ]


def run_in_first(ports: Sequence[int]) -> tuple[list[Measurement], Measurement, list[Measurement]]:
    """Mixed graphs, the misplaced flow, and shaped flows, over the cable between the two devices of the first guest."""
    addressed = [{"nodes": [0, 1], "address": "10.77.1.1"}, {"nodes": [2], "address": "10.77.1.2", "device": "rxe1:1"}]
    split = {"queue_pairs": QUEUE_PAIRS, "split": True, "mtu_bytes": SMALL_MTU_BYTES}
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
    return mixed, misplaced, shaped


def run_between(port: int, engine: str) -> Measurement:
    """The mixed graph between the guests, which are joined by a cable."""
    places = [
        {"nodes": nodes, "address": f"10.78.0.{rank + 1}", "device": "rxe2:1"}
        for rank, nodes in enumerate(([0, 1], [2]))
    ]
    settings = {"transports": "rc"} if engine == "ucx" else {}
    with open_session(port, places, engine=engine, **settings) as session:
        return session.execute(mixed_graph(NODES, 12))


def device_counters(counters: dict[str, int], name: str) -> int:
    """Sum over the devices of a guest."""
    return sum(value for path, value in counters.items() if path.endswith(f"/hw_counters/{name}"))


@needs_verbs
def test_verbs_send_every_payload_as_it_is_over_queue_pairs_that_share_flows(guests: Guests) -> None:
    """Payloads are compared where they arrive. With three queue pairs a flow is up to three messages, of equal parts in
    units of 128 bytes; each message, and each message of an event, takes one receive."""
    assert {each.failure for each in guests.mixed} == {None}
    assert {status for each in guests.mixed for status in each.statuses()} == {"completed"}
    lanes = {f"rc/rxe{rank}:1 gid 1 mtu {SMALL_MTU_BYTES} queue_pairs {QUEUE_PAIRS}" for rank in (0, 1)}
    assert {lane for each in guests.mixed for lane in each.lane} == lanes
    graph = mixed_graph(NODES, 40)
    part_bytes = -(-np.maximum(graph.size_bytes, 1) // (128 * QUEUE_PAIRS)) * 128
    messages = np.maximum(1, -(-graph.size_bytes // part_bytes)).sum()
    events = sum(int(str(share_of(graph, np.array([0, 0, 1]), rank).columns["expected_messages"])) for rank in (0, 1))
    assert events > 0
    assert device_counters(guests.counters_between, "rdma_recvs") == len(guests.mixed) * (messages + events)


@needs_verbs
def test_a_payload_that_is_not_where_it_belongs_ends_the_run(guests: Guests) -> None:
    assert guests.misplaced.failure == "rank 1: flow 0 arrived with another payload than was sent"


@needs_verbs
def test_the_mtu_of_the_hosts_file_is_that_of_the_packets(guests: Guests) -> None:
    """At least one packet for each 1024 bytes; with the devices' own 4096 there were a third as many, acknowledgements
    included."""
    packets = len(guests.mixed) * (-(-mixed_graph(NODES, 40).size_bytes // SMALL_MTU_BYTES)).sum()
    assert packets <= device_counters(guests.counters_between, "sent_pkts") < 2 * packets


@needs_verbs
def test_flows_over_a_shaped_cable_take_what_their_packets_take(guests: Guests) -> None:
    """S + 58 · ceil(S / 4096) + 20 bytes per flow pass the shaper, whose bucket is full in the beginning: ten flows of
    256 KiB at 20 Mbit/s, posted at once, are acknowledged after 10 · 106.35 - 26.2 ms. 2 %."""
    assert {each.failure for each in guests.shaped} == {None}
    assert min(map(span_ps, guests.shaped)) == pytest.approx(SHAPED_PS, rel=0.02)
    on_the_cable = sum(value for path, value in guests.sent_bytes.items() if "/va/" in path)
    assert on_the_cable >= len(guests.shaped) * SHAPED_FLOWS * WIRE_BYTES


@needs_verbs
def test_counters_of_the_devices_show_no_retransmission(guests: Guests) -> None:
    """In the least disturbed runs: emulated processors may stand still for longer than acknowledgements may take."""
    assert min(map(retransmits, guests.mixed)) == 0
    assert min(map(retransmits, guests.shaped)) == 0
    assert device_counters(guests.counters, "out_of_seq_request") == 0
    assert device_counters(guests.counters, "retry_exceeded_err") == 0


@needs_ucx
@needs_verbs
@pytest.mark.parametrize(("engine", "lane"), [("ucx", "rc_verbs/rxe2:1"), ("verbs", "rc/rxe2:1 gid 1")])
def test_two_guests_exchange_payloads_through_each_engine(guests: Guests, engine: str, lane: str) -> None:
    measured = guests.between_guests[engine]
    assert measured.failure is None
    assert set(measured.statuses()) == {"completed"}
    assert all(lane in each for each in measured.lane)
