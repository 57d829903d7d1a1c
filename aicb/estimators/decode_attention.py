"""Times of decode attention as piecewise-linear functions of the KV volume.

Decode attention is bound by reading KV, so its time is a line in the volume; measured points bend that line. For each
measured batch size there is one such function; between batch sizes they are blended in log2 of the batch. The
functions use only comparisons, additions and multiplications, so that a vector of volumes gives the same bits as the
volumes one by one.

    FA3 (GQA): volume = bytes of KV, Σ S_i · bytes per token; insensitive to how lengths are distributed.
    FlashMLA:  volume = payload of the split-KV schedule, Σ(⌈S_i / 64⌉ + 5) / parts + 5 blocks (FlashMLA rounds
               the quotient up), and a penalty for unequal lengths.
    Gated delta rule: volume = bytes of state.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aicb.estimators.curves import AXIS_REACH, SITE_REACH_OCTAVES
from aicb.estimators.measured import MeasuredTimes
from aicb.gpu import Gpu
from aicb.operators import DecodeAttention, GatedDeltaDecode, MlaDecode
from aicb.precision import ELEMENT_BYTES, Precision
from aicb.table import KernelRow

MLA_BLOCK_TOKENS = 64
"""Tokens per KV block of FlashMLA's schedule."""
MLA_OVERHEAD_BLOCKS = 5
"""Cost of starting a request in blocks (FlashMLA, ``get_mla_metadata``: fixed_overhead_num_blocks)."""
MLA_HEAD_TILE = 64
"""Query heads one SM works on."""
MLA_UNEQUAL_US = 40.0
MLA_UNEQUAL_SHARE = 0.37
"""Penalty of unequal KV lengths: 40 µs per unit of relative spread, at most 0.37 of the time. The six unequal rows of
the H200 table lie 11 to 50 µs (+3 to +37 %) above equal lengths of the same total."""
_EQUAL_SPREAD = 0.5
"""Mean absolute deviation / mean of uniform lengths: the spread that costs the full penalty."""


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

    @classmethod
    def blend(cls, parts: Sequence[tuple[float, VolumeFunction]]) -> VolumeFunction:
        """Weighted sum of functions; weights add up to 1."""
        if len(parts) == 1:
            return parts[0][1]
        volume = np.unique(np.concatenate([part.volume for _, part in parts]))
        time = sum(weight * part(volume) for weight, part in parts)
        last = sum(weight * float(part.slope[-1]) for weight, part in parts)
        assert isinstance(time, np.ndarray)
        return cls(volume, time, np.append(np.diff(time) / np.diff(volume), last))


@dataclass(frozen=True, slots=True)
class Priced:
    """A time function of one batch size with its provenance."""

    time: VolumeFunction
    volume_range: tuple[float, float]
    """Volumes outside are estimates."""
    is_estimate: bool
    source: str


class BatchFamily:
    """Functions of one geometry, one per measured batch size."""

    def __init__(self, points: dict[int, list[tuple[float, float]]], floor_us: float, slope_us: float):
        """``points``: batch → (volume, time). Left of the points the time falls to ``floor_us`` at volume 0."""
        self.batches = sorted(points)
        self._points, self._floor_us, self._slope_us = points, floor_us, slope_us
        self.functions: dict[int, VolumeFunction] = {}
        volumes = [volume for knots in points.values() for volume, _ in knots]
        self.volume_range = (min(volumes) / AXIS_REACH, max(volumes) * AXIS_REACH)
        for batch, knots in points.items():
            start = (0.0, min(floor_us, min(time for _, time in knots)))
            self.functions[batch] = VolumeFunction.through([start, *knots], slope_us)

    def at(self, batch: int) -> VolumeFunction:
        """Blend of the two measured batch sizes around ``batch`` in log2; the outermost is held beyond."""
        known = self.batches
        if batch <= known[0] or batch >= known[-1]:
            return self.functions[known[0] if batch <= known[0] else known[-1]]
        right = next(i for i, value in enumerate(known) if value >= batch)
        low, high = known[right - 1], known[right]
        weight = math.log2(batch / low) / math.log2(high / low)
        if weight == 1.0:
            return self.functions[high]
        return VolumeFunction.blend([(1.0 - weight, self.functions[low]), (weight, self.functions[high])])

    def is_far(self, batch: int) -> bool:
        """Whether so many sequences lie beyond the reach of the measurements."""
        return batch > AXIS_REACH * self.batches[-1]

    def leave_batch_out(self) -> list[float]:
        """Relative errors of the points of interior batch sizes, predicted from the other batch sizes."""
        errors = []
        for batch in self.batches[1:-1]:
            others = {other: knots for other, knots in self._points.items() if other != batch}
            function = BatchFamily(others, self._floor_us, self._slope_us).at(batch)
            for volume, time in self._points[batch]:
                errors.append(abs(float(function(np.array([volume]))[0]) / time - 1.0))
        return errors


