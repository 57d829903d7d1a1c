"""GPUs: nominal peaks and memory, as far as times and memory plans need them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from aicb.errors import InputError
from aicb.operators import GemmDtype
from aicb.precision import Precision

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU (SXM module). Peaks are dense tensor-core rates of the data sheet, without sparsity."""

    name: str
    hbm_bytes: int
    """Memory that the driver reports."""
    hbm_bytes_per_s: float
    """Nominal bandwidth."""
    peak_bf16_flops: float
    peak_fp8_flops: float | None
    """``None`` where the tensor cores have no fp8."""
    sms: int
    l2_bytes: int
    source: str

    @property
    def peak_flops(self) -> Mapping[GemmDtype, float]:
        """FLOP/s per number format; fp8 is missing where the device has none."""
        peaks: dict[GemmDtype, float] = {"bf16": self.peak_bf16_flops}
        if self.peak_fp8_flops is not None:
            peaks["fp8"] = self.peak_fp8_flops
        return MappingProxyType(peaks)

    def check(self, precision: Precision) -> None:
        """Whether the device computes in this format.

        Raises:
            InputError: fp8 weights on a GPU without fp8 tensor cores.
        """
        if precision.weights not in self.peak_flops:
            raise InputError(f"Precision.weights: found {precision.weights}, expected bf16 ({self.name} has no fp8)")


_HOPPER_SHEET = "NVIDIA H100 Tensor Core GPU data sheet; memory as nvidia-smi reports it"

_GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu(
            name="h200",
            hbm_bytes=143_771 * MIB,
            hbm_bytes_per_s=4.8e12,
            peak_bf16_flops=989.5e12,
            peak_fp8_flops=1979e12,
            sms=132,
            l2_bytes=60 * MIB,
            source="NVIDIA H200 Tensor Core GPU data sheet; memory, SMs and L2 as measured (aicb/data/h200)",
        ),
        Gpu("h100", 81_559 * MIB, 3.35e12, 989.5e12, 1979e12, 132, 50 * MIB, _HOPPER_SHEET),
        Gpu("h800", 81_559 * MIB, 3.35e12, 989.5e12, 1979e12, 132, 50 * MIB, f"as H100, NVLink apart: {_HOPPER_SHEET}"),
        Gpu("h20", 97_871 * MIB, 4.0e12, 148e12, 296e12, 78, 60 * MIB, "NVIDIA H20 data sheet; nvidia-smi"),
        Gpu(
            name="a100",
            hbm_bytes=81_920 * MIB,
            hbm_bytes_per_s=2.039e12,
            peak_bf16_flops=312e12,
            peak_fp8_flops=None,
            sms=108,
            l2_bytes=40 * MIB,
            source="NVIDIA A100 80GB SXM data sheet and A100 architecture white paper; nvidia-smi",
        ),
        Gpu(
            name="b200",
            hbm_bytes=183_359 * MIB,
            hbm_bytes_per_s=8.0e12,
            peak_bf16_flops=2250e12,
            peak_fp8_flops=4500e12,
            sms=148,
            l2_bytes=126 * MIB,
            source="NVIDIA HGX B200 data sheet; nvidia-smi",
        ),
    )
}


def known_gpus() -> list[str]:
    """Names that `get_gpu` knows."""
    return sorted(_GPUS)


def get_gpu(name: str) -> Gpu:
    """A GPU by name, in lower case.

    Raises:
        InputError: unknown name; the known ones are named.
    """
    if name not in _GPUS:
        raise InputError(f"gpu: found {name!r}, expected one of {', '.join(known_gpus())}")
    return _GPUS[name]
