"""Each way in which a run can go wrong ends on every rank, in time, with one clear line and the rows that there are."""

from __future__ import annotations

import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from netsim import FlowGraph
from netsim.backends.rdma import launchers
from netsim.backends.rdma.control import ControlConnection, connect_to_rendezvous
from netsim.backends.rdma.errors import TransferFailure
from netsim.backends.rdma.frames import MAGIC, NONCE_BYTES, Frame, FrameCodec, FrameError
from netsim.backends.rdma.launchers import listener_at
from netsim.backends.rdma.meeting import PROTOCOL, Meeting
from netsim.backends.rdma.session import Session
from tests.netsim.rdma.conftest import loopback
from tests.netsim.rdma.needs import needs_ucx

Open = Callable[..., Session]
TOKEN = bytes(range(32))
LONG_PS = 600 * 10**12
"""Ten minutes: the flow after this delay never starts in a test."""


@contextmanager
def meeting(ranks: int = 2, most_bytes: int = 1 << 20, silence_s: float = 5.0) -> Iterator[tuple[Meeting, int]]:
    """A meeting, and its port on loopback."""
    listener = listener_at("127.0.0.1", 0)
    port = listener.getsockname()[1]
    made = Meeting([listener], TOKEN, ranks, digest="abc", silence_s=silence_s, most_bytes=most_bytes)
    try:
        yield made, port
    finally:
        made.close()


@contextmanager
def joined(port: int, *hellos: dict[str, Any], token: bytes = TOKEN) -> Iterator[list[TransferFailure]]:
    """Agents that say hello and then wait for an end; the list fills with what they hear in the end."""
    heard: list[TransferFailure] = []

    def attend(hello: dict[str, Any]) -> None:
        try:
            control = connect_to_rendezvous("127.0.0.1", port, token, 5.0)
            try:
                control.send("hello", {"protocol": PROTOCOL, "digest": None, **hello})
                while True:
                    for frame in control.receive():
                        if frame.kind == "abort":
                            raise TransferFailure(frame.fields["reason"])
            finally:
                control.close()
        except TransferFailure as failure:
            heard.append(failure)

    threads = [threading.Thread(target=attend, args=(hello,)) for hello in hellos]
    for thread in threads:
        thread.start()
    yield heard
    for thread in threads:
        thread.join(20.0)
        assert not thread.is_alive()


def failing_hello(*hellos: dict[str, Any]) -> tuple[str, list[TransferFailure]]:
    """What the meeting and its agents say about these hellos."""
    with meeting() as (made, port), joined(port, *hellos) as heard:
        with pytest.raises(TransferFailure) as failure:
            made.collect("hello", 5.0)
        made.abort(str(failure.value), 0.0)
        made.close()
    return str(failure.value), heard


def test_a_rank_that_comes_twice_ends_the_meeting() -> None:
    message, heard = failing_hello({"rank": 1}, {"rank": 1})
    assert "rank 1: found twice, at 127.0.0.1 port" in message
    assert len(heard) == 2
    assert any(str(each) == message for each in heard)


def test_a_rank_outside_of_the_hosts_ends_the_meeting() -> None:
    assert "found rank 2, expected one of 0 to 1" in failing_hello({"rank": 2})[0]


def test_another_graph_ends_the_meeting() -> None:
    message, heard = failing_hello({"rank": 1, "digest": "abx"})
    assert "rank 1: found a graph with SHA-256 abx" in message
    assert [str(each) for each in heard] == [message]


def test_another_protocol_ends_the_meeting() -> None:
    assert f"found protocol 99, expected {PROTOCOL}" in failing_hello({"rank": 0, "protocol": 99})[0]


def test_a_wrong_token_is_turned_away_on_both_sides_and_named_when_the_rank_stays_away() -> None:
    with meeting() as (made, port), joined(port, {"rank": 0}, token=b"x" * 32) as heard:
        with pytest.raises(TransferFailure, match=r"found no hello in 2 s .turned away: token: found a wrong one"):
            made.collect("hello", 2.0)
        made.close()
    assert "token: the connection was closed" in str(heard[0])


def test_a_rendezvous_without_the_token_is_not_believed() -> None:
    listener = listener_at("127.0.0.1", 0)

    def pretend() -> None:
        accepted, _ = listener.accept()
        with accepted:
            accepted.sendall(MAGIC + bytes(NONCE_BYTES))
            accepted.recv(64)
            accepted.sendall(bytes(32))
            accepted.recv(64)

    thread = threading.Thread(target=pretend)
    thread.start()
    with pytest.raises(TransferFailure, match="wrong proof of the token"):
        connect_to_rendezvous("127.0.0.1", listener.getsockname()[1], TOKEN, 5.0)
    thread.join()
    listener.close()


def test_a_frame_that_is_too_long_ends_the_meeting_before_it_is_read() -> None:
    with meeting(ranks=1) as (made, port):
        answers: list[ControlConnection] = []
        thread = threading.Thread(target=lambda: answers.append(connect_to_rendezvous("127.0.0.1", port, TOKEN, 5.0)))
        thread.start()
        with pytest.raises(TransferFailure):
            made.collect("hello", 1.0)
        thread.join()
        control = answers[0]
        control.send("hello", {"rank": 0, "protocol": PROTOCOL, "digest": None})
        assert set(made.collect("hello", 5.0)) == {0}
        control.socket.sendall(struct.pack("!I", (1 << 20) + 1))
        with pytest.raises(TransferFailure, match="rank 0: frame: found 1048577 bytes, expected at most 1048576"):
            made.collect("address", 5.0)
        control.close()


