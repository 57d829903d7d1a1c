"""Low-latency dispatch and combine of DeepEP: one message per token and expert, straight from rank to rank.

There is no deduplication. DeepEP V1, csrc/kernels/internode_ll.cu. Assumed: messages that share a port advance in
proportion to their bytes. Ignored: the counts that are exchanged first, queue and buffer limits, and the SMs that are
taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from simccl.algorithms.flow_rates import Lanes, fair_rates
from simccl.collective import Algorithm, Protocol
from simccl.communicator.communicator import Communicator
from simccl.communicator.shape import CommunicatorShape
from simccl.engines.expert_choice import ExpertChoice
from simccl.engines.expert_mode import NO_LIMIT, ExpertKernel, ExpertMode, Phase, values_bytes
from simccl.engines.expert_routing import SlotPostcondition, Slots, TokenRouting
from simccl.plan.edges import joined
from simccl.plan.flows import Operation, PlannedFlows
from simccl.plan.lowering import PortRates
from simccl.plan.postcondition import Postcondition

_NO_LATENCY = 0


class LowLatency(ExpertMode):
    """One message per token and expert."""

    name = Algorithm.LOW_LATENCY
    # Fitted to DeepEP kernel times of aiconfigurator 095f58a (Apache-2.0; its tables 0.5.12 for one node, 0.5.6.post2
    # for several), H100; H200 on one node differs by 5 %. Median and p90 of the absolute error: one node, 128 experts
    # and more, 4.8 / 18 % and 4.0 / 9 % (dispatch, combine); 2, 4 and 8 nodes 1.7 / 4 % and 1.7 / 5 %.
    on_one_node: ClassVar[Mapping[Phase, ExpertKernel]] = {
        Phase.DISPATCH: ExpertKernel(12.59, 0.0, 284.0, NO_LIMIT, 1.05),
        Phase.COMBINE: ExpertKernel(12.43, 0.0, 237.3, NO_LIMIT, 1.17),
    }
    on_several_nodes: ClassVar[Mapping[Phase, ExpertKernel]] = {
        Phase.DISPATCH: ExpertKernel(16.84, 3.85, NO_LIMIT, 48.0, 1.00),
        Phase.COMBINE: ExpertKernel(24.20, 0.94, NO_LIMIT, 46.1, 1.01),
    }

    def dispatch_bytes(self, hidden: int, top_k: int, *, fp8: bool) -> int:  # noqa: ARG002
        """16 bytes of header, values, scales."""
        return 16 + values_bytes(hidden, fp8=fp8)

    def combine_bytes(self, hidden: int, top_k: int) -> int:  # noqa: ARG002
        """Values in BF16."""
        return 2 * hidden

    def copies(self, choice: ExpertChoice, at: CommunicatorShape) -> tuple[float, float]:
        """One per expert."""
        away = (at.nodes - 1) / at.nodes
        return choice.top_k * (1 - away), choice.top_k * away

    def planned(
        self,
        routing: TokenRouting,
        communicator: Communicator,
        rates: PortRates,
        token_bytes: int,
        *,
        is_combine: bool,
    ) -> tuple[Postcondition, PlannedFlows]:
        slots = routing.slots(token_bytes)
        flows = low_latency_flows(slots, communicator, rates, is_combine=is_combine)
        return SlotPostcondition(slots, is_combine), flows


def low_latency_flows(slots: Slots, communicator: Communicator, rates: PortRates, *, is_combine: bool) -> PlannedFlows:
    """One stream of messages per rank and place, as many bytes as it has messages."""
    sizes = np.diff(slots.bounds, axis=1)
    rank, slot = np.nonzero((sizes > 0) & (slots.rank_of_slot != np.arange(len(sizes))[:, None]))
    host = slots.rank_of_slot[slot]
    src, dst = (host, rank) if is_combine else (rank, host)
    node = communicator.node_of_rank()
    payload = sizes[rank, slot]
    return Lanes(
        src=src,
        dst=dst,
        payload_bytes=payload,
        channel=slot,
        step=np.zeros(len(src), dtype=np.int64),
        origin=rank,
        offset=slots.bounds[rank, slot],
        operation=Operation.COPY,
        latency_ps=np.full(len(src), _NO_LATENCY, dtype=np.int64),
        wire_rate=fair_rates((src, dst), payload, node[src] != node[dst], np.zeros(len(src), dtype=np.int64), rates),
        edges=joined([]),
    ).flows(Protocol.SIMPLE)
