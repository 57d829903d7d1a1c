"""Times of decode attention as piecewise-linear functions of the KV volume.

Decode attention is bound by reading KV, so its time is nearly a line in the volume. For a geometry and batch size the
line is bent through measured points, and through the kriged reference model between them, once; then a vector of
volumes costs a look-up. The functions use only comparisons, additions and multiplications, so that a vector gives the
same bits as the volumes one by one.

    FA3 (GQA): volume = bytes of KV, Σ S_i · bytes per token; insensitive to how lengths are distributed.
    FlashMLA:  volume = payload of the split-KV schedule, Σ(⌈S_i / 64⌉ + 5) / parts + 5 blocks. The reference follows
               the schedule of equal lengths exactly (``mla_schedule``); unequal lengths pay a penalty.
    Gated delta rule: volume = bytes of state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from aicb import _core
from aicb.estimators.kriging import Floats, Scales
from aicb.estimators.mla_schedule import (
    BLOCK_TOKENS,
    OVERHEAD_BLOCKS,
    equal_schedule,
    head_tiles,
    parts_of,
)
from aicb.estimators.surface import AXIS_REACH, SITE_REACH_OCTAVES, Structure, Surface
from aicb.measurements.gpu import Gpu
from aicb.measurements.table import KernelRow
from aicb.measurements.timing import MeasuredTimes
from aicb.model.precision import ELEMENT_BYTES, KvDtype, Precision
from aicb.operators.operator import DecodeAttention, GatedDeltaDecode, MlaDecode

MLA_UNEQUAL_US = 40.0
MLA_UNEQUAL_SHARE = 0.37
"""Penalty of unequal KV lengths: 40 µs per unit of relative spread, at most 0.37 of the time. The six unequal rows of
the H200 table lie 11 to 50 µs (+3 to +37 %) above equal lengths of the same total."""
PAGED_FLOOR_US, PAGED_UNIT_US, PAGED_COMBINE_US, PAGED_SPLIT_US, PAGED_TAIL = 7.7, 3.1, 2.4, 0.47, 0.75
"""FA3 decode: launch; an SM's time for one KV head of one sequence, however short; the second kernel, and each
doubling of splits; power of the wave efficiency. Least squares over the 2721 decode rows of the H200 table: 5.6 %
median, 15 % p90, which kriging takes to a third."""
_EQUAL_SPREAD = 0.5
"""Mean absolute deviation / mean of uniform lengths: the spread that costs the full penalty."""
_KNOTS_PER_OCTAVE = 4
_KNOTS_PER_ERROR = 8


@dataclass(frozen=True, slots=True, eq=False)
class VolumeFunction:
    """Piecewise-linear time [µs] of a volume; the last slope continues to the right."""

    volume: NDArray[np.float64]
    """[knots] increasing, the first is 0 or the least volume."""
    time_us: NDArray[np.float64]
    """[knots]"""
    slope: NDArray[np.float64]
    """[knots] slope right of each knot."""

    def __call__(self, volume: NDArray[np.float64]) -> NDArray[np.float64]:
        knot = np.searchsorted(self.volume, volume, side="right") - 1
        np.maximum(knot, 0, out=knot)
        return np.asarray(self.time_us[knot] + self.slope[knot] * (volume - self.volume[knot]))

    @classmethod
    def through(cls, knots: Iterable[tuple[float, float]], last_slope: float) -> VolumeFunction:
        """Linear between knots (volume, time)."""
        volume, time = (np.array(column, dtype=np.float64) for column in zip(*sorted(knots), strict=True))
        return cls(volume, time, np.append(np.diff(time) / np.diff(volume), last_slope))


@dataclass(frozen=True, slots=True)
class Priced:
    """A time function of one batch size with its provenance."""

    time: VolumeFunction
    volume_range: tuple[float, float]
    """Volumes outside are estimates."""
    is_estimate: bool
    source: str
    error_of: Callable[[], float]
    """Relative (68 %), mean over the knots; worked out when asked for, as in ``Estimate``."""


def through_lengths(
    surface: Surface, site: tuple[float, ...], lengths: Floats, volumes: Floats, last_slope: float
) -> tuple[VolumeFunction, Callable[[], float]]:
    """The time of one site as a function of volume, never falling between measured points, and what works out its mean
    error."""
    shapes = np.column_stack([np.broadcast_to(site, (len(lengths), len(site))), lengths])
    times, is_measured = surface.times_and_hits(shapes)
    below = np.maximum.accumulate(np.where(is_measured, times, 0.0))
    above = np.minimum.accumulate(np.where(is_measured, times, np.inf)[::-1])[::-1]
    rising = np.maximum.accumulate(np.clip(times, below, np.maximum(above, below)))
    knots = np.where(is_measured, times, rising)
    start = [] if volumes[0] == 0.0 else [(0.0, float(knots[0]))]
    first = np.unique(volumes[order := np.lexsort((~is_measured, volumes))], return_index=True)[1]
    kept = order[first]
    function = VolumeFunction.through([*start, *zip(volumes[kept], knots[kept], strict=True)], last_slope)
    return function, lambda: float(surface.errors(shapes[::_KNOTS_PER_ERROR]).mean())


def lengths_between(low: float, high: float, step: int, measured: Iterable[float]) -> Floats:
    """Increasing lengths from ``low`` to ``high`` in multiples of ``step``, the measured ones among them."""
    count = max(int(math.log2(max(high / low, 2.0)) * _KNOTS_PER_OCTAVE), 1) + 1
    grid = np.ceil(np.geomspace(low, max(high, 2.0 * low), count) / step) * step
    return np.unique(np.concatenate([grid, list(measured)]))


def _rows_of(measured: MeasuredTimes, op: str, precision: Precision) -> tuple[list[KernelRow], KvDtype]:
    """Rows over a cache of the precision's format; where none was measured, over bf16."""
    rows = measured.table.select(op, precision.kv, "even")
    return (rows, precision.kv) if rows else (measured.table.select(op, "bf16", "even"), "bf16")


