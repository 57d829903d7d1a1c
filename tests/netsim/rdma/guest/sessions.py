"""Sessions of this process with agents in guests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netsim.backends.rdma.hosts import Hosts
from netsim.backends.rdma.launchers import listener_at
from netsim.backends.rdma.session import Session
from tests.netsim.rdma.guest.agents import SILENCE_S, START_S, TOKEN


def free_ports(count: int) -> list[int]:
    """Ports of loopback that are free as far as one can know."""
    listeners = [listener_at("127.0.0.1", 0) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


def open_session(port: int, places: Sequence[dict[str, Any]], **settings: Any) -> Session:
    """A session whose agents come from guests (`tests.netsim.rdma.guest.agents`); payloads are compared."""
    hosts = Hosts.model_validate(
        {
            "launcher": "environment",
            "rendezvous": {"port": port},
            "start_timeout_s": START_S,
            "link_timeout_s": SILENCE_S,
            "pings": 50,
            "agents": places,
            **settings,
        }
    )
    return Session(hosts, token=TOKEN, launched=(), must_verify=True)
