"""Times of grouped products of experts, from measured tables: which surface prices which site and rows."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, get_args

import numpy as np

from aicb.kernels.expert_points import SHARED, UNIFORM
from aicb.kernels.fitting.estimate import Estimate
from aicb.kernels.fitting.surface import ReferenceModel, Surface
from aicb.kernels.kernel import KernelTimes, Shape
from aicb.kernels.reference.product_times import grouped_reference, mxfp4_reference
from aicb.kernels.tuned_experts import has_tuned_tiles
from aicb.measurements.table import KernelRow, KernelTable
from aicb.measurements.timing import MeasuredTimes, gemm_weight_bytes
from aicb.model.precision import GemmDtype, WeightDtype

if TYPE_CHECKING:
    from aicb.kernels.grouped_gemm import GroupedGemm, Layout, TiledLayout

Site = tuple[int, int, int]
"""Experts of a rank, columns, inner size."""
TiledSite = tuple[Site, bool]
"""And whether an engine's kernel multiplies in its wide tiles there."""
ExpertSite = tuple[WeightDtype, bool, int, int, int]
"""Format of weights, whether ranks share the experts, and a site."""
UNMEASURED = 0.3
"""Relative error (68 %) of bf16 expert products taken from fp8: vLLM's iterations of Qwen3-30B-A3B lie within it."""
ENGINE_KERNEL = "vllm/fused_moe"
"""vLLM's Triton kernel with the configuration it chooses for a layer and a token count."""
SITE_RUNS = ("vllm_experts_sliced", "vllm_experts_h100", "vllm_experts_in_engine")
"""Runs of more widths of the engine's kernel, and of an H100, each site a surface of its own: vLLM ships tiles for some
sites and takes a rule of thumb for others, which would bend a common one."""
NARROW_TOKENS = 64
"""Up to so many tokens vLLM's tiles of fp8 experts in blocks have 16 rows, for more 64, where it ships none for a site
and GPU (``fused_moe.py``, ``get_default_config``)."""
SHARED_EXPERTS = (8, 128, 512)
"""Of all ranks together, in measurements of the engine's kernel with shared experts."""


def engine_sites(table: KernelTable) -> frozenset[ExpertSite]:
    """Sites at which a table has an engine's kernel of bf16 and fp8 experts."""
    return frozenset(
        (dtype, is_shared, row["groups"], row["n"], row["k"])
        for dtype in get_args(GemmDtype)
        for is_shared, rows in ((False, _engine_rows(table, dtype)), (True, _shared_rows(table, dtype)))
        for row in rows
    )


@dataclass(frozen=True, slots=True)
class ExpertSurfaces:
    """Measured times of one layout and format."""

    common: Sequence[Surface]
    """That of all shapes, and those that stand in for it where it is far; none without measurements."""
    sites: Mapping[TiledSite, Surface]
    """Of single sites."""
    chosen: Mapping[Site, int] = field(default_factory=dict)
    """Experts that a token chooses, of fp8 sites without tuned tiles."""
    untuned: Surface | None = None
    """Of bf16 sites without tuned tiles together; where it is far, ``common`` stands in for it."""
    gpu: str = ""

    def at(self, site: Site, rows: float, shape: Shape) -> Surface:
        """The surface that prices so many rows at a site, a ``shape`` on it."""
        own = self.sites.get((site, _has_wide_tiles(self.chosen.get(site), rows)))
        if own is not None:
            return own
        if self.untuned is None or has_tuned_tiles(self.gpu, *site):
            return self.common[0]
        is_far = bool(self.untuned.are_estimates(np.array([shape], dtype=np.float64))[0])
        return self.common[0] if is_far else self.untuned


class ExpertTimes(KernelTimes["GroupedGemm"]):
    """Grouped GEMM of one layout and format: sites (experts, active experts, n, k), axis rows per active expert.

    bf16 takes the times of the gathered layout: engines run bf16 experts in one fused kernel that gathers its rows. fp8
    does so where the layout is "gathered". Rows of vLLM's own kernel (``ENGINE_KERNEL``), taken under uniform routing,
    where experts at the edge of a row tile need two, are a surface by themselves: two kernels on one would bend it. Of
    ranks that share experts, for whose numbers vLLM ships no tiles, and of later runs (`SITE_RUNS`), each measured site
    is one; batches in wide tiles at fp8 sites without tuned ones are one. Other bf16 sites are priced by one surface if
    vLLM ships tiles for them, and by that of all sites without tiles if not. Of bf16 our kernel, measured at all
    expert-parallel sizes, stands in beyond the reach of those.

    Of other kernels only rows measured with equal experts are used: the kernel states total rows, so skew among the
    experts of one rank (measured +0 to +37 % masked, −3 to +11 % contiguous at the tile edge) is not modelled.
    """

    has_stand_ins = True

    def __init__(self, surfaces: ExpertSurfaces):
        self._surfaces = surfaces
        self.surface, *self._stand_ins = surfaces.common

    @staticmethod
    def shape_of(kernel: GroupedGemm) -> Shape:
        active = max(float(kernel.active_groups), 1.0)
        return float(kernel.groups), active, float(kernel.n), float(kernel.k), max(kernel.rows / active, 1.0)

    def price(self, kernel: GroupedGemm) -> Estimate:
        shape = self.shape_of(kernel)
        found = self._surface_of(kernel).price(*shape)
        others = [other.price(*shape) for other in self._stand_ins] if found.is_estimate else []
        return next((other for other in others if not other.is_estimate), found)

    def place(self, kernel: GroupedGemm) -> tuple[Surface, Shape]:
        kernel.check()
        return self._surface_of(kernel), self.shape_of(kernel)

    def parts(self, kernel: GroupedGemm) -> tuple[Surface, list[Shape]]:
        return self._surface_of(kernel), [self.shape_of(kernel)]

    def _surface_of(self, kernel: GroupedGemm) -> Surface:
        return self._surfaces.at((kernel.groups, kernel.n, kernel.k), kernel.rows, self.shape_of(kernel))