class PagedDecode:
    """FA3 decode over a paged GQA cache: one family per measured KV bytes per token."""

    def __init__(self, measured: MeasuredTimes, gpu: Gpu, precision: Precision):
        self._kv_element_bytes = ELEMENT_BYTES[precision.kv]
        self._is_measured_format = precision.kv == "bf16"
        rows = measured.table.select("decode_attention", "bf16")
        timed = [(row, _kv_bytes(row), measured.time_us(row, _kv_bytes(row))) for row in rows]
        floor_us, slope_us = _line([(volume, time) for _, volume, time in timed])
        self.floor_us, self.slope_us = floor_us, max(slope_us, 1e6 / gpu.hbm_bytes_per_s)
        points: dict[tuple[int, int, int], dict[int, list[tuple[float, float]]]] = {}
        for row, volume, time in timed:
            site = (row["heads"], row["kv_heads"], row["d_qk"])
            points.setdefault(site, {}).setdefault(row["batch"], []).append((volume, time))
        self.families = {site: BatchFamily(found, self.floor_us, self.slope_us) for site, found in points.items()}

    def bytes_per_token(self, work: DecodeAttention) -> int:
        return 2 * work.kv_heads * work.head_dim * self._kv_element_bytes

    def function(self, work: DecodeAttention, batch: int) -> Priced:
        """Time as a function of KV bytes for ``batch`` sequences of this geometry."""
        site = (work.heads, work.kv_heads, work.head_dim)
        label = "FA3 paged decode"
        if site in self.families and self._is_measured_format:
            family = self.families[site]
            return Priced(family.at(batch), family.volume_range, family.is_far(batch), f"interpolated {label}")
        per_token = self.bytes_per_token(work)
        distances = {other: abs(math.log2(2 * other[1] * other[2] * 2 / per_token)) for other in self.families}
        near = {other: d for other, d in distances.items() if d <= SITE_REACH_OCTAVES}
        chosen = near or {min(distances, key=lambda other: distances[other]): 1.0}
        weights = {other: 1.0 / max(distance, 0.25) ** 2 for other, distance in chosen.items()}
        total = sum(weights.values())
        family = self.families[next(iter(chosen))]
        function = VolumeFunction.blend([(w / total, self.families[other].at(batch)) for other, w in weights.items()])
        is_estimate = not near or not self._is_measured_format or family.is_far(batch)
        kind = "estimate:" if is_estimate else "borrowed"
        return Priced(
            function, family.volume_range, is_estimate, f"{kind} {label} of {len(chosen)} measured geometries"
        )


