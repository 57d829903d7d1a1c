"""Scores of experts where they are no plain product: fp32 weights, and few tokens of some models.

vLLM 0.24.0 (``fused_moe/router/gate_linear.py``) has a kernel for up to 16 tokens of DeepSeek's router
(`FewTokensRouter`), and one for up to 32 of MiniMax-M2's, whose weights are fp32. Beyond, and for GLM-4.5 always
(``models/glm4_moe.py``), scores in fp32 are a cast of what is multiplied and a product of cuBLAS's that tensor cores do
not take part in (`Fp32Router`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

from aicb.kernels.columns import Columns
from aicb.kernels.fitting.kriging import Floats, Scales
from aicb.kernels.fitting.surface import ReferenceModel, Surface
from aicb.kernels.kernel import Kernel, KernelCost, Shape, SurfaceTimes
from aicb.kernels.point import Point, SweptModel, point
from aicb.measurements.gpu import Gpu
from aicb.measurements.table import KernelTable
from aicb.measurements.timing import MeasuredTimes
from aicb.model.architecture import MoeFfn
from aicb.model.precision import ELEMENT_BYTES, Precision

FP32_FEW_TOKENS = 32
"""Of a rank, up to which vLLM has a kernel of its own for scores in fp32."""
FP32_FEW_SHAPES = frozenset({(256, 3072), (128, 6144)})
"""(experts, hidden) of that kernel: MiniMax-M2 and -M3."""
FEW_TOKENS = 16
"""The same of scores in bf16, on Hopper; 8 on Blackwell."""
FEW_SHAPES = frozenset({(256, 7168), (384, 7168), (256, 6144)})
"""(experts, hidden): DeepSeek-V3, Kimi-K2, GLM-5."""
PROFILED_TOKENS = (1, 2, 4, 8, 16, 32, 33, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192, 16384)
FLOPS_PER_CLOCK = 256
"""Of fp32 outside tensor cores, of an SM: 128 lanes that multiply and add (NVIDIA H100 white paper)."""
LATENCY_US = 2.5
"""Of one token. As the reference's other constants it shapes the interpolation and no more."""
_FP32, _BF16 = ELEMENT_BYTES["fp32"], ELEMENT_BYTES["bf16"]
_WEIGHT_BYTES = {"router_few": _BF16, "router_fp32": _FP32, "router_fp32_few": _FP32}
"""Of a weight, by operation."""
_ACTIVATION_BYTES = {"router_few": _BF16, "router_fp32": _BF16 + 2 * _FP32, "router_fp32_few": _BF16}
"""Of an activation, each time that it is read or written: a cast writes it in fp32, and the product reads that."""


RouterSite = tuple[str, int, int]
"""Operation, experts, hidden size."""


def router_sites(table: KernelTable) -> frozenset[RouterSite]:
    """Those that a table has measurements of."""
    return frozenset((operation, row["n"], row["k"]) for operation in _WEIGHT_BYTES for row in table.select(operation))


def _moe_layers(swept: SweptModel) -> Iterator[MoeFfn]:
    yield from dict.fromkeys(layer.ffn for layer in swept.model.layers if isinstance(layer.ffn, MoeFfn))


@dataclass(frozen=True, slots=True)
class Router(Kernel):
    """``[m, k] x [n, k]^T -> [m, n]`` of bf16 activations, scores in fp32."""

    m: int
    n: int
    k: int

    def describe(self) -> str:
        return f"m {self.m} n {self.n} k {self.k} {self.measured_as[0]}"

    @property
    def site(self) -> RouterSite:
        return self.measured_as[0], self.n, self.k

    @classmethod
    def read(cls, operation: str, row: Columns) -> Self:
        del operation
        return cls(row.integer("m"), row.integer("n"), row.integer("k"))

    @classmethod
    def fit(cls, variant: Hashable, measured: MeasuredTimes) -> RouterTimes | None:
        operation = str(variant)
        return RouterTimes(measured, operation) if measured.table.select(operation) else None

    def variant(self, precision: Precision) -> Hashable:
        del precision
        return self.measured_as[0]

    def _cost(self, weight_bytes: int, activation_bytes: int) -> KernelCost:
        """Of so many bytes of a weight, and of an activation, each time that it is read or written."""
        weights = float(weight_bytes * self.n * self.k)
        moved = weights + self.m * (self.k * activation_bytes + _FP32 * self.n)
        return KernelCost(2.0 * self.m * self.n * self.k, moved, weights, "bf16")


