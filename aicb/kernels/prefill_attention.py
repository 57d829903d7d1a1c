"""Prefill attention: causal, over past and new keys (FlashAttention-3).

FA3 works in tiles of query rows, queries times the query heads that share a KV head, and blocks of keys (``TILES``).
SMs take tiles one after another; where these are few FA3 divides the keys of a request, by its own heuristic, and
combines the parts. The reference counts tiles, blocks and parts, and how long the SMs are busy with them; kriging over
q, S/q, heads, head dimensions, sharing and waves corrects it, for groups of query heads that divide a tile and for
others (5, 6, 7, 12) apart. A batch runs in one kernel: n equal requests of H heads are one request of n·H heads. The
reference of unequal ones is that of all their tiles, its correction the mean of those of each request scaled to the
batch (as many heads as its share of the FLOPs is smaller), weighted by FLOPs; the requests one after another are an
upper bound. So small requests fill the SMs together, and a prompt split in two costs less than whole.

Grouped queries were measured over the pages that they have just been written to, as engines read them, latents that are
expanded over keys in a row.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

import aicb._core as _core
from aicb.kernels.columns import Columns, chunks, kv_dtype
from aicb.kernels.fitting.estimate import Estimate
from aicb.kernels.fitting.kriging import Floats, Scales
from aicb.kernels.fitting.surface import (
    AXIS_REACH,
    SITE_REACH_OCTAVES,
    ReferenceModel,
    Surface,
    distinct_shapes,
    on_grid,
)
from aicb.kernels.kernel import Kernel, KernelCost, KernelTimes, Shape
from aicb.kernels.pairs import causal_pairs, chosen_pairs
from aicb.kernels.point import Point, SweptModel, point
from aicb.kernels.routing import kv_lengths
from aicb.measurements.clock import DENSE_PRODUCTS, PROMPT_ATTENTION, PowerLoad
from aicb.measurements.table import KernelRow
from aicb.measurements.timing import MeasuredTimes
from aicb.model.architecture import GroupedQueryAttention, LatentAttention
from aicb.model.key_span import KeySpan
from aicb.model.partition import kv_heads_per_rank
from aicb.model.precision import ELEMENT_BYTES, GemmDtype, KvDtype, Precision
from boundary.errors import InputError

TILE_ROWS = 128
"""Query rows of most tiles of FA3."""


class Tile(NamedTuple):
    """A tile of FA3."""

    width: int
    """Dimensions of keys and values together."""
    rows: int
    block_tokens: int
    """Keys of a block."""
    block_share: float
    """A block's time over that of its FLOPs at the nominal peak of an SM."""


TILES: Mapping[GemmDtype, tuple[Tile, ...]] = {
    "bf16": (Tile(128, 192, 160, 2.06), Tile(256, 128, 128, 1.54), Tile(320, 128, 128, 1.20), Tile(512, 128, 80, 1.25)),
    "fp8": (Tile(256, 128, 160, 3.35), Tile(512, 128, 128, 4.84)),
}
"""By format; rows and keys are those of ``tile_size_fwd_sm90`` (hopper/tile_size.h of FlashAttention 07602ad) over
pages that the tensor memory accelerator does not load, of 320 dimensions over keys in a row."""
FLOOR_US, TILE_US, TILE_WIDTH_US, SPLIT_WIDTH_US = 6.0, 2.6, 1.9, 0.53
COMBINE_US, COMBINE_ROW_US = 4.4, 3.2e-4
"""Launch; an SM's start and end of a tile, the same for each 256 dimensions, and for those of a part; combining parts,
and each row of 256 dimensions and octave of parts. These and the last column of `TILES` are least absolute deviations
over the 2,514 rows of equal prompts of the H200 table: 3.3 % median and 11 % p90, and 3.2 and 9 % on 650 chunks of
other lengths, which they were not fitted to."""
WINDOW_ERROR = 0.08
"""Mean error of the reference by windows, which are not in the table and which no constant was fitted to: 760 prompts
(``tests/data/kernels/vllm-h200-sliding-prompts.json.gz``)."""
_QUERIES = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_PASTS = (0, 512, 2048, 8192, 30720)
_PROMPTS = ((2, 512), (2, 2048), (2, 4096), (4, 512), (4, 1024), (4, 2048), (8, 256), (8, 1024), (16, 128), (16, 512))
"""(batch, tokens of each) of prefill batches."""
_UNEQUAL_PROMPTS = ((4, 512), (4, 2048), (8, 256), (8, 1024), (16, 512), (32, 128))
"""(batch, mean tokens) of whole prompts of log-normal length."""
_PREFILL_PAIR_LIMIT = 1 << 28
"""Largest q·S of a prefill (16 k tokens of a whole prompt)."""


