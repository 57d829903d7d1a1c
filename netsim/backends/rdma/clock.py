"""Clocks of hosts: offsets to rank 0 from exchanges of time stamps over UDP.

An exchange leaves at ``t1``, is answered at ``t2`` by the other clock, and is back at ``t4``: the offset is ``t2``
minus the middle of the others, wrong by half the round trip at most. Queues only make round trips longer, so that the
shortest are the best (Mills, RFC 5905, section 10). Between an estimate before the flows and one after them the offset
is taken as linear.
"""

from __future__ import annotations

import secrets
import socket
import struct
import threading
import time
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from netsim.backends.rdma.errors import TransferFailure

_SHORTEST: Final = 0.05
"""Share of the exchanges that count; 2000 of them then gave 0.4 to 0.7 µs on two cores, where the worst single one was
2.2 ms off."""
_PING: Final = struct.Struct("!QIqq")
"""Key of the run, number, and the two stamps."""
_LONGEST_WAIT_S: Final = 0.25
_MOST_LOST: Final = 20


def now_ns() -> int:
    """CLOCK_MONOTONIC_RAW: adjusted by nobody, and the same for all processes of a host."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """What has to be added to this clock to get that of rank 0."""

    at_ns: int
    """Of this clock."""
    offset_ns: float
    error_ns: float


def estimated_offset(
    sent_ns: NDArray[np.int64], answered_ns: NDArray[np.int64], back_ns: NDArray[np.int64]
) -> ClockOffset:
    """The offset from exchanges [n]: median of those with the shortest round trips; its error is half the shortest."""
    round_trip = back_ns - sent_ns
    count = max(1, round(_SHORTEST * len(round_trip)))
    best = np.argsort(round_trip, kind="stable")[:count]
    offsets = answered_ns[best] - (sent_ns[best] + round_trip[best] / 2)
    return ClockOffset(int(back_ns.max()), float(np.median(offsets)), float(round_trip.min()) / 2)


@dataclass(frozen=True, slots=True)
class ClockLine:
    """Offset over time, linear between two estimates."""

    before: ClockOffset
    after: ClockOffset

    def on_rank_0(self, at_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """These times of this clock as times of rank 0's."""
        known = (self.before.at_ns, self.after.at_ns)
        offsets = np.interp(at_ns, known, (self.before.offset_ns, self.after.offset_ns))
        return at_ns + np.rint(offsets).astype(np.int64)

    def of_rank_0(self, at_ns: int) -> int:
        """This clock's time when it is ``at_ns`` on rank 0's, before the flows."""
        return at_ns - round(self.before.offset_ns)

    @property
    def error_ns(self) -> float:
        """Of the worse estimate."""
        return max(self.before.error_ns, self.after.error_ns)


class PingResponder:
    """Answers pings of the run on a UDP port until it is closed."""

    def __init__(self, address: str, key: int) -> None:
        self._socket = udp_socket(address)
        self.port: int = self._socket.getsockname()[1]
        self._key = key
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    def _answer(self) -> None:
        while True:
            try:
                packet, sender = self._socket.recvfrom(64)
            except OSError:
                return
            if len(packet) != _PING.size:
                if packet == b"" and sender == self._socket.getsockname():
                    return
                continue
            key, number, sent, _ = _PING.unpack(packet)
            if key == self._key:
                try:
                    self._socket.sendto(_PING.pack(key, number, sent, now_ns()), sender)
                except OSError:
                    continue  # a link that is down; whoever asks will notice

    def close(self) -> None:
        """Wakes the thread with an empty packet of its own."""
        self._socket.sendto(b"", self._socket.getsockname())
        self._thread.join()
        self._socket.close()


def udp_socket(address: str) -> socket.socket:
    """A socket bound to any free port of an address."""
    made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
    made.bind((address, 0))
    return made


def send_ping(sender: socket.socket, to: tuple[str, int], key: int) -> None:
    """A ping whose answer `answered_by` recognises. Raises: OSError."""
    sender.sendto(_PING.pack(key, 0, now_ns(), 0), to)


def is_answer(packet: bytes, key: int) -> bool:
    """Whether the packet is an answer to a ping of the run."""
    return len(packet) == _PING.size and _PING.unpack(packet)[0] == key


def exchange_pings(address: str, to: tuple[str, int], key: int, count: int) -> ClockOffset:
    """The offset to the clock that answers at ``to``.

    Raises:
        TransferFailure: too many pings are not answered.
    """
    stamps: list[tuple[int, int, int]] = []
    lost = 0
    first = secrets.randbits(31)
    with udp_socket(address) as sender:
        sender.settimeout(_LONGEST_WAIT_S)
        while len(stamps) < count:
            number = first + len(stamps) + lost
            try:
                sender.sendto(_PING.pack(key, number & 0xFFFFFFFF, sent := now_ns(), 0), to)
                answered = _answer_to(sender, key, number & 0xFFFFFFFF, sent)
            except OSError:
                if (lost := lost + 1) > _MOST_LOST:
                    raise TransferFailure(f"clock: found no answer from {to[0]} port {to[1]} (UDP)") from None
                continue
            stamps.append((sent, answered, now_ns()))
    return estimated_offset(*np.array(stamps, dtype=np.int64).T)


def _answer_to(receiver: socket.socket, key: int, number: int, sent: int) -> int:
    while True:
        packet = receiver.recv(64)
        if len(packet) == _PING.size:
            found = _PING.unpack(packet)
            if found[:3] == (key, number, sent):
                return int(found[3])
