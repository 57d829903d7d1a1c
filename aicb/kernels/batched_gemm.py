"""Batched matrix products in bf16: the absorbed projections of latent attention."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

from aicb.kernels.columns import Columns
from aicb.kernels.fitting.surface import Surface
from aicb.kernels.kernel import Kernel, KernelCost, Shape, SurfaceTimes
from aicb.kernels.point import Point, SweptModel, point
from aicb.kernels.reference.product_times import products_reference
from aicb.measurements.timing import MeasuredTimes, gemm_weight_bytes
from aicb.model.architecture import LatentAttention
from aicb.model.precision import Precision

PROFILED_TOKENS = (1, 4, 16, 32, 64, 128, 256, 512, 1024, 4096)


@dataclass(frozen=True, slots=True)
class BatchedGemm(Kernel):
    """``batch`` independent bf16 products ``[m, k] x [k, n]`` (MLA absorb)."""

    operations = ("bmm",)
    cold_operations = frozenset({"bmm"})

    batch: int
    m: int
    n: int
    k: int

    def cost(self, precision: Precision) -> KernelCost:
        del precision
        weight = 2.0 * self.batch * self.n * self.k
        moved = weight + 2.0 * self.batch * self.m * (self.n + self.k)
        return KernelCost(2.0 * self.batch * self.m * self.n * self.k, moved, weight, "bf16")

    def describe(self) -> str:
        return f"batch {self.batch} m {self.m} n {self.n} k {self.k} bf16"

    @classmethod
    def read(cls, operation: str, row: Columns) -> Self:
        del operation
        return cls(row.integer("heads"), row.integer("m"), row.integer("n"), row.integer("k"))

    @classmethod
    def fit(cls, variant: Hashable, measured: MeasuredTimes) -> BatchedTimes:
        del variant
        return BatchedTimes(measured)

    @property
    def measured_as(self) -> tuple[str, str | None]:
        return "bmm", None

    @classmethod
    def swept_points(cls, swept: SweptModel) -> Iterator[Point]:
        """Both absorbed products of dense latent attention."""
        for attention, kv, tp in swept.attentions(LatentAttention):
            if attention.indexer is not None or kv == "fp8":
                continue
            absorb = {"n": attention.kv_lora_rank, "k": attention.qk_nope_head_dim}
            unabsorb = {"n": attention.v_head_dim, "k": attention.kv_lora_rank}
            for tokens in PROFILED_TOKENS:
                if tokens <= swept.max_tokens:
                    for shape in (absorb, unabsorb):
                        columns = {"m": tokens, "heads": attention.heads // tp, **shape}
                        yield point("bmm", "bf16", columns, tag=swept.tag(tp))


class BatchedTimes(SurfaceTimes[BatchedGemm]):
    """bf16 batched GEMM: sites (products, n, k), axis m."""

    def __init__(self, measured: MeasuredTimes):
        rows = measured.table.select("bmm")
        shapes = np.array([[row["heads"], row["n"], row["k"], row["m"]] for row in rows], dtype=np.float64)
        times_us = np.array([measured.time_us(row, row["heads"] * gemm_weight_bytes(row)) for row in rows])
        super().__init__(Surface(products_reference(measured.gpu), shapes, times_us))

    def shape_of(self, kernel: BatchedGemm) -> Shape:
        return float(kernel.batch), float(kernel.n), float(kernel.k), float(kernel.m)

    def parts(self, kernel: BatchedGemm) -> tuple[Surface, list[Shape]]:
        return self.surface, [self.shape_of(kernel)]
