"""Times of DeepSeek Sparse Attention: scores of the indexer, choice of keys, attention to those chosen.

A prefill's three kernels are functions of its query tokens and of the keys each sees on average (scores, choice) or
attends to (attention). Requests of a batch run in one kernel, as the queries of one request with as many keys. The
kernels of a decode are piecewise-linear in the keys of all requests:

    scores: Σ S_i, one fp8 key of 132 bytes each, for so many sequences;
    choice: Σ S_i, one fp32 score each;
    attention: over a bf16 cache the prefill's kernel, with a query per sequence and Σ min(S_i, topk) keys; over an fp8
    cache a split-KV kernel that works through ``topk`` slots of every query, whatever the lengths.

Ignored: that unequal lengths may leave SMs idle, locality of the chosen keys (measured: random ones), and the chunks
into which engines cut the scores of long prefills.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aicb.estimators.decode_attention import Priced, VolumeFunction, lengths_between, through_lengths
from aicb.estimators.estimate import Estimate, tokens_by_step
from aicb.estimators.kriging import Floats, Scales
from aicb.estimators.roofline import attention_pairs
from aicb.estimators.surface import AXIS_REACH, Structure, Surface
from aicb.measurements.gpu import Gpu
from aicb.measurements.table import KernelRow
from aicb.measurements.timing import MeasuredTimes
from aicb.model.precision import Precision
from aicb.operators.gqa import chosen_pairs
from aicb.operators.operator import SparseKernel, SparseMlaDecode, SparseMlaPrefill

FLOOR_US = 2.5
"""Launch and tail of any of these kernels. This and the constants below were read off the H200 rows; kriging corrects
them, so their ratios matter more than their values."""
HEAD_TILE, TILE_US, TILE_SHARE = 64, 3.5, 0.65
"""Sparse prefill: query heads an SM works on; start of a tile; reached share of an SM's peak."""
SLOT_START_US, SLOT_SHARE, SLOTS = 16.0, 0.37, 2048
"""Sparse fp8 decode: schedule, start and combine; reached share of the peak; slots of a query."""
SCORE_TILE, SCORE_START_US, SCORE_US_PER_KEY = 2, 0.7, 3.7e-3
"""Scores of a prefill: queries an SM works on, its start, its time per key of 64 heads of 128."""
SCORE_STREAM_SHARE = 0.92
"""Scores of a decode: reached share of the memory bandwidth."""
ROW_START_US, ROW_US_PER_KEY = 3.0, 4.4e-4
"""Choice: latency of a row of more than topk scores."""
ROW_THROUGHPUT_US, KEY_THROUGHPUT_US, SHORT_ROW_US = 8e-3, 2.45e-6, 3e-3
"""Choice among many rows: per row and per score; per row that has fewer scores than it keeps, and copies them."""
COOPERATIVE_SHARE, COOPERATIVE_ROWS = 0.22, 60.0
"""Choice in a decode: several SMs work on a row while there are few, down to this share of a row's latency."""


OPERATIONS = (
    *("mla_sparse_prefill", "index_logits_prefill", "index_topk_prefill"),
    *("mla_sparse_decode", "index_logits_decode", "index_topk_decode"),
)


