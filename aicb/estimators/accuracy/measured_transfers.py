"""Errors of times that are transferred to an H100, against our own measurements there (``vidur-pd validate``).

``aicb/data/h100/held_out.parquet`` has shapes of the H200's table, taken by the same profiler with the same libraries:
the row of the H200 is transferred and compared with the one of the H100, kernel by kernel, both at the reference clock.
Every second row is scored; the others helped to state the errors that estimates claim. So are all of vLLM's kernel of
experts (``aicb/data/h100/experts``), which were measured after the claims were set; vLLM ships tiles for some of these
sites on one of the GPUs alone. The clocks themselves (``clocks.csv``) are compared with the law that the H100 is given,
which nothing was fitted for.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from aicb.data import FOLDER
from aicb.estimators.accuracy.transferred import (
    ORIGIN,
    TARGET,
    Compared,
    TransferErrors,
    by_class,
    compared,
    errors_of_transfers,
)
from aicb.estimators.transfer_reference import parts_of
from aicb.kernels.batched_gemm import BatchedGemm
from aicb.kernels.gemm import Gemm
from aicb.kernels.registry import classes_by_operation
from aicb.measurements.clock import at_reference_us
from aicb.measurements.table import EVEN_DISTRIBUTIONS, KernelRow, KernelTable, TableFile
from aicb.measurements.timing import MeasuredTimes
from aicb.model.precision import Precision
from boundary.errors import InputError

HELD_OUT = FOLDER / "h100" / "held_out.parquet"
EXPERTS = FOLDER / "h100" / "experts" / "vllm_experts_h100.parquet"
CLOCKS = FOLDER / "h100" / "clocks.csv"
OTHER_KERNELS = FOLDER / "h200" / "profile" / "other_kernels" / "profile.parquet"
OPERATIONS: Mapping[str, tuple[str, ...]] = {
    "dense products": ("gemm", "bmm"),
    "experts": ("grouped_gemm_gathered", "grouped_gemm_masked", "grouped_gemm_contiguous"),
    "FA3 prefill": ("prefill_attention",),
    "FA3 decode": ("decode_attention",),
    "FlashMLA decode": ("mla_decode",),
    "small kernels": ("add_rms_norm", "silu_mul", "silu_mul_quant", "quant", "rope", "embedding", "sampling"),
}
PRECISION = Precision()


def measured_transfers() -> Iterator[TransferErrors]:
    """Kinds of kernels by class, and all together."""
    everything: list[Compared] = []
    for kind, operations in OPERATIONS.items():
        held_out = [(operation, _even_rows(operation)) for operation in operations]
        points = [point for operation, rows in held_out for point in list(_points(operation, rows))[1::2]]
        yield from by_class(kind, points)
        everything += points
    yield errors_of_transfers("all", "", everything)


def measured_experts() -> Iterator[TransferErrors]:
    """vLLM's kernel of experts by class, and all of it."""
    points = list(_points("grouped_gemm_gathered", TableFile(EXPERTS, {}).rows("grouped_gemm_gathered")))
    yield from by_class("vLLM's experts", points)
    yield errors_of_transfers("vLLM's experts", "", points)


def clock_errors_mhz() -> tuple[float, float]:
    """(root mean square, mean) of the H100's law against the clocks measured under bf16 products."""
    with CLOCKS.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    time_us, mhz, tflops, tb_per_s = (
        np.array([float(row[name]) for row in rows]) for name in ("time_us", "sm_clock_mhz", "tflops", "tb_per_s")
    )
    assert TARGET.clock is not None
    reference_us = at_reference_us(TARGET.clock, time_us, mhz, tb_per_s * time_us * 1e6, TARGET.hbm_bytes_per_s)
    error = TARGET.clock.mhz(tflops * 1e12 / TARGET.peak_flops["bf16"] * time_us / reference_us) - mhz
    return float(np.sqrt(np.mean(error**2))), float(np.mean(error))


def _even_rows(operation: str) -> list[KernelRow]:
    return [row for row in TableFile(HELD_OUT, {}).rows(operation) if row.distribution in EVEN_DISTRIBUTIONS]


def _points(operation: str, held_out: Iterable[KernelRow]) -> Iterator[Compared]:
    table = KernelTable.load(ORIGIN.name)
    target, origin = MeasuredTimes(table, "engine", TARGET, 0.0, {}), MeasuredTimes.of(table, "engine", ORIGIN)
    rows = defaultdict(list)
    for file in (*table.parts, TableFile(OTHER_KERNELS, {})):
        for row in file.rows(operation):
            rows[_key(row)].append(row)
    for row in held_out:
        if not (here := rows.get(_key(row))):
            continue
        kernel = classes_by_operation()[operation].read(operation, RowColumns(row))
        cost = kernel.cost(PRECISION)
        parts = tuple(parts_of(cost, kernel.stays_in_cache, gpu, ORIGIN) for gpu in (ORIGIN, TARGET))
        origin_us = float(np.mean([origin.time_us(each, cost.cold_bytes) for each in here]))
        is_product = isinstance(kernel, Gemm | BatchedGemm)
        yield compared(origin_us, target.time_us(row, cost.cold_bytes), (parts[0], parts[1]), is_product=is_product)


def _key(row: KernelRow) -> tuple[object, ...]:
    return (row.kernel, row.dtype, row.distribution, row.lengths, *sorted(row.shape.items()))


class RowColumns:
    """The cells of a measured row of equal lengths, as kernels read them (`aicb.kernels.columns.Columns`)."""

    def __init__(self, row: KernelRow):
        self._row = row
        self._numbers: Mapping[str, float] = {**row.shape, **({"bytes": row.moved_bytes} if row.moved_bytes else {})}

    def text(self, field: str) -> str:
        return self._row.dtype if field == "dtype" else str(self._numbers.get(field, ""))

    def fail(self, field: str, expected: str) -> InputError:
        return InputError(f"{HELD_OUT.name}: {self._row.op}: {field}: found {self.text(field)!r}, expected {expected}")

    def integer(self, field: str, default: int | None = None) -> int:
        return int(self.number(field, default))

    def number(self, field: str, default: float | None = None) -> float:
        value = self._numbers.get(field, default)
        if value is None:
            raise self.fail(field, "a number")
        return value

    def lengths(self, field: str, batch: int) -> NDArray[np.int64]:
        return np.full(batch, self.integer(field), dtype=np.int64)
