"""Decode attention of grouped queries over a paged cache (FlashAttention-3).

A function of the blocks of KV that the kernel works through, Σ ⌈S_i / block⌉, and of how unequal the lengths are. The
kernel is persistent: an SM takes one KV head of one sequence after another, or a part of one where few fill the GPU,
and unequal ones leave SMs idle at the end (``UNEQUAL_SHARES``).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

import aicb._core as _core
from aicb.kernels.columns import Columns, kv_dtype
from aicb.kernels.core_times import volume_times
from aicb.kernels.decode_grid import decode_grid, rows_of_format
from aicb.kernels.fitting.estimate import VolumeTimes
from aicb.kernels.fitting.kriging import Floats, Scales
from aicb.kernels.fitting.surface import AXIS_REACH, SITE_REACH_OCTAVES, ReferenceModel, Surface
from aicb.kernels.fitting.volume import PricedVolume, lengths_between, nearest, through_lengths
from aicb.kernels.kernel import CacheKernel, CacheTimes, KernelCost, Shape
from aicb.kernels.point import Point, SweptModel, point
from aicb.kernels.routing import kv_lengths
from aicb.measurements.clock import DECODE_ATTENTION, WIDE_DECODE_ATTENTION, PowerLoad
from aicb.measurements.table import KernelRow
from aicb.measurements.timing import MeasuredTimes
from aicb.model.architecture import GroupedQueryAttention
from aicb.model.key_span import KeySpan
from aicb.model.partition import kv_heads_per_rank
from aicb.model.precision import ELEMENT_BYTES, KvDtype, Precision

PAGED_FLOOR_US, PAGED_UNIT_US, PAGED_COMBINE_US, PAGED_SPLIT_US, PAGED_TAIL = 7.7, 3.1, 2.4, 0.47, 0.75
"""FA3 decode: launch; an SM's time for one KV head of one sequence, however short; the second kernel, and each
doubling of splits; power of the wave efficiency. Least squares over the 2721 decode rows of the H200 table: 5.6 %
median, 15 % p90, which kriging takes to a third."""
NARROW_HEAD = 128
"""Up to this head dimension clocks were counted that `DECODE_ATTENTION` meets; beyond it, of 256."""
PAGE_TOKENS = 16
"""vLLM's default block size."""
FA3_BLOCK_TOKENS = 128
"""That `fa3_splits` counts in."""
BLOCK_TOKENS: Mapping[KvDtype, Mapping[int, int]] = {
    "bf16": {64: 160, 128: 128, 192: 96, 256: 80},
    "fp8": {64: 160, 96: 128, 192: 160, 256: 128},
}
"""Keys of a tile by format of the cache and largest head dimension: ``tile_size_fwd_sm90`` in hopper/tile_size.h of
FlashAttention 07602ad, of pages that the tensor memory accelerator does not load."""
UNEQUAL_UNITS = (0.25, 0.6, 1.0, 2.0, 4.0, 8.0)
UNEQUAL_SHARES = (0.087, 0.296, 0.291, 0.181, 0.098, 0.087)
UNEQUAL_FROM_US = 8.0
UNEQUAL_SPREAD = 0.1
"""What lengths that spread by ``UNEQUAL_SPREAD`` (mean absolute deviation over mean) and more cost beyond equal ones of
as many blocks: a share of the time beyond the launch, by KV heads of sequences per SM; linear in their logarithm. Few
units are cut into parts and many even out. Least squares over the 354 unequal rows of ``decode_attention_captured``:
4.2 % median error and 11 % p90 (without 12 and 22); 4.9 and 12 % on the 604 of ``decode_attention``, which it was not
fitted to; a geometry left out 3 to 6 % median (``scripts/fit_unequal_decodes.py``)."""
SGLANG_UNEQUAL_SHARES = (0.093, 0.270, 0.233, 0.088, 0.045, 0.0)
"""The same of SGLang's build, which loses less where there are many units: least squares over its 675 unequal rows, 5.9
% median error and 14 % p90 (7.0 and 17 % with the shares of vLLM's); a geometry left out 4 to 8 % median."""
FA3_MAX_SPLITS = 128
SGLANG_DECODES = "decode_attention_sglang"
UNSCHEDULED_DECODES = "decode_attention_unscheduled"
SLIDING_DECODES = "decode_attention_sliding"
SLIDING_BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Requests of the points of sliding decodes."""
SLIDING_CONTEXT = 4
"""Windows that the context of a measured sliding decode has. Of gpt-oss's 128 tokens contexts of 32 and 128 windows
take the same as of 4 within 0.5 % at the median and 6 % at most, of two windows 3 % less (36 points, H200)."""
_LABELS = {
    "decode_attention": "FA3 paged decode",
    "decode_attention_captured": "FA3 captured decode",
    SGLANG_DECODES: "FA3 decode of SGLang",
    UNSCHEDULED_DECODES: "FA3 decode without a schedule",
    SLIDING_DECODES: "FA3 sliding decode",
}
_COLUMNS = ("heads", "kv_heads", "d_qk", "batch", "kv_len")


@dataclass(frozen=True, slots=True, eq=False)
class DecodeAttention(CacheKernel):
    """One query token per request over a paged GQA cache."""

    operations = ("decode_attention",)
    cold_operations = frozenset({"decode_attention"})
    core_role = "decode"

    kv_tokens: NDArray[np.int64]
    heads: int
    kv_heads: int
    head_dim: int
    kv_dtype: KvDtype | None = field(default=None, kw_only=True)
    """Format of the cache; ``None``: that of the instance, which the estimator knows."""
    span: KeySpan | None = field(default=None, kw_only=True)
    is_stand_in: bool = field(default=False, kw_only=True)
    """Whether times of this kernel stand for another's, of another engine: they are flagged."""

    def cost(self, precision: Precision) -> KernelCost:
        """Queries have the format of the cache, results are bf16."""
        tokens, element = float(self.kv_tokens.sum()), ELEMENT_BYTES[self.kv_dtype or precision.kv]
        kv_bytes = tokens * 2.0 * self.kv_heads * self.head_dim * element
        own_bytes = self.kv_tokens.size * self.heads * self.head_dim * (element + 2.0)
        return KernelCost(4.0 * self.heads * self.head_dim * tokens, kv_bytes + own_bytes, kv_bytes, "bf16")

    @property
    def power_load(self) -> PowerLoad:
        return WIDE_DECODE_ATTENTION if self.head_dim > NARROW_HEAD else DECODE_ATTENTION

    def describe(self) -> str:
        return f"batch {self.kv_tokens.size} kv {int(self.kv_tokens.sum())} heads {self.heads}/{self.kv_heads}"

    @classmethod
    def read(cls, operation: str, row: Columns) -> Self:
        del operation
        kv = row.lengths("kv_len", row.integer("batch", 1))
        heads, kv_heads, head_dim = row.integer("heads"), row.integer("kv_heads"), row.integer("d_qk")
        return cls(kv, heads, kv_heads, head_dim, kv_dtype=kv_dtype(row))

    @classmethod
    def fit(cls, variant: Hashable, measured: MeasuredTimes) -> PagedTimes:
        assert variant == "bf16" or variant == "fp8"
        return PagedTimes(measured, variant, cls.operations[0])

    @property
    def measured_as(self) -> tuple[str, str | None]:
        return self.operations[0], "bf16"

    @classmethod
    def swept_points(cls, swept: SweptModel) -> Iterator[Point]:
        for attention, kv, tp in swept.attentions(GroupedQueryAttention):
            heads, kv_heads = attention.heads // tp, kv_heads_per_rank(attention.kv_heads, tp)
            shape = {"heads": heads, "kv_heads": kv_heads, "d_qk": attention.head_dim, "d_v": attention.head_dim}
            per_token = kv_heads * 2 * attention.head_dim * ELEMENT_BYTES["bf16"]
            for batch, mean, distribution in cls.swept_sizes(attention, per_token, swept.max_kv_tokens):
                lengths = kv_lengths(distribution, batch, mean)
                size = {"batch": batch, "q_len": 1, "kv_len": sum(lengths) // batch, "page_tokens": PAGE_TOKENS}
                yield point(
                    cls.operations[0],
                    kv,
                    {**shape, **size},
                    lengths=lengths,
                    queries=(1,) * batch,
                    distribution=distribution,
                    tag=swept.tag(tp),
                )

    @classmethod
    def swept_sizes(
        cls, attention: GroupedQueryAttention, bytes_per_token: int, max_kv_tokens: int
    ) -> Iterable[tuple[int, int, str]]:
        """(requests, mean KV tokens, distribution) of the points of one geometry."""
        del attention
        return decode_grid(bytes_per_token, max_kv_tokens)


@dataclass(frozen=True, slots=True, eq=False)
class CapturedDecodeAttention(DecodeAttention):
    """The same as vLLM captures it: the schedule made once per step, at most 32 splits, a second kernel always."""

    operations = ("decode_attention_captured",)
    cold_operations = frozenset({"decode_attention_captured"})


@dataclass(frozen=True, slots=True, eq=False)
class SglangDecodeAttention(DecodeAttention):
    """The same as SGLang captures it: the schedule made once per step, pages of one token."""

    operations = (SGLANG_DECODES,)
    cold_operations = frozenset({SGLANG_DECODES})


@dataclass(frozen=True, slots=True, eq=False)
class UnscheduledDecodeAttention(DecodeAttention):
    """The same as vLLM captures it in models whose layers differ in their windows: each call makes its schedule."""

    operations = (UNSCHEDULED_DECODES,)
    cold_operations = frozenset({UNSCHEDULED_DECODES})


@dataclass(frozen=True, slots=True, eq=False)
class SlidingDecodeAttention(DecodeAttention):
    """The same of a layer that slides; KV tokens are those that its window shows."""

    operations = (SLIDING_DECODES,)
    cold_operations = frozenset({SLIDING_DECODES})

    @classmethod
    def swept_sizes(
        cls, attention: GroupedQueryAttention, bytes_per_token: int, max_kv_tokens: int
    ) -> Iterable[tuple[int, int, str]]:
        """Whole windows: shorter contexts are read like those of layers that see everything."""
        del bytes_per_token, max_kv_tokens
        return [] if attention.window is None else [(batch, attention.window, "equal") for batch in SLIDING_BATCHES]


class PagedTimes(CacheTimes[DecodeAttention]):
    """FA3 decode over a paged GQA cache: shapes (heads, kv_heads, head_dim, batch, KV tokens).

    Over an fp8 cache FA3 multiplies fp8 queries with it. Where that was not measured, times are those of a bf16 cache
    of as many bytes, flagged. FA3 has a kernel for each head dimension: times of one that was not measured are flagged.
    """

    def __init__(self, measured: MeasuredTimes, kv: KvDtype, operation: str = "decode_attention"):
        gpu, self._kv, self._measured = measured.gpu, kv, measured
        rows, row_format = rows_of_format(measured, operation, kv)
        self._row_element_bytes, self._is_measured_format = ELEMENT_BYTES[row_format], kv == row_format
        shapes = np.array([[row[name] for name in _COLUMNS] for row in rows], dtype=np.float64)
        times_us = np.array([measured.time_us(row, _kv_bytes(row)) for row in rows])
        volumes = self._volumes(shapes)
        self.slope_us = 1.13e6 / gpu.hbm_bytes_per_s
        self.volume_range = (volumes.min() / AXIS_REACH, volumes.max() * AXIS_REACH)
        self._largest_volume, self._most_sequences = float(volumes.max()), float(shapes[:, 3].max())
        self._sms = gpu.sms
        scales = Scales((3.0, 3.0, 4.0, 2.0, 0.3, 2.0, 6.0), (1.0,) * 7, 0.0, 0.1)
        self._label = _LABELS[operation]
        self._unequal_shares = SGLANG_UNEQUAL_SHARES if operation == SGLANG_DECODES else UNEQUAL_SHARES
        label = f"{self._label} (heads, kv_heads, head_dim, batch)"
        reference = ReferenceModel(label, 4, self._reference_us, self._coordinates, scales, (1, 2))
        self.surface = Surface(reference, shapes, times_us)

    def _reference_us(self, shapes: Floats) -> Floats:
        units = shapes[:, 3] * shapes[:, 1]
        splits, efficiency = fa3_splits(units, shapes[:, 4], self._sms)
        memory_us = self.slope_us * self._volumes(shapes) / efficiency**PAGED_TAIL
        combine_us = np.where(splits > 1, PAGED_COMBINE_US + PAGED_SPLIT_US * np.log2(splits), 0.0)
        return np.asarray(PAGED_FLOOR_US + np.hypot(memory_us, PAGED_UNIT_US * units / self._sms) + combine_us)

    def _coordinates(self, shapes: Floats) -> Floats:
        heads, kv_heads, dim, batch, kv = shapes.T
        splits, efficiency = fa3_splits(batch * kv_heads, kv, self._sms)
        logs = np.log2([batch * kv_heads, kv, dim, self._volumes(shapes), splits, heads / kv_heads])
        return np.column_stack([*logs[:4], efficiency, *logs[4:]])

    def _volumes(self, shapes: Floats) -> Floats:
        """[shapes] bytes of the measured cache."""
        return np.asarray(2.0 * self._row_element_bytes * shapes[:, 1:].prod(axis=1))

    def site(self, kernel: DecodeAttention, batch: int) -> tuple[Surface, Shape]:
        return self.surface, (float(kernel.heads), float(kernel.kv_heads), float(kernel.head_dim), float(batch))

    def decode_times(self, kernel: DecodeAttention, batch: int) -> VolumeTimes:
        volume = self.function(kernel, batch)
        return volume_times(volume, self.split_kv(kernel, batch), kernel, Precision(kv=self._kv), batch, self._measured)

    def split_kv(self, kernel: DecodeAttention, requests: int) -> _core.SplitKv:
        """Blocks of keys that the lengths of requests make, and the penalty of unequal ones."""
        units = math.log2(requests * kernel.kv_heads / self._sms)
        return _core.SplitKv(
            block_tokens=block_tokens(kernel.head_dim, self._kv),
            overhead_blocks=0,
            parts=1,
            unequal_us=math.inf,
            unequal_share=float(np.interp(units, np.log2(UNEQUAL_UNITS), self._unequal_shares)),
            unequal_from_us=UNEQUAL_FROM_US,
            equal_spread=UNEQUAL_SPREAD,
        )

    def _nearest_heads(self, kernel: DecodeAttention) -> int:
        """A measured number of query heads that share as many KV heads: reading the cache is what takes time."""
        shapes = self.surface.shapes
        same = shapes[(shapes[:, 1] == kernel.kv_heads) & (shapes[:, 2] == kernel.head_dim), 0]
        return nearest(kernel.heads, sorted({int(heads) for heads in same}))

    def function(self, kernel: DecodeAttention, batch: int) -> PricedVolume:
        """Time as a function of blocks for ``batch`` sequences of this geometry.

        Where a cache of this format was not measured, a block is that of as many bytes.
        """
        geometry = (float(self._nearest_heads(kernel)), float(kernel.kv_heads), float(kernel.head_dim))
        shapes = self.surface.shapes
        is_own = (shapes[:, :3] == geometry).all(axis=1)
        row_token = 2.0 * self._row_element_bytes * kernel.kv_heads * kernel.head_dim
        own_token = kernel.of_one_token().cost(Precision(kv=self._kv)).cold_bytes
        measured = shapes[is_own & (shapes[:, 3] == batch), 4]
        block = block_tokens(kernel.head_dim, self._kv)
        lengths = lengths_between(block, self._largest_volume / (row_token * batch), block, measured)
        blocks = batch * np.ceil(lengths * row_token / own_token / block)
        block_bytes = block * own_token
        site = (*geometry, float(batch))
        function, error = through_lengths(self.surface, site, lengths, blocks, self.slope_us * block_bytes)
        measured_tokens = 2.0 * self._row_element_bytes * shapes[:, 1] * shapes[:, 2]
        octaves = np.abs(np.log2(measured_tokens / own_token)).min()
        is_far = batch > AXIS_REACH * self._most_sequences or octaves > SITE_REACH_OCTAVES
        is_other_kernel = kernel.head_dim not in shapes[:, 2]
        is_estimate = bool(is_far or is_other_kernel or kernel.is_stand_in or not self._is_measured_format)
        kind = "estimate:" if is_estimate else "interpolated" if is_own.any() else "borrowed"
        low, high = self.volume_range
        reach = (low / block_bytes, high / block_bytes)
        return PricedVolume(function, reach, is_estimate, f"{kind} {self._label}", error)


def block_tokens(head_dim: int, kv: KvDtype) -> int:
    """Keys of a tile of FlashAttention-3's paged kernel."""
    fitting = [dim for dim in BLOCK_TOKENS[kv] if dim >= head_dim]
    return BLOCK_TOKENS[kv][min(fitting)] if fitting else min(BLOCK_TOKENS[kv].values())


def fa3_splits(units: Floats, kv_tokens: Floats, sms: int) -> tuple[Floats, Floats]:
    """[shapes] splits of the KV that FlashAttention-3 chooses, and the efficiency of the waves they make.

    One split where ``units`` (KV heads of all sequences) nearly fill the SMs or the cache is short; else the fewest
    whose last wave is at least 0.85 as full as the best possible (``num_splits_heuristic``, hopper/heuristics.h).
    """
    counts = np.arange(1.0, FA3_MAX_SPLITS + 1.0)
    blocks = np.ceil(kv_tokens / FA3_BLOCK_TOKENS)[:, None]
    waves = units[:, None] * counts / sms
    efficiency = np.where(counts <= np.minimum(blocks, sms), waves / np.ceil(waves), 0.0)
    fewest = (efficiency >= 0.85 * efficiency.max(axis=1, keepdims=True)).argmax(axis=1) + 1.0
    splits = np.where((units >= 0.8 * sms) | (blocks[:, 0] <= 4), 1.0, fewest)
    chosen = units * splits / sms
    return splits, np.asarray(chosen / np.ceil(chosen))


def _kv_bytes(row: KernelRow) -> float:
    elements = row["batch"] * row["kv_len"] * row["kv_heads"] * (row["d_qk"] + row["d_v"])
    return float(elements * (1 if row.dtype == "fp8" else 2))
