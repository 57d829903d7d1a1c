"""Times of experts that follow from some measured rows alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aicb.kernels.expert_times import ExpertTimes
from aicb.kernels.grouped_gemm import GroupedGemm
from aicb.measurements.table import KernelRow
from aicb.measurements.timing import MeasuredTimes
from aicb.model.precision import Precision


class SomeRows:
    """Measured times of some rows alone."""

    def __init__(self, measured: MeasuredTimes, rows: list[KernelRow]):
        self._measured, self._rows = measured, rows
        self.table, self.gpu, self.timing = self, measured.gpu, measured.timing

    def select(self, *_: Any) -> list[KernelRow]:
        return self._rows

    def time_us(self, row: KernelRow, cold_bytes: float) -> float:
        return self._measured.time_us(row, cold_bytes)


def errors_of(
    measured: MeasuredTimes,
    kernel_of: Callable[[KernelRow], GroupedGemm],
    known: list[KernelRow],
    unknown: list[KernelRow],
) -> list[float]:
    """Absolute relative errors of unknown mxfp4 rows, priced from known ones."""
    variant = kernel_of(known[0]).variant(Precision("mxfp4"))
    times = GroupedGemm.fit(variant, SomeRows(measured, known))  # type: ignore[arg-type]
    assert isinstance(times, ExpertTimes)
    return [abs(times.price(kernel_of(row)).time_us / measured.time_us(row, 0.0) - 1.0) for row in unknown]
