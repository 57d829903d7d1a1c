"""Messages between pairs of ranks, in NCCL's rounds: all_to_all, its variable form, and send_recv.

All messages of up to eight rounds run at once on a channel, and rounds lie on different channels as long as there are
enough; beyond that a channel works in batches. A rank starts a batch when the largest of the messages that it sends and
that it receives in the one before are through (NCCL waits for all of them; the largest are the last).

A message to a rank of another node and another rail takes PXN: over NVLink to the GPU on the receiver's rail, then
over that GPU's NIC while it arrives there, so that it stays on one rail. Without a rank on that rail the message leaves
by its sender's own NIC.

Assumed: messages that share a port advance in proportion to their bytes, as NCCL's channels go through them in turn, so
that all messages of a port end together, and a message is as slow as the busier of its two ports. NCCL's parts of one
message, on channels of their own, are one flow.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simccl.algorithms.algorithm import CollectiveAlgorithm
from simccl.algorithms.flow_rates import fair_rates
from simccl.collective import Algorithm, Collective, Protocol, shares, wire_bytes, wire_share
from simccl.communicator.communicator import Communicator
from simccl.nccl.point_to_point import MessageChannels, batch_of_round, group_size, hop_latency_us, send_rounds
from simccl.plan.edges import Edges, csr, joined
from simccl.plan.flows import Operation, PlannedFlows
from simccl.plan.lowering import PortRates
from simccl.plan.plan import Plan
from simccl.plan.postcondition import PlanError, Postcondition

_PS_PER_US = 1_000_000


class Pairwise(CollectiveAlgorithm):
    """Grouped sends and receives; `simccl.nccl.point_to_point` has their times."""

    name = Algorithm.PAIRWISE

    def check_sent(self, plan: Plan, postcondition: Postcondition) -> None:
        """Every message leaves its sender once."""
        flows, ranks = plan.flows, plan.communicator.size
        own = flows.origin == flows.src
        left = np.bincount(flows.src[own], weights=flows.payload_bytes[own], minlength=ranks).astype(np.int64)
        rows = np.array([postcondition.moved_bytes(rank) for rank in range(ranks)])
        if not np.array_equal(left, rows):
            raise PlanError(f"{plan.op}: found {left.tolist()} bytes sent, expected {rows.tolist()}")


def message_matrix(op: Collective, size_bytes: int, ranks: int) -> NDArray[np.int64]:
    """[ranks, ranks] bytes from each rank to each in an all_to_all or send_recv.

    Send_recv is the pattern of nccl-tests 2.19 (``sendrecv_perf``): to the next rank, the last one's to rank 0. For a
    single pair, as between pipeline stages, pass a matrix with one entry to `simccl.all_to_all_v`.
    """
    if op is Collective.ALL_TO_ALL:
        return np.tile(np.diff(shares(size_bytes, ranks)), (ranks, 1))
    matrix = np.zeros((ranks, ranks), dtype=np.int64)
    rank = np.arange(ranks)
    matrix[rank, (rank + 1) % ranks] = size_bytes
    return matrix


@dataclass(frozen=True, slots=True, eq=False)
class Rounds:
    """NCCL's schedule on one communicator; the same for every size."""

    send_to: NDArray[np.int32]
    """[rounds, ranks] rank to which each rank sends; round 0 is the own copy, every round a permutation."""
    channel: NDArray[np.int64]
    """[rounds] first channel."""
    batch: NDArray[np.int64]
    """[rounds] how many batches come before on that channel."""


def rounds_of(communicator: Communicator, channels: MessageChannels) -> Rounds:
    """The schedule of a communicator, computed once."""
    return _rounds(communicator.ranks_of_node, channels)


def pairwise_flows(
    matrix_bytes: NDArray[np.int64],
    communicator: Communicator,
    channels: MessageChannels,
    rates: PortRates,
    is_ll: NDArray[np.bool_],
) -> PlannedFlows:
    """The flows that move ``matrix_bytes[s, d]`` bytes from every rank s to every other rank d, round by round.

    The send buffer of a rank holds its messages in the order of their receivers, its own part included. ``is_ll``
    [ranks, ranks] says which messages use LL; the own parts and empty messages are no flows.
    """
    plan = rounds_of(communicator, channels)
    ranks = communicator.size
    sizes = matrix_bytes[np.arange(ranks), plan.send_to]
    sizes[0] = 0
    rounds, src = (index.astype(np.int32) for index in np.nonzero(sizes))
    dst = plan.send_to[rounds, src]
    legs = _Legs.of(src, dst, _proxies(communicator, src, dst))
    message, sender, receiver = legs.message, legs.sender, legs.receiver
    onwards = np.flatnonzero(legs.is_from_proxy)

    edges: list[Edges] = [(onwards, onwards - 1)]
    if plan.batch.max() > 0:
        edges.append(_batch_edges(plan, sizes, legs))
    dep_offsets, deps = csr(joined(edges), len(message))
    node = communicator.node_of_rank()
    crosses = node[sender] != node[receiver]
    payload, ll = sizes[rounds, src][message], is_ll[src, dst][message]
    latency_us = hop_latency_us(ll, crosses)
    latency_us[onwards - 1] = 0.0
    max_rate = fair_rates((sender, receiver), payload, crosses, plan.batch[rounds][message], rates)
    max_rate *= np.where(ll, wire_share(Protocol.LL), 1.0)
    buffer_offset = np.cumsum(matrix_bytes, axis=1) - matrix_bytes
    return PlannedFlows(
        src=sender,
        dst=receiver,
        payload_bytes=payload,
        wire_bytes=np.where(ll, wire_bytes(payload, Protocol.LL), payload) if ll.any() else payload,
        channel=plan.channel[rounds][message].astype(np.int32),
        step=rounds[message],
        origin=src[message],
        offset=buffer_offset[src, dst][message],
        operation=np.full(len(message), Operation.COPY, dtype=np.uint8),
        latency_ps=np.rint(latency_us * _PS_PER_US).astype(np.int64),
        max_rate_bytes_per_s=max_rate,
        streams=legs.is_from_proxy,
        dep_offsets=dep_offsets,
        deps=deps,
    )


