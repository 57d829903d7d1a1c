"""Grouped matrix products: one per local expert, in the layouts of prefills and of decodes."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import ClassVar, Literal, Self

import numpy as np

from aicb.kernels.columns import Columns, expert_dtype
from aicb.kernels.expert_points import MARLIN_OPERATION, SGLANG_OPERATION, partition_points
from aicb.kernels.expert_times import (
    BorrowedTimes,
    ExpertSite,
    ExpertTimes,
    gathered_times,
    mxfp4_times,
    sglang_times,
    tiled_times,
)
from aicb.kernels.gemm import BIAS_BYTES
from aicb.kernels.kernel import Kernel, KernelCost, KernelTimes
from aicb.kernels.point import Point, SweptModel
from aicb.kernels.reference.product_times import mxfp4_reference
from aicb.measurements.clock import BF16_EXPERTS, DENSE_PRODUCTS, FP8_EXPERTS, PowerLoad
from aicb.measurements.gpu import Gpu
from aicb.measurements.timing import MeasuredTimes
from aicb.model.architecture import MoeFfn
from aicb.model.precision import (
    ELEMENT_BYTES,
    GemmDtype,
    Precision,
    WeightDtype,
    activation_bytes_per_row,
    weight_matrix_bytes,
)
from boundary.errors import InputError

TiledLayout = Literal["masked", "contiguous"]
Layout = Literal[TiledLayout, "gathered"]
Gathering = Literal["vllm", "sglang", "marlin"]
"""Kernels that gather rows: vLLM's, and OpenAI's in it of mxfp4; SGLang's; and vLLM's Marlin of mxfp4."""
OPERATIONS = (
    "grouped_gemm_masked",
    "grouped_gemm_contiguous",
    "grouped_gemm_gathered",
    "grouped_gemm_swiglu",
    SGLANG_OPERATION,
    MARLIN_OPERATION,
)
"""By layout; ``swiglu``: gathered, with the activation on the way out."""
SHARED_TRAIT, SGLANG_TRAIT, MARLIN_TRAIT = "shared", "SGLang", "Marlin"
"""Of variants."""


@dataclass(frozen=True, slots=True)
class GroupedGemm(Kernel):
    """One product per local expert; ``rows`` is the total over local experts (a mean, may be fractional).

    ``layout`` "masked" is used by decode (one row block per expert), "contiguous" by prefill (rows padded to 128
    per expert), "gathered" by engines whose kernel takes the rows of an expert by their indices.
    """

    operations = OPERATIONS
    cold_operations = frozenset(OPERATIONS)
    preferred_libraries: ClassVar = {
        "grouped_gemm_gathered": ("vllm/", "triton_own/"),
        "grouped_gemm_contiguous": ("deep_gemm/", "torch/"),
    }

    rows: float
    groups: int
    active_groups: float
    n: int
    k: int
    dtype: WeightDtype
    """Of the weights; ``mxfp4`` ones are multiplied as bf16, as engines do on GPUs without tensor cores for them."""
    layout: Layout
    largest_group_rows: float | None = None
    """Rows of the fullest local expert; ``None`` where only the total is known."""
    tokens: float | None = field(default=None, kw_only=True)
    """Of the batch, or of those of all ranks that the kernel gets: an engine chooses its tiles by them. ``None``: as
    many as have so many rows at the nearest measured site."""
    has_bias: bool = field(default=False, kw_only=True)
    """Each expert adds a bf16 vector ``[n]`` on the way out, which takes no time of its own."""
    is_shared: bool = field(default=False, kw_only=True)
    """These are one rank's of the experts that several share, and the kernel gets the pairs of all."""
    gathering: Gathering = field(default="vllm", kw_only=True)
    """Whose kernel of gathered rows."""
    has_activation: bool = field(default=False, kw_only=True)
    """The kernel applies the gated activation to what it has multiplied and writes half of ``n`` columns."""

    def cost(self, precision: Precision) -> KernelCost:
        """Weights of active experts are read; those of the others are not."""
        del precision
        weight = self.active_groups * self._expert_bytes
        written = self.n // 2 if self.has_activation else self.n
        per_row = activation_bytes_per_row(self.k, self.compute_dtype) + ELEMENT_BYTES["bf16"] * written
        moved = self.rows * per_row + weight
        return KernelCost(2.0 * self.rows * self.n * self.k, moved, weight, self.compute_dtype)

    @property
    def power_load(self) -> PowerLoad:
        if self.layout != "gathered" or self.gathering == "marlin" or self.dtype == "mxfp4":
            return DENSE_PRODUCTS
        return FP8_EXPERTS if self.compute_dtype == "fp8" else BF16_EXPERTS

    def time_ratio(self, origin: Gpu, target: Gpu) -> float | None:
        """mxfp4 weights are converted by the SMs, which takes longer than reading them and follows no bandwidth: by
        the law of the kernel, where both GPUs run it. Other architectures run other kernels (B200: in hardware)."""
        if self.dtype != "mxfp4" or self.gathering == "marlin" or origin.architecture != target.architecture:
            return None
        shape = np.array([ExpertTimes.shape_of(self)])
        here, there = (mxfp4_reference(gpu, is_resident=False).reference_us(shape)[0] for gpu in (origin, target))
        return float(there / here)

    @property
    def compute_dtype(self) -> GemmDtype:
        """Format of activations and tensor cores."""
        return "fp8" if self.dtype == "fp8" else "bf16"

    @property
    def _expert_bytes(self) -> int:
        return weight_matrix_bytes(self.n, self.k, self.dtype) + (BIAS_BYTES * self.n if self.has_bias else 0)

    def describe(self) -> str:
        groups = f"{self.active_groups:.1f}/{self.groups} experts"
        return f"rows {self.rows:g} n {self.n} k {self.k} {self.dtype} {groups} {self.layout}"

    @classmethod
    def read(cls, operation: str, row: Columns) -> Self:
        """The gathered layout of bf16 has the times of both others; that of fp8 is an engine's kernel of its own."""
        name = operation.removeprefix("grouped_gemm_")
        dtype = expert_dtype(row)
        gathered: Layout = "contiguous" if dtype == "bf16" else "gathered"
        layout = gathered if name in ("gathered", "swiglu", "sglang", "marlin") else "contiguous"
        layout = "masked" if name == "masked" else layout
        groups = row.integer("groups")
        rows = row.number("rows") if row.text("rows") else row.number("m") * groups
        active = row.number("active_groups", min(float(groups), max(rows, 1.0)))
        if active > groups:
            raise row.fail("active_groups", f"at most groups = {groups}")
        own = rows, groups, active, row.integer("n"), row.integer("k"), dtype, layout
        gathering: Gathering = "sglang" if name == "sglang" else "marlin" if name == "marlin" else "vllm"
        return cls(*own, has_activation=name == "swiglu", gathering=gathering)

    @classmethod
    def fit(cls, variant: Hashable, measured: MeasuredTimes) -> KernelTimes[GroupedGemm] | None:
        """No kernel stands for an engine's of gathered fp8 experts, or of mxfp4 ones."""
        assert isinstance(variant, tuple)
        layout, dtype, *trait = variant
        if dtype == "mxfp4":
            if MARLIN_TRAIT in trait:
                return mxfp4_times(measured, MARLIN_OPERATION)
            return mxfp4_times(measured, "grouped_gemm_swiglu" if trait else "grouped_gemm_gathered")
        if dtype == "fp8" and layout != "gathered":
            return tiled_times(measured, layout)
        is_shared = SHARED_TRAIT in trait
        if SGLANG_TRAIT in trait:
            return sglang_times(measured, dtype, is_shared=is_shared)
        times = gathered_times(measured, dtype, is_shared=is_shared)
        if times is not None:
            return times
        fp8 = tiled_times(measured, layout) if dtype == "bf16" else None
        return BorrowedTimes(fp8) if fp8 else None

    def variant(self, precision: Precision) -> tuple[str, ...]:
        """Layout, format, and traits."""
        del precision
        if self.dtype == "mxfp4":
            mxfp4 = (MARLIN_TRAIT, self.gathering == "marlin"), ("activated", self.has_activation)
            return "gathered", "mxfp4", *(trait for trait, is_own in mxfp4 if is_own)
        traits = (SGLANG_TRAIT, self.gathering == "sglang"), (SHARED_TRAIT, self.is_shared)
        return self.layout, self.dtype, *(trait for trait, is_own in traits if is_own)

    @property
    def measured_as(self) -> tuple[str, str | None]:
        if self.gathering == "marlin":
            return MARLIN_OPERATION, "mxfp4"
        if self.dtype == "mxfp4":
            return ("grouped_gemm_swiglu" if self.has_activation else "grouped_gemm_gathered"), "mxfp4"
        if self.gathering == "sglang":
            return SGLANG_OPERATION, self.dtype
        if self.dtype == "bf16":
            return "grouped_gemm_gathered", "bf16"
        return f"grouped_gemm_{self.layout}", "fp8"

    @property
    def engine_site(self) -> ExpertSite | None:
        """Where vLLM's kernel that gathers rows runs this, ``None`` of other layouts of fp8 experts and of SGLang's."""
        if self.gathering == "sglang" or (self.dtype == "fp8" and self.layout != "gathered"):
            return None
        return self.dtype, self.is_shared, self.groups, self.n, self.k

    def weight_bytes(self, elements: int) -> int:
        del elements
        return self.groups * self._expert_bytes

    def tensor_bytes(self, precision: Precision) -> int:
        cost = self.cost(precision)
        return int(cost.moved_bytes - cost.cold_bytes)

    def check(self) -> None:
        super(GroupedGemm, self).check()
        if not 0 < self.active_groups <= self.groups:
            raise InputError(
                f"GroupedGemm.active_groups: found {self.active_groups}, expected above 0, up to {self.groups}"
            )

    @classmethod
    def swept_points(cls, swept: SweptModel) -> Iterator[Point]:
        """Whole experts at each expert-parallel size, sliced ones (ep 1) at each tensor-parallel size.

        Rows are those of the busiest rank: tokens per rank times ranks are routed together.
        """
        kinds = dict.fromkeys(layer.ffn for layer in swept.model.layers if isinstance(layer.ffn, MoeFfn))
        formats = [dtype for dtype in swept.weights if dtype != "mxfp4" or swept.model.published_weights == "mxfp4"]
        for moe, dtype in product(kinds, formats):
            sliced = [(1, size) for size in swept.tp if moe.intermediate % size == 0]
            whole = [(size, 1) for size in swept.ep if size > 1 and moe.experts % size == 0]
            for parts in [*sliced, *whole]:
                yield from partition_points(swept, moe, dtype, parts)
