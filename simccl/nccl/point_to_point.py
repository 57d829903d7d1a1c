"""NCCL's grouped point-to-point operations: rounds, channels, and a closed form of their time.

Rounds and channels are those of NCCL 2.30.7 (src/init.cc, src/enqueue.cc: p2p schedule and channel assignment), tested
against values of its own code. NCCL has no cost model for them. The time here is

    base latency + hardware latency · batches + max over ports of user bytes / usable rate

with the base and hardware latencies of the Ring column of its tuning table (nothing is fitted: 6.6 + 0.6 µs for LL,
against 6.8 to 7.5 µs measured for 8 KiB on 2 to 8 H100s), and a measured usable rate of NVLink.

Assumed: GPUs of a node share an NVSwitch; one NIC per GPU; messages between rails take PXN (over NVLink to the GPU on
the receiver's rail). Ignored: contention in the fabric, the fill of the PXN pipeline, LL between nodes (NCCL's default
does not use it there).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np
from numpy.typing import NDArray

from simccl.collective import Collective
from simccl.communicator.shape import CommunicatorShape
from simccl.nccl.correction import Correction
from simccl.nccl.search import search
from simccl.plan.lowering import PortRates

# Step of a point-to-point buffer and the bounds of one part, NCCL 2.30.7: 512 KiB where all peers have NVLink, else
# 128 KiB; parts between step/8 and 32 steps on one node, step/2 and one step across nodes.
_NVLINK_STEP_BYTES = 512 * 1024
_NETWORK_STEP_BYTES = 128 * 1024
_LL_BYTES_PER_PART = 16 * 1024
_ROUNDS_PER_BATCH = 8
_GROUP_RANKS = 8
_NIC_GBYTES_PER_CHANNEL = 14

_LL_BASE_US, _LL_NVLINK_US = 6.6, 0.6
_SIMPLE_BASE_US, _SIMPLE_NVLINK_US, _SIMPLE_NETWORK_US = 8.4, 3.4, 14.0


@dataclass(frozen=True, slots=True)
class MessageChannels:
    """Channels of one communicator over which NCCL spreads point-to-point messages."""

    channels: int
    """Channels for point-to-point, a power of two."""
    per_peer: int
    """Most channels that one message may use."""
    at_least: int
    """Channels that a large message uses before it is cut further."""
    is_one_node: bool

    def parts(self, message_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
        """[messages] parts, each on a channel of its own, that messages are cut into; 1 for an empty message."""
        step = _NVLINK_STEP_BYTES if self.is_one_node else _NETWORK_STEP_BYTES
        smallest, largest = (step // 8, 32 * step) if self.is_one_node else (step // 2, step)
        parts = np.clip(-(-message_bytes // smallest), 1, self.at_least)
        while True:
            too_large = (-(-message_bytes // parts) > largest) & (parts <= self.per_peer // 2)
            if not too_large.any():
                return parts
            parts = np.where(too_large, 2 * parts, parts)

    def uses_ll(self, message_bytes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """[messages] whether a message goes as LL."""
        return self.is_one_node & (message_bytes <= self.parts(message_bytes) * _LL_BYTES_PER_PART)

    def base_channels(self, rounds: int, group_ranks: int) -> NDArray[np.int64]:
        """[rounds] first channel of each round: NCCL spreads rounds (across nodes: blocks of 8) by bit reversal."""
        r = np.arange(rounds)
        if not self.is_one_node:
            blocks_per_group = -(-group_ranks // _ROUNDS_PER_BATCH)
            r = r // group_ranks * blocks_per_group + r % group_ranks // _ROUNDS_PER_BATCH
        return _bits_reversed(r % self.channels, self.channels.bit_length() - 1)


def message_channels(at: CommunicatorShape) -> MessageChannels:
    """Point-to-point channels of a communicator; NICs count as one per GPU."""
    channels = _next_power_of_two(search(at).executed)
    per_peer = 2 * at.gpu.nvlinks
    if at.nodes > 1:
        per_peer = min(per_peer, max(1, -(-int(at.network_gbytes_per_s) // _NIC_GBYTES_PER_CHANNEL)))
    per_peer = _next_power_of_two(per_peer)
    if at.nodes == 1:
        per_peer = min(per_peer, channels)
    else:
        while per_peer * -(-at.ranks // _ROUNDS_PER_BATCH) > channels and per_peer > 1:
            per_peer //= 2
    at_least = per_peer
    while at_least * at.ranks > channels and at_least > 1:
        at_least //= 2
    return MessageChannels(channels, per_peer, at_least, is_one_node=at.nodes == 1)


def message_port_rates(at: CommunicatorShape) -> PortRates:
    """User bytes per second of a GPU's ports for point-to-point messages."""
    nvlink = at.gpu.nvlink_gbytes_per_s * at.gpu.generation.nvlink_efficiency
    return PortRates(nvlink * 1e9, at.network_gbytes_per_s * 1e9)


def group_size(ranks_per_node: list[int]) -> int:
    """Ranks per group of the schedule: the whole node if there is one, else at most 8 that divide every node."""
    return ranks_per_node[0] if len(ranks_per_node) == 1 else gcd(_GROUP_RANKS, *ranks_per_node)


def group_deltas(groups: int) -> list[int]:
    """The order in which a group of ranks turns to the other groups, itself first: a quadratic sequence."""
    span = _next_power_of_two(groups)
    deltas, delta = [], 0
    for k in range(span):
        delta = (delta + k) % span
        if delta < groups:
            deltas.append(delta)
    return deltas