class _Legs(NamedTuple):
    """Messages as flows: one each, or two one after the other, to the proxy and onwards."""

    first: NDArray[np.int64]
    """[messages] first flow"""
    last: NDArray[np.int64]
    """[messages] last flow"""
    message: NDArray[np.int32]
    """[flows]"""
    sender: NDArray[np.int32]
    """[flows]"""
    receiver: NDArray[np.int32]
    """[flows]"""
    is_from_proxy: NDArray[np.bool_]
    """[flows]"""

    @classmethod
    def of(cls, src: NDArray[np.int32], dst: NDArray[np.int32], proxy: NDArray[np.int32]) -> _Legs:
        """``proxy`` [messages] is -1 for none."""
        has_proxy = proxy >= 0
        last = np.cumsum(1 + has_proxy) - 1
        message = np.repeat(np.arange(len(src), dtype=np.int32), 1 + has_proxy)
        sender, receiver = src[message], dst[message]
        onwards = last[has_proxy]
        sender[onwards] = receiver[onwards - 1] = proxy[has_proxy]
        is_from_proxy = np.zeros(len(message), dtype=np.bool_)
        is_from_proxy[onwards] = True
        return cls(last - has_proxy, last, message, sender, receiver, is_from_proxy)


@lru_cache(maxsize=64)
def _rounds(ranks_of_node: tuple[tuple[int, ...], ...], channels: MessageChannels) -> Rounds:
    rank_at = np.concatenate(ranks_of_node)
    ranks, group_ranks = len(rank_at), group_size([len(ranks) for ranks in ranks_of_node])
    send_to = np.empty((ranks, ranks), dtype=np.int32)
    send_to[:, rank_at] = rank_at[send_rounds(ranks, group_ranks)]
    return Rounds(send_to, channels.base_channels(ranks, group_ranks), batch_of_round(channels, ranks, group_ranks))


def _proxies(communicator: Communicator, src: NDArray[np.int32], dst: NDArray[np.int32]) -> NDArray[np.int32]:
    """[messages] rank on the sender's node and the receiver's rail that passes the message on, or -1 for none."""
    node, rail = communicator.node_of_rank(), communicator.rail_of_rank()
    rank_on = np.full((communicator.nodes, communicator.topology.gpus_per_node), -1, dtype=np.int32)
    rank_on[node, rail] = np.arange(communicator.size)
    is_over_rails = (node[src] != node[dst]) & (rail[src] != rail[dst])
    return np.where(is_over_rails, rank_on[node[src], rail[dst]], np.int32(-1))


def _batch_edges(plan: Rounds, sizes: NDArray[np.int64], legs: _Legs) -> Edges:
    """Edges from the largest that a rank sends and receives in a batch to all that it sends in the next of the channel.

    ``sizes`` [rounds, ranks]: bytes that each rank sends.
    """
    number = np.cumsum((sizes > 0).ravel()).reshape(sizes.shape) - 1
    received = np.empty_like(sizes)
    np.put_along_axis(received, plan.send_to, sizes, axis=1)
    received_as = np.empty_like(number)
    np.put_along_axis(received_as, plan.send_to, number, axis=1)
    rank = np.arange(sizes.shape[1])
    found: list[Edges] = []
    for channel in np.unique(plan.channel).tolist():
        rounds = np.flatnonzero(plan.channel == channel)
        for batch in range(1, int(plan.batch[rounds].max()) + 1):
            before, now = (rounds[plan.batch[rounds] == b] for b in (batch - 1, batch))
            for size, message in ((sizes, number), (received, received_as)):
                largest = before[np.argmax(size[before], axis=0)]
                both = (sizes[now] > 0) & (size[largest, rank] > 0)
                awaited = np.broadcast_to(message[largest, rank], both.shape)
                found.append((legs.first[number[now][both]], legs.last[awaited[both]]))
    return joined(found)
