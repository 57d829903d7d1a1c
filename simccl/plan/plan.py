"""Plans: a collective as a dependency graph of flows between ranks, with the bytes that each flow carries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from netsim.flow import FlowGraph
from simccl.collective import Algorithm, Collective, Protocol
from simccl.communicator.communicator import Communicator
from simccl.plan.flows import PlannedFlows, no_flows
from simccl.plan.lowering import lower
from simccl.plan.postcondition import MessagePostcondition, Postcondition


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """One collective on one communicator, ready to be put on a network.

    ``flows`` are between ranks and in user bytes; `graph` maps them to GPUs and to bytes on the wire.
    """

    op: Collective
    size_bytes: int
    """As nccl-tests counts it; see `Collective`. For all_to_all_v the largest row sum."""
    communicator: Communicator
    algorithm: Algorithm
    protocol: Protocol
    channels: int
    """Channels NCCL would run this size on; a merged plan has one flow for those with the same ring or tree."""
    base_latency_ps: int
    """Latency paid once, before the first flows."""
    flows: PlannedFlows
    postcondition: Postcondition
    """Data that the plan must deliver, for `simccl.planning.verify`."""

    def __len__(self) -> int:
        return len(self.flows)

    def graph(self) -> FlowGraph:
        """The flow graph between the communicator's GPUs; see `simccl.plan.lowering` for the model."""
        return lower(self.flows, self.communicator, self.base_latency_ps)

    def sent_bytes(self) -> NDArray[np.int64]:
        """[ranks] user bytes that each rank sends, forwarded data included."""
        return self._bytes_at(self.flows.src)

    def received_bytes(self) -> NDArray[np.int64]:
        """[ranks] user bytes that each rank receives, data to be forwarded included."""
        return self._bytes_at(self.flows.dst)

    def _bytes_at(self, ends: NDArray[np.int32]) -> NDArray[np.int64]:
        totals = np.zeros(self.communicator.size + self.communicator.nodes, dtype=np.int64)
        np.add.at(totals, ends, self.flows.payload_bytes)
        return totals[: self.communicator.size]


def empty_plan(op: Collective, size_bytes: int, communicator: Communicator) -> Plan:
    """The plan of a collective in which nothing crosses a link: one rank, or zero bytes."""
    return Plan(
        op=op,
        size_bytes=size_bytes,
        communicator=communicator,
        algorithm=Algorithm.NONE,
        protocol=Protocol.SIMPLE,
        channels=0,
        base_latency_ps=0,
        flows=no_flows(),
        postcondition=MessagePostcondition(np.broadcast_to(np.int64(0), (communicator.size, communicator.size))),
    )
