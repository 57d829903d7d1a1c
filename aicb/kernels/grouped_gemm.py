"""Grouped matrix products: one per local expert, in the layouts of prefills and of decodes."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import ClassVar, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from aicb.kernels.columns import Columns, expert_dtype
from aicb.kernels.fitting.estimate import Estimate
from aicb.kernels.fitting.surface import ReferenceModel, Surface
from aicb.kernels.gemm import BIAS_BYTES
from aicb.kernels.kernel import Kernel, KernelCost, KernelTimes, Shape
from aicb.kernels.point import Point, SweptModel, point
from aicb.kernels.reference.product_times import grouped_reference, mxfp4_reference
from aicb.kernels.routing import DISTRIBUTIONS, busiest_rank, expert_rows
from aicb.kernels.tuned_experts import has_tuned_tiles, was_seen_in_sglang
from aicb.measurements.clock import DENSE_PRODUCTS, FP8_EXPERTS, PowerLoad
from aicb.measurements.gpu import Gpu
from aicb.measurements.table import KernelRow, KernelTable
from aicb.measurements.timing import MeasuredTimes, gemm_weight_bytes
from aicb.model.architecture import MoeFfn
from aicb.model.precision import (
    ELEMENT_BYTES,
    SCALE_BLOCK,
    GemmDtype,
    Precision,
    WeightDtype,
    activation_bytes_per_row,
    weight_matrix_bytes,
)
from boundary.errors import InputError

TiledLayout = Literal["masked", "contiguous"]
Layout = Literal[TiledLayout, "gathered"]
Site = tuple[int, int, int]
"""Experts of a rank, columns, inner size."""
TiledSite = tuple[Site, bool]
"""And whether an engine's kernel multiplies in its wide tiles there."""
ExpertSite = tuple[WeightDtype, bool, int, int, int]
"""Format of weights, whether ranks share the experts, and a site."""
OPERATIONS = ("grouped_gemm_masked", "grouped_gemm_contiguous", "grouped_gemm_gathered", "grouped_gemm_swiglu")
"""By layout; ``swiglu``: gathered, with the activation on the way out."""
UNMEASURED = 0.3
"""Relative error (68 %) of bf16 expert products taken from fp8: vLLM's iterations of Qwen3-30B-A3B lie within it."""
ENGINE_KERNEL = "vllm/fused_moe"
"""vLLM's Triton kernel with the configuration it chooses for a layer and a token count."""