def send_rounds(ranks: int, group_ranks: int) -> NDArray[np.int64]:
    """[rounds, ranks] position to which each position sends; round 0 is the own copy, each round a permutation.

    Positions are ranks in the order of nodes. The position from which one receives is the inverse permutation.
    """
    position = np.arange(ranks)
    group, local = position // group_ranks, position % group_ranks
    groups = ranks // group_ranks
    return np.array(
        [
            (group + delta) % groups * group_ranks + (local + inner) % group_ranks
            for delta in group_deltas(groups)
            for inner in range(group_ranks)
        ]
    )


def latencies_us(at: CommunicatorShape, is_ll: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Per message size: base latency, and hardware latency of one batch of the slowest kind of hop."""
    base = np.where(is_ll, _LL_BASE_US, _SIMPLE_BASE_US)
    return base, np.where(is_ll, _LL_NVLINK_US, _SIMPLE_NVLINK_US if at.nodes == 1 else _SIMPLE_NETWORK_US)


def hop_latency_us(is_ll: NDArray[np.bool_], crosses: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Per flow: hardware latency of a hop inside a node or between nodes."""
    return np.where(crosses, _SIMPLE_NETWORK_US, np.where(is_ll, _LL_NVLINK_US, _SIMPLE_NVLINK_US))


def batches(at: CommunicatorShape, channels: MessageChannels, group_ranks: int) -> int:
    """Batches of eight rounds that one channel works through in an all-to-all, one after the other."""
    return int(batch_of_round(channels, at.ranks, group_ranks).max()) + 1


def batch_of_round(channels: MessageChannels, ranks: int, group_ranks: int) -> NDArray[np.int64]:
    """[rounds] how many batches come before this round's on its first channel."""
    base = channels.base_channels(ranks, group_ranks)
    block = np.arange(ranks) // _ROUNDS_PER_BATCH
    order = np.zeros(ranks, dtype=np.int64)
    for channel in np.unique(base):
        mine = base == channel
        order[mine] = np.unique(block[mine], return_inverse=True)[1]
    return order


@dataclass(frozen=True, slots=True, eq=False)
class MessageCosts:
    """Cost model of all_to_all or send_recv on one arrangement; arrays have one entry per size."""

    latency_us: NDArray[np.float64]
    port_us: NDArray[np.float64]
    """User bytes over the usable rate of the busiest port."""
    part_bytes: NDArray[np.int64]
    """Part of a message that one channel carries."""
    step_bytes: int
    """Step of the buffer through which parts are copied."""
    is_ll: NDArray[np.bool_]

    @property
    def times_us(self) -> NDArray[np.float64]:
        """[sizes] time before any correction."""
        return self.latency_us + self.port_us

    def corrected_us(self, correction: Correction) -> NDArray[np.float64]:
        """[sizes] time that measurements make of it."""
        return correction.message_time_us(self.latency_us, self.port_us, self.part_bytes, self.step_bytes)


def message_costs(op: Collective, size_bytes: NDArray[np.int64], at: CommunicatorShape) -> MessageCosts:
    """Costs of all_to_all or send_recv of positive sizes over two or more ranks."""
    channels, rates = message_channels(at), message_port_rates(at)
    away = at.ranks - at.gpus_per_node
    if op is Collective.ALL_TO_ALL:
        message = -(-size_bytes // at.ranks)
        sequence = batches(at, channels, group_size([at.gpus_per_node] * at.nodes))
        over_rails = away * (at.gpus_per_node - 1) / at.gpus_per_node
        nvlink_messages, network_messages = at.gpus_per_node - 1 + over_rails, float(away)
    else:
        message, sequence = size_bytes, 1
        nvlink_messages, network_messages = float(at.gpus_per_node > 1), float(away > 0)
    is_ll = channels.uses_ll(message)
    base, hop = latencies_us(at, is_ll)
    nvlink_s = message * nvlink_messages / rates.nvlink_bytes_per_s
    network_s = message * network_messages / rates.network_bytes_per_s
    return MessageCosts(
        latency_us=base + sequence * hop,
        port_us=1e6 * np.maximum(nvlink_s, network_s),
        part_bytes=-(-message // channels.parts(message)),
        step_bytes=_NVLINK_STEP_BYTES if channels.is_one_node else _NETWORK_STEP_BYTES,
        is_ll=is_ll,
    )


def channels_used(op: Collective, size_bytes: NDArray[np.int64], at: CommunicatorShape) -> NDArray[np.int64]:
    """[sizes] distinct channels that the messages of all_to_all or send_recv run on."""
    channels = message_channels(at)
    if op is Collective.SEND_RECV:
        return channels.parts(size_bytes)
    parts = channels.parts(-(-size_bytes // at.ranks))
    base = np.unique(channels.base_channels(at.ranks, group_size([at.gpus_per_node] * at.nodes)))
    counts = {k: len(np.unique((base[:, None] + np.arange(k)) % channels.channels)) for k in np.unique(parts).tolist()}
    return np.array([counts[k] for k in parts.tolist()], dtype=np.int64)


def _next_power_of_two(value: int) -> int:
    return 1 << (value - 1).bit_length()


def _bits_reversed(values: NDArray[np.int64], bits: int) -> NDArray[np.int64]:
    return sum((((values >> b) & 1) << (bits - 1 - b) for b in range(bits)), start=np.zeros_like(values))
