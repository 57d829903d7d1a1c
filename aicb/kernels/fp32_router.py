"""Scores of experts in fp32: a product that tensor cores do not take part in, and the cast of what it multiplies.

vLLM 0.24.0 scores so where weights of the router are fp32 (``fused_moe/router/gate_linear.py``: a kernel of its own up
to 32 tokens of MiniMax-M2, else a cast and cuBLAS; ``models/glm4_moe.py``: always the latter).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Self

import numpy as np

from aicb.kernels.columns import Columns
from aicb.kernels.fitting.kriging import Floats, Scales
from aicb.kernels.fitting.surface import ReferenceModel, Surface
from aicb.kernels.kernel import Kernel, KernelCost, Shape, SurfaceTimes
from aicb.measurements.gpu import Gpu
from aicb.measurements.timing import MeasuredTimes
from aicb.model.precision import ELEMENT_BYTES, Precision

FLOPS_PER_CLOCK = 256
"""Of fp32 outside tensor cores, of an SM: 128 lanes that multiply and add (NVIDIA H100 white paper)."""
LATENCY_US = 2.5
"""Of one token. As the reference's other constants it shapes the interpolation and no more."""
_FP32, _BF16 = ELEMENT_BYTES["fp32"], ELEMENT_BYTES["bf16"]


@dataclass(frozen=True, slots=True)
class Fp32Router(Kernel):
    """``[m, k] x [n, k]^T -> [m, n]`` of bf16 activations and fp32 weights, in fp32."""

    operations = ("router_fp32",)

    m: int
    n: int
    k: int

    def cost(self, precision: Precision) -> KernelCost:
        """Activations read, cast and read again."""
        del precision
        weights = float(_FP32 * self.n * self.k)
        moved = weights + self.m * (self.k * (_BF16 + 2 * _FP32) + _FP32 * self.n)
        return KernelCost(2.0 * self.m * self.n * self.k, moved, weights, "bf16")

    def describe(self) -> str:
        return f"m {self.m} n {self.n} k {self.k} fp32"

    @classmethod
    def read(cls, operation: str, row: Columns) -> Self:
        del operation
        return cls(row.integer("m"), row.integer("n"), row.integer("k"))

    @classmethod
    def fit(cls, variant: Hashable, measured: MeasuredTimes) -> RouterTimes | None:
        del variant
        return RouterTimes(measured) if measured.table.select("router_fp32") else None

    @property
    def measured_as(self) -> tuple[str, str | None]:
        return "router_fp32", None

    @classmethod
    def profiled_operations(cls) -> tuple[str, ...]:
        return ()

    def weight_bytes(self, elements: int) -> int:
        return _FP32 * elements


class RouterTimes(SurfaceTimes[Fp32Router]):
    """Sites (n, k), axis m."""

    def __init__(self, measured: MeasuredTimes):
        rows = measured.table.select("router_fp32")
        shapes = np.array([(row["n"], row["k"], row["m"]) for row in rows], dtype=np.float64)
        times = np.array([measured.time_us(row, float(_FP32 * row["n"] * row["k"])) for row in rows])
        super().__init__(Surface(_reference(measured.gpu), shapes, times))

    def shape_of(self, kernel: Fp32Router) -> Shape:
        return float(kernel.n), float(kernel.k), float(kernel.m)


def _reference(gpu: Gpu) -> ReferenceModel:
    law = gpu.clock
    clock_mhz = law.reference_mhz if law is not None else 1000.0
    flops_per_us = FLOPS_PER_CLOCK * gpu.sms * clock_mhz

    def reference_us(shapes: Floats) -> Floats:
        n, k, m = shapes.T
        moved = _FP32 * n * k + m * k * (_BF16 + 2 * _FP32)
        return np.asarray(LATENCY_US + 2.0 * m * n * k / flops_per_us + moved / gpu.hbm_bytes_per_s * 1e6)

    scales = Scales((3.0, 3.0, 3.0), (1.0,) * 3, 0.2, 0.05)
    return ReferenceModel("fp32 router (experts, hidden)", 2, reference_us, np.log2, scales)