MASKED_TOKENS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Tokens per rank of decode batches."""
CONTIGUOUS_TOKENS = (32, 64, 128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
"""Tokens per rank of prefill batches."""
GATHERED_TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192)
ENGINE_TOKENS = (*GATHERED_TOKENS[:-1], 6144, 8192, 12288, 16384)
"""Tokens of batches of an engine's kernel, whose tiles depend on them."""
UNIFORM = "multinomial"
"""Distribution of the times of an engine's kernel: every token draws its experts with equal chance."""
SITE_RUNS = ("vllm_experts_sliced", "vllm_experts_h100", "vllm_experts_in_engine")
"""Runs of more widths of the engine's kernel, and of an H100, each site a surface of its own: vLLM ships tiles for some
sites and takes a rule of thumb for others, which would bend a common one."""
NARROW_TOKENS = 64
"""Up to so many tokens vLLM's tiles of fp8 experts in blocks have 16 rows, for more 64, where it ships none for a site
and GPU (``fused_moe.py``, ``get_default_config``)."""
SHARED_EXPERTS = (8, 128, 512)
"""Of all ranks together, in measurements of the engine's kernel with shared experts."""
SHARED = " of "
"""Between the distribution and the experts of all ranks, where those of a point are one rank's of several."""
SHARED_TRAIT, SGLANG_TRAIT = "shared", "SGLang"
"""Of variants."""
COMPUTING, READING = 0.665, 0.80
"""Time of SGLang's kernel in its own tiles over vLLM's where it computes, and share of the memory's bandwidth where it
reads weights.

In engines of SGLang 0.5.17 on an H200 (2026-11-30, ``tests/data/engine/sglang-h200-layers.json.gz``): 1,024 tokens of
Qwen3-30B-A3B in fp8 take 100.8 and 72.6 us, vLLM's 151.7 and 108.7; 1,024 of DeepSeek-V3 read their weights and rows in
1,944 and 1,072 us."""
SGLANG_ERROR = 0.1
"""More relative error (68 %) of SGLang's kernel by vLLM's: of one site with 1, 64 and 1,024 tokens in an engine."""
SKEWED_TOKENS = (16, 64, 128, 512, 2048)
_OPERAND_LIMIT_BYTES = 40 << 30
_ROW_ALIGNMENT = 128


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
    has_bias: bool = field(default=False, kw_only=True)
    """Each expert adds a bf16 vector ``[n]`` on the way out, which takes no time of its own."""
    is_shared: bool = field(default=False, kw_only=True)
    """These are one rank's of the experts that several share, and the kernel gets the pairs of all."""
    in_sglang_tiles: bool = field(default=False, kw_only=True)
    """SGLang's kernel of gathered fp8 rows, in its tiles where they were measured (`SglangTileTimes`)."""
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
        is_fused = self.layout == "gathered" and self.compute_dtype == "fp8"
        return FP8_EXPERTS if is_fused else DENSE_PRODUCTS

    def time_ratio(self, origin: Gpu, target: Gpu) -> float | None:
        """mxfp4 weights are converted by the SMs, which takes longer than reading them and follows no bandwidth: by
        the law of the kernel, where both GPUs run it. Other architectures run other kernels (B200: in hardware)."""
        if self.dtype != "mxfp4" or origin.architecture != target.architecture:
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
        layouts: dict[str, Layout] = {"masked": "masked", "gathered": gathered, "swiglu": gathered}
        layout = layouts.get(name, "contiguous")
        groups = row.integer("groups")
        rows = row.number("rows") if row.text("rows") else row.number("m") * groups
        active = row.number("active_groups", min(float(groups), max(rows, 1.0)))
        if active > groups:
            raise row.fail("active_groups", f"at most groups = {groups}")
        own = rows, groups, active, row.integer("n"), row.integer("k"), dtype, layout
        return cls(*own, has_activation=name == "swiglu")

    @classmethod
    def fit(cls, variant: Hashable, measured: MeasuredTimes) -> KernelTimes[GroupedGemm] | None:
        """No kernel stands for an engine's of gathered fp8 experts, or of mxfp4 ones."""
        assert isinstance(variant, tuple)
        layout, dtype, *trait = variant
        if dtype == "mxfp4":
            op = "grouped_gemm_swiglu" if trait else "grouped_gemm_gathered"
            mxfp4 = _mxfp4_surfaces(measured, op)
            return ExpertTimes(mxfp4) if mxfp4.common else None
        surfaces = _surfaces(measured, layout, dtype, is_shared=SHARED_TRAIT in trait)
        if surfaces.common:
            times = ExpertTimes(surfaces)
            return SglangTileTimes(times, measured.gpu) if SGLANG_TRAIT in trait else times
        if dtype == "fp8":
            return None
        return BorrowedTimes(ExpertTimes(_surfaces(measured, layout, "fp8", is_shared=False)))

    def variant(self, precision: Precision) -> tuple[Layout, WeightDtype] | tuple[Layout, WeightDtype, str]:
        del precision
        if self.dtype == "mxfp4":
            return ("gathered", "mxfp4", "activated") if self.has_activation else ("gathered", "mxfp4")
        own = self.layout, self.dtype
        if self.in_sglang_tiles:
            return (*own, SGLANG_TRAIT)
        return (*own, SHARED_TRAIT) if self.is_shared else own

    @property
    def measured_as(self) -> tuple[str, str | None]:
        if self.dtype == "mxfp4":
            return ("grouped_gemm_swiglu" if self.has_activation else "grouped_gemm_gathered"), "mxfp4"
        if self.dtype == "bf16":
            return "grouped_gemm_gathered", "bf16"
        return f"grouped_gemm_{self.layout}", "fp8"

    @property
    def engine_site(self) -> ExpertSite | None:
        """Where an engine's kernel that gathers rows runs this, ``None`` of other layouts of fp8 experts."""
        if self.dtype == "fp8" and self.layout != "gathered":
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
                yield from _partition_points(swept, moe, dtype, parts)


