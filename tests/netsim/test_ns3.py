"""Stock ns-3 under our event engine: its traps, and that it behaves as the engine it replaces."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsim import BackendError, BackendUnavailable
from netsim.ns3 import load_extension

pytestmark = pytest.mark.ns3

try:
    ns3 = load_extension()
except BackendUnavailable as error:
    pytest.skip(str(error), allow_module_level=True)

LIBRARY = Path(ns3.__file__).parent / "ns3" / "lib" / "libns3.44-core.so"
FAR_PS = 10**15
HOP_PS = 500_000
GBPS = 10**9
BYTE_PS = {100 * GBPS: 80, 200 * GBPS: 40, 400 * GBPS: 20, 800 * GBPS: 10}
"""Serialisation of a byte: a whole number of picoseconds at these rates."""

Script = list[tuple[int, object, int, object, int]]


def chain(hops: int = 2) -> ns3.PointToPointChain:
    """400 Gbit/s and 500 ns per hop."""
    return ns3.PointToPointChain([400 * GBPS] * hops, [HOP_PS] * hops)


@pytest.fixture
def network() -> Iterator[ns3.PointToPointChain]:
    """One hop."""
    with contextlib.closing(chain(1)) as one:
        yield one


def wire_ps(payload_bytes: int, byte_ps: int = 20) -> int:
    return (payload_bytes + ns3.PointToPointChain.HEADER_BYTES) * byte_ps


def test_a_packet_over_two_hops_takes_two_serialisations_and_two_propagations() -> None:
    """4094 B and 2 B of PPP at 400 Gbit/s: 81.92 ns per hop, twice, and 2 · 500 ns: 1163.84 ns. Were the clock of the
    module still in nanoseconds, it would take a thousand times as long, or for ever."""
    with contextlib.closing(chain(2)) as network:
        network.send(4094, 0)
        assert network.advance(FAR_PS) == [(0, 1_163_840)]
        assert network.now_ps == 1_163_840


@given(
    links=st.lists(st.tuples(st.sampled_from(sorted(BYTE_PS)), st.integers(0, 10**7)), min_size=1, max_size=5),
    payload_bytes=st.integers(1, 9000),
    at_ps=st.integers(0, 10**9),
)
@settings(max_examples=50, deadline=None)
def test_each_hop_adds_its_serialisation_and_propagation(
    links: list[tuple[int, int]], payload_bytes: int, at_ps: int
) -> None:
    network = ns3.PointToPointChain([rate for rate, _ in links], [delay for _, delay in links])
    try:
        network.send(payload_bytes, at_ps)
        expected = at_ps + sum(wire_ps(payload_bytes, BYTE_PS[rate]) + delay for rate, delay in links)
        assert network.advance(FAR_PS) == [(0, expected)]
    finally:
        network.close()


def test_packets_queue_at_the_slowest_link() -> None:
    """800 → 100 → 400 Gbit/s: the k-th packet leaves the second link after k serialisations at 100 Gbit/s."""
    links = ns3.PointToPointChain([800 * GBPS, 100 * GBPS, 400 * GBPS], [0, 0, 0])
    with contextlib.closing(links) as network:
        for _ in range(5):
            network.send(998, 0)
        arrived = [delivery for _ in range(5) for delivery in network.advance(FAR_PS)]
    assert arrived == [(k, 10_000 + (k + 1) * 80_000 + 20_000) for k in range(5)]


@given(step_ps=st.integers(20_000, 10**7), sends=st.lists(st.integers(0, 5 * 10**6), min_size=1, max_size=6))
@settings(max_examples=30, deadline=None)
def test_the_size_of_steps_changes_nothing(step_ps: int, sends: list[int]) -> None:
    def arrivals(step_ps: int) -> list[tuple[int, int]]:
        network = chain(3)
        try:
            for at_ps in sends:
                network.send(1000, at_ps)
            arrived: list[tuple[int, int]] = []
            while network.next_event_ps() is not None:
                arrived += network.advance(network.now_ps + step_ps)
            return arrived
        finally:
            network.close()

    assert arrivals(step_ps) == arrivals(FAR_PS)


def test_advance_is_inclusive_and_then_stands_at_its_limit(network: ns3.PointToPointChain) -> None:
    network.send(98, 0)
    assert network.advance(2_000 + HOP_PS - 1) == []
    assert network.now_ps == 2_000 + HOP_PS - 1
    assert network.advance(2_000 + HOP_PS) == [(0, 2_000 + HOP_PS)]
    assert network.next_event_ps() is None
    assert network.advance(FAR_PS) == []
    assert network.now_ps == FAR_PS


def test_a_stop_waits_for_all_events_of_its_instant(network: ns3.PointToPointChain) -> None:
    """The second packet is handed in at the instant at which the first arrives, and after it, as that arrival has been
    scheduled when its serialisation began: the hand-over has happened when `advance` returns, so what comes next is
    the end of its serialisation."""
    network.send(98, 0)
    arrives_ps = 2_000 + HOP_PS
    assert network.advance(1) == []
    network.send(98, arrives_ps)
    assert network.advance(FAR_PS) == [(0, arrives_ps)]
    assert network.next_event_ps() == arrives_ps + 2_000


def test_a_packet_can_be_injected_between_steps(network: ns3.PointToPointChain) -> None:
    network.advance(10**6)
    network.send(98, 10**6)
    assert network.advance(FAR_PS) == [(0, 10**6 + 2_000 + HOP_PS)]


@pytest.mark.parametrize(
    ("rates", "delays", "found"),
    [([], [], "no link"), ([0], [0], "found 0"), ([1], [-1], "found -1"), ([1], [], "1 rates and 0 delays")],
)
def test_bad_links_are_refused(rates: list[int], delays: list[int], found: str) -> None:
    with pytest.raises(BackendError, match=found):
        ns3.PointToPointChain(rates, delays)
    chain().close()  # nothing was left open


def test_misuse_raises_and_the_network_goes_on(network: ns3.PointToPointChain) -> None:
    network.advance(1000)
    with pytest.raises(BackendError, match="found 999, expected not before now, 1000"):
        network.send(98, 999)
    with pytest.raises(BackendError, match="found 999, expected not before now, 1000"):
        network.advance(999)
    with pytest.raises(BackendError, match="found 0, expected 1 to"):
        network.send(0, 1000)
    with pytest.raises(BackendError, match="at most one"):
        chain()
    network.send(98, 1000)
    assert network.advance(FAR_PS) == [(0, 3_000 + HOP_PS)]


def test_use_after_close_raises_and_closing_twice_does_nothing(network: ns3.PointToPointChain) -> None:
    network.send(98, 0)
    network.close()
    network.close()
    for use in (lambda: network.send(98, 0), lambda: network.advance(1), network.next_event_ps, lambda: network.now_ps):
        with pytest.raises(BackendError, match="after close"):
            use()


def test_a_network_may_be_made_used_and_closed_by_different_threads() -> None:
    """Stock ns-3 terminates the process when a thread other than the creator's schedules an event."""
    made: list[ns3.PointToPointChain] = []
    arrived: list[tuple[int, int]] = []

    def use() -> None:
        made[0].send(98, 0)
        arrived.extend(made[0].advance(FAR_PS))

    for step in (lambda: made.append(chain(1)), use, lambda: made[0].close()):
        thread = threading.Thread(target=step)
        thread.start()
        thread.join()
    assert arrived == [(0, 2_000 + HOP_PS)]
    chain().close()


