"""Messages between pairs of ranks, in NCCL's rounds: all_to_all, its variable form, and send_recv.

All messages of up to eight rounds run at once on a channel, and rounds lie on different channels as long as there are
enough; beyond that a rank starts a batch of rounds on a channel when it has finished its part of the one before.

A message to a rank of another node and another rail takes PXN: over NVLink to the GPU on the receiver's rail, then
over that GPU's NIC, so that it stays on one rail. Long ones go in up to four pieces, the next piece on NVLink while
one is on the network; NCCL pipelines more finely. The hardware latency is the network leg's. Without a rank on that
rail the message leaves by its sender's own NIC.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simccl.collective import Protocol, wire_bytes
from simccl.communicator import Communicator
from simccl.plan import Operation, PlannedFlows
from simccl.point_to_point import MessageChannels, batch_of_round, group_size, hop_latency_us, send_rounds

_PS_PER_US = 1_000_000
_PXN_PIECE_BYTES = 128 * 1024  # step of NCCL 2.30.7's network buffers
_PXN_MAX_PIECES = 4

_NO_FLOW = -1

_Edges = tuple[NDArray[np.int64], NDArray[np.int64]]
"""(flow, flow it waits for)"""


def pairwise_flows(
    matrix_bytes: NDArray[np.int64], communicator: Communicator, channels: MessageChannels, is_ll: NDArray[np.bool_]
) -> PlannedFlows:
    """The flows that move ``matrix_bytes[s, d]`` bytes from every rank s to every other rank d, round by round.

    The send buffer of a rank holds its messages in the order of their receivers, its own part included. ``is_ll``
    [ranks, ranks] says which messages use LL; the own parts and empty messages are no flows.
    """
    group = (communicator.size, group_size([len(ranks) for ranks in communicator.ranks_of_node]))
    send_to = _receivers(communicator, *group)
    rounds, src = np.nonzero(matrix_bytes[np.arange(communicator.size), send_to])
    rounds, src = rounds[rounds > 0], src[rounds > 0]
    dst = send_to[rounds, src]
    size = matrix_bytes[src, dst]
    starts = np.cumsum(matrix_bytes, axis=1) - matrix_bytes
    node = communicator.node_of_rank()
    proxy = _proxies(communicator, src, dst, node)

    legs = _Legs.of(size, proxy)
    message = legs.message
    sender = np.where(legs.is_from_proxy, proxy[message], src[message]).astype(np.int32)
    receiver = np.where(legs.is_to_proxy, proxy[message], dst[message]).astype(np.int32)
    payload, ll = legs.end - legs.begin, is_ll[src, dst][message]

    batch = batch_of_round(channels, *group)
    base_channel = channels.base_channels(*group)
    edges = [_pxn_edges(legs)]
    if batch.max() > 0:
        ids = np.full((2, *send_to.shape), _NO_FLOW)
        ids[0, rounds, src], ids[1, rounds, src] = legs.first, legs.last
        edges += _batch_edges(ids, send_to, batch, base_channel)
    dep_offsets, deps = _csr(edges, len(message))
    latency = np.where(legs.is_to_proxy, 0.0, hop_latency_us(ll, node[sender] != node[receiver]))
    return PlannedFlows(
        src=sender,
        dst=receiver,
        payload_bytes=payload,
        wire_bytes=np.where(ll, wire_bytes(payload, Protocol.LL), wire_bytes(payload, Protocol.SIMPLE)),
        channel=base_channel[rounds][message].astype(np.int32),
        step=rounds[message].astype(np.int32),
        origin=src[message].astype(np.int32),
        offset=starts[src, dst][message] + legs.begin,
        operation=np.full(len(message), Operation.COPY, dtype=np.uint8),
        latency_ps=np.rint(latency * _PS_PER_US).astype(np.int64),
        not_before_ps=np.zeros(len(message), dtype=np.int64),
        dep_offsets=dep_offsets,
        deps=deps,
    )


class _Legs(NamedTuple):
    """Messages as flows: one each, or by way of a proxy two per piece (piece 0 to the proxy, piece 0 onwards, …)."""

    first: NDArray[np.int64]
    """[messages] first flow"""
    last: NDArray[np.int64]
    """[messages] last flow"""
    message: NDArray[np.int64]
    """[flows]"""
    begin: NDArray[np.int64]
    """[flows] first byte of the message carried"""
    end: NDArray[np.int64]
    """[flows] byte after the last one carried"""
    is_to_proxy: NDArray[np.bool_]
    """[flows]"""
    is_from_proxy: NDArray[np.bool_]
    """[flows]"""

    @classmethod
    def of(cls, size: NDArray[np.int64], proxy: NDArray[np.int64]) -> _Legs:
        pieces = np.where(proxy >= 0, np.clip(-(-size // _PXN_PIECE_BYTES), 1, _PXN_MAX_PIECES), 1)
        flows = np.where(proxy >= 0, 2 * pieces, 1)
        last = np.cumsum(flows) - 1
        first = last - flows + 1
        message = np.repeat(np.arange(len(size)), flows)
        position = np.arange(len(message)) - first[message]
        is_proxied = proxy[message] >= 0
        piece = np.where(is_proxied, position // 2, 0)
        begin, end = (-(-(piece + side) * size[message] // pieces[message]) for side in (0, 1))
        is_onwards = position % 2 == 1
        return cls(first, last, message, begin, end, is_proxied & ~is_onwards, is_proxied & is_onwards)


def _receivers(communicator: Communicator, ranks: int, group_ranks: int) -> NDArray[np.int64]:
    """[rounds, ranks] the rank to which each rank sends."""
    rank_at = np.concatenate(communicator.ranks_of_node)
    send_to = np.empty((ranks, ranks), dtype=np.int64)
    send_to[:, rank_at] = rank_at[send_rounds(ranks, group_ranks)]
    return send_to


def _proxies(
    communicator: Communicator, src: NDArray[np.int64], dst: NDArray[np.int64], node: NDArray[np.int64]
) -> NDArray[np.int64]:
    """[messages] rank on the sender's node and the receiver's rail that passes the message on, or -1 for none."""
    rail = communicator.rail_of_rank()
    rank_on = np.full((communicator.nodes, communicator.topology.gpus_per_node), -1)
    rank_on[node, rail] = np.arange(communicator.size)
    is_over_rails = (node[src] != node[dst]) & (rail[src] != rail[dst])
    return np.where(is_over_rails, rank_on[node[src], rail[dst]], -1)


def _pxn_edges(legs: _Legs) -> _Edges:
    """Pieces go to the proxy in order, and each goes on the network when it is there."""
    onwards, to_proxy = np.flatnonzero(legs.is_from_proxy), np.flatnonzero(legs.is_to_proxy)
    later = to_proxy[to_proxy > legs.first[legs.message[to_proxy]]]
    return np.concatenate((onwards, later)), np.concatenate((onwards - 1, later - 2))


def _batch_edges(
    ids: NDArray[np.int64], send_to: NDArray[np.int64], batch: NDArray[np.int64], channel: NDArray[np.int64]
) -> list[_Edges]:
    """Edges from what a rank sends and receives in one batch of a channel to what it sends in the next.

    ``ids`` [2, rounds, ranks]: first and last flow of the message that a rank sends in a round.
    """
    first, last = ids
    received = np.empty_like(last)
    np.put_along_axis(received, send_to, last, axis=1)
    edges = []
    for r in np.flatnonzero(batch).tolist():
        for before in np.flatnonzero((channel == channel[r]) & (batch == batch[r] - 1)).tolist():
            for earlier in (last[before], received[before]):
                both = (first[r] != _NO_FLOW) & (earlier != _NO_FLOW)
                edges.append((first[r][both], earlier[both]))
    return edges


def _csr(edges: list[_Edges], flows: int) -> _Edges:
    """``dep_offsets`` and ``deps`` of (flow, dependency) pairs."""
    waiting, awaited = (np.concatenate(column) for column in zip(*edges, strict=True))
    order = np.argsort(waiting, kind="stable")
    counts = np.bincount(waiting, minlength=flows)
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64), awaited[order].astype(np.int64)
