"""All of a rank's experts in one call: FlashInfer's fused MoE of block-scaled fp8 experts on SM90.

A call sorts pairs of tokens and experts, copies the rows of the rank's own experts in their order, quantises them,
multiplies (TensorRT-LLM's DeepGEMM), activates, quantises, multiplies, and sums each token's results by the router's
weights, in about ten kernels, each of which begins before the one before has ended. vLLM 0.24.0 runs it on SM90 where
ranks share block-scaled fp8 experts (``fused_moe/oracle/fp8.py``, ``experts/flashinfer_cutlass_moe.py``); tokens arrive
in bf16.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

from aicb.kernels.columns import Columns
from aicb.kernels.expert_points import SHARED, UNIFORM
from aicb.kernels.fitting.kriging import Floats, Scales
from aicb.kernels.fitting.surface import ReferenceModel, Surface
from aicb.kernels.kernel import Kernel, KernelCost, Shape, SurfaceTimes
from aicb.kernels.point import Point, SweptModel, point
from aicb.kernels.reference.product_times import grouped_reference
from aicb.kernels.routing import busiest_rank, expert_rows
from aicb.measurements.clock import FILLING, TILED_FP8_EXPERTS, PowerLoad
from aicb.measurements.gpu import Gpu
from aicb.measurements.timing import MeasuredTimes
from aicb.model.architecture import MoeFfn
from aicb.model.precision import ELEMENT_BYTES, SCALE_BLOCK, Precision, activation_bytes_per_row, weight_matrix_bytes

TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""Of all ranks together, in measurements."""
SWAPPED_BELOW, NARROW_UP_TO = 32, 64
"""Tokens of all ranks that choose the products' kernel, and its tiles: fewer than 32 have operands swapped and tiles of
16 rows, up to 64 tiles of 64, more of 128, however few rows an expert has (TensorRT-LLM's
``fp8_blockscale_gemm_kernel.cuh`` and ``deep_gemm/compiler`` in FlashInfer 0.6.12)."""
KERNELS_US = 20.0
"""Kernels other than the two products, each short: sorting, copying, two quantisations, activation, sum. Its value
shapes the interpolation and no more."""
CALL_US, WEIGHTS_SHARE, TILES_SHARE, AROUND_SHARE = 32.0, 0.88, 0.44, 0.215
"""Of a call, for the ratio of two GPUs: what it takes with hardly a row, the shares of the bandwidth at which weights
are read and of the peak at which padded tiles are multiplied, and that of the bandwidth at which the kernels around
the products move rows. The last is what they take in an engine on an H200 (70 ns a row of DeepSeek-V3, 2,048 to 16,384
tokens) for an H100's bandwidth; with it the others were fitted to the H100's rows (mean error 7 %)."""
_BF16 = ELEMENT_BYTES["bf16"]