@dataclass(frozen=True, slots=True, eq=False)
class PrefillAttention(Kernel):
    """Causal attention of query chunks over past and new keys, one entry per request."""

    operations = ("prefill_attention",)
    core_role = "prefill"

    new_tokens: NDArray[np.int64]
    kv_tokens: NDArray[np.int64]
    heads: int
    kv_heads: int
    d_qk: int
    d_v: int
    dtype: GemmDtype = "bf16"
    """Format of queries, keys and values; ``fp8`` is e4m3 with a scale per KV head, the output bf16."""
    span: KeySpan | None = None
    """What has made these requests from those of the batch (`KeySpan.kernel_requests`), and the window of their
    queries; ``None``: they are those, and see all keys."""

    def cost(self, precision: Precision) -> KernelCost:
        del precision
        flops = self.flops_per_pair * float(self.pairs.sum())
        seen = self.kv_tokens if self.window is None else np.minimum(self.kv_tokens, self.new_tokens + self.window - 1)
        kv_bytes = float(seen.sum()) * self.bytes_per_kv_token
        moved = kv_bytes + float(self.new_tokens.sum()) * self.bytes_per_new_token
        return KernelCost(flops, moved, kv_bytes, self.dtype)

    @property
    def power_load(self) -> PowerLoad:
        return PROMPT_ATTENTION if self.d_qk == self.d_v else DENSE_PRODUCTS

    @property
    def window(self) -> int | None:
        """Keys that a query sees at most."""
        return self.span.tokens if self.span is not None and self.span.kind == "sliding" else None

    @property
    def pairs(self) -> NDArray[np.float64] | NDArray[np.int64]:
        """[requests] pairs of a query and a key that it sees."""
        if self.window is None:
            return causal_pairs(self.new_tokens, self.kv_tokens)
        return chosen_pairs(self.new_tokens, self.kv_tokens, self.window)

    @property
    def flops_per_pair(self) -> float:
        """Both products, QKᵀ and PV, of a query token and a key token."""
        return 2.0 * self.heads * (self.d_qk + self.d_v)

    @property
    def bytes_per_kv_token(self) -> float:
        """Keys and values, read once per request, as if query tiles shared them in L2."""
        return float(self.kv_heads * (self.d_qk + self.d_v) * ELEMENT_BYTES[self.dtype])

    @property
    def bytes_per_new_token(self) -> float:
        """Queries in the format of keys and values, results in bf16."""
        return float(self.heads * (self.d_qk * ELEMENT_BYTES[self.dtype] + self.d_v * ELEMENT_BYTES["bf16"]))

    def describe(self) -> str:
        tokens, keys = int(self.new_tokens.sum()), int(self.kv_tokens.sum())
        return f"q {tokens} kv {keys} heads {self.heads}/{self.kv_heads} d {self.d_qk}/{self.d_v}"

    @classmethod
    def read(cls, operation: str, row: Columns) -> Self:
        del operation
        new, kv = chunks(row)
        d_qk, d_v = row.integer("d_qk"), row.integer("d_v")
        return cls(new, kv, row.integer("heads"), row.integer("kv_heads"), d_qk, d_v, kv_dtype(row) or "bf16")

    @classmethod
    def fit(cls, variant: Hashable, measured: MeasuredTimes) -> KernelTimes[PrefillAttention]:
        """Unmeasured fp8 takes the time of bf16, flagged."""
        assert isinstance(variant, tuple)
        dtype, divides_tiles = variant
        if dtype == "fp8" and not measured.table.select("prefill_attention", "fp8", "even"):
            return BorrowedTimes(PrefillTimes(measured, "bf16", divides_tiles=divides_tiles))
        return PrefillTimes(measured, dtype, divides_tiles=divides_tiles)

    def variant(self, precision: Precision) -> tuple[GemmDtype, bool]:
        """Format, and whether the query heads of a KV head divide a tile."""
        del precision
        return self.dtype, _divides_tiles(self.heads, self.kv_heads)

    @property
    def measured_as(self) -> tuple[str, str | None]:
        return "prefill_attention", "bf16"

    def tensor_bytes(self, precision: Precision) -> int:
        return int(self.cost(precision).moved_bytes)

    def check(self) -> None:
        super(PrefillAttention, self).check()
        if (self.new_tokens > self.kv_tokens).any():
            raise InputError("PrefillAttention.kv_tokens: found fewer than new_tokens, expected past and new tokens")

    @classmethod
    def swept_points(cls, swept: SweptModel) -> Iterator[Point]:
        """Over an fp8 cache grouped-query attention multiplies fp8 operands; latents are expanded to bf16."""
        for gqa, kv, tp in swept.attentions(GroupedQueryAttention):
            heads, kv_heads = gqa.heads // tp, kv_heads_per_rank(gqa.kv_heads, tp)
            shape = {"heads": heads, "kv_heads": kv_heads, "d_qk": gqa.head_dim, "d_v": gqa.head_dim}
            yield from _points(shape, kv, swept, swept.tag(tp))
        for mla, kv, tp in swept.attentions(LatentAttention):
            if mla.indexer is None and kv == "bf16":
                heads = mla.heads // tp
                shape = {"heads": heads, "kv_heads": heads, "d_qk": mla.qk_head_dim, "d_v": mla.v_head_dim}
                yield from _points(shape, "bf16", swept, swept.tag(tp))


