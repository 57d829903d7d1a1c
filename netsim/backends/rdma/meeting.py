"""Meeting of the agents: the rendezvous's side of their control connections, before and after the flows."""

from __future__ import annotations

import hmac
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from netsim.backends.rdma.errors import TransferFailure
from netsim.backends.rdma.frames import (
    MAGIC,
    MOST_FRAME_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    Frame,
    FrameCodec,
    FrameError,
    new_nonce,
    proof,
)

PROTOCOL: Final = 2
"""Changes with every frame and message that older agents would not understand."""
BEAT_S: Final = 1.0
"""Between two signs of life on a control connection."""
_CHALLENGE_S: Final = 10.0
_SEND_S: Final = 10.0
_READ_BYTES: Final = 1 << 20
_MOST_STRANGERS: Final = 64
"""Connections that have not answered their challenge yet; more are closed."""


class _Connection:
    """One accepted connection; a stranger until its challenge is answered, without a rank until its hello."""

    def __init__(self, accepted: socket.socket, peer: str, token: bytes, most_bytes: int) -> None:
        self.socket = accepted
        self.peer = peer
        self.rank: int | None = None
        self.codec: FrameCodec | None = None
        self.heard_s = time.monotonic()
        self._token = token
        self._most_bytes = most_bytes
        self._challenge = new_nonce()
        self._answer = bytearray()
        self.socket.settimeout(_SEND_S)
        self.socket.sendall(MAGIC + self._challenge)

    def take(self, received: bytes) -> list[Frame]:
        """Frames, once the challenge is answered. Raises: FrameError."""
        self.heard_s = time.monotonic()
        if self.codec is None:
            self._answer += received
            if len(self._answer) < NONCE_BYTES + PROOF_BYTES:
                return []
            received = bytes(self._answer[NONCE_BYTES + PROOF_BYTES :])
            self._admit(bytes(self._answer[:NONCE_BYTES]), bytes(self._answer[NONCE_BYTES:][:PROOF_BYTES]))
        assert self.codec is not None
        return self.codec.decode(received)

    def _admit(self, nonce: bytes, answer: bytes) -> None:
        if not hmac.compare_digest(answer, proof(self._token, b"agent", self._challenge, nonce)):
            raise FrameError(f"token: found a wrong one from {self.peer}, expected that of this run")
        self.socket.sendall(proof(self._token, b"rendezvous", self._challenge, nonce))
        self.codec = FrameCodec(self._token, b"rendezvous", self._challenge, nonce, self._most_bytes)

    def send(self, frame: Frame) -> None:
        assert self.codec is not None
        self.socket.sendall(self.codec.encode(frame))


