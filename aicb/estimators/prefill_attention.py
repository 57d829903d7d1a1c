"""Times of prefill attention: FA3 with causal mask over past and new keys, and the chunked gated delta rule.

FA3 works in tiles of 128 queries per head. The reference of one request is

    floor + ((FLOPs of the tiles / share of the peak)⁴ + (longest tile)⁴)^(1/4) + start of each SM's tiles

and kriging over q, S/q, heads and head dimensions corrects it. A batch runs in one kernel: n equal requests of H heads
are one request of n·H heads, which is how a mixed batch is priced. Each request is scaled to the whole batch (as many
heads as its share of the FLOPs is smaller), and the times are averaged, weighted by FLOPs; the requests one after
another are an upper bound. So small requests fill the SMs together, and a prompt split in two costs less than whole.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from aicb.estimators.estimate import Estimate
from aicb.estimators.kriging import LEAST_ERROR, Floats, Scales
from aicb.estimators.measured import MeasuredTimes
from aicb.estimators.roofline import attention_pairs
from aicb.estimators.surface import AXIS_REACH, SITE_REACH_OCTAVES, Structure, Surface, on_grid
from aicb.gpu import Gpu
from aicb.operators import GatedDeltaPrefill, PrefillAttention
from aicb.table import KernelRow

QUERY_TILE = 128
"""Query rows of a tile of FA3."""
FLOOR_US = 14.0
TILED_SHARE, LONGEST_SHARE, TILE_US = 1.34, 1.19, 2.8
THROTTLING, THROTTLING_US = 0.036, 1000.0
"""Least squares over the 32 FA3 rows of the H200 table: 3.9 % median. The shares divide the nominal peak; a tile
costs ``TILE_US`` beside its FLOPs; long kernels stretch with the power limit."""


class PrefillTimes:
    """FA3 varlen prefill: shapes (heads, kv_heads, d_qk, d_v, KV tokens, new tokens)."""

    def __init__(self, measured: MeasuredTimes, gpu: Gpu):
        self._gpu = gpu
        rows = measured.table.select("prefill_attention", "bf16")
        shapes = np.array([_shape(row) for row in rows], dtype=np.float64)
        times_us = np.array([measured.time_us(row, _kv_bytes(row)) for row in rows])
        scales = Scales((3.0, 3.0, 3.0, 1.0), (1.0,) * 4, 0.0, 0.02)
        label = "FA3 prefill (heads, kv_heads, d_qk, d_v)"
        self.surface = Surface(
            Structure(label, 4, self._reference_us, _coordinates, scales, _on_grid), shapes, times_us
        )
        self._q_range = shapes[:, 5].min() / AXIS_REACH, shapes[:, 5].max() * AXIS_REACH
        self._longest = shapes[:, 4].max() * AXIS_REACH

    def price(self, work: PrefillAttention) -> Estimate:
        new, kv = work.new_tokens.astype(np.float64), work.kv_tokens.astype(np.float64)
        pairs = attention_pairs(new, kv)
        total = math.fsum(pairs)
        share = pairs / total
        shapes = np.empty((len(new), 6))
        shapes[:, 0], shapes[:, 1:4] = work.heads / share, (work.kv_heads, work.d_qk, work.d_v)
        shapes[:, 4], shapes[:, 5] = kv, new
        if len(new) == 1 or ((new == new[0]).all() and (kv == kv[0]).all()):
            shapes, share = shapes[:1].round(), np.ones(1)
        scaled_us = math.fsum(share * self.surface.times(shapes))
        shapes[:, 0] = work.heads
        apart_us = math.fsum(self.surface.times(shapes)) * len(new) / len(shapes)
        time_us = min(scaled_us, apart_us)
        octaves = self._octaves(np.array([[work.heads, work.kv_heads, work.d_qk, work.d_v]], dtype=np.float64))
        is_estimate = bool(octaves[0] > SITE_REACH_OCTAVES or _share_of(pairs, self._is_inside(kv, new)) < 0.5)
        error = float(self.surface.errors(shapes[share.argmax()][None, :])[0])
        is_measured = len(new) == 1 and bool((self.surface.shapes == shapes[0]).all(axis=1).any())
        kind = "measured" if is_measured else "interpolated" if octaves[0] == 0.0 else "borrowed"
        return Estimate(time_us, is_estimate, f"{'estimate:' if is_estimate else kind} FA3 prefill", error)

    def are_estimates(self, shapes: Floats) -> NDArray[np.bool_]:
        """[shapes] whether no measurement within reach supports the time of one request."""
        sites, inverse = np.unique(shapes[:, :4], axis=0, return_inverse=True)
        is_far = (self._octaves(sites) > SITE_REACH_OCTAVES)[inverse.reshape(-1)]
        return np.asarray(is_far | ~self._is_inside(shapes[:, 4], shapes[:, 5]))

    def _is_inside(self, kv: Floats, new: Floats) -> NDArray[np.bool_]:
        return np.asarray((new >= self._q_range[0]) & (new <= self._q_range[1]) & (kv <= self._longest))

    def _octaves(self, geometries: Floats) -> Floats:
        """[geometries] to the nearest measured one, in query heads and in d_qk + d_v; KV heads hardly matter to a
        compute-bound kernel."""
        measured = self.surface.shapes
        heads = np.log2(measured[:, 0] / geometries[:, :1])
        width = np.log2((measured[:, 2] + measured[:, 3]) / geometries[:, 2:].sum(axis=1, keepdims=True))
        return np.asarray(np.hypot(heads, width).min(axis=1))

    def _reference_us(self, shapes: Floats) -> Floats:
        heads, _, d_qk, d_v, kv, new = shapes.T
        per_pair_us = 2.0 * (d_qk + d_v) / self._gpu.peak_flops["bf16"] * 1e6
        tiles = heads * np.ceil(new / QUERY_TILE)
        tiled_pairs = heads * (attention_pairs(new, kv) + new * QUERY_TILE / 2)
        tiled_us = TILED_SHARE * per_pair_us * tiled_pairs
        longest_us = LONGEST_SHARE * per_pair_us * np.minimum(new, QUERY_TILE) * kv * self._gpu.sms
        time_us = FLOOR_US + (tiled_us**4 + longest_us**4) ** 0.25 + TILE_US * tiles / self._gpu.sms
        return np.asarray(time_us * (1.0 + THROTTLING * np.log1p(time_us / THROTTLING_US)))


def _share_of(weights: Floats, is_chosen: NDArray[np.bool_]) -> float:
    """Share of the weights that is chosen."""
    return float(weights[is_chosen].sum() / weights.sum())


def _shape(row: KernelRow) -> tuple[float, ...]:
    """Equal sequences of one batch count as more heads."""
    heads = row["heads"] * row.shape.get("batch", 1)
    return heads, row["kv_heads"], row["d_qk"], row["d_v"], row["kv_len"], row["q_len"]


def _on_grid(shapes: Floats) -> Floats:
    """Heads, KV and new tokens rounded to 16 values per octave; utilisation varies far more slowly."""
    kv, new = on_grid(shapes[:, 4]), on_grid(shapes[:, 5])
    return np.column_stack([on_grid(shapes[:, 0]), shapes[:, 1:4], np.maximum(kv, new), new])


def _coordinates(shapes: Floats) -> Floats:
    heads, _, d_qk, d_v, kv, new = shapes.T
    return np.asarray(np.log2([new, kv / new, heads, d_qk + d_v]).T)


class GatedDeltaChunks:
    """Chunked gated delta rule, linear in tokens and value heads.

    Only the longest measured prompt is kernel time; shorter ones were bound by the host of the probe. Below a
    quarter of it, or at other head counts beyond reach, the time is an estimate.
    """

    def __init__(self, measured: MeasuredTimes):
        row = max(measured.table.select("gdn_prefill"), key=lambda other: other["q_len"])
        self._tokens, self._heads = row["q_len"], row["heads"]
        self._exact = measured.time_us(row, 0.0)
        self._node_us = measured.table.launch.graph_node_us

    def price(self, work: GatedDeltaPrefill) -> Estimate:
        tokens = int(work.new_tokens.sum())
        scale = tokens * work.value_heads / (self._tokens * self._heads)
        floor_us = CHUNK_KERNELS * 2 * self._node_us
        time_us = max(floor_us, self._exact * scale)
        is_estimate = not 1.0 / AXIS_REACH <= scale <= AXIS_REACH
        kind = "measured" if scale == 1.0 else "estimate:" if is_estimate else "interpolated"
        error = LEAST_ERROR if scale == 1.0 else EXTRAPOLATION_ERROR
        return Estimate(time_us, is_estimate, f"{kind} chunked gated delta rule", error)


EXTRAPOLATION_ERROR = 0.2
"""Relative error (68 %) away from the one point: kernels of the rule do not all scale with tokens and heads."""
CHUNK_KERNELS = 6
"""Kernels of one chunked call: cumulative sum, k·kᵀ, triangular inverse, w and u, state pass, output (fla-core)."""


def _kv_bytes(row: KernelRow) -> float:
    return float(row.shape.get("batch", 1) * row["kv_len"] * row["kv_heads"] * (row["d_qk"] + row["d_v"]) * 2)
