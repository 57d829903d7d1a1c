"""Shape of a communicator: ranks, nodes and NICs, which is all that NCCL's search and cost model look at."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from simccl.communicator.gpus import Gpu


class Cpu(StrEnum):
    """CPU of the nodes; NCCL's latency and LL limits depend on its vendor once there are several nodes."""

    INTEL = "intel"
    AMD = "amd"
    ARM = "arm"


class NicLayout(StrEnum):
    """Layout of GPUs and NICs on PCIe switches."""

    OWN_SWITCH = "own_switch"
    """Every GPU has a switch of its own; with fewer NICs than GPUs, every other GPU has a NIC on its switch."""
    SHARED_SWITCH = "shared_switch"
    """Two GPUs share a switch, with two NICs or with one."""


@dataclass(frozen=True, slots=True)
class CommunicatorShape:
    """Shape of a communicator on NVSwitch nodes of one GPU type with GPUDirect RDMA."""

    gpu: Gpu
    ranks: int
    nodes: int
    gpus_per_node: int
    """Ranks on the node that has fewest."""
    nic_gbytes_per_s: float
    """Line rate of one NIC, 10⁹ B/s."""
    cpu: Cpu = Cpu.INTEL
    nics_per_node: int | None = None
    """NICs that the ranks of a node may use, at most one per rank; None for one per rank."""
    nic_layout: NicLayout = NicLayout.OWN_SWITCH
    may_cross_nics: bool = True
    """Whether a ring may enter a node on one NIC and leave on another (NCCL_CROSS_NIC = 2, the default)."""
    has_collnet: bool = False
    """Whether switches between nodes reduce (SHARP with its plugin)."""
    may_use_nvls: bool = True
    """Whether NCCL may have NVSwitches reduce (NCCL_NVLS_ENABLE, on by default)."""

    @property
    def nics(self) -> int:
        """NICs per node that channels can use."""
        return min(self.gpus_per_node, self.nics_per_node or self.gpus_per_node)

    @property
    def network_gbytes_per_s(self) -> float:
        """Rate between a GPU and one NIC: the slower of PCIe and the line rate."""
        return min(self.gpu.pcie_gbytes_per_s, self.nic_gbytes_per_s)
