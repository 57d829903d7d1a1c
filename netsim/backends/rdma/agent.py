"""Agent: the process of a rank, ``python -m netsim.backends.rdma.agent``. It ends with its control connection.

The main thread minds the control connection, signs of life and links; another one executes
(`netsim.backends.rdma.execution`).
"""

from __future__ import annotations

import argparse
import os
import queue
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from boundary.errors import Failure
from netsim.backends.rdma.control import ControlConnection, connect_to_rendezvous
from netsim.backends.rdma.errors import TransferFailure
from netsim.backends.rdma.execution import Aborted, Execution
from netsim.backends.rdma.frames import Frame
from netsim.backends.rdma.link_watch import LinkWatch
from netsim.backends.rdma.meeting import BEAT_S, PROTOCOL

_END_S: Final = 3.0
"""For the executing thread to end, before the process ends without it."""


class Agent:
    """Agent of ``rank``; `serve` returns when the rendezvous says ``bye``."""

    def __init__(self, control: ControlConnection, rank: int, digest: str | None, silence_s: float) -> None:
        self._control, self._rank, self._silence_s = control, rank, silence_s
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        self._requests: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._commands: queue.SimpleQueue[Frame] = queue.SimpleQueue()
        self._stop: Callable[[], None] = lambda: None
        self._watch: LinkWatch | None = None
        self._is_over = False
        self._why_ended: str | None = None
        self._selector.register(control.socket, selectors.EVENT_READ, self._hear)
        self._selector.register(self._woken, selectors.EVENT_READ, self._serve_requests)
        control.send("hello", {"rank": rank, "protocol": PROTOCOL, "digest": digest, "pid": os.getpid()})

    def serve(self) -> None:
        """Raises: TransferFailure, where the run has failed or the rendezvous is lost."""
        worker = threading.Thread(target=self._work, daemon=True)
        worker.start()
        try:
            self._mind()
        except (TransferFailure, OSError):
            if self._why_ended is None:
                raise
        finally:
            self._commands.put(Frame("bye", {}))
            self._stop()
            worker.join(_END_S)
            self._set_watch(None)
            self._selector.close()
            self._woken.close()
            self._waker.close()
        if self._why_ended is not None:
            raise TransferFailure(self._why_ended)

    # What the executing thread uses; the selector belongs to the main thread.

    def next_command(self) -> Frame:
        """The next frame of the rendezvous. Raises: Aborted."""
        frame = self._commands.get()
        if frame.kind in ("abort", "bye"):
            raise Aborted
        return frame

    def await_abort(self) -> None:
        """Returns when the run has been ended for all."""
        while self._commands.get().kind not in ("abort", "bye"):
            pass

    def send(self, kind: str, fields: dict[str, Any] | None = None, blob: bytes = b"") -> None:
        """Sends a frame to the rendezvous."""
        self._control.send(kind, fields, blob)

    def use_engine(self, stop: Callable[[], None], done_descriptor: int) -> None:
        """``stop`` ends a run; the descriptor becomes readable when all of a run is done here."""

        def report_done() -> None:
            os.read(done_descriptor, 8)
            self._control.send("done")

        def use() -> None:
            self._stop = stop
            self._selector.register(done_descriptor, selectors.EVENT_READ, report_done)

        self._request(use)

    def watch_links(self, watch: LinkWatch | None) -> None:
        """Watches these links from now on, or none."""
        self._request(lambda: self._set_watch(watch))

    def _request(self, request: Callable[[], None]) -> None:
        self._requests.put(request)
        self._waker.send(b"!")

    # What the main thread does.

    def _mind(self) -> None:
        self._heard_s = next_beat_s = time.monotonic()
        while not self._is_over:
            for key, _ in self._selector.select(max(0.0, next_beat_s - time.monotonic())):
                key.data()
            now_s = time.monotonic()
            if now_s >= next_beat_s:
                next_beat_s = now_s + BEAT_S
                self._control.send("beat")
                self._ping()
            if now_s - self._heard_s > self._silence_s:
                raise TransferFailure(f"rendezvous: silent for {self._silence_s:g} s")

    def _hear(self) -> None:
        self._heard_s = time.monotonic()
        for frame in self._control.receive():
            match frame.kind:
                case "beat":
                    continue
                case "bye":
                    self._is_over = True
                case "drain":
                    self._stop()
                case "abort":
                    self._why_ended = f"the run has ended: {frame.fields['reason']}"
                    self._stop()
            self._commands.put(frame)

    def _serve_requests(self) -> None:
        self._woken.recv(64)
        while not self._requests.empty():
            self._requests.get()()

    def _set_watch(self, watch: LinkWatch | None) -> None:
        if self._watch is not None:
            self._selector.unregister(self._watch.socket)
            self._watch.close()
        self._watch = watch
        if watch is not None:
            self._selector.register(watch.socket, selectors.EVENT_READ, watch.hear)

    def _ping(self) -> None:
        if self._watch is None:
            return
        if (rank := self._watch.silent_rank()) is not None:
            reason = f"link to rank {rank}: silent for {self._watch.silence_s:g} s"
            self._set_watch(None)
            self._control.send("failed", {"reason": reason})
        else:
            self._watch.ping()

    def _work(self) -> None:
        execution = Execution(self, self._rank)
        try:
            execution.serve()
        except (Aborted, OSError):
            pass  # the main thread sees the same
        except Exception as error:
            reason = str(error) if isinstance(error, Failure) else f"{type(error).__name__}: {error}"
            self._give_up(reason)
        finally:
            execution.close()

    def _give_up(self, reason: str) -> None:
        try:
            self._control.send("failed", {"reason": reason})
        except OSError:
            return


def run_agent(
    rendezvous: tuple[str, int], token: bytes, rank: int, digest: str | None, timeouts_s: tuple[float, float]
) -> None:
    """Connects to the rendezvous and serves it to the end.

    Args:
        rendezvous: its address and port.
        token: the secret of the run.
        rank: of this agent.
        digest: of the graph, where this rank has read it itself.
        timeouts_s: for the rendezvous to answer at first, and after which its silence means its end.

    Raises:
        TransferFailure: the rendezvous is not there or is lost, or the run has failed; the message says why.
    """
    control = connect_to_rendezvous(*rendezvous, token, timeouts_s[0])
    try:
        Agent(control, rank, digest, timeouts_s[1]).serve()
    except OSError as error:
        raise TransferFailure(f"rendezvous: {error.strerror or error}") from None
    finally:
        control.close()


def main() -> None:
    """Reads the token, one line of hexadecimal digits, from standard input."""
    parser = argparse.ArgumentParser(
        prog="netsim.backends.rdma.agent", description="An agent of netsim's rdma backend."
    )
    parser.add_argument("--rendezvous", nargs=2, metavar=("ADDRESS", "PORT"), required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--start-timeout", type=float, required=True, metavar="SECONDS")
    parser.add_argument("--silence-timeout", type=float, required=True, metavar="SECONDS")
    arguments = parser.parse_args()
    address, port = arguments.rendezvous
    code = 0
    try:
        token = bytes.fromhex(sys.stdin.readline().strip())
        timeouts_s = (arguments.start_timeout, arguments.silence_timeout)
        run_agent((address, int(port)), token, arguments.rank, None, timeouts_s)
    except (Failure, ValueError) as error:
        sys.stderr.write(f"rank {arguments.rank}: {error}\n")
        code = 1
    sys.stderr.flush()
    os._exit(code)  # whatever the libraries of transports still do in threads of theirs


if __name__ == "__main__":
    main()
