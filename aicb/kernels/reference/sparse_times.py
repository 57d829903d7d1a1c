"""Surfaces of DeepSeek Sparse Attention: scores of the indexer, choice of keys, attention to those chosen.

A prefill's three kernels are functions of its query tokens and of the keys each sees on average (scores, choice) or
attends to (attention). Ignored: that unequal lengths may leave SMs idle, locality of the chosen keys (measured: random
ones), and the chunks into which engines cut the scores of long prefills.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from aicb.kernels.fitting.kriging import Floats, Scales
from aicb.kernels.fitting.surface import ReferenceModel, Surface
from aicb.kernels.pairs import causal_pairs, chosen_pairs
from aicb.measurements.table import KernelRow
from aicb.measurements.timing import MeasuredTimes

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


class SparseSurfaces:
    """Kernels of sparse attention measured on one GPU; the table must have rows of all (``are_measured``)."""

    def __init__(self, measured: MeasuredTimes):
        self._gpu, self._measured = measured.gpu, measured

    @staticmethod
    def are_measured(measured: MeasuredTimes) -> bool:
        """Whether the table has rows of all kernels."""
        return all(measured.table.select(op) for op in OPERATIONS)

    @cached_property
    def prefill(self) -> Surface:
        """Shapes (heads, keys per query, queries)."""
        return self._surface("mla_sparse_prefill", _attention_shape, 2, self._attention_us, 1152.0)

    @cached_property
    def prefill_scores(self) -> Surface:
        """Shapes (keys per query, queries)."""
        return self._surface("index_logits_prefill", _queries_shape, 1, self._scores_us, 132.0)

    @cached_property
    def prefill_choice(self) -> Surface:
        """Shapes (keys per query, queries)."""
        return self._surface("index_topk_prefill", _queries_shape, 1, self._choice_us, 0.0)

    @cached_property
    def decode(self) -> Surface:
        """Shapes (heads, queries), over an fp8 cache."""
        return self._surface("mla_sparse_decode", _slots_shape, 1, self._slots_us, 656.0)

    @cached_property
    def decode_scores(self) -> Surface:
        """Shapes (queries per sequence, sequences, KV tokens)."""
        return self._surface("index_logits_decode", _scored_shape, 2, self._decode_scores_us, 132.0)

    @cached_property
    def decode_choice(self) -> Surface:
        """Shapes (rows, KV tokens)."""
        return self._surface("index_topk_decode", _rows_shape, 1, self._decode_choice_us, 0.0)

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
        return Surface(ReferenceModel(op, site_columns, reference_us, np.log2, scales), shapes, np.array(times_us))

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


def _attention_shape(row: KernelRow) -> tuple[float, ...]:
    new, kv = np.array([row["q_len"]]), np.array([row["kv_len"]])
    return row["heads"], float(chosen_pairs(new, kv, row["k"])[0]) / row["q_len"], row["q_len"]


def _queries_shape(row: KernelRow) -> tuple[float, ...]:
    pairs = causal_pairs(np.array([row["q_len"]]), np.array([row["kv_len"]]))[0]
    return float(pairs) / row["q_len"], row["q_len"]


def _slots_shape(row: KernelRow) -> tuple[float, ...]:
    return row["heads"], row["batch"] * row["q_len"]


def _scored_shape(row: KernelRow) -> tuple[float, ...]:
    return row["q_len"], row["batch"], row["kv_len"]


def _rows_shape(row: KernelRow) -> tuple[float, ...]:
    return row["batch"], row["kv_len"]
