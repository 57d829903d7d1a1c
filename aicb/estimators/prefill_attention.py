"""Times of prefill attention: FA3 with causal mask over past and new keys, and the chunked gated delta rule.

FA3 works in tiles of 128 rows, queries times the query heads that share a KV head. The reference is a norm of the
tiles' FLOPs, the cache's bytes and the longest tile, plus a start per wave of tiles; kriging over q, S/q, heads, head
dimensions, sharing and waves corrects it. A batch runs in one kernel: n equal requests of H heads are one request of
n·H heads, which is how a mixed batch is priced. Each request is scaled to the whole batch (as many heads as its share
of the FLOPs is smaller), and the times are averaged, weighted by FLOPs; the requests one after another are an upper
bound. So small requests fill the SMs together, and a prompt split in two costs less than whole.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from aicb import _core
from aicb.estimators.estimate import Estimate
from aicb.estimators.kriging import Floats, Scales
from aicb.estimators.roofline import attention_pairs
from aicb.estimators.surface import AXIS_REACH, SITE_REACH_OCTAVES, Structure, Surface, on_grid
from aicb.measurements.gpu import Gpu
from aicb.measurements.table import KernelRow
from aicb.measurements.timing import MeasuredTimes
from aicb.model.precision import ELEMENT_BYTES
from aicb.operators.operator import GatedDeltaPrefill, GemmDtype, PrefillAttention

TILE_ROWS = 128
"""Query rows of a tile of FA3, those of all heads that share keys together."""
FLOOR_US, WAVE_US, TILED_SHARE, CACHE_SHARE, LONGEST_SHARE, NORM = 11.5, 3.3, 1.2, 0.082, 0.007, 0.66
THROTTLING, THROTTLING_US = 0.069, 1000.0
"""Least squares over the FA3 prefill rows of the H200 table: 7 % median, which kriging halves. The shares multiply
times at nominal peaks; ``NORM`` below 1 lets them add up; long kernels stretch with the power limit."""


class PrefillTimes:
    """FA3 varlen prefill: shapes (heads, kv_heads, d_qk, d_v, requests, KV tokens, new tokens).

    Heads are those of all requests together. How many requests they are changes nothing but whether a shape is one
    that was measured; in a batch of unequal requests it is not.
    """

    def __init__(self, measured: MeasuredTimes, gpu: Gpu, dtype: GemmDtype = "bf16"):
        self._gpu, self._dtype = gpu, dtype
        rows = measured.table.select("prefill_attention", dtype, "even")
        shapes = np.array([_shape(row) for row in rows], dtype=np.float64)
        times_us = np.array([measured.time_us(row, _kv_bytes(row)) for row in rows])
        scales = Scales((4.0, 4.0, 4.0, 2.0, 4.0, 2.0, 0.5, 4.0), (1.0,) * 8, 0.0, 0.05)
        self._name = f"FA3 prefill{' of fp8' if dtype == 'fp8' else ''}"
        label = f"{self._name} (heads, kv_heads, d_qk, d_v)"
        self.surface = Surface(
            Structure(label, 4, self._reference_us, self._coordinates, scales, (2, 3), _on_grid), shapes, times_us
        )
        self._q_range = shapes[:, 6].min() / AXIS_REACH, shapes[:, 6].max() * AXIS_REACH
        self._longest = shapes[:, 5].max() * AXIS_REACH
        self._geometries: dict[tuple[int, ...], float] = {}
        self._compiled: dict[tuple[int, int, int, int], _core.PrefillTimes] = {}

    def price(self, work: PrefillAttention) -> Estimate:
        """One batch, with the error of its largest request and where the time comes from."""
        geometry = (work.heads, work.kv_heads, work.d_qk, work.d_v)
        if geometry not in self._compiled:
            self._compiled[geometry] = self.compiled(work, _UNBOUNDED, is_own=True, transfer=None)
        times = self._compiled[geometry]
        time_us, is_measured, is_estimate = times.of(work.new_tokens, work.kv_tokens)

        def error() -> float:
            return float(self.surface.errors(self._largest(work))[0])

        kind = "measured" if is_measured else "borrowed" if self._octaves_of(work) else "interpolated"
        return Estimate(time_us, is_estimate, f"{'estimate:' if is_estimate else kind} {self._name}", error)

    def _largest(self, work: PrefillAttention) -> Floats:
        """[1, columns] the request with most FLOPs, scaled to the whole batch."""
        pairs = attention_pairs(work.new_tokens, work.kv_tokens)
        largest = int(pairs.argmax())
        requests = pairs.sum() / pairs[largest]
        new, kv = work.new_tokens[largest], work.kv_tokens[largest]
        return np.array([[work.heads * requests, work.kv_heads * requests, work.d_qk, work.d_v, requests, kv, new]])

    def compiled(
        self, work: PrefillAttention, bound: _core.PrefillBound, *, is_own: bool, transfer: _core.PrefillTransfer | None
    ) -> _core.PrefillTimes:
        """The geometry of ``work``; ``is_own``: the number format is the measured one."""
        low, high = self._q_range
        made = _core.PrefillTimes(
            (work.heads, work.kv_heads, work.d_qk, work.d_v),
            reference=self._reference,
            bound=bound,
            element_bytes=ELEMENT_BYTES[work.dtype],
            reach=(low, high, self._longest),
            is_estimate=self._octaves_of(work) > SITE_REACH_OCTAVES or not is_own,
            keeps_measured=is_own,
            residuals=self.surface.residuals_near((float(work.d_qk), float(work.d_v))),
            transfer=transfer,
        )
        shapes = self.surface.shapes
        heads = shapes[:, 4:5] * (work.heads, work.kv_heads)
        is_own_geometry = (shapes[:, :2] == heads).all(axis=1) & (shapes[:, 2:4] == (work.d_qk, work.d_v)).all(axis=1)
        for shape, time_us in zip(shapes[is_own_geometry], self.surface.times_us[is_own_geometry], strict=True):
            requests, kv_tokens, new_tokens = (int(value) for value in shape[4:])
            made.insert_measured(requests, kv_tokens, new_tokens, float(time_us))
        return made

    @cached_property
    def _reference(self) -> _core.PrefillReference:
        return _core.PrefillReference(
            floor_us=FLOOR_US,
            wave_us=WAVE_US,
            tiled_share=TILED_SHARE,
            cache_share=CACHE_SHARE,
            longest_share=LONGEST_SHARE,
            norm=NORM,
            throttling=THROTTLING,
            throttling_us=THROTTLING_US,
            tile_rows=TILE_ROWS,
            peak_flops=self._gpu.peak_flops[self._dtype],
            bytes_per_s=self._gpu.hbm_bytes_per_s,
            element_bytes=ELEMENT_BYTES[self._dtype],
            sms=self._gpu.sms,
        )

    def _octaves_of(self, work: PrefillAttention) -> float:
        """From the geometry of a work to the nearest measured one."""
        geometry = (work.heads, work.kv_heads, work.d_qk, work.d_v)
        if geometry not in self._geometries:
            self._geometries[geometry] = float(self._octaves(np.array([geometry], dtype=np.float64))[0])
        return self._geometries[geometry]

    def are_estimates(self, shapes: Floats) -> NDArray[np.bool_]:
        """[shapes] whether no measurement within reach supports the time of one request."""
        sites, inverse = np.unique(shapes[:, :4], axis=0, return_inverse=True)
        is_far = (self._octaves(sites) > SITE_REACH_OCTAVES)[inverse.reshape(-1)]
        return np.asarray(is_far | ~self._is_inside(shapes[:, 5], shapes[:, 6]))

    def _is_inside(self, kv: NDArray[np.number], new: NDArray[np.number]) -> NDArray[np.bool_]:
        return np.asarray((new >= self._q_range[0]) & (new <= self._q_range[1]) & (kv <= self._longest))

    def _octaves(self, geometries: Floats) -> Floats:
        """[geometries] to the nearest measured one, in query heads and in d_qk + d_v; KV heads hardly matter to a
        compute-bound kernel."""
        measured = self.surface.shapes
        heads = np.log2(measured[:, 0] / geometries[:, :1])
        width = np.log2((measured[:, 2] + measured[:, 3]) / geometries[:, 2:].sum(axis=1, keepdims=True))
        return np.asarray(np.hypot(heads, width).min(axis=1))

    def _reference_us(self, shapes: Floats) -> Floats:
        return self._reference.times_us(shapes)

    def _coordinates(self, shapes: Floats) -> Floats:
        return self._reference.coordinates(shapes)


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


class GatedDeltaChunks:
    """Chunked gated delta rule: shapes (value heads, sequences, tokens of all).

    The reference is linear in tokens and value heads, and each chunk of a sequence waits for the one before.
    """

    def __init__(self, measured: MeasuredTimes):
        rows = [row for row in measured.table.select("gdn_prefill") if row.graph_us is not None]
        rows = rows or [max(measured.table.select("gdn_prefill"), key=lambda row: row["q_len"])]
        shapes = [(row["heads"], row.shape.get("batch", 1), row.shape.get("batch", 1) * row["q_len"]) for row in rows]
        times_us = np.array([measured.time_us(row, 0.0) for row in rows])
        scales = Scales((3.0, 3.0, 3.0), (1.0,) * 3, 0.0, 0.02)
        structure = Structure("chunked gated delta rule (value heads)", 1, _chunked_us, np.log2, scales)
        self.surface = Surface(structure, np.array(shapes, dtype=np.float64), times_us)

    def price(self, work: GatedDeltaPrefill) -> Estimate:
        return self.surface.price(float(work.value_heads), float(len(work.new_tokens)), float(work.new_tokens.sum()))


CHUNK_KERNELS = 6
"""Kernels of one chunked call: cumulative sum, k·kᵀ, triangular inverse, w and u, state pass, output (fla-core)."""
CHUNK_TOKENS = 64
CHUNK_STEP_US = 1.0
HEAD_TOKEN_NS = 3.0
"""A link of the chain of chunks, and a token of one value head: their shape matters, measurements set the scale."""


def _chunked_us(shapes: Floats) -> Floats:
    heads, sequences, tokens = shapes.T
    chain_us = CHUNK_STEP_US * tokens / sequences / CHUNK_TOKENS
    return np.asarray(5.0 * CHUNK_KERNELS + np.hypot(chain_us, HEAD_TOKEN_NS * 1e-3 * heads * tokens))


def _kv_bytes(row: KernelRow) -> float:
    return float(
        row.shape.get("batch", 1)
        * row["kv_len"]
        * row["kv_heads"]
        * (row["d_qk"] + row["d_v"])
        * ELEMENT_BYTES[row.dtype]
    )
