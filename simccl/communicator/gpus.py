"""GPUs as NCCL's topology search sees them: link rates and generation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType

from boundary.errors import InputError
from simccl.communicator.generations import Generation, generations


class UnsupportedTopology(InputError):
    """A GPU or shape of communicator for which the cost model has no values; the message names what it knows."""


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
    generation: Generation = field(compare=False, repr=False)

    @property
    def nvlink_gbytes_per_s(self) -> float:
        """All NVLinks of the GPU together, to an NVSwitch."""
        return self.nvlinks * self.gbytes_per_s_per_nvlink


@cache
def gpus() -> Mapping[str, Gpu]:
    """All GPU types that come with the package by name, those of older generations first."""
    return gpus_of(generations())


def gpus_of(all_generations: Iterable[Generation]) -> Mapping[str, Gpu]:
    """The GPU types of some generations by name."""
    return MappingProxyType(
        {
            name: Gpu(
                name=name,
                compute_capability=generation.compute_capability,
                nvlinks=int(links["nvlinks"]),
                gbytes_per_s_per_nvlink=generation.gbytes_per_s_per_nvlink,
                pcie_gbytes_per_s=links["pcie_gbytes_per_s"],
                nic_gbytes_per_s=links["nic_gbytes_per_s"],
                generation=generation,
            )
            for generation in all_generations
            for name, links in generation.gpus.items()
        }
    )


def gpu_named(name: str) -> Gpu:
    """The GPU of that name, in any case of letters.

    Raises:
        UnsupportedTopology: for a GPU without known link rates.
    """
    try:
        return gpus()[name.strip().lower()]
    except KeyError:
        raise UnsupportedTopology(f"gpu: found {name!r}, expected one of {', '.join(gpus())}") from None
