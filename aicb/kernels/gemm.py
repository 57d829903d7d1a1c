"""Dense matrix products with resident weights: projections, feed-forward networks, router, LM head."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from aicb.kernels.columns import Columns, gemm_dtype
from aicb.kernels.fitting.surface import Surface
from aicb.kernels.kernel import Kernel, KernelCost, Shape, SurfaceTimes
from aicb.kernels.point import ListedPlace, Point, point
from aicb.kernels.reference.product_times import dense_reference, swapped_reference
from aicb.measurements.table import KernelRow
from aicb.measurements.timing import MeasuredTimes, gemm_weight_bytes
from aicb.model.precision import (
    ELEMENT_BYTES,
    AnyNumber,
    GemmDtype,
    Precision,
    activation_bytes_per_row,
    weight_matrix_bytes,
)

SWAPPED_BELOW_ROWS = 32
"""FlashInfer and TensorRT-LLM swap the operands of fp8 products of fewer rows (``fp8_blockscale_gemm_sm90``)."""
BIAS_BYTES = ELEMENT_BYTES["bf16"]
"""Of one element; biases are never quantised."""


@dataclass(frozen=True, slots=True)
class Gemm(Kernel):
    """``[m, k] x [n, k]^T -> [m, n]``."""

    operations = ("gemm",)
    cold_operations = frozenset({"gemm"})

    m: int
    n: int
    k: int
    dtype: GemmDtype
    output_bytes: int = field(default=ELEMENT_BYTES["bf16"], kw_only=True)
    """Of one element."""
    has_bias: bool = field(default=False, kw_only=True)
    """Adds a bf16 vector ``[n]`` on the way out, which takes no time of its own."""

    def cost(self, precision: Precision) -> KernelCost:
        del precision
        weight = float(self._held_bytes)
        moved = dense_bytes(self.m, self.n, self.k, self.dtype, self.output_bytes) + self._bias_bytes
        return KernelCost(2.0 * self.m * self.n * self.k, float(moved), weight, self.dtype)

    @property
    def _bias_bytes(self) -> int:
        return BIAS_BYTES * self.n if self.has_bias else 0

    @property
    def _held_bytes(self) -> int:
        return weight_matrix_bytes(self.n, self.k, self.dtype) + self._bias_bytes

    def describe(self) -> str:
        return f"m {self.m} n {self.n} k {self.k} {self.dtype}"

    @classmethod
    def read(cls, operation: str, row: Columns) -> Self:
        del operation
        return cls(row.integer("m"), row.integer("n"), row.integer("k"), gemm_dtype(row))

    @classmethod
    def fit(cls, variant: Hashable, measured: MeasuredTimes) -> DenseTimes:
        assert variant == "bf16" or variant == "fp8"
        return DenseTimes(measured, variant)

    def variant(self, precision: Precision) -> GemmDtype:
        del precision
        return self.dtype

    @property
    def measured_as(self) -> tuple[str, str | None]:
        return "gemm", self.dtype

    def weight_bytes(self, elements: int) -> int:
        return self._held_bytes if elements else 0

    def tensor_bytes(self, precision: Precision) -> int:
        cost = self.cost(precision)
        return int(cost.moved_bytes - cost.cold_bytes)

    def listed_points(self, place: ListedPlace) -> Iterator[Point]:
        shape = {"m": self.m, "n": self.n, "k": self.k}
        yield point("gemm", self.dtype, shape, tag=place.tag)
        if self.dtype == "fp8" and self.m < SWAPPED_BELOW_ROWS:
            yield point("gemm_swapped", self.dtype, shape, tag=place.tag)


@dataclass(frozen=True, slots=True)
class SwappedGemm(Kernel):
    """``[m, k] x [n, k]^T -> [m, n]`` of few rows in block-scaled fp8 by a kernel whose operands are swapped.

    Its activations are bf16: their quantisation is a part of it.
    """

    operations = ("gemm_swapped",)
    cold_operations = frozenset({"gemm_swapped"})

    m: int
    n: int
    k: int

    def cost(self, precision: Precision) -> KernelCost:
        del precision
        weight = float(weight_matrix_bytes(self.n, self.k, "fp8"))
        moved = weight + ELEMENT_BYTES["bf16"] * self.m * (self.k + self.n)
        return KernelCost(2.0 * self.m * self.n * self.k, moved, weight, "fp8")

    def describe(self) -> str:
        return f"m {self.m} n {self.n} k {self.k} fp8, swapped"

    @classmethod
    def read(cls, operation: str, row: Columns) -> Self:
        del operation
        return cls(row.integer("m"), row.integer("n"), row.integer("k"))

    @classmethod
    def fit(cls, variant: Hashable, measured: MeasuredTimes) -> SwappedTimes | None:
        del variant
        rows = measured.table.select("gemm_swapped")
        return SwappedTimes(measured, rows) if rows else None

    @property
    def measured_as(self) -> tuple[str, str | None]:
        return "gemm_swapped", None

    def weight_bytes(self, elements: int) -> int:
        return weight_matrix_bytes(self.n, self.k, "fp8") if elements else 0

    def tensor_bytes(self, precision: Precision) -> int:
        cost = self.cost(precision)
        return int(cost.moved_bytes - cost.cold_bytes)


def dense_bytes(
    m: AnyNumber, n: AnyNumber, k: AnyNumber, dtype: GemmDtype, output_bytes: int = ELEMENT_BYTES["bf16"]
) -> AnyNumber:
    """Bytes of activations, weights with their scales, and results; numbers, or columns of products."""
    return m * activation_bytes_per_row(k, dtype) + weight_matrix_bytes(n, k, dtype) + m * n * output_bytes


class SwappedTimes(SurfaceTimes[SwappedGemm]):
    """Swapped GEMM: sites (n, k), axis m."""

    def __init__(self, measured: MeasuredTimes, rows: Sequence[KernelRow]):
        shapes = np.array([[row["n"], row["k"], row["m"]] for row in rows], dtype=np.float64)
        times_us = np.array([measured.time_us(row, gemm_weight_bytes(row)) for row in rows])
        super().__init__(Surface(swapped_reference(measured.gpu, measured.timing == "graph"), shapes, times_us))

    def shape_of(self, kernel: SwappedGemm) -> Shape:
        return float(kernel.n), float(kernel.k), float(kernel.m)

    def parts(self, kernel: SwappedGemm) -> tuple[Surface, list[Shape]]:
        return self.surface, [self.shape_of(kernel)]


class DenseTimes(SurfaceTimes[Gemm]):
    """Dense GEMM of one number format: sites (n, k), axis m."""

    def __init__(self, measured: MeasuredTimes, dtype: GemmDtype):
        rows = measured.table.select("gemm", dtype)
        shapes = np.array([[row["n"], row["k"], row["m"]] for row in rows], dtype=np.float64)
        times_us = np.array([measured.time_us(row, gemm_weight_bytes(row)) for row in rows])
        super().__init__(Surface(dense_reference(measured.gpu, dtype, measured.timing == "graph"), shapes, times_us))

    def shape_of(self, kernel: Gemm) -> Shape:
        return float(kernel.n), float(kernel.k), float(kernel.m)

    def parts(self, kernel: Gemm) -> tuple[Surface, list[Shape]]:
        return self.surface, [self.shape_of(kernel)]
