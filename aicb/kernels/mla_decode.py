"""Absorbed decode attention of latents (FlashMLA, FlashAttention-3).

A function of the payload of the split-KV schedule, Σ(⌈S_i / 64⌉ + 5) / parts + 5 blocks. The reference follows the
schedule of equal lengths exactly (``reference/mla_schedule.py``); unequal lengths pay a penalty.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
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
from aicb.kernels.fitting.surface import AXIS_REACH, ReferenceModel, Surface
from aicb.kernels.fitting.volume import PricedVolume, lengths_between, nearest, through_lengths
from aicb.kernels.kernel import CacheKernel, CacheTimes, KernelCost, Shape
from aicb.kernels.point import Point, SweptModel, point
from aicb.kernels.reference.mla_schedule import BLOCK_TOKENS, OVERHEAD_BLOCKS, equal_schedule, head_tiles, parts_of
from aicb.kernels.routing import kv_lengths
from aicb.measurements.clock import LATENT_DECODES, PowerLoad
from aicb.measurements.table import KernelRow
from aicb.measurements.timing import MeasuredTimes
from aicb.model.architecture import LatentAttention
from aicb.model.precision import ELEMENT_BYTES, KvDtype, Precision

_LABELS = {
    "mla_decode": "FlashMLA decode",
    "mla_decode_fa3": "FlashAttention-3 MLA decode",
    "mla_decode_sglang": "MLA decode of SGLang",
    "mla_decode_flashinfer": "FlashInfer MLA decode",
}
PAGE_TOKENS = {"mla_decode": BLOCK_TOKENS, "mla_decode_fa3": 16, "mla_decode_sglang": 1, "mla_decode_flashinfer": 1}
"""Tokens per KV page in profiles: what FlashMLA takes, and the defaults of vLLM and SGLang."""


@dataclass(frozen=True, slots=True)
class UnequalPenalty:
    """What unequal KV lengths cost beyond equal ones of the same total.

    A share of the time beyond ``from_us``, at most ``at_most_us``; in full from a spread (mean absolute deviation /
    mean) of ``full_spread`` on, below it in proportion. ``shares``: of up to 16 requests and of 32 and more.
    """

    shares: tuple[float, float]
    from_us: float
    at_most_us: float
    full_spread: float
    longest_us: float = 0.0
    longest_token_us: float = 0.0
    """What a batch takes at least for its longest request, and for each KV token of it where that is not divided."""
    undivided: float = math.inf
    """Query heads times requests from which on it is not; with half as many it is divided in two, and so on."""

    def share(self, requests: int) -> float:
        """In proportion between 16 and 32 requests."""
        return float(np.interp(requests, (16, 32), self.shares))


_UNEQUAL = {
    "mla_decode": UnequalPenalty((0.178, 0.178), from_us=0.0, at_most_us=40.0, full_spread=0.5),
    "mla_decode_fa3": UnequalPenalty((0.185, 0.553), from_us=19.9, at_most_us=math.inf, full_spread=0.1),
    "mla_decode_sglang": UnequalPenalty(
        (0.167, 0.167),
        from_us=20.0,
        at_most_us=math.inf,
        full_spread=0.107,
        longest_us=20.4,
        longest_token_us=0.0319,
        undivided=8192.0,
    ),
    "mla_decode_flashinfer": UnequalPenalty((0.315, 0.473), from_us=7.3, at_most_us=math.inf, full_spread=0.103),
}
"""FlashMLA: the share is fitted to 121 unequal rows of the H200's profile, 5.7 % median and 20 % p90 (without a penalty
14 and 30), the rest is stated: 0.5 is the spread of uniform lengths, and 24 to 44 µs at most would do as well.
FlashAttention-3 cuts few requests into many parts and hands many of them whole to the SMs, so that any difference
between long ones costs: least squares over its 180 unequal rows (4 to 128 requests of 1,024 to 16,384 tokens, spreads
from 0.1), 6 % median and 16 % p90; 5 to 9 % median for a distribution left out, 6 % for a number of heads left out
(without a penalty 16 to 25 %). SGLang leaves the number of splits to the kernel, which takes 132 SMs over tiles of 64
query heads of all requests, whatever the lengths: 64 requests of 128 heads are not divided at all, and the longest
makes the others wait, up to nine times as long as if all were equal. Least absolute errors over its 180 unequal rows,
3.3 % median and 9 % p90; a number of heads or of requests or a distribution left out 2 to 6 % median (with the penalty
of vLLM's 18 and 68 %). FlashInfer, over its 180: 7 and 18 %, one of these left out 7 to 14 % (without a penalty 26 %).
``scripts/fit_unequal_latent_decodes.py`` fits each."""
_NO_PENALTY = UnequalPenalty((0.0, 0.0), from_us=0.0, at_most_us=0.0, full_spread=0.5)
"""Of FlashMLA's kernel of fp8 caches, whose 54 unequal rows lie nearer to equal lengths than others to their fit: 2.7 %
median, 12 % p90."""


def unequal_penalty(operation: str, kv: KvDtype) -> UnequalPenalty:
    """Of a kernel for caches of a format."""
    return _NO_PENALTY if (operation, kv) == ("mla_decode", "fp8") else _UNEQUAL[operation]


@dataclass(frozen=True, slots=True, eq=False)
class MlaDecode(CacheKernel):
    """Absorbed MLA decode: every head attends to one latent of 576, value 512."""

    operations = ("mla_decode",)
    cold_operations = frozenset({"mla_decode"})
    core_role = "decode"

    kv_tokens: NDArray[np.int64]
    heads: int
    d_qk: int
    d_v: int
    kv_dtype: KvDtype | None = field(default=None, kw_only=True)
    """Format of the cache; ``None``: that of the instance, which the estimator knows."""

    def cost(self, precision: Precision) -> KernelCost:
        """Queries have the format of the cache, results are bf16."""
        tokens, element = float(self.kv_tokens.sum()), ELEMENT_BYTES[self.kv_dtype or precision.kv]
        kv_bytes = tokens * self.d_qk * element
        own_bytes = self.kv_tokens.size * self.heads * (self.d_qk * element + self.d_v * 2.0)
        return KernelCost(2.0 * self.heads * (self.d_qk + self.d_v) * tokens, kv_bytes + own_bytes, kv_bytes, "bf16")

    @property
    def power_load(self) -> PowerLoad:
        return LATENT_DECODES

    def describe(self) -> str:
        return f"batch {self.kv_tokens.size} kv {int(self.kv_tokens.sum())} heads {self.heads}/1"

    @classmethod
    def read(cls, operation: str, row: Columns) -> Self:
        """Query tokens of one request share its KV tiles: they count as more heads."""
        del operation
        kv = row.lengths("kv_len", row.integer("batch", 1))
        heads = row.integer("heads") * row.integer("q_len", 1)
        d_qk, d_v = row.integer("d_qk", 576), row.integer("d_v", 512)
        return cls(kv, heads, d_qk, d_v, kv_dtype=kv_dtype(row))

    @classmethod
    def fit(cls, variant: Hashable, measured: MeasuredTimes) -> LatentTimes:
        assert variant == "bf16" or variant == "fp8"
        return LatentTimes(measured, variant, cls.operations[0])

    @property
    def measured_as(self) -> tuple[str, str | None]:
        return self.operations[0], "bf16"

    @classmethod
    def swept_points(cls, swept: SweptModel) -> Iterator[Point]:
        for attention, kv, tp in swept.attentions(LatentAttention):
            if attention.indexer is None:
                for queries in (1, 2):
                    yield from _points(cls.operations[0], attention, kv, tp, queries, swept)


@dataclass(frozen=True, slots=True, eq=False)
class Fa3MlaDecode(MlaDecode):
    """The same by FlashAttention-3, with the query's rotary and latent parts apart (vLLM's ``FLASH_ATTN_MLA``)."""

    operations = ("mla_decode_fa3",)
    cold_operations = frozenset({"mla_decode_fa3"})


@dataclass(frozen=True, slots=True, eq=False)
class SglangMlaDecode(MlaDecode):
    """The same as SGLang calls it: the schedule made in each layer, the kernel's own choice of splits."""

    operations = ("mla_decode_sglang",)
    cold_operations = frozenset({"mla_decode_sglang"})


