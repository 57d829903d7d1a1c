"""Plans a collective: chooses the protocol, lays the algorithm over the communicator, returns the flows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simccl.algorithms.pairwise import pairwise_flows
from simccl.algorithms.ring import RingHops, ring_flows, ring_port_rates
from simccl.algorithms.send_recv import neighbour_matrix
from simccl.collective import MAX_PLAN_BYTES, PROTOCOLS, Algorithm, Collective, Protocol, check_size, shares
from simccl.communicator import Communicator
from simccl.errors import InputError
from simccl.lowering import PortRates
from simccl.plan import Plan, no_flows
from simccl.point_to_point import latencies_us, message_channels, message_port_rates
from simccl.timing import choose_ring

_PS_PER_US = 1_000_000


def plan_collective(op: str, size_bytes: int, communicator: Communicator, *, protocol: str | None = None) -> Plan:
    """The plan of one collective; sizes as in nccl-tests, see `Collective`.

    ``protocol`` overrides NCCL's choice. One rank, or zero bytes, gives a plan without flows.

    Raises:
        InputError: an unknown op or protocol, a size below 0 or above 1 PiB, or a protocol that NCCL cannot use here.
    """
    collective = Collective.parse(op)
    wanted = None if protocol is None else Protocol.parse(protocol)
    check_size(size_bytes, MAX_PLAN_BYTES)
    if collective in (Collective.BROADCAST, Collective.REDUCE):
        raise InputError(f"op: found '{collective}', which has a time but no plan")
    if size_bytes == 0 or communicator.size == 1:
        return _nothing(collective, size_bytes, communicator)
    if collective.has_ring:
        return _plan_ring(collective, size_bytes, communicator, wanted)
    if collective is Collective.SEND_RECV:
        matrix = neighbour_matrix(size_bytes, communicator.size)
    else:
        matrix = np.tile(np.diff(shares(size_bytes, communicator.size)), (communicator.size, 1))
    return _plan_messages(collective, matrix, communicator, wanted)


def all_to_all_v(matrix_bytes: NDArray[np.integer], communicator: Communicator) -> Plan:
    """The plan of an all-to-all in which rank s sends ``matrix_bytes[s, d]`` bytes to rank d; the diagonal is local.

    Raises:
        InputError: if the matrix is not [ranks, ranks] of integers that are not negative.
    """
    matrix = np.asarray(matrix_bytes)
    expected = (communicator.size, communicator.size)
    if matrix.shape != expected:
        raise InputError(f"matrix_bytes: found shape {matrix.shape}, expected {expected}, one row per sending rank")
    if not np.issubdtype(matrix.dtype, np.integer):
        raise InputError(f"matrix_bytes: found {matrix.dtype}, expected integers")
    if matrix.min() < 0:
        raise InputError(f"matrix_bytes: found {matrix.min()}, expected no negative value")
    return _plan_messages(Collective.ALL_TO_ALL, matrix.astype(np.int64), communicator, None)


def _plan_ring(op: Collective, size_bytes: int, communicator: Communicator, wanted: Protocol | None) -> Plan:
    choice = choose_ring(op, size_bytes, communicator.arrangement(), wanted)
    hops = RingHops.over(communicator, choice.channels)
    p = PROTOCOLS.index(choice.protocol)
    base_us = choice.costs.base_latency_us[p] * choice.costs.latency_factors(np.array([size_bytes]))[p, 0]
    return Plan(
        op=op,
        size_bytes=size_bytes,
        communicator=communicator,
        algorithm=Algorithm.RING,
        protocol=choice.protocol,
        channels=choice.channels,
        base_latency_ps=round(base_us * _PS_PER_US),
        port_rates=ring_port_rates(hops, choice.costs.bus_gbytes_per_s[p]),
        flows=ring_flows(op, size_bytes, hops, choice.protocol, choice.costs),
    )


def _plan_messages(
    op: Collective, matrix: NDArray[np.int64], communicator: Communicator, wanted: Protocol | None
) -> Plan:
    sent = matrix * ~np.eye(communicator.size, dtype=np.bool_)
    size_bytes = int(matrix.sum(axis=1).max()) if op is Collective.ALL_TO_ALL else int(matrix.max())
    if not sent.any():
        return _nothing(op, size_bytes, communicator)
    at = communicator.arrangement()
    channels = message_channels(at)
    is_ll = channels.uses_ll(matrix)
    if wanted is not None:
        if wanted is Protocol.LL128 or (wanted is Protocol.LL and at.nodes > 1):
            raise InputError(f"protocol: found {wanted}, expected simple, or ll on one node ({op} is point-to-point)")
        is_ll = np.full_like(is_ll, wanted is Protocol.LL)
    all_ll = bool(is_ll[sent > 0].all())
    flows = pairwise_flows(matrix, communicator, channels, is_ll)
    base_us, _ = latencies_us(at, np.array([all_ll]))
    parts = int(channels.parts(np.array([sent.max()]))[0])
    used = np.unique((np.unique(flows.channel)[:, None] + np.arange(parts)) % channels.channels)
    return Plan(
        op=op,
        size_bytes=size_bytes,
        communicator=communicator,
        algorithm=Algorithm.PAIRWISE,
        protocol=Protocol.LL if all_ll else Protocol.SIMPLE,
        channels=parts if op is Collective.SEND_RECV else len(used),
        base_latency_ps=round(float(base_us[0]) * _PS_PER_US),
        port_rates=message_port_rates(at),
        flows=flows,
    )


def _nothing(op: Collective, size_bytes: int, communicator: Communicator) -> Plan:
    return Plan(
        op=op,
        size_bytes=size_bytes,
        communicator=communicator,
        algorithm=Algorithm.NONE,
        protocol=Protocol.SIMPLE,
        channels=0,
        base_latency_ps=0,
        port_rates=PortRates(1.0, 1.0),
        flows=no_flows(),
    )