class LatentDecode:
    """FlashMLA dense decode: one family per measured number of head tiles."""

    def __init__(self, measured: MeasuredTimes, gpu: Gpu, precision: Precision):
        self._is_measured_format = precision.kv == "bf16"
        self._sms = gpu.sms
        points: dict[int, dict[int, list[tuple[float, float]]]] = {}
        self.heads: set[int] = set()
        for row in measured.table.select("mla_decode", "bf16", "equal"):
            heads = row["heads"] * row["q_len"]  # query tokens of a request share its tiles
            blocks = row["batch"] * (-(-row["kv_len"] // MLA_BLOCK_TOKENS) + MLA_OVERHEAD_BLOCKS)
            volume = float(self.payload(np.array([blocks]), heads)[0])
            time = measured.time_us(row, float(row["batch"] * row["kv_len"] * row["d_qk"] * 2))
            self.heads.add(heads)
            points.setdefault(_tiles(heads), {}).setdefault(row["batch"], []).append((volume, time))
        self.lines = {
            tiles: _line([knot for knots in found.values() for knot in knots]) for tiles, found in points.items()
        }
        self.families = {tiles: BatchFamily(found, *self.lines[tiles]) for tiles, found in points.items()}

    def payload(self, blocks: NDArray[np.int64], heads: int) -> NDArray[np.float64]:
        """Blocks one SM works through, not rounded; ``blocks`` is Σ_i (⌈S_i / 64⌉ + 5) of the batch."""
        parts = max(self._sms // _tiles(heads), 1)
        return np.asarray(blocks / parts + MLA_OVERHEAD_BLOCKS)

    def function(self, work: MlaDecode, batch: int) -> Priced:
        """Time as a function of the payload for ``batch`` sequences."""
        tiles, known = _tiles(work.heads), sorted(self.families)
        label = f"FlashMLA decode, {work.heads} heads"
        nearest = min(known, key=lambda other: abs(math.log2(other / tiles)))
        family = self.families[nearest]
        is_estimate = family.is_far(batch) or not self._is_measured_format or nearest != tiles
        kind = "interpolated" if work.heads in self.heads else f"borrowed ({nearest} head tiles)"
        return Priced(
            family.at(batch), family.volume_range, is_estimate, f"{'estimate:' if is_estimate else kind} {label}"
        )

    @staticmethod
    def unequal_us(deviation: float, totals: NDArray[np.float64], time_us: NDArray[np.float64]) -> NDArray[np.float64]:
        """Penalty of unequal lengths. ``deviation`` = Σ|S_i − mean|, which does not change as all lengths grow."""
        spread = np.minimum(deviation / totals / _EQUAL_SPREAD, 1.0)
        return np.asarray(np.minimum(MLA_UNEQUAL_US * spread, MLA_UNEQUAL_SHARE * spread * time_us))


class GatedDeltaRecurrent:
    """Recurrent gated delta rule: time as a function of the bytes of state read and written."""

    def __init__(self, measured: MeasuredTimes, gpu: Gpu, precision: Precision):
        self._state_element_bytes = ELEMENT_BYTES[precision.state]
        rows = measured.table.select("gdn_decode")
        points = [(_state_bytes(row), measured.time_us(row, _state_bytes(row))) for row in rows]
        floor_us, slope_us = _line(points)
        family = BatchFamily({1: points}, max(floor_us, 0.0), max(slope_us, 1e6 / gpu.hbm_bytes_per_s))
        self.time, self.volume_range = family.at(1), family.volume_range

    def volume(self, work: GatedDeltaDecode) -> float:
        elements = work.sequences * work.value_heads * work.head_dim**2
        return 2.0 * elements * self._state_element_bytes


def _tiles(heads: int) -> int:
    return -(-heads // MLA_HEAD_TILE)


def _kv_bytes(row: KernelRow) -> float:
    return float(row["batch"] * row["kv_len"] * row["kv_heads"] * (row["d_qk"] + row["d_v"]) * 2)


def _state_bytes(row: KernelRow) -> float:
    """fp32 state, read and written."""
    return 2.0 * row["batch"] * row["heads"] * row["d_qk"] * row["d_v"] * 4


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(floor, slope) minimising the relative error of floor + slope · volume."""
    volume, time = (np.array(column) for column in zip(*points, strict=True))
    floor, slope = np.linalg.lstsq(np.column_stack([1.0 / time, volume / time]), np.ones_like(time), rcond=None)[0]
    return float(floor), float(slope)
