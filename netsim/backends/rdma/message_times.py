"""Times of single messages between two agents, measured on the clock of the sender.

Messages of every size leave one after the other; each is answered by a message of no bytes, and the next leaves when
the answer is there. Before each, an empty one goes there and back: half of these round trips (their median) is the way
of an answer. So no clocks of two hosts are compared, whose offset is known to half a round trip only, which is what a
small message takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from netsim.backends.calibration import Calibration, Ranges
from netsim.backends.rdma.errors import TransferFailure
from netsim.backends.rdma.hosts import Hosts
from netsim.backends.rdma.measurement import Measurement
from netsim.backends.rdma.message_fit import fitted
from netsim.backends.rdma.session import Session
from netsim.flow import FlowGraph
from netsim.units import PS_PER_NS

SMALLEST_BYTES: Final = 1 << 10
REPEATS: Final = 5
"""Messages of each size, where nothing else is said; our choice: their median leaves two on either side."""


@dataclass(frozen=True, slots=True)
class MessageSample:
    """Times of messages of one size: the median of the repetitions, and their range."""

    size_bytes: int
    median_ns: float
    shortest_ns: float
    longest_ns: float


@dataclass(frozen=True, slots=True)
class PairMeasurement:
    """What was measured from one agent to another, and the lines through it."""

    samples: tuple[MessageSample, ...]
    ranges: Ranges
    lane: str
    retransmits: int

    def extended(self, larger: PairMeasurement) -> PairMeasurement:
        """The same with messages above its largest; what it says of smaller ones stays as it is."""
        samples, last_bytes = (*self.samples, *larger.samples), self.ranges[-1].last_bytes
        above = tuple(
            replace(each, first_bytes=max(each.first_bytes, last_bytes + 1))
            for each in fitted([each.size_bytes for each in samples], [each.median_ns for each in samples])
            if each.last_bytes > last_bytes
        )
        return PairMeasurement(samples, (*self.ranges, *above), larger.lane, self.retransmits + larger.retransmits)


@dataclass(frozen=True, slots=True)
class MeasuredAgent:
    """An agent whose messages were measured."""

    nodes: tuple[int, ...]
    address: str
    device: str | None
    gpu: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredPairs:
    """Pairs of agents, by ranks of sender and receiver, as far as they have been measured."""

    engine: str
    agents: tuple[MeasuredAgent, ...]
    pairs: dict[tuple[int, int], PairMeasurement]

    @classmethod
    def none_of(cls, hosts: Hosts) -> MeasuredPairs:
        """No pair yet."""
        agents = tuple(MeasuredAgent(place.nodes, place.address, place.device, place.gpu) for place in hosts.agents)
        return cls(hosts.engine, agents, {})

    def calibration(self) -> Calibration:
        """What backends take."""
        return Calibration([each.nodes for each in self.agents], {at: each.ranges for at, each in self.pairs.items()})


def uses_tcp(lane: str) -> bool:
    """Whether payloads go over TCP; with CUDA IPC, between GPUs of a host, it has the announcements only."""
    transports = {transport.partition("/")[0] for transport in lane.split()}
    return "tcp" in transports and "cuda_ipc" not in transports


def octaves(largest_bytes: int, smallest_bytes: int = SMALLEST_BYTES) -> tuple[int, ...]:
    """Sizes from the smallest to the first that is at least the largest, each twice the one before."""
    sizes = [smallest_bytes]
    while sizes[-1] < largest_bytes:
        sizes.append(2 * sizes[-1])
    return tuple(sizes)


def measure_pair(session: Session, nodes: tuple[int, int], sizes_bytes: Sequence[int], repeats: int) -> PairMeasurement:
    """Sends messages of these sizes from the agent of one node to that of another, in one graph.

    Every size is sent ``repeats`` times, and once before, which meets cold connections and does not count.

    Raises:
        TransferFailure: not all arrived.
    """
    sizes = [size for each in sizes_bytes for size in (0, each)]
    measured = session.execute(_ping_pong(nodes, [*sizes * (repeats + 1), 0]))
    if measured.failure is not None:
        raise TransferFailure(measured.failure)
    round_trips_ns = _round_trips_ns(measured).reshape(repeats + 1, len(sizes_bytes), 2)[1:]
    answer_ns = float(np.median(round_trips_ns[:, :, 0])) / 2
    there_ns = round_trips_ns[:, :, 1]
    times_ns = np.maximum(there_ns - answer_ns, there_ns / 2)  # a message takes no less than an empty one
    samples = tuple(
        MessageSample(size, float(np.median(each)), float(each.min()), float(each.max()))
        for size, each in zip(sizes_bytes, times_ns.T, strict=True)
    )
    ranges = fitted(sizes_bytes, [sample.median_ns for sample in samples])
    return PairMeasurement(samples, ranges, measured.lane[0], int(measured.retransmits.max()))


def lane_between(session: Session, nodes: tuple[int, int]) -> str:
    """Transports and devices of the connection. Raises: TransferFailure."""
    measured = session.execute(_ping_pong(nodes, (0,)))
    if measured.failure is not None:
        raise TransferFailure(measured.failure)
    return measured.lane[0]


def _ping_pong(nodes: tuple[int, int], sizes_bytes: Sequence[int]) -> FlowGraph:
    """Flow ``2 k`` is the message of the k-th size, flow ``2 k + 1`` its answer."""
    count = len(sizes_bytes)
    size_bytes = np.zeros(2 * count, dtype=np.int64)
    size_bytes[::2] = sizes_bytes
    return FlowGraph.from_lists(
        list(nodes) * count,
        list(nodes[::-1]) * count,
        size_bytes,
        deps=[[flow - 1] if flow else [] for flow in range(2 * count)],
    )


def _round_trips_ns(measured: Measurement) -> NDArray[np.float64]:
    """[messages - 1] from a message to the next: both are stamps of the sender."""
    return np.diff(measured.start_ps[::2]) / PS_PER_NS