@dataclass(frozen=True, slots=True, eq=False)
class FlashInferMlaDecode(MlaDecode):
    """The same by FlashInfer, SGLang's with ``--attention-backend flashinfer``."""

    operations = ("mla_decode_flashinfer",)
    cold_operations = frozenset({"mla_decode_flashinfer"})


class LatentTimes(CacheTimes[MlaDecode]):
    """FlashMLA dense decode: shapes (query heads, batch, KV tokens). Query tokens of a request count as heads."""

    START_US, FILL_US, BLOCK_US, SPLIT_US = 10.0, 16.4, 1.66, 0.217
    """A request in a part, the pipeline's latency in a long part, one block, one split to combine. Least squares over
    the 38 equal-length rows of the H200 table: 3.5 % median, 9.6 % p90."""
    FILL_BLOCKS = 3.0
    """Blocks over which the latency builds up."""
    MEMORY_SHARE, THROTTLING, THROTTLING_US = 0.9, 0.143, 300.0

    def __init__(self, measured: MeasuredTimes, kv: KvDtype, operation: str = "mla_decode"):
        rows, row_format = rows_of_format(measured, operation, kv)
        self._label, self._unequal = _LABELS[operation], unequal_penalty(operation, row_format)
        rows, self._element_bytes = _fewest_queries(rows), ELEMENT_BYTES[row_format]
        self._is_measured_format = kv == row_format
        self._gpu, self._kv, self._measured = measured.gpu, kv, measured
        shapes = np.array([[row["heads"] * row["q_len"], row["batch"], row["kv_len"]] for row in rows], np.float64)
        cache_bytes = [float(row["batch"] * row["kv_len"] * row["d_qk"] * self._element_bytes) for row in rows]
        times_us = np.array([measured.time_us(row, moved) for row, moved in zip(rows, cache_bytes, strict=True)])
        scales = Scales((3.0, 3.0, 3.0, 3.0, 3.0), (1.0,) * 5, 0.0, 0.05)
        reference = ReferenceModel(
            f"{self._label} (heads, batch)", 2, self._reference_us, self._coordinates, scales, (0,)
        )
        self.surface = Surface(reference, shapes, times_us)
        self._heads = sorted({int(heads) for heads in shapes[:, 0]})
        self._tiles = {head_tiles(heads) for heads in self._heads}

    def _schedules(self, shapes: Floats) -> Floats:
        """[3, shapes] blocks and starts of the longest part, most splits of a request."""
        found = [
            equal_schedule(int(batch), math.ceil(kv / BLOCK_TOKENS), parts_of(int(heads), self._gpu.sms))
            for heads, batch, kv in shapes
        ]
        return np.array(found, dtype=np.float64).reshape(-1, 3).T

    def _reference_us(self, shapes: Floats) -> Floats:
        blocks, starts, splits = self._schedules(shapes)
        fill_us = self.FILL_US * (1.0 - np.exp(-blocks / self.FILL_BLOCKS))
        compute_us = self.START_US * starts + fill_us + self.BLOCK_US * blocks
        moved = shapes[:, 1] * shapes[:, 2] * 576 * self._element_bytes
        memory_us = self.MEMORY_SHARE * moved / self._gpu.hbm_bytes_per_s * 1e6
        combine_us = np.where(splits > 1, self.SPLIT_US * splits, 0.0)
        time_us = (compute_us**4 + memory_us**4) ** 0.25 + combine_us
        return np.asarray(time_us * (1.0 + self.THROTTLING * np.log1p(time_us / self.THROTTLING_US)))

    def _coordinates(self, shapes: Floats) -> Floats:
        heads, batch, kv = shapes.T
        blocks, _, splits = self._schedules(shapes)
        return np.asarray(np.log2([batch, kv, heads, blocks, splits]).T)

    def payload(self, blocks: NDArray[np.int64], heads: int) -> Floats:
        """Blocks one SM works through, not rounded; ``blocks`` is Σ_i (⌈S_i / 64⌉ + 5) of the batch."""
        return np.asarray(blocks / parts_of(heads, self._gpu.sms) + OVERHEAD_BLOCKS)

    def split_kv(self, heads: int, requests: int) -> _core.SplitKv:
        """The schedule that turns lengths of requests into their ``payload`` and the penalty of unequal ones."""
        return _core.SplitKv(
            block_tokens=BLOCK_TOKENS,
            overhead_blocks=OVERHEAD_BLOCKS,
            parts=parts_of(heads, self._gpu.sms),
            unequal_us=self._unequal.at_most_us,
            unequal_share=self._unequal.share(requests),
            unequal_from_us=self._unequal.from_us,
            equal_spread=self._unequal.full_spread,
            longest_us=self._unequal.longest_us,
            longest_token_us=self._unequal.longest_token_us / max(self._unequal.undivided / (heads * requests), 1.0),
        )

    def site(self, kernel: MlaDecode, batch: int) -> tuple[Surface, Shape]:
        return self.surface, (float(kernel.heads), float(batch))

    def decode_times(self, kernel: MlaDecode, batch: int) -> VolumeTimes:
        volume, payload = self.function(kernel, batch), self.split_kv(kernel.heads, batch)
        return volume_times(volume, payload, kernel, Precision(kv=self._kv), batch, self._measured)

    def function(self, kernel: MlaDecode, batch: int) -> PricedVolume:
        """Time as a function of the payload for ``batch`` sequences."""
        shapes = self.surface.shapes
        payloads = [
            float(self.payload(np.array(b * (-(-kv // BLOCK_TOKENS) + OVERHEAD_BLOCKS)), int(h)))
            for h, b, kv in shapes
            if head_tiles(int(h)) == head_tiles(kernel.heads)
        ] or [float(OVERHEAD_BLOCKS + 1), 2000.0]
        parts = parts_of(kernel.heads, self._gpu.sms)
        longest = ((max(payloads) - OVERHEAD_BLOCKS) * parts / batch - OVERHEAD_BLOCKS) * BLOCK_TOKENS
        heads = self._nearest_heads(kernel.heads)
        own = shapes[(shapes[:, 0] == heads) & (shapes[:, 1] == batch), 2]
        lengths = lengths_between(BLOCK_TOKENS, longest, BLOCK_TOKENS, own)
        counts = batch * (np.ceil(lengths / BLOCK_TOKENS) + OVERHEAD_BLOCKS)
        site = (float(heads), float(batch))
        volumes = self.payload(counts.astype(np.int64), kernel.heads)
        slope_us = self.BLOCK_US * (1.0 + self.THROTTLING)
        function, error = through_lengths(self.surface, site, lengths, volumes, slope_us)
        is_far = batch > AXIS_REACH * shapes[:, 1].max() or head_tiles(kernel.heads) not in self._tiles
        is_estimate = bool(is_far or not self._is_measured_format)
        kind = "estimate:" if is_estimate else "interpolated" if kernel.heads in self._heads else "borrowed"
        reach = (min(payloads) / AXIS_REACH, max(payloads) * AXIS_REACH)
        return PricedVolume(function, reach, is_estimate, f"{kind} {self._label}, {kernel.heads} heads", error)

    def _nearest_heads(self, heads: int) -> int:
        """A measured number of heads that fills as many tiles: tiles are computed whole."""
        return nearest(heads, [other for other in self._heads if head_tiles(other) == head_tiles(heads)])


def _fewest_queries(rows: list[KernelRow]) -> list[KernelRow]:
    """Of rows with as many query heads in all, the one with the fewest query tokens."""
    chosen: dict[tuple[int, ...], KernelRow] = {}
    for row in sorted(rows, key=lambda row: row["q_len"]):
        chosen.setdefault((row["heads"] * row["q_len"], row["batch"], row["kv_len"]), row)
    return list(chosen.values())


def _points(
    operation: str, attention: LatentAttention, kv: KvDtype, tp: int, queries: int, swept: SweptModel
) -> Iterator[Point]:
    """Batches with so many query tokens each; few lengths with more than one."""
    shape = {"heads": attention.heads // tp, "kv_heads": 1}
    shape |= {"d_qk": attention.kv_elements, "d_v": attention.kv_lora_rank}
    for batch, mean, distribution in decode_grid(shape["d_qk"] * ELEMENT_BYTES["bf16"], swept.max_kv_tokens):
        if queries > 1 and (distribution != "equal" or mean not in (1024, 4096, 16384)):
            continue
        lengths = tuple(max(length, queries) for length in kv_lengths(distribution, batch, mean))
        size = {
            "batch": batch,
            "q_len": queries,
            "kv_len": sum(lengths) // batch,
            "page_tokens": PAGE_TOKENS[operation],
        }
        yield point(
            operation,
            kv,
            {**shape, **size},
            lengths=lengths,
            queries=(queries,) * batch,
            distribution=distribution,
            tag=swept.tag(tp),
        )