class Meeting:
    """Meeting of ``ranks`` agents.

    Whoever does not know the token is turned away, and the meeting goes on. A frame that is too long, a rank that comes
    twice, another version or graph, a connection that ends or is silent, and a rank that reports a failure end it.

    Args:
        listeners: sockets that listen; the meeting closes them.
        token: the secret of the run.
        ranks: how many agents come.
        digest: of the graph, for agents that have read it themselves.
        silence_s: after which an agent counts as dead.
        find_dead: what has become of the processes that were started, if one has ended.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        token: bytes,
        ranks: int,
        *,
        digest: str,
        silence_s: float,
        find_dead: Callable[[], str | None] = lambda: None,
        most_bytes: int = MOST_FRAME_BYTES,
    ) -> None:
        self._token, self._ranks, self._digest = token, ranks, digest
        self._silence_s, self._find_dead, self._most_bytes = silence_s, find_dead, most_bytes
        self._selector = selectors.DefaultSelector()
        self._strangers: set[_Connection] = set()
        self._members: dict[int, _Connection] = {}
        self._inbox: dict[int, deque[Frame]] = {rank: deque() for rank in range(ranks)}
        self._turned_away: list[str] = []
        self._lost: set[int] = set()
        self._next_beat_s = time.monotonic() + BEAT_S
        self._is_over = self._is_closed = False
        for listener in listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ)

    def collect(self, kind: str, within_s: float) -> dict[int, Frame]:
        """One frame of this kind from every rank. Raises: TransferFailure."""
        deadline_s = time.monotonic() + within_s
        found: dict[int, Frame] = {}
        while len(found) < self._ranks:
            self._take(kind, found)
            if len(found) == self._ranks:
                break
            if (left_s := deadline_s - time.monotonic()) <= 0:
                missing = ", ".join(str(rank) for rank in range(self._ranks) if rank not in found)
                raise TransferFailure(f"rank {missing}: found no {kind} in {within_s:g} s{self._notes()}")
            if (dead := self._find_dead()) is not None:
                self._listen(0.2)  # what it may have said before
                self._take(kind, found)
                raise TransferFailure(dead + self._notes())
            self._listen(min(left_s, 0.2))
        return found

    def broadcast(self, kind: str, fields: dict[str, Any] | None = None, blob: bytes = b"") -> None:
        """Sends a frame to every rank that is there. Raises: TransferFailure."""
        for rank in list(self._members):
            self.send(rank, kind, fields, blob)

    def send(self, rank: int, kind: str, fields: dict[str, Any] | None = None, blob: bytes = b"") -> None:
        """Sends a frame to a rank, if it is there. Raises: TransferFailure."""
        if rank in self._lost:
            return
        try:
            self._members[rank].send(Frame(kind, fields or {}, blob))
        except OSError as error:
            self._lose(rank, f"control connection: {error.strerror or error}")

    def abort(self, reason: str, within_s: float) -> dict[int, Frame]:
        """Ends the run on all ranks; returns the reports of those that still can give one."""
        self._is_over = True
        self.broadcast("abort", {"reason": reason})
        deadline_s = time.monotonic() + within_s
        found: dict[int, Frame] = {}
        while time.monotonic() < deadline_s and not set(self._members) <= self._lost | set(found):
            self._listen(0.1)
            for rank, frames in self._inbox.items():
                for frame in frames:
                    if frame.kind == "rows":
                        found[rank] = frame
        return found

    def close(self) -> None:
        """Closes all connections; may be called again."""
        if self._is_closed:
            return
        self._is_closed = True
        for key in list(self._selector.get_map().values()):
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            sock.close()
        self._selector.close()

    def _take(self, kind: str, found: dict[int, Frame]) -> None:
        for rank, frames in self._inbox.items():
            while frames and rank not in found:
                frame = frames.popleft()
                if frame.kind == "failed":
                    raise TransferFailure(f"rank {rank}: {frame.fields['reason']}")
                if frame.kind != kind:
                    raise TransferFailure(f"rank {rank}: found frame {frame.kind!r}, expected {kind!r}")
                found[rank] = frame

    def _listen(self, within_s: float) -> None:
        for key, _ in self._selector.select(within_s):
            if key.data is None:
                assert isinstance(key.fileobj, socket.socket)
                self._accept(key.fileobj)
            else:
                self._read(key.data)
        now_s = time.monotonic()
        if now_s >= self._next_beat_s:
            self._next_beat_s = now_s + BEAT_S
            self.broadcast("beat")
        for stranger in [each for each in self._strangers if now_s - each.heard_s > _CHALLENGE_S]:
            self._turn_away(stranger, f"no answer to the challenge from {stranger.peer}")
        for rank, member in self._members.items():
            if rank not in self._lost and now_s - member.heard_s > self._silence_s:
                self._lose(rank, f"silent for {self._silence_s:g} s")

    def _accept(self, listener: socket.socket) -> None:
        try:
            accepted, address = listener.accept()
        except OSError:
            return
        if len(self._strangers) >= _MOST_STRANGERS:
            accepted.close()
            return
        try:
            connection = _Connection(accepted, f"{address[0]} port {address[1]}", self._token, self._most_bytes)
        except OSError:
            accepted.close()
            return
        self._strangers.add(connection)
        self._selector.register(accepted, selectors.EVENT_READ, connection)

    def _read(self, connection: _Connection) -> None:
        try:
            received = connection.socket.recv(_READ_BYTES)
            frames = connection.take(received) if received else None
        except FrameError as error:
            if connection.codec is None:
                self._turn_away(connection, str(error))
                return
            self._drop(connection, f"rank {connection.rank}: {error}")
            return
        except OSError as error:
            self._drop(connection, f"rank {connection.rank}: control connection: {error.strerror or error}")
            return
        if frames is None:
            self._drop(connection, f"rank {connection.rank}: its control connection has ended")
            return
        for frame in frames:
            self._receive(connection, frame)

    def _receive(self, connection: _Connection, frame: Frame) -> None:
        if connection.rank is None:
            self._join(connection, frame)
        elif frame.kind != "beat":
            self._inbox[connection.rank].append(frame)

    def _join(self, connection: _Connection, frame: Frame) -> None:
        rank = frame.fields.get("rank")
        if frame.kind != "hello" or not isinstance(rank, int) or not 0 <= rank < self._ranks:
            raise TransferFailure(f"{connection.peer}: found rank {rank!r}, expected one of 0 to {self._ranks - 1}")
        if rank in self._members:
            raise TransferFailure(
                f"rank {rank}: found twice, at {self._members[rank].peer} and {connection.peer}, expected once"
            )
        self._strangers.discard(connection)
        connection.rank = rank
        self._members[rank] = connection
        self._inbox[rank].append(frame)
        if frame.fields.get("protocol") != PROTOCOL:
            raise TransferFailure(f"rank {rank}: found protocol {frame.fields.get('protocol')}, expected {PROTOCOL}")
        if frame.fields.get("digest") not in (None, self._digest):
            raise TransferFailure(
                f"rank {rank}: found a graph with SHA-256 {str(frame.fields['digest'])[:12]}…, expected "
                f"{self._digest[:12]}… as here: another file of flows, or of hosts"
            )

    def _drop(self, connection: _Connection, reason: str) -> None:
        if connection.rank is None:
            self._turn_away(connection, reason)
        else:
            self._selector.unregister(connection.socket)
            connection.socket.close()
            self._lose(connection.rank, reason.partition(": ")[2])

    def _turn_away(self, connection: _Connection, reason: str) -> None:
        self._turned_away.append(reason)
        self._strangers.discard(connection)
        self._selector.unregister(connection.socket)
        connection.socket.close()

    def _lose(self, rank: int, reason: str) -> None:
        self._lost.add(rank)
        if not self._is_over:
            raise TransferFailure(f"rank {rank}: {reason}")

    def _notes(self) -> str:
        return f" (turned away: {self._turned_away[-1]})" if self._turned_away else ""