class SparseTimes:
    """Kernels of sparse attention measured on one GPU; the table must have rows of all (``is_measured``)."""

    def __init__(self, measured: MeasuredTimes, gpu: Gpu, precision: Precision):
        self._gpu, self._kv_dtype = gpu, precision.kv
        self._measured = measured
        self.prefill: dict[SparseKernel, Surface] = {
            "attention": self._surface("mla_sparse_prefill", _attention_shape, 2, self._attention_us, 1152.0),
            "index_logits": self._surface("index_logits_prefill", _queries_shape, 1, self._scores_us, 132.0),
            "index_topk": self._surface("index_topk_prefill", _queries_shape, 1, self._choice_us, 0.0),
        }
        self.decode: dict[SparseKernel, Surface] = {
            "attention": self._surface("mla_sparse_decode", _slots_shape, 1, self._slots_us, 656.0),
            "index_logits": self._surface("index_logits_decode", _scored_shape, 2, self._decode_scores_us, 132.0),
            "index_topk": self._surface("index_topk_decode", _rows_shape, 1, self._decode_choice_us, 0.0),
        }

    @staticmethod
    def is_measured(measured: MeasuredTimes) -> bool:
        """Whether the table has rows of all kernels."""
        return all(measured.table.select(op) for op in OPERATIONS)

    def price(self, work: SparseMlaPrefill) -> Estimate:
        """Requests of one batch as one request with the same queries and keys per query."""
        new, kv = work.new_tokens, work.kv_tokens
        queries = float(new.sum())
        if work.kernel == "attention":
            keys = float(chosen_pairs(new, kv, work.topk).sum()) / queries
            return self.prefill["attention"].price(float(work.heads), keys, queries)
        return self.prefill[work.kernel].price(float(attention_pairs(new, kv).sum()) / queries, queries)

    def function(self, work: SparseMlaDecode, batch: int) -> Priced:
        """Time as a function of the keys of all requests (of the chosen ones, for attention)."""
        rows = float(batch * work.queries)
        if work.kernel == "index_logits":
            return _line(self.decode["index_logits"], (float(work.queries), float(batch)), batch)
        if work.kernel == "index_topk":
            return _line(self.decode["index_topk"], (rows,), batch)
        if (work.kv_dtype or self._kv_dtype) == "fp8":
            found = self.decode["attention"].price(float(work.query_heads), rows)
            flat = VolumeFunction.through([(0.0, found.time_us), (1.0, found.time_us)], 0.0)
            return Priced(flat, (0.0, np.inf), found.is_estimate, found.source, lambda: found.error)
        surface = self.prefill["attention"]
        keys = np.append(np.geomspace(64.0, work.topk, 8)[:-1].round(), float(work.topk))
        shapes = np.column_stack([np.full_like(keys, work.query_heads), keys, np.full_like(keys, rows)])
        times_us = np.maximum.accumulate(surface.times(shapes))
        longest = surface.price(*shapes[-1].tolist())
        curve = VolumeFunction.through([(0.0, float(times_us[0])), *zip(keys * batch, times_us, strict=True)], 0.0)
        return Priced(curve, (0.0, np.inf), longest.is_estimate, longest.source, lambda: longest.error)

    def _surface(
        self,
        op: str,
        shape_of: Callable[[KernelRow], tuple[float, ...]],
        site_columns: int,
        reference_us: Callable[[Floats], Floats],
        bytes_per_key: float,
    ) -> Surface:
        rows = self._measured.table.select(op, distribution="even")
        times_us = [self._measured.time_us(row, bytes_per_key * row["batch"] * row["kv_len"]) for row in rows]
        shapes = np.array([shape_of(row) for row in rows], dtype=np.float64)
        columns = shapes.shape[1]
        scales = Scales((3.0,) * columns, (1.0,) * columns, 0.0, 0.03)
        return Surface(Structure(op, site_columns, reference_us, np.log2, scales), shapes, np.array(times_us))

    def _tile_key_us(self, share: float) -> float:
        """Time of 64 heads of one query for one key, on one SM at a share of its peak."""
        return 2.0 * HEAD_TILE * (576 + 512) * self._gpu.sms / (share * self._gpu.peak_flops["bf16"]) * 1e6

    def _attention_us(self, shapes: Floats) -> Floats:
        """Shapes (heads, keys per query, queries): waves of tiles of 64 heads of one query."""
        heads, keys, queries = shapes.T
        waves = np.maximum(np.ceil(queries * heads / HEAD_TILE / self._gpu.sms), 1.0)
        return np.asarray(FLOOR_US + waves * (TILE_US + keys * self._tile_key_us(TILE_SHARE)))

    def _slots_us(self, shapes: Floats) -> Floats:
        """Shapes (heads, queries): the slots of all tiles, divided among the SMs."""
        heads, queries = shapes.T
        tiles = queries * heads / HEAD_TILE
        return np.asarray(SLOT_START_US + tiles * SLOTS * self._tile_key_us(SLOT_SHARE) / self._gpu.sms)

    def _scores_us(self, shapes: Floats) -> Floats:
        """Shapes (keys per query, queries): waves of tiles of two queries."""
        keys, queries = shapes.T
        waves = np.maximum(np.ceil(queries / SCORE_TILE / self._gpu.sms), 1.0)
        return np.asarray(FLOOR_US + waves * (SCORE_START_US + keys * SCORE_US_PER_KEY))

    def _decode_scores_us(self, shapes: Floats) -> Floats:
        """Shapes (queries per sequence, sequences, KV tokens): keys read, scores written."""
        queries, batch, kv = shapes.T
        moved = batch * kv * (132.0 + 4.0 * queries)
        return np.asarray(FLOOR_US + moved / (SCORE_STREAM_SHARE * self._gpu.hbm_bytes_per_s) * 1e6)

    def _choice_us(self, shapes: Floats) -> Floats:
        """Shapes (keys per query, queries): a row's latency or the throughput of all rows."""
        keys, rows = shapes.T
        is_long = keys > SLOTS
        latency_us = np.where(is_long, ROW_START_US + keys * ROW_US_PER_KEY, 0.0)
        each_us = np.where(is_long, ROW_THROUGHPUT_US + keys * KEY_THROUGHPUT_US, SHORT_ROW_US)
        return np.asarray(1.3 + np.hypot(latency_us, rows * each_us))

    def _decode_choice_us(self, shapes: Floats) -> Floats:
        """Shapes (rows, KV tokens): waves of rows, each shared by several SMs where there are few."""
        rows, keys = shapes.T
        share = np.clip(rows / COOPERATIVE_ROWS, COOPERATIVE_SHARE, 1.0) * np.ceil(rows / self._gpu.sms)
        return np.asarray(1.3 + np.where(keys > SLOTS, 1.0 + share * keys * ROW_US_PER_KEY, 0.0))