class PrefillTimes(KernelTimes[PrefillAttention]):
    """FA3 varlen prefill: shapes (heads, kv_heads, d_qk, d_v, requests, KV tokens, new tokens).

    Heads are those of all requests together. How many requests they are changes nothing but whether a shape is one
    that was measured; in a batch of unequal requests it is not.
    """

    def __init__(self, measured: MeasuredTimes, dtype: GemmDtype, *, divides_tiles: bool = True):
        """``divides_tiles``: of groups of query heads that do, or of others, where such were measured."""
        self._gpu, self._dtype = measured.gpu, dtype
        every = measured.table.select("prefill_attention", dtype, "even")
        rows = [row for row in every if _divides_tiles(row["heads"], row["kv_heads"]) is divides_tiles] or every
        shapes = np.array([_shape(row) for row in rows], dtype=np.float64)
        times_us = np.array([measured.time_us(row, _kv_bytes(row)) for row in rows])
        scales = Scales((4.0, 4.0, 4.0, 2.0, 4.0, 2.0, 0.5, 4.0), (1.0,) * 8, 0.0, 0.05)
        self._name = f"FA3 prefill{' of fp8' if dtype == 'fp8' else ''}"
        label = f"{self._name} (heads, kv_heads, d_qk, d_v)"
        self.surface = Surface(
            ReferenceModel(label, 4, self._reference_us, self._coordinates, scales, (2, 3), _on_grid), shapes, times_us
        )
        self._q_range = shapes[:, 6].min() / AXIS_REACH, shapes[:, 6].max() * AXIS_REACH
        self._longest = shapes[:, 5].max() * AXIS_REACH
        self._geometries: dict[tuple[int, ...], float] = {}
        self._in_core: dict[tuple[int, ...], _core.PrefillTimes] = {}

    def price(self, kernel: PrefillAttention) -> Estimate:
        """One batch, with the error of its largest request and where the time comes from."""
        key = (kernel.heads, kernel.kv_heads, kernel.d_qk, kernel.d_v, kernel.window or 0)
        if key not in self._in_core:
            self._in_core[key] = self.in_core(kernel, _UNBOUNDED, is_own=True, transfer=None)
        times = self._in_core[key]
        time_us, is_measured, is_estimate = times.of(kernel.new_tokens, kernel.kv_tokens)

        def error() -> float:
            return WINDOW_ERROR if _is_windowed(kernel) else float(self.surface.errors(self._largest(kernel))[0])

        kind = "measured" if is_measured else "borrowed" if self._octaves_of(kernel) else "interpolated"
        kind = "modelled" if _is_windowed(kernel) else kind
        return Estimate(time_us, is_estimate, f"{'estimate:' if is_estimate else kind} {self._name}", error)

    def parts(self, kernel: PrefillAttention) -> tuple[Surface, list[Shape]] | None:
        """Requests one after another, of windows over the keys that they see."""
        if self._dtype != "bf16":
            return None
        geometry = (float(kernel.heads), float(kernel.kv_heads), float(kernel.d_qk), float(kernel.d_v))
        new = kernel.new_tokens
        kv = kernel.kv_tokens if kernel.window is None else np.minimum(kernel.kv_tokens, new + kernel.window - 1)
        requests = zip(kv.tolist(), new.tolist(), strict=True)
        return self.surface, [(*geometry, 1.0, float(kv), float(new)) for kv, new in requests]

    def _largest(self, kernel: PrefillAttention) -> Floats:
        """[1, columns] the request with most FLOPs, scaled to the whole batch."""
        pairs = kernel.pairs
        largest = int(pairs.argmax())
        requests = pairs.sum() / pairs[largest]
        new, kv = kernel.new_tokens[largest], kernel.kv_tokens[largest]
        return np.array(
            [[kernel.heads * requests, kernel.kv_heads * requests, kernel.d_qk, kernel.d_v, requests, kv, new]]
        )

    def in_core(
        self,
        kernel: PrefillAttention,
        bound: _core.PrefillBound,
        *,
        is_own: bool,
        transfer: _core.PrefillTransfer | None,
    ) -> _core.PrefillTimes:
        """The geometry of ``kernel``; ``is_own``: the number format is the measured one."""
        low, high = self._q_range
        made = _core.PrefillTimes(
            (kernel.heads, kernel.kv_heads, kernel.d_qk, kernel.d_v),
            reference=self._reference,
            bound=bound,
            rates=_core.PrefillRates(
                flops_per_pair=kernel.flops_per_pair,
                bytes_per_kv_token=kernel.bytes_per_kv_token,
                bytes_per_new_token=kernel.bytes_per_new_token,
            ),
            reach=(low, high, self._longest),
            is_estimate=self._octaves_of(kernel) > SITE_REACH_OCTAVES or not is_own,
            keeps_measured=is_own,
            residuals=self.surface.residuals_near((float(kernel.d_qk), float(kernel.d_v))),
            transfer=transfer,
            window=kernel.window,
        )
        shapes = self.surface.shapes
        heads = shapes[:, 4:5] * (kernel.heads, kernel.kv_heads)
        is_own_geometry = (shapes[:, :2] == heads).all(axis=1) & (shapes[:, 2:4] == (kernel.d_qk, kernel.d_v)).all(
            axis=1
        )
        for shape, time_us in zip(shapes[is_own_geometry], self.surface.times_us[is_own_geometry], strict=True):
            requests, kv_tokens, new_tokens = (int(value) for value in shape[4:])
            made.insert_measured(requests, kv_tokens, new_tokens, float(time_us))
        return made

    @cached_property
    def _reference(self) -> _core.PrefillReference:
        return _core.PrefillReference(
            floor_us=FLOOR_US,
            tile_us=TILE_US,
            tile_width_us=TILE_WIDTH_US,
            split_width_us=SPLIT_WIDTH_US,
            combine_us=COMBINE_US,
            combine_row_us=COMBINE_ROW_US,
            tiles=[_core.PrefillTile(**tile._asdict()) for tile in TILES[self._dtype]],
            peak_flops=self._gpu.peak_flops[self._dtype],
            sms=self._gpu.sms,
        )

    def _octaves_of(self, kernel: PrefillAttention) -> float:
        """From the geometry of a kernel to the nearest measured one."""
        geometry = (kernel.heads, kernel.kv_heads, kernel.d_qk, kernel.d_v)
        if geometry not in self._geometries:
            self._geometries[geometry] = float(self._octaves(np.array([geometry], dtype=np.float64))[0])
        return self._geometries[geometry]

    def are_estimates(self, shapes: Floats) -> NDArray[np.bool_]:
        """[shapes] whether no measurement within reach supports the time of one request."""
        sites, inverse = distinct_shapes(shapes[:, :4])
        is_far = (self._octaves(sites) > SITE_REACH_OCTAVES)[inverse]
        return np.asarray(is_far | ~self._is_inside(shapes[:, 5], shapes[:, 6]))

    def _is_inside(self, kv: NDArray[np.number], new: NDArray[np.number]) -> NDArray[np.bool_]:
        return np.asarray((new >= self._q_range[0]) & (new <= self._q_range[1]) & (kv <= self._longest))

    def _octaves(self, geometries: Floats) -> Floats:
        """[geometries] to the nearest measured one, in query heads and in d_qk + d_v; KV heads hardly matter to a
        compute-bound kernel. Infinitely far where no head of these dimensions was: that is another kernel of FA3."""
        measured = self.surface.shapes
        heads = np.log2(measured[:, 0] / geometries[:, :1])
        width = np.log2((measured[:, 2] + measured[:, 3]) / geometries[:, 2:].sum(axis=1, keepdims=True))
        is_known = (measured[:, None, 2:4] == geometries[None, :, 2:]).all(axis=2).any(axis=0)
        return np.where(is_known, np.hypot(heads, width).min(axis=1), np.inf)

    def _reference_us(self, shapes: Floats) -> Floats:
        return self._reference.times_us(shapes)

    def _coordinates(self, shapes: Floats) -> Floats:
        return self._reference.coordinates(shapes)


