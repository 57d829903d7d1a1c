"""The channels that NCCL's topology search finds for rings, trees and NVLS, in closed form.

NCCL searches for channels: it tries speeds from the fastest, adds channels while links have capacity, relaxes what it
asks of paths, and at the end may split each channel in two and raise speeds. On an NVSwitch system the outcome has a
closed form, given here and tested against results of NCCL 2.30.7's own search code: one node of 2, 4 and 8 GPUs;
several nodes of 1, 2, 4 and 8 GPUs with a NIC per GPU or per two GPUs, PCIe switches shared or not, rings that may
change NICs or not; A100, A800, H100, H800, B200. Other numbers of GPUs per node follow from the same rule, without
such a check; so do the CollNet graphs, for which NCCL's results were not available.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

from simccl.communicator.gpus import UnsupportedTopology
from simccl.communicator.shape import CommunicatorShape, NicLayout

MAX_CHANNELS = 64
"""NCCL 2.30.7, MAXCHANNELS."""


class Pattern(IntEnum):
    """NCCL's numbers of the patterns it searches for."""

    BALANCED_TREE = 1
    """NIC traffic of a channel over two GPUs."""
    TREE = 3
    """All NIC traffic of a channel on one GPU."""
    RING = 4
    NVLS = 5
    COLLNET_DIRECT = 6


class PathType(IntEnum):
    """Distance between a GPU and its NIC, NCCL's numbers."""

    PIX = 4
    """One PCIe switch."""
    PXN = 7
    """Over NVLink to the GPU on the NIC's switch."""
    PHB = 8
    """Through the CPU."""


@dataclass(frozen=True, slots=True)
class Graph:
    """The channels of one pattern; rates in 10⁹ B/s per channel."""

    pattern: Pattern
    channels: int
    intra_gbytes_per_s: float
    inter_gbytes_per_s: float
    nic_path: PathType = PathType.PIX
    """Longest path between a channel's GPU and its NIC; without meaning on one node."""
    crosses_nics: bool = False
    """Whether channels enter a node on one NIC and leave on another."""


@dataclass(frozen=True, slots=True)
class Channels:
    """Channels that the search found for a communicator, by pattern."""

    ring: Graph
    tree: Graph
    nvls: Graph | None
    """None without NVLS: before Hopper, or one GPU per node."""
    collnet: Graph | None
    """None where switches between nodes do not reduce."""
    executed: int
    """Number of channels that a large ring or tree runs on."""


@lru_cache(maxsize=256)
def search(at: CommunicatorShape) -> Channels:
    """The channels of a communicator of at least two ranks.

    Raises:
        UnsupportedTopology: where a NIC or NVLink is slower than any speed that NCCL tries.
    """
    ring = _split(at, _ring_of_one_node(at) if at.nodes == 1 else _ring_across_nodes(at))
    executed = min(MAX_CHANNELS, 2 * ring.channels)
    if at.gpu.compute_capability >= 90 and at.nodes > 1 and ring.intra_gbytes_per_s > 45 and executed < 16:
        executed *= 2
    return Channels(
        ring=ring,
        tree=_tree_of_one_node(at, ring) if at.nodes == 1 else _tree_across_nodes(at, ring),
        nvls=_nvls(at),
        collnet=_collnet(at) if at.has_collnet and at.nodes > 1 else None,
        executed=executed,
    )


def _ring_of_one_node(at: CommunicatorShape) -> Graph:
    """Rings at the speed that fills the NVLinks best; a ring takes its speed once in and once out of every GPU.

    NCCL lowers the speed only while the next one is above 0.49 of the best so far.
    """
    total = at.gpu.nvlink_gbytes_per_s
    channels, bandwidth = 0, 0.0
    for speed in at.gpu.generation.intra_node_speeds:
        if speed <= 0.49 * bandwidth:
            break
        fitting = int(total / speed)
        if fitting * speed > channels * bandwidth:
            channels, bandwidth = fitting, float(speed)
    return Graph(Pattern.RING, channels, bandwidth, bandwidth)


def _ring_across_nodes(at: CommunicatorShape) -> Graph:
    """One ring per NIC.

    A ring that leaves over PXN uses the NVLinks of all GPUs, one that may change NICs or finds its other NIC behind
    the same switch spares those of the GPU that sends to the network. PXN is tried first.
    """
    total, alone = at.gpu.nvlink_gbytes_per_s, at.gpus_per_node == 1
    needs_detour = at.nic_layout is NicLayout.OWN_SWITCH and not alone
    sparing = at.gpus_per_node - 1 if at.nics == at.gpus_per_node else at.nics
    for speed in at.gpu.generation.inter_node_speeds:
        if speed > at.network_gbytes_per_s:
            continue
        if needs_detour and speed * at.nics <= total:
            return Graph(Pattern.RING, at.nics, speed, speed, PathType.PXN)
        if speed * sparing <= total and (at.may_cross_nics or not needs_detour):
            return Graph(Pattern.RING, at.nics, speed, speed, crosses_nics=needs_detour)
    raise _too_slow(at)