def test_frames_that_were_changed_or_repeated_are_refused() -> None:
    challenge, nonce = bytes(32), bytes(range(32))
    agent = FrameCodec(TOKEN, b"agent", challenge, nonce, 1 << 20)
    rendezvous = FrameCodec(TOKEN, b"rendezvous", challenge, nonce, 1 << 20)
    encoded = agent.encode(Frame("beat", {"n": 1}, b"blob"))
    halves = rendezvous.decode(encoded[:7]) + rendezvous.decode(encoded[7:])
    assert [(frame.kind, frame.fields, frame.blob) for frame in halves] == [("beat", {"n": 1}, b"blob")]
    with pytest.raises(FrameError, match="authentication"):
        rendezvous.decode(encoded)
    changed = bytearray(agent.encode(Frame("beat", {})))
    changed[-1] ^= 1
    with pytest.raises(FrameError, match="authentication"):
        FrameCodec(TOKEN, b"rendezvous", challenge, nonce, 1 << 20).decode(bytes(changed))


def test_strangers_who_never_answer_do_not_keep_the_meeting_from_its_agents() -> None:
    with meeting(ranks=1) as (made, port):
        strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(70)]
        strangers[0].sendall(b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n" + bytes(64))
        with joined(port, {"rank": 0}):
            with pytest.raises(TransferFailure):
                made.collect("nothing", 1.0)
            made.close()
        for stranger in strangers:
            stranger.close()


@needs_ucx
def test_an_agent_that_is_killed_is_noticed_at_once_and_rows_stay(open_session: Open) -> None:
    """Flow 0 arrives, flow 1 would start ten minutes later."""
    graph = FlowGraph.from_lists([0, 1], [1, 0], [8, 8], deps=[[], [0]], delay_ps=[0, LONG_PS])
    session = open_session(loopback(3))
    victim = session.process_ids[1]
    timer = threading.Timer(1.0, os.kill, (victim, signal.SIGKILL))
    timer.start()
    started_s = time.monotonic()
    measured = session.execute(graph)
    timer.join()
    assert time.monotonic() - started_s < 8.0
    assert measured.failure is not None
    assert "rank 1: " in measured.failure  # its own end, or what another rank says of it
    assert measured.start_ps[0] >= 0
    assert measured.statuses()[1] == "failed: waits for a failed flow"
    with pytest.raises(TransferFailure, match="rank 1"):
        session.execute(graph)


@needs_ucx
def test_an_agent_that_stands_still_is_noticed_within_the_deadline(open_session: Open) -> None:
    graph = FlowGraph.from_lists([0, 1], [1, 0], [8, 8], deps=[[], [0]], delay_ps=[0, LONG_PS])
    session = open_session(loopback(2, link_timeout_s=3.0))
    victim = session.process_ids[1]
    timer = threading.Timer(1.0, os.kill, (victim, signal.SIGSTOP))
    timer.start()
    started_s = time.monotonic()
    try:
        measured = session.execute(graph)
    finally:
        timer.join()
        os.kill(victim, signal.SIGCONT)
    assert measured.failure in ("rank 1: silent for 3 s", "rank 0: link to rank 1: silent for 3 s")
    assert measured.end_ps[0] >= 0 or measured.start_ps[0] >= 0
    assert time.monotonic() - started_s < 20.0


@needs_ucx
def test_agents_end_with_the_process_that_started_them(open_session: Open) -> None:
    """The sockets of a killed process are closed by the system, which is what its agents see."""
    session = open_session(loopback(2))
    pids = list(session.process_ids.values())
    session._meeting.close()  # as the kernel does
    deadline_s = time.monotonic() + 10.0
    for pid in pids:
        while _runs(pid):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)


@needs_ucx
def test_a_run_that_takes_too_long_ends(open_session: Open) -> None:
    graph = FlowGraph.from_lists([0], [1], [8], delay_ps=[LONG_PS])
    measured = open_session(loopback(2, run_timeout_s=1.0)).execute(graph)
    assert measured.failure is not None
    assert "found no done in 1 s" in measured.failure
    assert measured.statuses() == ["failed: waits for a failed flow"]


@needs_ucx
def test_an_unknown_device_is_named() -> None:
    hosts = loopback(2)
    wrong = hosts.agents[1].model_copy(update={"device": "nosuch0"})
    with pytest.raises(TransferFailure, match=r"rank \d: .*") as failure:
        Session(hosts.model_copy(update={"agents": (hosts.agents[0], wrong)}))
    assert "nosuch0" in str(failure.value)


@needs_ucx
def test_an_agent_with_a_wrong_token_ends_the_run_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The launcher hands rank 1 another token than it expects itself."""
    start = launchers.Processes.start

    def wrong_for_rank_1(self: launchers.Processes, rank: int, command: list[str], token: bytes) -> None:
        start(self, rank, command, bytes(32) if rank == 1 else token)

    monkeypatch.setattr(launchers.Processes, "start", wrong_for_rank_1)
    started_s = time.monotonic()
    with pytest.raises(TransferFailure, match=r"rank 1: its agent has ended.*token"):
        Session(loopback(2))
    assert time.monotonic() - started_s < 10.0


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