@dataclass(frozen=True, slots=True)
class FusedExperts(Kernel):
    """Gated experts of one rank, from bf16 tokens ``[T, h]`` to their weighted sums ``[T, h]``.

    ``rows`` are the pairs of the rank's own experts (a mean, may be fractional), ``tokens`` those of all ranks.
    """

    operations = ("fused_experts",)
    cold_operations = frozenset(operations)

    tokens: float
    rows: float
    groups: int
    active_groups: float
    width: int
    """Columns of an expert between its products."""
    hidden: int

    def cost(self, precision: Precision) -> KernelCost:
        """Weights of active experts once; each tensor between the kernels written and read."""
        del precision
        up, down = (weight_matrix_bytes(n, k, "fp8") for n, k in self._products)
        weights = self.active_groups * (up + down)
        moved = 2 * self.rows * _between_bytes(self.width, self.hidden) + self._outer_bytes + weights
        return KernelCost(6.0 * self.rows * self.width * self.hidden, moved, weights, "fp8")

    @property
    def _outer_bytes(self) -> float:
        """Tokens and sums."""
        return 2 * _BF16 * self.tokens * self.hidden

    @property
    def _products(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """(n, k) of the up and down projections."""
        return (2 * self.width, self.hidden), (self.hidden, self.width)

    @property
    def power_load(self) -> PowerLoad:
        """Of fp8 experts; the tensor cores multiply what tiles are padded with as well."""
        own = TILED_FP8_EXPERTS
        return PowerLoad(own.slope + FILLING * self.padded_rows / self.rows, own.memory)

    @property
    def padded_rows(self) -> float:
        """Rows of the tiles that have some."""
        tile = 16 if self.tokens < SWAPPED_BELOW else 64 if self.tokens <= NARROW_UP_TO else 128
        active = max(self.active_groups, 1.0)
        return active * tile * max(self.rows / active / tile + 0.5, 1.0)

    def describe(self) -> str:
        experts = f"{self.active_groups:.1f}/{self.groups} experts"
        return f"tokens {self.tokens:g} rows {self.rows:g} width {self.width} hidden {self.hidden} fp8 {experts}"

    def time_ratio(self, origin: Gpu, target: Gpu) -> float:
        """By what bounds a call, in which products of few rows are as many as their tiles are padded to."""
        return _bounds_us(target, self) / _bounds_us(origin, self)

    @classmethod
    def read(cls, operation: str, row: Columns) -> Self:
        """``batch`` are the tokens, ``n`` the width and ``k`` the hidden size."""
        del operation
        rows, groups = row.number("rows"), row.integer("groups")
        active = row.number("active_groups", min(float(groups), rows))
        if active > groups:
            raise row.fail("active_groups", f"at most groups = {groups}")
        return cls(row.number("batch"), rows, groups, active, row.integer("n"), row.integer("k"))

    @classmethod
    def fit(cls, variant: Hashable, measured: MeasuredTimes) -> FusedTimes | None:
        del variant
        return FusedTimes(measured) if measured.table.select("fused_experts") else None

    @property
    def measured_as(self) -> tuple[str, str | None]:
        return "fused_experts", "fp8"

    def weight_bytes(self, elements: int) -> int:
        del elements
        return self.groups * sum(weight_matrix_bytes(n, k, "fp8") for n, k in self._products)

    def tensor_bytes(self, precision: Precision) -> int:
        del precision
        return int(self.rows * _between_bytes(self.width, self.hidden) + self._outer_bytes)

    @classmethod
    def swept_points(cls, swept: SweptModel) -> Iterator[Point]:
        """On the rank with the most rows, for each number of ranks that share the experts."""
        kinds = dict.fromkeys(layer.ffn for layer in swept.model.layers if isinstance(layer.ffn, MoeFfn))
        for moe in kinds if "fp8" in swept.weights else ():
            if moe.intermediate % SCALE_BLOCK or swept.model.hidden % SCALE_BLOCK:
                continue
            for ranks in [size for size in swept.ep if size > 1 and moe.experts % size == 0]:
                tag = f"{swept.model.name}/experts/ep{ranks}"
                for tokens in [count for count in TOKENS if count <= swept.most_counted_tokens]:
                    yield from _points(moe, swept.model.hidden, tokens, ranks, tag)


def _between_bytes(width: int, hidden: int) -> int:
    """Of a pair, in all tensors between the kernels: its row copied and quantised, the first product, activated and
    quantised, the second product."""
    quantised = activation_bytes_per_row(hidden, "fp8") + activation_bytes_per_row(width, "fp8")
    return _BF16 * (2 * hidden + 3 * width) + quantised


def _points(moe: MoeFfn, hidden: int, tokens: int, ranks: int, tag: str) -> Iterator[Point]:
    rows = busiest_rank(expert_rows(UNIFORM, moe.experts, tokens, moe.experts_per_token), ranks)
    shape = {
        "m": tokens * moe.experts_per_token,
        "n": moe.intermediate,
        "k": hidden,
        "groups": len(rows),
        "active_groups": int((rows > 0).sum()),
        "rows": int(rows.sum()),
        "max_rows": int(rows.max()),
        "experts_per_token": moe.experts_per_token,
        "batch": tokens,
    }
    lengths, distribution = tuple(int(count) for count in rows), f"{UNIFORM}{SHARED}{moe.experts}"
    yield point("fused_experts", "fp8", shape, lengths=lengths, distribution=distribution, tag=tag)


class FusedTimes(SurfaceTimes[FusedExperts]):
    """Sites (experts of the rank, width, hidden), axis rows per active expert."""

    def __init__(self, measured: MeasuredTimes):
        shapes, times = [], []
        for row in measured.table.select("fused_experts"):
            site = row["groups"], row["n"], row["k"], row["batch"], row["active_groups"]
            shapes.append((*site, row["rows"] / row["active_groups"]))
            weights = weight_matrix_bytes(2 * row["n"], row["k"], "fp8") + weight_matrix_bytes(
                row["k"], row["n"], "fp8"
            )
            times.append(measured.time_us(row, row["active_groups"] * weights))
        reference = _reference(measured.gpu, measured.timing == "graph")
        super().__init__(Surface(reference, np.array(shapes, dtype=np.float64), np.array(times)))

    def shape_of(self, kernel: FusedExperts) -> Shape:
        active = max(float(kernel.active_groups), 1.0)
        site = float(kernel.groups), float(kernel.width), float(kernel.hidden)
        return *site, float(kernel.tokens), active, max(kernel.rows / active, 1.0)


def _bounds_us(gpu: Gpu, kernel: FusedExperts) -> float:
    """Products bound by weights or by padded tiles, one or the other, and the kernels around them."""
    elements = 3 * kernel.width * kernel.hidden
    weights_s = max(kernel.active_groups, 1.0) * elements / (WEIGHTS_SHARE * gpu.hbm_bytes_per_s)
    tiles_s = 2.0 * kernel.padded_rows * elements / (TILES_SHARE * gpu.peak_flops["fp8"])
    around_s = kernel.rows * _between_bytes(kernel.width, kernel.hidden) / (AROUND_SHARE * gpu.hbm_bytes_per_s)
    return CALL_US + (max(weights_s, tiles_s) + around_s) * 1e6


def _reference(gpu: Gpu, is_resident: bool) -> ReferenceModel:
    """Shapes (experts, width, hidden, tokens, active experts, rows per active expert): both products and their
    surroundings."""
    products = grouped_reference(gpu, "contiguous", is_resident)

    def reference_us(shapes: Floats) -> Floats:
        groups, width, hidden, tokens, active, rows = shapes.T
        up = products.reference_us(np.column_stack([groups, active, 2 * width, hidden, rows]))
        down = products.reference_us(np.column_stack([groups, active, hidden, width, rows]))
        around = active * rows * _BF16 * (4 * hidden + 7 * width) + 2 * _BF16 * tokens * hidden
        return np.asarray(KERNELS_US + up + down + around / gpu.hbm_bytes_per_s * 1e6)

    scales = Scales((3.0, 3.0, 3.0, 4.0, 4.0, 3.0), (1.0,) * 6, 0.2, 0.03)
    return ReferenceModel("fused fp8 experts (experts, width, hidden)", 3, reference_us, np.log2, scales)
