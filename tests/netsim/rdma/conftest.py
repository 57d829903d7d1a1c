"""Sessions on loopback, whose agents are gone after each test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from netsim.backends.rdma.hosts import Hosts
from netsim.backends.rdma.session import Session


def loopback(agents: int = 2, **settings: Any) -> Hosts:
    """One node per agent, over TCP on the loopback interface."""
    places = [{"nodes": rank, "device": "lo"} for rank in range(agents)]
    return Hosts.model_validate({"transports": "tcp", "pings": 100, "agents": places, **settings})


@pytest.fixture
def open_session() -> Iterator[Callable[..., Session]]:
    """Opens sessions; in the end their agents, also those of failed runs, no longer exist."""
    opened: list[tuple[Session, list[int]]] = []

    def open_one(hosts: Hosts, **options: Any) -> Session:
        session = Session(hosts, **options)
        opened.append((session, list(session.process_ids.values())))
        return session

    yield open_one
    for session, _ in opened:
        session.close()
    left = [pid for _, pids in opened for pid in pids if Path(f"/proc/{pid}").exists()]
    assert not left, f"agents {left} of process {os.getpid()} are still there"