class PagedDecode:
    """FA3 decode over a paged GQA cache: shapes (heads, kv_heads, head_dim, batch, KV tokens).

    Over an fp8 cache FA3 multiplies fp8 queries with it. Where that was not measured, times are those of a bf16 cache
    of as many bytes, flagged.
    """

    def __init__(self, measured: MeasuredTimes, gpu: Gpu, precision: Precision):
        self._kv_element_bytes = ELEMENT_BYTES[precision.kv]
        rows, row_format = _rows_of(measured, "decode_attention", precision)
        self._row_element_bytes, self._is_measured_format = ELEMENT_BYTES[row_format], precision.kv == row_format
        shapes = np.array([[row[name] for name in _PAGED_COLUMNS] for row in rows], dtype=np.float64)
        times_us = np.array([measured.time_us(row, _kv_bytes(row)) for row in rows])
        volumes = self._volumes(shapes)
        self.slope_us = 1.13e6 / gpu.hbm_bytes_per_s
        self.volume_range = (volumes.min() / AXIS_REACH, volumes.max() * AXIS_REACH)
        self._largest_volume, self._most_sequences = float(volumes.max()), float(shapes[:, 3].max())
        self._sms = gpu.sms
        scales = Scales((3.0, 3.0, 4.0, 2.0, 0.3, 2.0, 6.0), (1.0,) * 7, 0.0, 0.1)
        label = "FA3 paged decode (heads, kv_heads, head_dim, batch)"
        structure = Structure(label, 4, self._reference_us, self._coordinates, scales, (1, 2))
        self.surface = Surface(structure, shapes, times_us)

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

    def bytes_per_token(self, work: DecodeAttention) -> int:
        return 2 * work.kv_heads * work.head_dim * self._kv_element_bytes

    def _nearest_heads(self, work: DecodeAttention) -> int:
        """A measured number of query heads that share as many KV heads: reading the cache is what takes time."""
        shapes = self.surface.shapes
        same = shapes[(shapes[:, 1] == work.kv_heads) & (shapes[:, 2] == work.head_dim), 0]
        return _nearest(work.heads, sorted({int(heads) for heads in same}))

    def function(self, work: DecodeAttention, batch: int) -> Priced:
        """Time as a function of KV bytes for ``batch`` sequences of this geometry."""
        geometry = (float(self._nearest_heads(work)), float(work.kv_heads), float(work.head_dim))
        shapes = self.surface.shapes
        is_own = (shapes[:, :3] == geometry).all(axis=1)
        per_token = 2.0 * self._row_element_bytes * work.kv_heads * work.head_dim * batch
        measured = shapes[is_own & (shapes[:, 3] == batch), 4]
        lengths = lengths_between(32.0, self._largest_volume / per_token, 1, measured)
        site = (*geometry, float(batch))
        function, error = through_lengths(self.surface, site, lengths, lengths * per_token, self.slope_us)
        measured_tokens = 2.0 * self._row_element_bytes * shapes[:, 1] * shapes[:, 2]
        octaves = np.abs(np.log2(measured_tokens / self.bytes_per_token(work))).min()
        is_far = batch > AXIS_REACH * self._most_sequences or octaves > SITE_REACH_OCTAVES
        is_estimate = bool(is_far or not self._is_measured_format)
        kind = "estimate:" if is_estimate else "interpolated" if is_own.any() else "borrowed"
        return Priced(function, self.volume_range, is_estimate, f"{kind} FA3 paged decode", error)


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


