"""Link properties that the builders assume unless told otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NVLINK_BPS: Final = 2_966_400_000_000
"""370.8 GB/s per GPU and direction: 18 NVLinks of 20.6 GB/s, what NCCL reckons with on SM90 (H100, H200, H20)."""
NVLINK_LATENCY_PS: Final = 25_000
"""GPU to NVSwitch; SimAI 1.7 topology templates (0.000025 ms)."""
NIC_BPS: Final = 400_000_000_000
"""One 400 Gbit/s port per GPU (ConnectX-7; SimAI 1.7 Spectrum-X template)."""
LINK_LATENCY_PS: Final = 500_000
"""NIC to leaf and leaf to spine; SimAI 1.7 topology templates (0.0005 ms)."""
MAX_NODES_PER_SEGMENT: Final = 64
"""NICs of a leaf, from a 128-port switch with half its ports down; SimAI 1.7 templates (64 NICs per access switch)."""


@dataclass(frozen=True, slots=True)
class LinkRates:
    """Capacity and latency of the two kinds of link a GPU has."""

    nic_bps: int = NIC_BPS
    nic_latency_ps: int = LINK_LATENCY_PS
    """Also of the links between switches."""
    nvlink_bps: int = NVLINK_BPS
    nvlink_latency_ps: int = NVLINK_LATENCY_PS
