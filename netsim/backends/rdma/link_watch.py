"""Watch over the links to peers, by pings over the network of the data.

A link that is silently down is not noticed by UCX (over TCP not within 58 s, keep-alive or not), and a long flow shows
nothing until its end; so peers are asked for signs of life while flows are under way.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from netsim.backends.rdma.clock import is_answer, send_ping, udp_socket


class LinkWatch:
    """Watch over peers: ranks by the address at which they answer pings."""

    def __init__(self, address: str, key: int, silence_s: float, peers: Mapping[tuple[str, int], int]) -> None:
        self.silence_s = silence_s
        self.socket = udp_socket(address)
        self.socket.setblocking(False)
        self._key = key
        self._peers = dict(peers)
        self._heard_s = dict.fromkeys(self._peers, time.monotonic())

    def ping(self) -> None:
        """Asks all peers for a sign of life."""
        for peer in self._peers:
            try:
                send_ping(self.socket, peer, self._key)
            except OSError:
                continue  # the link is down here; silence will tell

    def hear(self) -> None:
        """Takes what has come."""
        try:
            packet, sender = self.socket.recvfrom(64)
        except OSError:
            return
        if sender[:2] in self._heard_s and is_answer(packet, self._key):
            self._heard_s[sender[:2]] = time.monotonic()

    def silent_rank(self) -> int | None:
        """A rank that has been silent for too long."""
        now_s = time.monotonic()
        return next((rank for peer, rank in self._peers.items() if now_s - self._heard_s[peer] > self.silence_s), None)

    def close(self) -> None:
        self.socket.close()