FA3_BLOCK_TOKENS = 128
FA3_MAX_SPLITS = 128

_PAGED_COLUMNS = ("heads", "kv_heads", "d_qk", "batch", "kv_len")


def _nearest(value: int, known: list[int]) -> int:
    """The known value fewest octaves away; the value itself where nothing is known."""
    return min(known, key=lambda other: abs(math.log2(other / value))) if known else value


class LatentDecode:
    """FlashMLA dense decode: shapes (query heads, batch, KV tokens). Query tokens of a request count as heads."""

    START_US, FILL_US, BLOCK_US, SPLIT_US = 10.0, 16.4, 1.66, 0.217
    """A request in a part, the pipeline's latency in a long part, one block, one split to combine. Least squares over
    the 38 equal-length rows of the H200 table: 3.5 % median, 9.6 % p90."""
    FILL_BLOCKS = 3.0
    """Blocks over which the latency builds up."""
    MEMORY_SHARE, THROTTLING, THROTTLING_US = 0.9, 0.143, 300.0

    def __init__(self, measured: MeasuredTimes, gpu: Gpu, precision: Precision):
        rows, row_format = _rows_of(measured, "mla_decode", precision)
        rows, self._element_bytes = _fewest_queries(rows), ELEMENT_BYTES[row_format]
        self._is_measured_format = precision.kv == row_format
        self._gpu = gpu
        shapes = np.array([[row["heads"] * row["q_len"], row["batch"], row["kv_len"]] for row in rows], np.float64)
        cache_bytes = [float(row["batch"] * row["kv_len"] * row["d_qk"] * self._element_bytes) for row in rows]
        times_us = np.array([measured.time_us(row, moved) for row, moved in zip(rows, cache_bytes, strict=True)])
        scales = Scales((3.0, 3.0, 3.0, 3.0, 3.0), (1.0,) * 5, 0.0, 0.05)
        structure = Structure("FlashMLA decode (heads, batch)", 2, self._reference_us, self._coordinates, scales, (0,))
        self.surface = Surface(structure, shapes, times_us)
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

    def split_kv(self, heads: int) -> _core.SplitKv:
        """How the lengths of a batch give its ``payload`` and the penalty of unequal ones."""
        return _core.SplitKv(
            block_tokens=BLOCK_TOKENS,
            overhead_blocks=OVERHEAD_BLOCKS,
            parts=parts_of(heads, self._gpu.sms),
            unequal_us=MLA_UNEQUAL_US,
            unequal_share=MLA_UNEQUAL_SHARE,
            equal_spread=_EQUAL_SPREAD,
        )

    def function(self, work: MlaDecode, batch: int) -> Priced:
        """Time as a function of the payload for ``batch`` sequences."""
        shapes = self.surface.shapes
        payloads = [
            float(self.payload(np.array(b * (-(-kv // BLOCK_TOKENS) + OVERHEAD_BLOCKS)), int(h)))
            for h, b, kv in shapes
            if head_tiles(int(h)) == head_tiles(work.heads)
        ] or [float(OVERHEAD_BLOCKS + 1), 2000.0]
        parts = parts_of(work.heads, self._gpu.sms)
        longest = ((max(payloads) - OVERHEAD_BLOCKS) * parts / batch - OVERHEAD_BLOCKS) * BLOCK_TOKENS
        heads = self._nearest_heads(work.heads)
        own = shapes[(shapes[:, 0] == heads) & (shapes[:, 1] == batch), 2]
        lengths = lengths_between(BLOCK_TOKENS, longest, BLOCK_TOKENS, own)
        counts = batch * (np.ceil(lengths / BLOCK_TOKENS) + OVERHEAD_BLOCKS)
        site = (float(heads), float(batch))
        volumes = self.payload(counts.astype(np.int64), work.heads)
        slope_us = self.BLOCK_US * (1.0 + self.THROTTLING)
        function, error = through_lengths(self.surface, site, lengths, volumes, slope_us)
        is_far = batch > AXIS_REACH * shapes[:, 1].max() or head_tiles(work.heads) not in self._tiles
        is_estimate = bool(is_far or not self._is_measured_format)
        kind = "estimate:" if is_estimate else "interpolated" if work.heads in self._heads else "borrowed"
        reach = (min(payloads) / AXIS_REACH, max(payloads) * AXIS_REACH)
        return Priced(function, reach, is_estimate, f"{kind} FlashMLA decode, {work.heads} heads", error)

    def _nearest_heads(self, heads: int) -> int:
        """A measured number of heads that fills as many tiles: tiles are computed whole."""
        return _nearest(heads, [other for other in self._heads if head_tiles(other) == head_tiles(heads)])


class GatedDeltaRecurrent:
    """Recurrent gated delta rule: time as a function of the bytes of state read and written."""

    def __init__(self, measured: MeasuredTimes, gpu: Gpu, precision: Precision):
        self._state_element_bytes = ELEMENT_BYTES[precision.state]
        rows = measured.table.select("gdn_decode")
        self._exact = {
            (row["heads"], row["kv_heads"], row["d_qk"], row["batch"]): measured.time_us(row, _state_bytes(row))
            for row in rows
        }
        times: dict[float, list[float]] = {}
        for row in rows:
            times.setdefault(_state_bytes(row), []).append(measured.time_us(row, _state_bytes(row)))
        points = [(volume, fmean(same)) for volume, same in times.items()]
        floor_us, slope_us = _line(points)
        start = (0.0, min(max(floor_us, 0.0), min(time for _, time in points)))
        self.time = VolumeFunction.through([start, *points], max(slope_us, 1e6 / gpu.hbm_bytes_per_s))
        volumes = [volume for volume, _ in points]
        self.volume_range = (min(volumes) / AXIS_REACH, max(volumes) * AXIS_REACH)

    def measured_us(self, work: GatedDeltaDecode) -> float | None:
        """The measured time of this work with fp32 state."""
        if self._state_element_bytes != ELEMENT_BYTES["fp32"]:
            return None
        return self._exact.get((work.value_heads, work.key_heads, work.head_dim, work.sequences))

    def volume(self, work: GatedDeltaDecode) -> float:
        elements = work.sequences * work.value_heads * work.head_dim**2
        return 2.0 * elements * self._state_element_bytes


def _fewest_queries(rows: list[KernelRow]) -> list[KernelRow]:
    """Of rows with as many query heads in all, the one with the fewest query tokens."""
    chosen: dict[tuple[int, ...], KernelRow] = {}
    for row in sorted(rows, key=lambda row: row["q_len"]):
        chosen.setdefault((row["heads"] * row["q_len"], row["batch"], row["kv_len"]), row)
    return list(chosen.values())


def _kv_bytes(row: KernelRow) -> float:
    elements = row["batch"] * row["kv_len"] * row["kv_heads"] * (row["d_qk"] + row["d_v"])
    return float(elements * (1 if row.dtype == "fp8" else 2))


def _state_bytes(row: KernelRow) -> float:
    """fp32 state, read and written."""
    return 2.0 * row["batch"] * row["heads"] * row["d_qk"] * row["d_v"] * 4


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(floor, slope) minimising the relative error of floor + slope · volume."""
    volume, time = (np.array(column) for column in zip(*points, strict=True))
    floor, slope = np.linalg.lstsq(np.column_stack([1.0 / time, volume / time]), np.ones_like(time), rcond=None)[0]
    return float(floor), float(slope)