def test_a_second_thread_is_refused_while_one_is_inside(network: ns3.PointToPointChain) -> None:
    """The first thread is busy with 100,000 packets and has released the interpreter meanwhile."""
    for _ in range(100_000):
        network.send(98, 10**12)
    network.send(98, 0)
    network.advance(10**12 - 1)
    began, refused = threading.Event(), []

    def drain() -> None:
        began.set()
        while network.advance(FAR_PS):
            if refused:
                return

    thread = threading.Thread(target=drain)
    thread.start()
    began.wait()
    while thread.is_alive() and not refused:
        try:
            network.next_event_ps()
        except BackendError as error:
            refused.append(str(error))
    thread.join()
    assert refused
    assert "another thread is inside" in refused[0]


def test_thousands_of_networks_in_turn_give_equal_results_and_no_growth() -> None:
    def once() -> list[tuple[int, int]]:
        network = chain(2)
        network.send(1000, 0)
        network.send(1000, 10**9)  # left behind
        arrived = network.advance(10**7)
        network.close()
        return arrived

    for _ in range(500):
        first = once()
    before = resident_bytes()
    assert all(once() == first for _ in range(2000))
    assert resident_bytes() - before < 500_000  # less than 250 B each


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def run_python(program: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, as what goes wrong would end ours."""
    head = "import os, netsim.ns3\nns3 = netsim.ns3.load_extension()\n"
    head += "network = ns3.PointToPointChain([400 * 10**9], [500_000])\nnetwork.send(98, 0)\n"
    return run_bare_python(head + program)


def run_bare_python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)


def test_a_fork_with_a_live_network_continues_in_both_processes() -> None:
    ran = run_python(
        "child = os.fork()\n"
        "arrived = network.advance(10**9)\n"
        "network.close()\n"
        "os.write(1, f'{arrived}\\n'.encode())\n"
        "if child == 0: os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == ["[(0, 502000)]", "[(0, 502000)]", "7"]


def test_a_process_may_end_with_a_live_network() -> None:
    ran = run_python("print(network.now_ps)")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "0\n", "")


def test_an_exception_with_a_live_network_ends_python_the_ordinary_way() -> None:
    ran = run_python("raise KeyError('mine')")
    assert ran.returncode == 1
    assert ran.stderr.endswith("KeyError: 'mine'\n")


def test_another_ns3_in_the_process_is_refused() -> None:
    """Its clock may already run in nanoseconds, and ns-3 would end the process at an attempt to change that."""
    ran = run_bare_python(
        f"import ctypes; ctypes.CDLL({str(LIBRARY)!r})\nimport netsim.ns3\n"
        "try:\n    netsim.ns3.load_extension()\nexcept netsim.BackendUnavailable as error:\n    print(error)\n"
    )
    assert (ran.returncode, ran.stdout) == (
        0,
        "backend ns3: another ns-3 is loaded in this process; use a process of its own\n",
    )


def test_libraries_come_from_beside_the_module() -> None:
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libns3" in line}
    assert {Path(path).parent for path in mapped} == {LIBRARY.parent.resolve()}
    assert (LIBRARY.parent / "LICENSE").read_text().lstrip().startswith("GNU GENERAL PUBLIC LICENSE")


# The event engine against the one of ns-3.


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    size = draw(st.integers(1, 25))
    how = st.sampled_from([ns3.How.SCHEDULE] * 4 + [ns3.How.WITH_CONTEXT, ns3.How.NOW, ns3.How.AT_DESTROY])
    act = st.sampled_from([ns3.Act.NONE, ns3.Act.CANCEL, ns3.Act.REMOVE, ns3.Act.STOP])
    return [
        (
            draw(st.integers(-1, i - 1)),
            draw(how),
            draw(st.sampled_from([0, 0, 1, 2, 3, 50, 1000])),
            draw(act),
            draw(st.integers(0, size - 1)),
        )
        for i in range(size)
    ]


def seen(engine: object, script: Script, step_ps: int = 0) -> list[tuple[int, ...]]:
    """What the events saw; of those run at destruction only that they ran and what had expired, as the clock of stock
    ns-3 also moves to cancelled events."""
    log = ns3.run_script(engine, script, step_ps)
    return [row if script[row[1]][1] != ns3.How.AT_DESTROY else (row[1], row[3]) for row in log]


@given(script=scripts(), step_ps=st.integers(1, 300))
@settings(max_examples=300, deadline=None)
def test_events_run_and_expire_as_in_stock_ns3_whatever_the_steps(script: Script, step_ps: int) -> None:
    stock = seen(ns3.Engine.STOCK, script)
    assert seen(ns3.Engine.STEPPED, script) == stock
    assert seen(ns3.Engine.STEPPED, script, step_ps) == stock


def test_cancelling_most_of_many_events_leaves_the_others_in_order() -> None:
    """1,000 events at random instants; 800 of them are cancelled or removed before, more than are kept lazily."""
    rng = random.Random(5)
    script: Script = [(-1, ns3.How.SCHEDULE, rng.randrange(2000, 2500), ns3.Act.NONE, 0) for _ in range(1000)]
    for victim in rng.sample(range(1000), 800):
        act = rng.choice([ns3.Act.CANCEL, ns3.Act.REMOVE])
        script.append((-1, ns3.How.SCHEDULE, rng.randrange(1, 1900), act, victim))
    stock = seen(ns3.Engine.STOCK, script)
    assert len(stock) == 1000
    assert seen(ns3.Engine.STEPPED, script) == stock


def test_events_in_the_past_or_beyond_the_clock_raise() -> None:
    for delay_ps, message in ((-5, "event at -5 ps"), (2**63 - 1, "within 2\\^63 ps")):
        script = [(-1, ns3.How.SCHEDULE, 10, ns3.Act.NONE, 0), (0, ns3.How.SCHEDULE, delay_ps, ns3.Act.NONE, 0)]
        with pytest.raises(BackendError, match=message if delay_ps > 0 else "event at 5 ps, expected not before"):
            ns3.run_script(ns3.Engine.STEPPED, script, 0)


def test_an_exception_of_an_event_reaches_python_and_the_next_network_works() -> None:
    script = [
        (-1, ns3.How.SCHEDULE, 10, ns3.Act.FAIL, 0),
        (-1, ns3.How.SCHEDULE, 20, ns3.Act.NONE, 0),
        (-1, ns3.How.AT_DESTROY, 0, ns3.Act.NONE, 0),
    ]
    for step_ps in (0, 3):
        with pytest.raises(RuntimeError, match="event 0 of the script failed"):
            ns3.run_script(ns3.Engine.STEPPED, script, step_ps)
    test_a_packet_over_two_hops_takes_two_serialisations_and_two_propagations()


def test_a_script_is_refused_while_a_network_is_open(network: ns3.PointToPointChain) -> None:
    with pytest.raises(BackendError, match="at most one"):
        ns3.run_script(ns3.Engine.STOCK, [(-1, ns3.How.NOW, 0, ns3.Act.NONE, 0)], 0)
