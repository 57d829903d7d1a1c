"""Times of grouped products of experts, from measured tables: which surface prices which site and rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

import numpy as np

from aicb.kernels.engine_tiles import SGLANG, EngineTiles, Site
from aicb.kernels.expert_points import ALSO, MARLIN_OPERATION, SGLANG_OPERATION, SHARED, UNIFORM
from aicb.kernels.fitting.estimate import Estimate
from aicb.kernels.fitting.kriging import Floats
from aicb.kernels.fitting.surface import ReferenceModel, Surface
from aicb.kernels.kernel import KernelTimes, Shape
from aicb.kernels.reference.gathered_times import gathered_reference
from aicb.kernels.reference.product_times import grouped_reference, marlin_reference, mxfp4_reference
from aicb.measurements.table import KernelRow, KernelTable
from aicb.measurements.timing import MeasuredTimes, gemm_weight_bytes
from aicb.model.precision import GemmDtype, WeightDtype

if TYPE_CHECKING:
    from aicb.kernels.grouped_gemm import GroupedGemm, TiledLayout

ExpertSite = tuple[WeightDtype, bool, int, int, int]
"""Format of weights, whether ranks share the experts, and a site."""
UNMEASURED = 0.3
"""Relative error (68 %) of bf16 expert products taken from fp8: vLLM's iterations of Qwen3-30B-A3B lie within it."""
ENGINE_KERNEL = "vllm/fused_moe"
"""vLLM's Triton kernel with the configuration it chooses for a layer and a token count."""
SHARED_EXPERTS = (8, 128, 256, 512)
"""Of all ranks together, in measurements of engines' kernels with shared experts."""


def engine_sites(table: KernelTable) -> frozenset[ExpertSite]:
    """Sites at which a table has an engine's kernel of bf16 and fp8 experts."""
    return frozenset(
        (dtype, is_shared, row["groups"], row["n"], row["k"])
        for dtype in get_args(GemmDtype)
        for is_shared, rows in ((False, _engine_rows(table, dtype)), (True, _shared_rows(table, dtype)))
        for row in rows
    )


class ExpertTimes(KernelTimes["GroupedGemm"]):
    """Grouped GEMM of one layout and format: sites (experts, active experts, n, k), axis rows per active expert.

    Only rows measured with equal experts are used of fp8: the kernel states total rows, so skew among the experts of
    one rank (measured +0 to +37 % masked, −3 to +11 % contiguous at the tile edge) is not modelled.
    """

    def __init__(self, surface: Surface, sites: Mapping[Site, Surface] | None = None):
        """``surface``: of all shapes; ``sites``: of single ones, where a common one would bend."""
        self.surface = surface
        self._sites = sites or {}

    @staticmethod
    def shape_of(kernel: GroupedGemm) -> Shape:
        active = max(float(kernel.active_groups), 1.0)
        return float(kernel.groups), active, float(kernel.n), float(kernel.k), max(kernel.rows / active, 1.0)

    def price(self, kernel: GroupedGemm) -> Estimate:
        return self._surface_of(kernel).price(*self.shape_of(kernel))

    def place(self, kernel: GroupedGemm) -> tuple[Surface, Shape]:
        kernel.check()
        return self._surface_of(kernel), self.shape_of(kernel)

    def parts(self, kernel: GroupedGemm) -> tuple[Surface, list[Shape]]:
        return self._surface_of(kernel), [self.shape_of(kernel)]

    def _surface_of(self, kernel: GroupedGemm) -> Surface:
        return self._sites.get((kernel.groups, kernel.n, kernel.k), self.surface)


class GatheredTimes(KernelTimes["GroupedGemm"]):
    """Products of gathered experts: sites (experts, active experts, n, k), tokens, axis rows per active expert.

    bf16 takes these times in all layouts: engines run bf16 experts in one fused kernel that gathers its rows. fp8 does
    so where the layout is "gathered". Engines' kernels were measured under uniform routing, where experts at the edge
    of a tile need two; ranks that share experts have a surface of their own, as tiles of other ranks' experts write
    zeros. Of vLLM's bf16 our kernel, measured at all expert-parallel sizes, stands in beyond the reach of those.
    """

    has_stand_ins = True

    def __init__(self, surfaces: Sequence[Surface], tiles: EngineTiles):
        """``surfaces``: of the kernel, and those that stand in for it where it is far."""
        self.surface, *self._stand_ins = surfaces
        self._tiles = tiles

    def shape_of(self, kernel: GroupedGemm) -> Shape:
        """Shape on the surfaces; the tokens are those of the batch, as the nearest measured site routes them where the
        kernel does not say."""
        groups, active, n, k, rows = ExpertTimes.shape_of(kernel)
        tokens = kernel.tokens
        if tokens is None:
            tokens = kernel.rows / self._tiles.at_site((kernel.groups, kernel.n, kernel.k)).per_token
        return groups, active, n, k, tokens, rows

    def tile_of(self, kernel: GroupedGemm) -> tuple[Floats, Floats]:
        """[1] rows and columns of the tile that the kernel takes."""
        height, width, _ = self._tiles.of(np.array([self.shape_of(kernel)])).T
        return height, width

    def price(self, kernel: GroupedGemm) -> Estimate:
        shape = self.shape_of(kernel)
        found = self.surface.price(*shape)
        others = [other.price(*shape) for other in self._stand_ins] if found.is_estimate else []
        return next((other for other in others if not other.is_estimate), found)

    def place(self, kernel: GroupedGemm) -> tuple[Surface, Shape]:
        kernel.check()
        return self.surface, self.shape_of(kernel)

    def parts(self, kernel: GroupedGemm) -> tuple[Surface, list[Shape]]:
        return self.surface, [self.shape_of(kernel)]


