"""Planner of messages between pairs of ranks: all_to_all, its variable form, and send_recv."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError
from simccl.algorithms.flow_rates import PS_PER_US
from simccl.algorithms.pairwise import Pairwise, pairwise_flows
from simccl.collective import Collective, Protocol
from simccl.communicator.communicator import Communicator
from simccl.nccl.point_to_point import latencies_us, message_channels, message_port_rates
from simccl.plan.flows import PlannedFlows
from simccl.plan.plan import Plan, empty_plan
from simccl.plan.postcondition import MessagePostcondition
from simccl.planning.timing import message_slowdown


def plan_messages(
    op: Collective, matrix: NDArray[np.int64], communicator: Communicator, wanted: Protocol | None
) -> Plan:
    """The plan of messages between pairs of ranks; ``wanted`` is the protocol for all.

    Raises:
        InputError: a protocol that NCCL does not use for messages here.
    """
    off_diagonal = int(matrix.sum() - np.trace(matrix))
    size_bytes = int(matrix.sum(axis=1).max()) if op is Collective.ALL_TO_ALL else int(matrix.max())
    if not off_diagonal:
        return empty_plan(op, size_bytes, communicator)
    at = communicator.shape()
    channels = message_channels(at)
    is_ll = channels.uses_ll(matrix)
    if wanted is not None:
        if wanted is Protocol.LL128 or (wanted is Protocol.LL and at.nodes > 1):
            raise InputError(f"protocol: found {wanted}, expected simple, or ll on one node ({op} is point-to-point)")
        is_ll = np.full_like(is_ll, wanted is Protocol.LL)
    sent = matrix * ~np.eye(communicator.size, dtype=np.bool_)
    all_ll = bool(is_ll[sent > 0].all())
    busiest = max(size_bytes, int(matrix.sum(axis=0).max())) if op is Collective.ALL_TO_ALL else size_bytes
    slowdown = message_slowdown(op, busiest, at)
    flows = _slowed(pairwise_flows(matrix, communicator, channels, message_port_rates(at), is_ll), slowdown)
    base_us, _ = latencies_us(at, np.array([all_ll]))
    parts = int(channels.parts(np.array([sent.max()]))[0])
    used = np.unique((np.unique(flows.channel)[:, None] + np.arange(parts)) % channels.channels)
    return Plan(
        op=op,
        size_bytes=size_bytes,
        communicator=communicator,
        algorithm=Pairwise.name,
        protocol=Protocol.LL if all_ll else Protocol.SIMPLE,
        channels=parts if op is Collective.SEND_RECV else len(used),
        base_latency_ps=round(float(base_us[0]) * slowdown * PS_PER_US),
        flows=flows,
        postcondition=MessagePostcondition(matrix),
    )


def _slowed(flows: PlannedFlows, factor: float) -> PlannedFlows:
    """Latencies longer and rates smaller by a factor, so that the plan takes the time that measurements say."""
    return replace(
        flows,
        latency_ps=np.rint(flows.latency_ps * factor).astype(np.int64),
        max_rate_bytes_per_s=flows.max_rate_bytes_per_s / factor,
    )