def _line(surface: Surface, site: tuple[float, ...], batch: int) -> Priced:
    """Time of a site as a function of the keys of ``batch`` sequences."""
    shapes = surface.shapes
    is_own = (shapes[:, : len(site)] == site).all(axis=1)
    longest = float(shapes[:, -1].max())
    lengths = lengths_between(64.0, longest, 1, shapes[is_own, -1])
    steepest = surface.structure.reference_us(np.array([[*site, 2.0 * longest], [*site, longest]]))
    slope_us = float(steepest[0] - steepest[1]) / (longest * batch)
    function, error = through_lengths(surface, site, lengths, lengths * batch, slope_us)
    is_estimate = bool(surface.are_estimates(np.array([[*site, longest]])).any())
    kind = "estimate:" if is_estimate else "interpolated" if is_own.any() else "borrowed"
    reach = (0.0, AXIS_REACH * longest * batch)
    return Priced(function, reach, is_estimate, f"{kind} {surface.structure.label}", error)


@dataclass(frozen=True, slots=True, eq=False)
class SparseDecode:
    """One kernel of sparse decode for a batch of one size over consecutive iterations (``DecodeTimes``)."""

    priced: Priced
    most_keys: int | None
    """Keys of a request that count at most; ``None``: all."""
    bound_us_per_key: float
    """Roofline."""

    @property
    def source(self) -> str:
        return self.priced.source

    @property
    def error(self) -> float:
        return self.priced.error_of()

    def __call__(self, kv_tokens: NDArray[np.int64], steps: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """[…, steps] µs, and […] whether the keys lie beyond the reach of the measurements."""
        keys = keys_by_step(kv_tokens, steps, self.most_keys)
        time_us = np.maximum(self.priced.time(keys), keys * self.bound_us_per_key)
        return time_us, np.asarray(self.priced.is_estimate | (keys[..., -1] > self.priced.volume_range[1]))


def keys_by_step(kv_tokens: NDArray[np.int64], steps: int, most: int | None) -> Floats:
    """[…, steps] Σ_i (S_i + j) over [… , requests], each request's part at most ``most``."""
    if most is None:
        return tokens_by_step(kv_tokens, steps)
    if kv_tokens.ndim > 1:
        return np.stack([keys_by_step(kv, steps, most) for kv in kv_tokens])
    growing = kv_tokens[kv_tokens < most]
    full = (len(kv_tokens) - len(growing)) * most
    later = np.arange(steps, dtype=np.int64)
    return np.asarray(full + np.minimum(growing[None, :] + later[:, None], most).sum(axis=1), dtype=np.float64)


def _attention_shape(row: KernelRow) -> tuple[float, ...]:
    new, kv = np.array([row["q_len"]]), np.array([row["kv_len"]])
    return row["heads"], float(chosen_pairs(new, kv, row["k"])[0]) / row["q_len"], row["q_len"]


def _queries_shape(row: KernelRow) -> tuple[float, ...]:
    pairs = attention_pairs(np.array([row["q_len"]]), np.array([row["kv_len"]]))[0]
    return float(pairs) / row["q_len"], row["q_len"]


def _slots_shape(row: KernelRow) -> tuple[float, ...]:
    return row["heads"], row["batch"] * row["q_len"]


def _scored_shape(row: KernelRow) -> tuple[float, ...]:
    return row["q_len"], row["batch"], row["kv_len"]


def _rows_shape(row: KernelRow) -> tuple[float, ...]:
    return row["batch"], row["kv_len"]