class BorrowedTimes(KernelTimes["GroupedGemm"]):
    """bf16 without measurements at fp8's share of its own roofline, flagged."""

    def __init__(self, fp8: ExpertTimes):
        self._fp8 = fp8

    def price(self, kernel: GroupedGemm) -> Estimate:
        twice = self._fp8.surface.price(*self._fp8.shape_of(replace(kernel, n=2 * kernel.n)))
        source = f"estimate: bf16 as fp8 of twice the columns; {twice.source}"
        return Estimate(twice.time_us, True, source, UNMEASURED)


def gathered_times(measured: MeasuredTimes, dtype: GemmDtype, *, is_shared: bool) -> GatheredTimes | None:
    """Of gathered rows; ``None`` without measurements."""
    engine = _engine_rows(measured.table, dtype)
    even = measured.table.select("grouped_gemm_gathered", dtype, "even")
    own = [row for row in even if row.kernel != ENGINE_KERNEL]
    shared = _shared_rows(measured.table, dtype) if is_shared else []
    kinds = [rows for rows in (shared, engine, own) if rows]
    if not kinds:
        return None
    tiles = [EngineTiles(measured.gpu.name, dtype, [] if rows is own else rows) for rows in kinds]
    surfaces = [_gathered_surface(rows, measured, known) for rows, known in zip(kinds, tiles, strict=True)]
    return GatheredTimes(surfaces, tiles[0])


def sglang_times(measured: MeasuredTimes, dtype: GemmDtype, *, is_shared: bool) -> GatheredTimes | None:
    """Of SGLang's kernel of gathered rows; ``None`` without measurements."""
    kinds = _shared_kinds() if is_shared else [UNIFORM, f"{UNIFORM}{ALSO}"]
    rows = [row for kind in kinds for row in measured.table.select(SGLANG_OPERATION, dtype, kind)]
    if not rows:
        return None
    tiles = EngineTiles(measured.gpu.name, dtype, rows, SGLANG)
    return GatheredTimes([_gathered_surface(rows, measured, tiles)], tiles)


def tiled_times(measured: MeasuredTimes, layout: TiledLayout) -> ExpertTimes | None:
    """Of DeepGEMM's fp8 products; ``None`` without measurements."""
    rows = measured.table.select(f"grouped_gemm_{layout}", "fp8", "even")
    reference = grouped_reference(measured.gpu, layout, measured.timing == "graph")
    return ExpertTimes(_surface(reference, rows, measured)) if rows else None


def mxfp4_times(measured: MeasuredTimes, op: str) -> ExpertTimes | None:
    """Of all rows of a kernel of vLLM, and of each measured site; ``None`` without measurements."""
    made = marlin_reference if op == MARLIN_OPERATION else mxfp4_reference
    reference = made(measured.gpu, measured.timing == "graph")
    by_site: defaultdict[Site, list[KernelRow]] = defaultdict(list)
    rows = measured.table.select(op, "mxfp4", UNIFORM)
    for row in rows:
        by_site[row["groups"], row["n"], row["k"]].append(row)
    sites = {site: _surface(reference, own, measured) for site, own in by_site.items()}
    return ExpertTimes(_surface(reference, rows, measured), sites) if rows else None


def _engine_rows(table: KernelTable, dtype: GemmDtype) -> list[KernelRow]:
    """Expert products of the engine's kernel."""
    uniform = table.select("grouped_gemm_gathered", dtype, UNIFORM)
    return [row for row in uniform if row.kernel == ENGINE_KERNEL]


def _shared_rows(table: KernelTable, dtype: GemmDtype) -> list[KernelRow]:
    """The same of ranks that share the experts, whatever the number of all."""
    return [row for kind in _shared_kinds() for row in table.select("grouped_gemm_gathered", dtype, kind)]


def _shared_kinds() -> list[str]:
    return [f"{UNIFORM}{SHARED}{count}" for count in SHARED_EXPERTS]


def _gathered_surface(rows: Sequence[KernelRow], measured: MeasuredTimes, tiles: EngineTiles) -> Surface:
    dtype: GemmDtype = "fp8" if rows[0].dtype == "fp8" else "bf16"
    reference = gathered_reference(measured.gpu, dtype, measured.timing == "graph", tiles.of)
    shapes = [(*site, _tokens(row, tiles), axis) for row in rows for *site, axis in (_grouped_shape(row),)]
    return _fitted(reference, shapes, rows, measured)


def _tokens(row: KernelRow, tiles: EngineTiles) -> float:
    """Tokens of a measured batch; of rows from an engine's trace, which has none, as its site routes them."""
    known = row.shape.get("batch")
    return float(known) if known else row["rows"] / tiles.at_site((row["groups"], row["n"], row["k"])).per_token


def _surface(reference: ReferenceModel, rows: Sequence[KernelRow], measured: MeasuredTimes) -> Surface:
    return _fitted(reference, [_grouped_shape(row) for row in rows], rows, measured)


def _fitted(
    reference: ReferenceModel, shapes: Sequence[Shape], rows: Sequence[KernelRow], measured: MeasuredTimes
) -> Surface:
    times_us = np.array([measured.time_us(row, gemm_weight_bytes(row)) for row in rows])
    return Surface(reference, np.array(shapes, dtype=np.float64), times_us)


def _grouped_shape(row: KernelRow) -> Shape:
    active = row["active_groups"]
    return row["groups"], active, row["n"], row["k"], max(row["rows"] / active, 1.0)
