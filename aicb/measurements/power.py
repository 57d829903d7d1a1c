"""The power that a GPU draws, by what its kernels do: joules per byte and per FLOP on top of what it draws ready.

Measured on an H100 (``aicb/data/h100/power.csv``, written by ``scripts/measure_power.py``, 2026-11-26) and fitted to
matrix products below the power limit by ``scripts/fit_power_law.py``: within 4 % of them. What was not fitted it meets
within 7 %: decode steps of 1 to 256 requests and prompts of 128 to 8,192 tokens of an 8B model, launched one by one and
as a graph, and products with pauses between them. Joules per FLOP are those at the full clock; where they would pass
the limit of the board, the driver lowers the clock until it is kept (`clock.py`), so that the limit is what is drawn.

Assumes that power is that of the mean of an iteration. Ignores temperature (a warm idle H100 draws 11 W more than a
cold one), what data has in its bits (copies and sums of noise draw 5 to 9 % more than the law, writing zeros a third
less), NVLink, and that boards differ by some per cent.

Of GPUs that were not measured, those of one architecture have the H100's joules: they share the circuits, the memory
apart. Others have its shares of their own power limit at their own peaks, which says little more than that limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from aicb.model.precision import GemmDtype

if TYPE_CHECKING:
    from aicb.measurements.gpu import Gpu

MEASURED_GPU: Final = "h100"
"""Whose law stands for those of GPUs that were not measured."""


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """Power of one GPU in its states."""

    limit_w: float
    """Of the board: no load draws more."""
    ready_w: float
    """With an engine's context and nothing to do: clocks stay up."""
    kernels_w: float
    """More while kernels run, however small."""
    polling_w: float
    """More while kernels of collectives wait for others: 24 blocks of 512 threads that poll."""
    j_per_byte: float
    """Read from memory or written to it."""
    j_per_flop: Mapping[GemmDtype, float]
    """By number format, on tensor cores at the full clock."""
    law_as: str | None = None
    """GPU whose measured law this one was made from; ``None``: its own."""

    def computing_w(self, bytes_per_s: float, flops_per_s: Mapping[GemmDtype, float]) -> float:
        """Power while kernels move and compute so much."""
        flops_w = sum(self.j_per_flop[dtype] * rate for dtype, rate in flops_per_s.items())
        return min(self.limit_w, self.ready_w + self.kernels_w + self.j_per_byte * bytes_per_s + flops_w)

    @property
    def communicating_w(self) -> float:
        """Power while it waits for collectives."""
        return min(self.limit_w, self.ready_w + self.polling_w)


H100: Final = PowerLaw(
    limit_w=700.0,
    ready_w=125.0,
    kernels_w=11.0,
    polling_w=23.0,
    j_per_byte=127e-12,
    j_per_flop={"bf16": 1.15e-12, "fp8": 0.73e-12},
)
"""Ready: 119 W at 34 °C and 130 W at 49 °C; kernels of one block each, and polling, as measured beyond it."""


def power_law(gpu: Gpu) -> PowerLaw | None:
    """The law of a GPU; ``None`` where its power limit is not known."""
    from aicb.measurements.gpu import get_gpu

    if gpu.power_w is None:
        return None
    measured = get_gpu(MEASURED_GPU)
    if gpu.name == measured.name:
        return H100
    if gpu.architecture == measured.architecture:
        return replace(H100, limit_w=gpu.power_w, law_as=MEASURED_GPU)
    watts = gpu.power_w / H100.limit_w
    return PowerLaw(
        limit_w=gpu.power_w,
        ready_w=H100.ready_w * watts,
        kernels_w=H100.kernels_w * watts,
        polling_w=H100.polling_w * watts,
        j_per_byte=H100.j_per_byte * watts * measured.hbm_bytes_per_s / gpu.hbm_bytes_per_s,
        j_per_flop={
            dtype: H100.j_per_flop[dtype] * watts * measured.peak_flops[dtype] / peak
            for dtype, peak in gpu.peak_flops.items()
        },
        law_as=MEASURED_GPU,
    )