def _has_wide_tiles(chosen: int | None, rows: float) -> bool:
    """Whether so many rows are multiplied in tiles of 64; ``chosen``: experts of a token, where no tiles are tuned."""
    return chosen is not None and rows > NARROW_TOKENS * chosen


def _untuned_rows(table: KernelTable, dtype: GemmDtype) -> list[KernelRow]:
    """Products in the tiles of vLLM's rule of thumb, as it ships none for the site on this GPU."""
    tiled = [row for row in _engine_rows(table, dtype) if row.settings]
    return [row for row in tiled if not json.loads(row.settings)["is_tuned"]]


class BorrowedTimes(KernelTimes["GroupedGemm"]):
    """bf16 without measurements at fp8's share of its own roofline, flagged."""

    def __init__(self, fp8: ExpertTimes):
        self._fp8 = fp8

    def price(self, kernel: GroupedGemm) -> Estimate:
        twice = self._fp8.surface.price(*self._fp8.shape_of(replace(kernel, n=2 * kernel.n)))
        source = f"estimate: bf16 as fp8 of twice the columns; {twice.source}"
        return Estimate(twice.time_us, True, source, UNMEASURED)


def surfaces_of(measured: MeasuredTimes, layout: Layout, dtype: GemmDtype, *, is_shared: bool) -> ExpertSurfaces:
    op = "grouped_gemm_gathered" if dtype == "bf16" else f"grouped_gemm_{layout}"
    kernels, alone, untuned = [measured.table.select(op, dtype, "even")], list[KernelRow](), list[KernelRow]()
    if op == "grouped_gemm_gathered":
        engine = _engine_rows(measured.table, dtype)
        own = [row for row in kernels[0] if row.kernel != ENGINE_KERNEL]
        alone = [row for row in engine if row.run.endswith(SITE_RUNS)]
        kernels = [[row for row in engine if not row.run.endswith(SITE_RUNS)], own]
        untuned = _untuned_rows(measured.table, dtype)
        if is_shared:
            alone, untuned = _shared_rows(measured.table, dtype), []
            kernels.insert(0, alone)
    tiles: TiledLayout = "masked" if layout == "gathered" else layout  # gathered rows fill tiles of their expert alone
    reference = grouped_reference(measured.gpu, tiles, dtype, measured.timing == "graph")
    chosen = {_site(row): round(row["rows"] / row["batch"]) for row in untuned} if dtype == "fp8" else {}
    by_site: defaultdict[TiledSite, list[KernelRow]] = defaultdict(list)
    for row in alone:
        by_site[_tiled_site(row, chosen)].append(row)
    sites = {site: _surface(reference, rows, measured) for site, rows in by_site.items()}
    wide = [row for row in kernels[0] if _tiled_site(row, chosen)[1]]
    if wide:
        sites |= dict.fromkeys((_tiled_site(row, chosen) for row in wide), _surface(reference, wide, measured))
    common = [rows for rows in kernels if rows] or ([alone] if alone else [])
    return ExpertSurfaces(
        [_surface(reference, rows, measured) for rows in common],
        sites,
        chosen,
        _surface(reference, untuned, measured) if untuned and dtype == "bf16" else None,
        measured.gpu.name,
    )


def _site(row: KernelRow) -> Site:
    return row["groups"], row["n"], row["k"]


def _tiled_site(row: KernelRow, chosen: Mapping[Site, int]) -> TiledSite:
    site = _site(row)
    return site, _has_wide_tiles(chosen.get(site), row["rows"])


def mxfp4_surfaces(measured: MeasuredTimes, op: str) -> ExpertSurfaces:
    """The surface of all rows of vLLM's kernel, and one of each measured site."""
    reference = mxfp4_reference(measured.gpu, measured.timing == "graph")
    by_site: defaultdict[Site, list[KernelRow]] = defaultdict(list)
    rows = measured.table.select(op, "mxfp4", UNIFORM)
    for row in rows:
        by_site[_site(row)].append(row)
    sites = {(site, False): _surface(reference, own, measured) for site, own in by_site.items()}
    return ExpertSurfaces([_surface(reference, rows, measured)] if rows else [], sites)


def _engine_rows(table: KernelTable, dtype: GemmDtype) -> list[KernelRow]:
    """Expert products of the engine's kernel."""
    uniform = table.select("grouped_gemm_gathered", dtype, UNIFORM)
    return [row for row in uniform if row.kernel == ENGINE_KERNEL]


def _shared_rows(table: KernelTable, dtype: GemmDtype) -> list[KernelRow]:
    """The same of ranks that share the experts, whatever the number of all."""
    kinds = [f"{UNIFORM}{SHARED}{count}" for count in SHARED_EXPERTS]
    return [row for kind in kinds for row in table.select("grouped_gemm_gathered", dtype, kind)]


def _surface(reference: ReferenceModel, rows: list[KernelRow], measured: MeasuredTimes) -> Surface:
    shapes = np.array([_grouped_shape(row) for row in rows], dtype=np.float64)
    return Surface(reference, shapes, np.array([measured.time_us(row, gemm_weight_bytes(row)) for row in rows]))


def _grouped_shape(row: KernelRow) -> Shape:
    active = row["active_groups"]
    return row["groups"], active, row["n"], row["k"], max(row["rows"] / active, 1.0)