def _is_windowed(kernel: PrefillAttention) -> bool:
    """Whether a query sees fewer keys than there are."""
    return kernel.window is not None and bool((kernel.kv_tokens > kernel.window).any())


def tile_of(dtype: GemmDtype, width: int) -> Tile:
    """The tile of so many dimensions of keys and values together; of the nearest that are known."""
    return min(TILES[dtype], key=lambda tile: abs(tile.width - width))


def _divides_tiles(heads: int, kv_heads: int) -> bool:
    """Whether the query heads of a KV head fill tiles without a rest."""
    return TILE_ROWS * kv_heads % heads == 0


_UNBOUNDED = _core.PrefillBound(peak_flops=math.inf, bytes_per_s=math.inf, resident_bytes=0.0)
"""Measured times before they are held to the roofline."""


def _shape(row: KernelRow) -> tuple[float, ...]:
    """Equal sequences of one batch count as more heads."""
    batch = row.shape.get("batch", 1)
    return row["heads"] * batch, row["kv_heads"] * batch, row["d_qk"], row["d_v"], batch, row["kv_len"], row["q_len"]


def _on_grid(shapes: Floats) -> Floats:
    """Heads, KV and new tokens rounded to 16 values per octave; utilisation varies far more slowly."""
    kv, new = on_grid(shapes[:, 5]), on_grid(shapes[:, 6])
    heads = on_grid(shapes[:, 0])
    sharing = shapes[:, 0] / shapes[:, 1]
    return np.column_stack([heads, heads / sharing, shapes[:, 2:4], np.ones(len(kv)), np.maximum(kv, new), new])


