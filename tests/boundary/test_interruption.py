"""Signals that end a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from boundary.interruption import GRACE_S, Interrupted, deferred, interruptible


@pytest.fixture(autouse=True)
def _as_from_a_terminal() -> Iterator[None]:
    """Python's own handlers, also where the tests are run in the background or by nohup, which ignore some signals."""
    before = {each: signal.signal(each, signal.SIG_DFL) for each in (signal.SIGTERM, signal.SIGHUP)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_raises_with_the_exit_code_that_shells_expect(sent: signal.Signals, code: int) -> None:
    with pytest.raises(Interrupted, match=f"interrupted by {sent.name}") as raised, interruptible("test"):
        os.kill(os.getpid(), sent)
    assert raised.value.exit_code == code
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_signal_that_comes_in_a_deferred_block_acts_at_its_end() -> None:
    done = []

    def work() -> None:
        with deferred(), deferred():
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            done.append("whole")
        done.append("never")

    with pytest.raises(Interrupted, match="SIGTERM"), interruptible("test"):
        work()
    assert done == ["whole"]


def test_a_signal_of_which_a_library_makes_something_else_ends_the_process_all_the_same() -> None:
    def swallow() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except Interrupted:
            raise TypeError("no common type") from None

    with pytest.raises(Interrupted, match="SIGTERM"), interruptible("test"):
        swallow()


def test_a_signal_during_hours_of_compiled_code_ends_the_process() -> None:
    code = "import hashlib\nfrom boundary.interruption import interruptible\nwith interruptible('netsim'):\n"
    code += "    print('ready', flush=True)\n    hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)"
    command = [sys.executable, "-c", code]
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        time.sleep(1)  # until the compiled code runs
        running.send_signal(signal.SIGTERM)
        said = running.communicate(timeout=60)[1]
    assert (running.returncode, said) == (143, "netsim: interrupted by SIGTERM; no file is half written\n")


def test_a_child_process_is_ended_by_itself() -> None:
    """What a pool of processes sends to its workers must not end the program, nor make them print a traceback."""
    with interruptible("test"):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        os.kill(child, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        time.sleep(GRACE_S + 0.5)


def test_a_signal_that_is_ignored_stays_so() -> None:
    """As under ``nohup``."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible("test"):
            os.kill(os.getpid(), signal.SIGHUP)
            with deferred():
                os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