def experts_of_all_ranks(point: Point) -> int:
    """Experts of a layer, of which a point's ``groups`` are one rank's."""
    _, _, total = point.distribution.partition(SHARED)
    return int(total) if total else point["groups"]


def shared_points(
    experts: int, experts_per_token: int, ranks: int, columns: tuple[int, int], tokens: Sequence[int]
) -> Iterator[Point]:
    """Both projections of bf16 experts that ranks share, on the rank with the most rows.

    Args:
        experts, experts_per_token: of a layer.
        ranks: that share them.
        columns: hidden size, width of an expert.
        tokens: of all ranks together, a batch each.
    """
    hidden, width = columns
    for batch in tokens:
        rows = busiest_rank(expert_rows(UNIFORM, experts, batch, experts_per_token), ranks)
        if not rows.sum():
            continue
        shape = {"m": batch * experts_per_token, "groups": len(rows), "active_groups": int((rows > 0).sum())}
        shape |= {"rows": int(rows.sum()), "max_rows": int(rows.max()), "batch": batch}
        for n, k, per_row in ((2 * width, hidden, experts_per_token), (hidden, width, 1)):
            yield point(
                "grouped_gemm_gathered",
                "bf16",
                shape | {"n": n, "k": k, "experts_per_token": per_row},
                lengths=tuple(int(count) for count in rows),
                distribution=f"{UNIFORM}{SHARED}{experts}",
            )


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


class ExpertTimes(KernelTimes[GroupedGemm]):
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


class SglangTileTimes(KernelTimes[GroupedGemm]):
    """SGLang's kernel of fp8 experts in blocks, by vLLM's.

    Few rows read weights as vLLM's do. Where rows are computed SGLang was faster in the tiles that it ships for a site,
    which are no wider than a block of weights: their scale is one number, multiplied with the rows' scales before both
    meet the products (``kernels/ops/moe/fused_moe_triton_kernels.py``), where vLLM multiplies one after the other. At
    other sites vLLM's times stand: without tiles of their own both take a rule of thumb, and tiles that SGLang ships
    for more sites were not measured.
    """

    def __init__(self, times: ExpertTimes, gpu: Gpu):
        self._times, self._gpu = times, gpu.name
        self._bytes_per_us = READING * gpu.hbm_bytes_per_s * 1e-6

    def price(self, kernel: GroupedGemm) -> Estimate:
        found = self._times.price(kernel)
        if not was_seen_in_sglang(self._gpu, kernel.groups, kernel.n, kernel.k):
            return found
        reading_us = kernel.cost(Precision("fp8")).moved_bytes / self._bytes_per_us
        time_us = max(COMPUTING * found.time_us, reading_us)
        if time_us >= found.time_us:
            return found
        return Estimate(
            time_us, True, f"estimate: SGLang's kernel by {found.source}", lambda: found.error + SGLANG_ERROR
        )


class BorrowedTimes(KernelTimes[GroupedGemm]):
    """bf16 without measurements at fp8's share of its own roofline, flagged."""

    def __init__(self, fp8: ExpertTimes):
        self._fp8 = fp8

    def price(self, kernel: GroupedGemm) -> Estimate:
        twice = self._fp8.surface.price(*self._fp8.shape_of(replace(kernel, n=2 * kernel.n)))
        source = f"estimate: bf16 as fp8 of twice the columns; {twice.source}"
        return Estimate(twice.time_us, True, source, UNMEASURED)


def _surfaces(measured: MeasuredTimes, layout: Layout, dtype: GemmDtype, *, is_shared: bool) -> ExpertSurfaces:
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


def _mxfp4_surfaces(measured: MeasuredTimes, op: str) -> ExpertSurfaces:
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


