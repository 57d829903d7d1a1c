"""GPUs as NCCL's topology search sees them: link rates and generation."""

from __future__ import annotations

from dataclasses import dataclass

from simccl.errors import UnsupportedTopology


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU type. Rates are per direction, in GB/s = 10⁹ B/s, after NCCL's own derating of the data sheet."""

    name: str
    compute_capability: int
    """NVIDIA SM version, two digits and more: 80, 90, 100."""
    nvlinks: int
    gbytes_per_s_per_nvlink: float
    pcie_gbytes_per_s: float
    """x16 link of the generation that the HGX board of this GPU has."""
    nic_gbytes_per_s: float
    """Line rate of the NIC per GPU that systems with this GPU are commonly built with."""

    @property
    def nvlink_gbytes_per_s(self) -> float:
        """All NVLinks of the GPU together, to an NVSwitch."""
        return self.nvlinks * self.gbytes_per_s_per_nvlink


# NVLink: links · rate per link of NCCL 2.30.7 (src/graph/topo.h: SM80 20.0, SM90 20.6, SM100 40.1 GB/s).
# PCIe: width · v / 80 with v = 240 (gen4), 480 (gen5), same file. NICs: 200G on A100 systems, 400G since.
GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("a100", 80, 12, 20.0, 24.0, 25.0),
        Gpu("a800", 80, 8, 20.0, 24.0, 25.0),
        Gpu("h100", 90, 18, 20.6, 48.0, 50.0),
        Gpu("h200", 90, 18, 20.6, 48.0, 50.0),
        Gpu("h20", 90, 18, 20.6, 48.0, 50.0),
        Gpu("h800", 90, 8, 20.6, 48.0, 50.0),
        Gpu("b200", 100, 18, 40.1, 48.0, 50.0),
    )
}


def gpu_named(name: str) -> Gpu:
    """The GPU of that name, in any case of letters.

    Raises:
        UnsupportedTopology: for a GPU without known link rates.
    """
    try:
        return GPUS[name.strip().lower()]
    except KeyError:
        raise UnsupportedTopology(f"gpu: found {name!r}, expected one of {', '.join(GPUS)}") from None
