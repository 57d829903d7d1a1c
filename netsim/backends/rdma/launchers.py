"""Launchers: processes of agents on this machine, in network namespaces of it, or on other hosts through ssh."""

from __future__ import annotations

import ctypes
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final

from boundary.errors import InputError
from netsim.backends.rdma.errors import TransferFailure
from netsim.backends.rdma.hosts import Hosts

_MODULE: Final = "netsim.backends.rdma.agent"
_CLONE_NEWNET: Final = 0x40000000
"""<linux/sched.h>"""
_END_S: Final = 5.0
_NAMESPACES: Final = Path("/run/netns")


def agent_command(hosts: Hosts, rank: int, rendezvous: tuple[str, int]) -> list[str]:
    """The command that starts the agent of a rank; it reads the token from its standard input."""
    place = hosts.agents[rank]
    arguments = [
        *("-m", _MODULE, "--rank", str(rank), "--rendezvous", rendezvous[0], str(rendezvous[1])),
        *("--start-timeout", f"{hosts.start_timeout_s:g}", "--silence-timeout", f"{hosts.link_timeout_s:g}"),
    ]
    match hosts.launcher:
        case "netns":
            return ["ip", "netns", "exec", str(place.namespace), sys.executable, *arguments]
        case "ssh":
            remote = " ".join(shlex.quote(word) for word in (hosts.python, *arguments))
            return ["ssh", "-T", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=5", str(place.host), remote]
        case _:
            return [sys.executable, *arguments]


def listener_at(address: str, port: int) -> socket.socket:
    """A TCP socket that listens. Raises: InputError, where the address cannot be bound."""
    made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address, port))
        made.listen(socket.SOMAXCONN)
    except OSError as error:
        made.close()
        raise InputError(
            f"rendezvous.address: found {address} port {port} ({os.strerror(error.errno or 0)}), expected an address "
            "of this machine and a free port"
        ) from None
    return made


def listener_in(namespace: str) -> socket.socket:
    """A TCP socket that listens at 127.0.0.1 of a network namespace: control stays off the links under test.

    Raises:
        InputError: there is no such namespace, or this process may not enter it.
    """
    found: list[socket.socket | OSError | InputError] = []

    def listen() -> None:  # in a thread that ends there: namespaces are those of threads
        try:
            with (_NAMESPACES / namespace).open() as file:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(file.fileno(), _CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            found.append(listener_at("127.0.0.1", 0))
        except (OSError, InputError) as error:
            found.append(error)

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    if isinstance(found[0], socket.socket):
        return found[0]
    reason = found[0].strerror if isinstance(found[0], OSError) else str(found[0])
    raise InputError(f"namespace: found {namespace} ({reason}), expected one of `ip netns list` that may be entered")


def listeners_for(hosts: Hosts) -> dict[str | None, socket.socket]:
    """Sockets at which agents find the rendezvous, by namespace; ``None`` where there are none."""
    if hosts.launcher != "netns":
        return {None: listener_at(hosts.rendezvous.address, hosts.rendezvous.port)}
    made: dict[str | None, socket.socket] = {}
    try:
        for namespace in dict.fromkeys(place.namespace for place in hosts.agents):
            made[namespace] = listener_in(str(namespace))
    except BaseException:
        for listener in made.values():
            listener.close()
        raise
    return made


class Processes:
    """Processes of agents, with what they write."""

    def __init__(self) -> None:
        self._started: dict[int, tuple[subprocess.Popen[bytes], IO[bytes]]] = {}

    def start(self, rank: int, command: Sequence[str], token: bytes) -> None:
        """Starts an agent and hands it the token. Raises: TransferFailure."""
        output = tempfile.TemporaryFile()  # noqa: SIM115  # closed in `end`
        try:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output)
        except OSError as error:
            output.close()
            raise TransferFailure(f"rank {rank}: {command[0]}: {error.strerror or error}") from None
        self._started[rank] = (process, output)
        assert process.stdin is not None
        try:
            process.stdin.write(token.hex().encode() + b"\n")
            process.stdin.close()
        except BrokenPipeError:
            return  # it has ended already, as `find_dead` will tell

    def ids(self) -> dict[int, int]:
        """Process ids by rank."""
        return {rank: process.pid for rank, (process, _) in self._started.items()}

    def find_dead(self) -> str | None:
        """What has become of an agent that has ended."""
        for rank, (process, output) in self._started.items():
            code = process.poll()
            if code is not None:
                how = f"signal {-code}" if code < 0 else f"exit code {code}"
                return f"rank {rank}: its agent has ended ({how}){_last_line(output)}"
        return None

    def end(self) -> None:
        """Waits a little for all to end by themselves, and kills those that do not."""
        deadline_s = time.monotonic() + _END_S
        for process, output in self._started.values():
            try:
                process.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            output.close()
        self._started.clear()


def _last_line(output: IO[bytes]) -> str:
    size = os.fstat(output.fileno()).st_size
    text = os.pread(output.fileno(), 4096, max(0, size - 4096)).decode(errors="replace").strip()
    return f": {text.splitlines()[-1]}" if text else ""
