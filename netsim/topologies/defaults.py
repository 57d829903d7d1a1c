"""Link properties that the builders assume where a specification leaves them open."""

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
NVLINK5_BPS: Final = 5_774_400_000_000
"""721.8 GB/s per GPU and direction: 18 NVLinks of 40.1 GB/s, what NCCL reckons with on SM100 (B200, GB200).

The signalling rate is 900 GB/s (NVIDIA's data sheet of GB200 NVL72: 1.8 TB/s per GPU, both directions together)."""
PCIE_BPS: Final = 504_000_000_000
"""63 GB/s per direction: PCIe 5.0 x16, 32 GT/s a lane in 128b/130b code (PCI-SIG, PCI Express Base 5.0)."""
PCIE_LATENCY_PS: Final = 250_000
"""GPU to PCIe switch and switch to host; our choice, half of a NIC link."""
NICS_PER_LEAF: Final = 64
"""From a 128-port switch with half its ports down; SimAI 1.7 templates (64 NICs per access switch)."""


@dataclass(frozen=True, slots=True)
class LinkRates:
    """Capacity and latency of the two kinds of link a GPU has."""

    nic_bps: int = NIC_BPS
    """Of all ports of the NIC together."""
    nic_latency_ps: int = LINK_LATENCY_PS
    """Also of the links between switches."""
    nvlink_bps: int = NVLINK_BPS
    """To all NVSwitches together."""
    nvlink_latency_ps: int = NVLINK_LATENCY_PS
