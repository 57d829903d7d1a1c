"""Control connection of an agent to the rendezvous."""

from __future__ import annotations

import hmac
import socket
import threading
import time
from typing import Any, Final

from netsim.backends.rdma.errors import TransferFailure
from netsim.backends.rdma.frames import (
    MAGIC,
    MOST_FRAME_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    Frame,
    FrameCodec,
    new_nonce,
    proof,
)

_RETRY_S: Final = 0.2
_ANSWER_S: Final = 10.0
_READ_BYTES: Final = 1 << 20


class ControlConnection:
    """Connection that has proved both sides; `send` may be called from any thread, `receive` from one."""

    def __init__(self, connected: socket.socket, codec: FrameCodec) -> None:
        self.socket = connected
        self._codec = codec
        self._sending = threading.Lock()

    def send(self, kind: str, fields: dict[str, Any] | None = None, blob: bytes = b"") -> None:
        """Sends a frame. Raises: OSError."""
        with self._sending:
            self.socket.sendall(self._codec.encode(Frame(kind, fields or {}, blob)))

    def receive(self) -> list[Frame]:
        """Frames that are complete; waits for some bytes.

        Raises:
            TransferFailure: the connection has ended, or a frame cannot be one of ours.
        """
        try:
            received = self.socket.recv(_READ_BYTES)
        except OSError as error:
            raise TransferFailure(f"rendezvous: {error.strerror or error}") from None
        if not received:
            raise TransferFailure("rendezvous: the control connection has ended")
        return self._codec.decode(received)

    def close(self) -> None:
        self.socket.close()


def connect_to_rendezvous(address: str, port: int, token: bytes, within_s: float) -> ControlConnection:
    """Connects, and proves to know the token.

    Raises:
        TransferFailure: nobody answers, or the other side does not know the token.
    """
    where = f"rendezvous at {address} port {port}"
    connected = _connected(address, port, where, within_s)
    try:
        connected.settimeout(_ANSWER_S)
        greeting = _exactly(connected, len(MAGIC) + NONCE_BYTES, where)
        if not greeting.startswith(MAGIC):
            raise TransferFailure(f"{where}: found {greeting[: len(MAGIC)]!r}, expected {MAGIC!r} of netsim")
        challenge, nonce = greeting[len(MAGIC) :], new_nonce()
        connected.sendall(nonce + proof(token, b"agent", challenge, nonce))
        answer = _exactly(connected, PROOF_BYTES, f"{where}: token")
        if not hmac.compare_digest(answer, proof(token, b"rendezvous", challenge, nonce)):
            raise TransferFailure(f"{where}: found a wrong proof of the token, expected that of this run")
        connected.settimeout(None)
        return ControlConnection(connected, FrameCodec(token, b"agent", challenge, nonce, MOST_FRAME_BYTES))
    except BaseException as error:
        connected.close()
        if isinstance(error, OSError):
            raise TransferFailure(f"{where}: {error.strerror or error}") from None
        raise


def _connected(address: str, port: int, where: str, within_s: float) -> socket.socket:
    deadline_s = time.monotonic() + within_s
    while True:
        try:
            return socket.create_connection((address, port), timeout=_ANSWER_S)
        except OSError as error:
            if time.monotonic() > deadline_s:
                raise TransferFailure(f"{where}: {error.strerror or error}") from None
            time.sleep(_RETRY_S)


def _exactly(connected: socket.socket, count: int, where: str) -> bytes:
    found = b""
    while len(found) < count:
        received = connected.recv(count - len(found))
        if not received:
            raise TransferFailure(f"{where}: the connection was closed, expected an answer (is the token the same?)")
        found += received
    return found