@dataclass(frozen=True, slots=True)
class Fp32Router(Router):
    """Scores by fp32 weights."""

    operations = ("router_fp32", "router_fp32_few")
    cold_operations = frozenset(operations)

    @property
    def is_few(self) -> bool:
        """Whether vLLM's own kernel takes it."""
        return self.m <= FP32_FEW_TOKENS and (self.n, self.k) in FP32_FEW_SHAPES

    def cost(self, precision: Precision) -> KernelCost:
        """Activations read, and cast and read again but by vLLM's own kernel."""
        del precision
        return self._cost(_FP32, _ACTIVATION_BYTES[self.measured_as[0]])

    @property
    def measured_as(self) -> tuple[str, str | None]:
        return "router_fp32_few" if self.is_few else "router_fp32", None

    @classmethod
    def swept_points(cls, swept: SweptModel) -> Iterator[Point]:
        for moe in _moe_layers(swept):
            for tokens in PROFILED_TOKENS if moe.has_fp32_router else ():
                kernel = cls(tokens, moe.experts, swept.model.hidden)
                shape = {"m": tokens, "n": kernel.n, "k": kernel.k}
                yield point(kernel.measured_as[0], "bf16", shape, tag=f"{swept.model.name}/router")

    def weight_bytes(self, elements: int) -> int:
        return _FP32 * elements


@dataclass(frozen=True, slots=True)
class FewTokensRouter(Router):
    """Scores of few tokens by bf16 weights: vLLM's ``dsv3_router_gemm``."""

    operations = ("router_few",)
    cold_operations = frozenset(operations)

    def cost(self, precision: Precision) -> KernelCost:
        del precision
        return self._cost(_BF16, _BF16)

    @property
    def measured_as(self) -> tuple[str, str | None]:
        return "router_few", None

    @classmethod
    def swept_points(cls, swept: SweptModel) -> Iterator[Point]:
        for moe in _moe_layers(swept):
            size = (moe.experts, swept.model.hidden)
            for tokens in range(1, FEW_TOKENS + 1) if size in FEW_SHAPES else ():
                shape = {"m": tokens, "n": size[0], "k": size[1]}
                yield point("router_few", "bf16", shape, tag=f"{swept.model.name}/router")


class RouterTimes(SurfaceTimes[Router]):
    """Sites (n, k), axis m."""

    def __init__(self, measured: MeasuredTimes, operation: str):
        weight_bytes = _WEIGHT_BYTES[operation]
        rows = measured.table.select(operation)
        shapes = np.array([(row["n"], row["k"], row["m"]) for row in rows], dtype=np.float64)
        times = np.array([measured.time_us(row, float(weight_bytes * row["n"] * row["k"])) for row in rows])
        super().__init__(Surface(_reference(measured.gpu, operation), shapes, times))

    def shape_of(self, kernel: Router) -> Shape:
        return float(kernel.n), float(kernel.k), float(kernel.m)


def _reference(gpu: Gpu, operation: str) -> ReferenceModel:
    law = gpu.clock
    clock_mhz = law.reference_mhz if law is not None else 1000.0
    flops_per_us = FLOPS_PER_CLOCK * gpu.sms * clock_mhz
    weight_bytes, activation_bytes = _WEIGHT_BYTES[operation], _ACTIVATION_BYTES[operation]

    def reference_us(shapes: Floats) -> Floats:
        n, k, m = shapes.T
        moved = weight_bytes * n * k + m * k * activation_bytes
        return np.asarray(LATENCY_US + 2.0 * m * n * k / flops_per_us + moved / gpu.hbm_bytes_per_s * 1e6)

    scales = Scales((3.0, 3.0, 3.0), (1.0,) * 3, 0.2, 0.05)
    return ReferenceModel(f"{operation} (experts, hidden)", 2, reference_us, np.log2, scales)