class BorrowedTimes(KernelTimes[PrefillAttention]):
    """Times of another number format, flagged."""

    def __init__(self, measured: PrefillTimes):
        self.measured = measured

    def price(self, kernel: PrefillAttention) -> Estimate:
        found = self.measured.price(kernel)
        return replace(found, is_estimate=True, source=f"estimate: bf16 {found.source}")


def _kv_bytes(row: KernelRow) -> float:
    return float(
        row.shape.get("batch", 1)
        * row["kv_len"]
        * row["kv_heads"]
        * (row["d_qk"] + row["d_v"])
        * ELEMENT_BYTES[row.dtype]
    )


def _points(shape: dict[str, int], dtype: KvDtype, swept: SweptModel, tag: str) -> Iterator[Point]:
    """One prompt or chunk with its past, and batches of equal prompts; few-token chunks only with a past."""
    alone = [(1, q, q + past) for q in _QUERIES for past in _PASTS if past or q >= 64]
    together = [(batch, q, q) for batch, q in _PROMPTS]
    for batch, q, kv in [*alone, *together]:
        if batch * q <= swept.max_tokens and kv <= swept.max_kv_tokens and q * kv <= _PREFILL_PAIR_LIMIT:
            yield point(
                "prefill_attention",
                dtype,
                {**shape, "batch": batch, "q_len": q, "kv_len": kv},
                queries=(q,) * batch,
                lengths=(kv,) * batch,
                distribution="equal",
                tag=tag,
            )
    for batch, mean in _UNEQUAL_PROMPTS:
        prompts = kv_lengths("lognormal", batch, mean)
        if sum(prompts) <= swept.max_tokens:
            yield point(
                "prefill_attention",
                dtype,
                {**shape, "batch": batch, "q_len": sum(prompts) // batch, "kv_len": sum(prompts) // batch},
                queries=prompts,
                lengths=prompts,
                distribution="lognormal",
                tag=tag,
            )