def _split(at: CommunicatorShape, ring: Graph) -> Graph:
    """NCCL doubles rings at half the speed unless they are slow or, on Hopper and later, already many."""
    bandwidth, is_recent = ring.intra_gbytes_per_s, at.gpu.compute_capability > 80
    if bandwidth < 25 or (is_recent and bandwidth < 50 and ring.channels > 4):
        return ring
    half = bandwidth / 2
    return Graph(ring.pattern, 2 * ring.channels, half, half, ring.nic_path, ring.crosses_nics)


def _tree_of_one_node(at: CommunicatorShape, ring: Graph) -> Graph:
    """As many chains as rings, at a speed above the rings' where chains that start at different GPUs allow it.

    The last GPU of a chain does not send, so c chains of g GPUs need c·(g−1) places, and each GPU has as many as its
    NVLinks hold of the speed. NCCL's greedy search finds such chains of more than two GPUs only with places to spare.
    """
    ranks, total = at.gpus_per_node, at.gpu.nvlink_gbytes_per_s
    needed = ring.channels * (ranks - 1)
    for speed in at.gpu.generation.intra_node_speeds:
        if speed <= ring.intra_gbytes_per_s:
            break
        places = ranks * int(total / speed)
        if places > needed or (places == needed and ranks == 2):
            pattern = Pattern.TREE if ranks > 2 else Pattern.BALANCED_TREE
            return Graph(pattern, ring.channels, float(speed), float(speed))
    return Graph(Pattern.BALANCED_TREE, ring.channels, ring.intra_gbytes_per_s, ring.intra_gbytes_per_s)


def _tree_across_nodes(at: CommunicatorShape, ring: Graph) -> Graph:
    """As many chains as rings; then the speed inside nodes is raised to at most twice that between them.

    Before Hopper NCCL insists on balanced trees, whose second GPU reaches the NIC through the CPU where switches are
    not shared; no faster speed inside nodes is found then.
    """
    speeds = at.gpu.generation.inter_node_speeds
    total, alone = at.gpu.nvlink_gbytes_per_s, at.gpus_per_node == 1
    is_shared = at.nic_layout is NicLayout.SHARED_SWITCH
    starts_everywhere = is_shared or at.nics == at.gpus_per_node
    sends = ring.channels * (at.gpus_per_node - 1) / at.gpus_per_node if starts_everywhere else ring.channels

    def fits(speed: float) -> bool:
        return alone or sends * speed <= total

    nic = at.network_gbytes_per_s * at.nics / ring.channels
    inter = next((speed for speed in speeds if speed <= nic and fits(speed)), None)
    if inter is None:
        raise _too_slow(at)
    over_cpu = at.gpu.compute_capability < 90 and not is_shared and not alone
    intra = inter if over_cpu else _raised(speeds, inter, fits_up_to=float("inf") if alone else total / sends)
    pattern = Pattern.TREE if alone or not (is_shared or over_cpu) else Pattern.BALANCED_TREE
    return Graph(pattern, ring.channels, intra, inter, PathType.PHB if over_cpu else PathType.PIX)


def _nvls(at: CommunicatorShape) -> Graph | None:
    """One channel per head, a GPU per NIC; a head takes its speed twice from its own NVLinks, once from all others."""
    if at.gpu.compute_capability < 90 or at.gpus_per_node < 2:
        return None
    one_node = at.nodes == 1
    speeds = at.gpu.generation.intra_node_speeds if one_node else at.gpu.generation.inter_node_speeds
    heads = at.gpus_per_node if one_node else at.nics
    network = float("inf") if one_node else at.network_gbytes_per_s
    fitting = (speed for speed in speeds if speed <= network and (heads + 1) * speed <= at.gpu.nvlink_gbytes_per_s)
    intra = next(fitting, None)
    if intra is None:
        return None
    return Graph(Pattern.NVLS, heads, intra, _raised(speeds, intra, fits_up_to=network))


def _collnet(at: CommunicatorShape) -> Graph:
    """One channel per NIC, whose GPU exchanges a share with every other GPU of its node."""
    network = at.network_gbytes_per_s
    inter = next((s for s in at.gpu.generation.inter_node_speeds if s <= network), None)
    if inter is None:
        raise _too_slow(at)
    return Graph(Pattern.COLLNET_DIRECT, at.nics, inter, inter)


def _raised(speeds: Sequence[float], speed: float, *, fits_up_to: float) -> float:
    """The first speed from twice the given one on, or the fastest that fits if that comes first."""
    fitting = sorted(s for s in speeds if speed <= s <= fits_up_to)
    return next((s for s in fitting if s >= 2 * speed), fitting[-1])


def _too_slow(at: CommunicatorShape) -> UnsupportedTopology:
    return UnsupportedTopology(f"nic: found {at.network_gbytes_per_s} GB/s per NIC, expected at least 0.12 GB/s")
