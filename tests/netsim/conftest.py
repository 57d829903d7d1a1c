"""Fixtures of the conformance suite: one backend after the other, and its times."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from netsim import NetworkBackend, Topology, create_backend
from tests.netsim.conformance import BACKENDS, PACKET_LEVEL, FluidTimes, PacketTimes, Start, Times
from tests.netsim.strategies import star


@pytest.fixture(params=BACKENDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def timing(kind: str) -> Times:
    return PacketTimes() if kind in PACKET_LEVEL else FluidTimes()


@pytest.fixture
def start(kind: str) -> Iterator[Start]:
    """Starts backends of the kind under test and closes them."""
    opened: list[NetworkBackend] = []

    def create(topology: Topology) -> NetworkBackend:
        opened.append(create_backend(kind, topology))
        return opened[-1]

    yield create
    for backend in opened:
        backend.close()


@pytest.fixture
def backend(start: Start) -> NetworkBackend:
    """On a star of four hosts at 400 Gbit/s."""
    return start(star(4))
