"""Stock ns-3 under our event engine: its traps, and that it behaves as the engine it replaces."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsim import BackendError, BackendUnavailable, FlowGraph
from netsim.backends.ns3 import Ns3Backend
from netsim.backends.ns3.extension import load_extension
from tests.netsim.conformance import PacketTimes
from tests.netsim.strategies import GBPS, LATENCY_PS, star

pytestmark = pytest.mark.ns3

try:
    ns3 = load_extension()
except BackendUnavailable as error:
    pytest.skip(str(error), allow_module_level=True)

LIBRARY = Path(ns3.__file__).parent / "backends" / "ns3" / "lib" / "libns3.44-core.so"
FAR_PS = 10**15
FLOW = FlowGraph.from_lists([0], [1], [1000])
ARRIVES_PS = PacketTimes().transfer_ps(1000)

Script = list[tuple[int, object, int, object, int]]


@pytest.fixture
def network() -> Iterator[Ns3Backend]:
    with contextlib.closing(Ns3Backend(star(2))) as one:
        yield one


def arrival_ps(network: Ns3Backend) -> int:
    """Of a flow that is submitted at 0, or has been."""
    return network.advance(FAR_PS)[0].at_ps


def test_a_network_may_be_made_used_and_closed_by_different_threads() -> None:
    """Stock ns-3 terminates the process when a thread other than the creator's schedules an event."""
    made: list[Ns3Backend] = []
    arrived: list[int] = []

    def use() -> None:
        made[0].submit(FLOW, 0)
        arrived.append(arrival_ps(made[0]))

    for step in (lambda: made.append(Ns3Backend(star(2))), use, lambda: made[0].close()):
        thread = threading.Thread(target=step)
        thread.start()
        thread.join()
    assert arrived == [ARRIVES_PS]
    Ns3Backend(star(2)).close()


def run_python(program: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, as what goes wrong would end ours."""
    head = (
        "import os\nfrom netsim import FlowGraph, create_backend, single_switch\n"
        "from netsim.topologies.defaults import LinkRates\n"
        f"rates = LinkRates(nic_bps={400 * GBPS}, nic_latency_ps={LATENCY_PS})\n"
        "network = create_backend('ns3', single_switch(2, rates=rates))\n"
        "network.submit(FlowGraph.from_lists([0], [1], [1000]), 0)\n"
    )
    return run_bare_python(head + program)


def run_bare_python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)


def test_a_fork_with_a_live_network_continues_in_both_processes() -> None:
    ran = run_python(
        "child = os.fork()\n"
        "arrived = network.advance(10**9)[0].at_ps\n"
        "network.close()\n"
        "os.write(1, f'{arrived}\\n'.encode())\n"
        "if child == 0: os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == [str(ARRIVES_PS), str(ARRIVES_PS), "7"]


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
        f"import ctypes; ctypes.CDLL({str(LIBRARY)!r})\n"
        "from netsim import BackendUnavailable\nfrom netsim.backends.ns3.extension import load_extension\n"
        "try:\n    load_extension()\nexcept BackendUnavailable as error:\n    print(error)\n"
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
@settings(max_examples=300)
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
    with contextlib.closing(Ns3Backend(star(2))) as network:
        network.submit(FLOW, 0)
        assert arrival_ps(network) == ARRIVES_PS


def test_a_script_is_refused_while_a_network_is_open(network: Ns3Backend) -> None:
    with pytest.raises(BackendError, match="at most one"):
        ns3.run_script(ns3.Engine.STOCK, [(-1, ns3.How.NOW, 0, ns3.Act.NONE, 0)], 0)
