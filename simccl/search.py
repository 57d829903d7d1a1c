"""The ring channels that NCCL's topology search finds, in closed form.

NCCL searches for channels: it tries speeds from the fastest, adds rings while links have capacity, and at the end
may split each ring in two. On an NVSwitch system with one NIC per GPU the outcome has a closed form, given here and
tested against results of NCCL 2.30.7's own search code (one node of 2, 4 and 8 GPUs; several nodes of 1, 2, 4 and 8
GPUs; A100, A800, H100, H800, B200). Other numbers of GPUs per node follow from the same rule, without such a check.

Assumed: every GPU reaches every other GPU of its node over an NVSwitch, each GPU has one NIC beside it under its own
PCIe switch with GPUDirect RDMA, and rings may enter a node on one NIC and leave on another (NCCL_CROSS_NIC = 2).
"""

from __future__ import annotations

from dataclasses import dataclass

from simccl.errors import UnsupportedTopology
from simccl.hardware import Gpu

MAX_CHANNELS = 64
"""NCCL 2.30.7, MAXCHANNELS."""

# Speeds tried per channel, GB/s: NCCL 2.30.7, src/graph/search.cc (speedArrayIntra, speedArrayInter and their
# SM90 and SM100 forms).
_INTRA_GBYTES_PER_S = {
    80: (40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3),
    90: (60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3),
    100: (90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18),
}
_INTER_GBYTES_PER_S = {
    80: (48, 30, 28, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3, 2.4, 1.2, 0.24, 0.12),
    90: (48, 45, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12),
    100: (96, 86, 80, 48, 45.1, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12),
}


@dataclass(frozen=True, slots=True)
class RingChannels:
    """What the search found for rings, and what NCCL makes of it."""

    channels: int
    """Rings of the search; the tuning model counts these."""
    gbytes_per_s: float
    """Bandwidth of one of them, 10⁹ B/s."""
    executed: int
    """Channels that a large operation runs on."""


def search_rings(gpu: Gpu, *, gpus_per_node: int, nodes: int, nic_gbytes_per_s: float | None = None) -> RingChannels:
    """Channels and bandwidth of rings over ``nodes`` nodes with ``gpus_per_node`` ranks on each (at least two in all).

    ``nic_gbytes_per_s`` is the line rate of each GPU's NIC; left out, the GPU's common one.

    Raises:
        UnsupportedTopology: where a NIC or NVLink is slower than any speed that NCCL tries.
    """
    if nodes == 1:
        channels, bandwidth = _rings_of_one_node(gpu)
    else:
        nic = min(gpu.pcie_gbytes_per_s, gpu.nic_gbytes_per_s if nic_gbytes_per_s is None else nic_gbytes_per_s)
        channels, bandwidth = _rings_across_nodes(gpu, gpus_per_node, nic)
    if _may_split(gpu, channels, bandwidth):
        channels, bandwidth = 2 * channels, bandwidth / 2
    executed = min(MAX_CHANNELS, 2 * channels)
    if gpu.compute_capability >= 90 and nodes > 1 and bandwidth > 45 and executed < 16:
        executed *= 2
    return RingChannels(channels, bandwidth, executed)


def _rings_of_one_node(gpu: Gpu) -> tuple[int, float]:
    """The speed whose rings fill most of the NVLinks; a ring takes its speed once in and once out of every GPU.

    NCCL lowers the speed only while the next one is above 0.49 of the best so far.
    """
    total = gpu.nvlink_gbytes_per_s
    channels, bandwidth = 0, 0.0
    for speed in _INTRA_GBYTES_PER_S[gpu.compute_capability]:
        if speed <= 0.49 * bandwidth:
            break
        fitting = int(total / speed)
        if fitting * speed > channels * bandwidth:
            channels, bandwidth = fitting, float(speed)
    return channels, bandwidth


def _rings_across_nodes(gpu: Gpu, gpus_per_node: int, nic: float) -> tuple[int, float]:
    """One ring per NIC; each ring uses the NVLinks of all GPUs but the one that sends to the network."""
    for speed in _INTER_GBYTES_PER_S[gpu.compute_capability]:
        if speed <= nic and speed * (gpus_per_node - 1) <= gpu.nvlink_gbytes_per_s:
            return gpus_per_node, float(speed)
    raise UnsupportedTopology(f"nic: found {nic} GB/s per GPU, expected at least 0.12 GB/s")


def _may_split(gpu: Gpu, channels: int, bandwidth: float) -> bool:
    """NCCL duplicates channels at half the speed unless they are slow or, on Hopper and later, already many."""
    return bandwidth >= 25 and not (gpu.compute_capability > 80 and bandwidth < 50 and channels > 4)