def _partition_points(swept: SweptModel, moe: MoeFfn, dtype: WeightDtype, parts: tuple[int, int]) -> Iterator[Point]:
    """``parts``: ranks that share the experts, slices of each expert."""
    ranks, slices = parts
    width, hidden = moe.intermediate // slices, swept.model.hidden
    tag = f"{swept.model.name}/{{}}/ep{ranks}" + (f"tp{slices}" if slices > 1 else "")
    for layout, tokens, distribution in _batches(dtype, parts, width):
        if tokens > swept.most_counted_tokens:
            continue
        rows = busiest_rank(expert_rows(distribution, moe.experts, tokens * ranks, moe.experts_per_token), ranks)
        for name, n, k, per_row in (("up", 2 * width, hidden, moe.experts_per_token), ("down", hidden, width, 1)):
            yield from _layout_points(layout, dtype, (n, k, per_row), rows, tokens, distribution, tag.format(name))


def _batches(dtype: WeightDtype, parts: tuple[int, int], width: int) -> Iterator[tuple[str, int, str]]:
    """(layout, tokens, distribution) of the points of one partition.

    bf16 experts are gathered in all partitions, mxfp4 ones where every rank holds all. fp8 experts are where an engine
    does so: with all experts on every rank and whole scale blocks (vLLM 0.24, ``oracle/fp8.py`` and
    ``quantization/fp8.py``), for uniform routing above all.
    """
    if dtype == "mxfp4":
        yield from (("gathered", tokens, UNIFORM) for tokens in ENGINE_TOKENS if parts[0] == 1)
        return
    layouts = [("masked", MASKED_TOKENS), ("contiguous", CONTIGUOUS_TOKENS)]
    if dtype == "bf16":
        layouts.append(("gathered", GATHERED_TOKENS))
    for layout, counts in layouts:
        for tokens, distribution in product(counts, DISTRIBUTIONS):
            if distribution == "balanced" or tokens in SKEWED_TOKENS:
                yield layout, tokens, distribution
    if dtype == "fp8" and parts[0] == 1 and width % SCALE_BLOCK == 0:
        yield from (("gathered", tokens, UNIFORM) for tokens in ENGINE_TOKENS)
        yield from product(("gathered",), SKEWED_TOKENS, [name for name in DISTRIBUTIONS if name != UNIFORM])


def _layout_points(
    layout: str,
    dtype: WeightDtype,
    site: tuple[int, int, int],
    rows: NDArray[np.int64],
    tokens: int,
    distribution: str,
    tag: str,
) -> Iterator[Point]:
    n, k, per_row = site
    groups, total, largest = len(rows), int(rows.sum()), int(rows.max())
    shape = {"n": n, "k": k, "groups": groups, "active_groups": int((rows > 0).sum()), "rows": total}
    shape |= {"max_rows": largest, "batch": tokens}
    capacity = -(-largest // _ROW_ALIGNMENT) * _ROW_ALIGNMENT
    held = groups * weight_matrix_bytes(n, k, dtype)
    priority = int(layout == "gathered" and dtype == "fp8" and distribution != UNIFORM)
    if layout == "masked":
        shape |= {"max_m": capacity, "expected_m": -(-total // groups)}
        held += groups * capacity * (activation_bytes_per_row(k, "fp8" if dtype == "fp8" else "bf16") + 2 * n)
    if layout == "gathered":
        shape["experts_per_token"] = per_row
    if held + total * (k + n) * 4 > _OPERAND_LIMIT_BYTES or total == 0:
        return
    lengths = tuple(int(count) for count in rows)
    is_fused = dtype == "mxfp4" and per_row > 1
    op = "grouped_gemm_swiglu" if is_fused else f"grouped_gemm_{layout}"
    yield point(op, dtype, shape, lengths=lengths, distribution=distribution, tag=tag, priority=priority)
    if layout == "masked" and distribution == "balanced" and tokens in (16, 128):
        roomy = shape | {"max_m": 4 * capacity}
        yield point(f"grouped_gemm_{layout}", dtype, roomy, lengths=lengths, distribution=distribution, tag=tag)
