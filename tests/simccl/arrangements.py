"""Arrangements by GPU name, for tests of the cost model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simccl.communicator.gpus import gpu_named
from simccl.communicator.shape import CommunicatorShape


def arranged(gpu: str, nodes: int, per_node: int, **options: Any) -> CommunicatorShape:
    """Equal nodes with the GPU's common NIC unless said; ``"b200 gen6"`` is a B200 on PCIe gen6 (96 GB/s)."""
    name, _, pcie = gpu.partition(" ")
    found = gpu_named(name)
    if pcie == "gen6":
        found = replace(found, pcie_gbytes_per_s=96.0)
    return CommunicatorShape(
        **{
            "gpu": found,
            "ranks": nodes * per_node,
            "nodes": nodes,
            "gpus_per_node": per_node,
            "nic_gbytes_per_s": found.nic_gbytes_per_s,
            **options,
        }
    )
