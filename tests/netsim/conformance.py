"""The backends that are built, the times of a flow alone on each, and runs of a graph alone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from netsim import BackendUnavailable, Completion, FlowGraph, GraphHandle, NetworkBackend, Topology, create_backend
from netsim.backends.ns3.extension import load_extension
from tests.netsim.packet_times import Hop, Wire, serialization_ps, transfer_ps
from tests.netsim.strategies import GBPS, LATENCY_PS

FAR_PS = 10**18
PATH_LATENCY_PS = 2 * LATENCY_PS
KB400 = 400_000


def _is_ns3_built() -> bool:
    try:
        load_extension()
    except BackendUnavailable:
        return False
    return True


BACKENDS = ("fluid", "analytical", "packet", *(["ns3"] if _is_ns3_built() else []))
PACKET_LEVEL = ("packet", "ns3")
ONE_PER_PROCESS = ("ns3",)
Start = Callable[[Topology], NetworkBackend]


@dataclass(frozen=True, slots=True)
class FluidTimes:
    """Of a flow alone between hosts of a star at 400 Gbit/s, where bytes flow: 20 ps each."""

    def sending_ps(self, size_bytes: int) -> int:
        """From its first byte leaving the host to its last."""
        return 20 * size_bytes

    def transfer_ps(self, size_bytes: int) -> int:
        """From its first byte leaving to its last arriving."""
        return self.sending_ps(size_bytes) + PATH_LATENCY_PS

    def carried_bytes(self, sending_for_ps: int) -> int:
        """On a link that has been busy with a flow for so long."""
        return sending_for_ps // 20

    def finishing_ps(self, sending_for_ps: int) -> int:
        """Time that a link is busy with what the flow had begun to send by then."""
        return sending_for_ps

    hop_ps = 0
    """A flow occupies its second link so much later than its first."""


@dataclass(frozen=True, slots=True)
class PacketTimes:
    """The same with packets of 4096 B and headers, stored and forwarded by the switch."""

    def sending_ps(self, size_bytes: int) -> int:
        return sum(serialization_ps(wire_bytes, 400 * GBPS) for wire_bytes in Wire().packets(size_bytes))

    def transfer_ps(self, size_bytes: int) -> int:
        return transfer_ps([Hop(400 * GBPS, LATENCY_PS)] * 2, size_bytes)

    def carried_bytes(self, sending_for_ps: int) -> int:
        """A packet counts from when it begins to be sent."""
        return 4096 * -(-sending_for_ps // serialization_ps(4148, 400 * GBPS))

    def finishing_ps(self, sending_for_ps: int) -> int:
        return self.sending_ps(self.carried_bytes(sending_for_ps))

    hop_ps = serialization_ps(4148, 400 * GBPS) + LATENCY_PS


Times = FluidTimes | PacketTimes


def completions_until_idle(backend: NetworkBackend, step: Callable[[int], int]) -> list[Completion]:
    """Advances in steps chosen by ``step(now_ps)`` until nothing is left to happen."""
    found: list[Completion] = []
    while backend.next_event_ps() is not None:
        found += backend.advance(step(backend.now_ps))
    return found


def run_alone(
    name: str, topology: Topology, graph: FlowGraph, step_ps: int
) -> tuple[list[Completion], tuple[np.ndarray, ...]]:
    """What a graph alone leaves behind."""
    with contextlib.closing(create_backend(name, topology)) as backend:
        handle = backend.submit(graph, 0)
        completions = completions_until_idle(backend, lambda now: now + step_ps)
        return completions, _record(backend, handle)


def _record(backend: NetworkBackend, handle: GraphHandle) -> tuple[np.ndarray, ...]:
    times, stats = backend.flow_times(handle), backend.link_stats()
    return times.start_ps, times.end_ps, stats.carried_bytes, stats.busy_ps
