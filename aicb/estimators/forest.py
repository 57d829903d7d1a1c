"""Random forests on the measured tables, as Vidur predicts times (Agrawal et al., MLSys 2024), for comparison.

One forest per kernel learns log time from the logarithms of the columns of its shapes; nothing is known about tiles,
waves or schedules, so between measured shapes the forest steps from one to the next and beyond them it stays flat.
Attention follows Vidur: decode is a function of batch and mean KV length, rounded up to 64 tokens; prefill is priced
request by request. Memory-bound kernels, the gated delta rule, fp8 prefills and sparse attention have too few
measurements and keep the times of the interpolation. Needs scikit-learn (``pip install vidur-pd[forest]``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from aicb.estimators.estimate import (
    DecodeTimes,
    Estimate,
    ManyTimes,
    Timing,
    tokens_by_step,
)
from aicb.estimators.interpolation import InterpolationEstimator
from aicb.estimators.kriging import Floats
from aicb.estimators.roofline import Demands, check, demand, roofline_us, works_one_by_one
from aicb.estimators.surface import Surface
from aicb.measurements.gpu import Gpu
from aicb.model.precision import Precision
from aicb.operators.operator import (
    BatchedGemm,
    DecodeAttention,
    Gemm,
    GroupedGemm,
    MlaDecode,
    PrefillAttention,
    SparseMlaDecode,
    Work,
)
from boundary.errors import InputError

TREES = 100
LENGTH_STEP_TOKENS = 64
"""KV lengths are rounded up to this (Vidur, ``kv_cache_prediction_granularity``)."""


class Forest:
    """A forest over the measured points of one kernel. Deterministic."""

    def __init__(self, shapes: Floats, times_us: Floats):
        try:
            from sklearn.ensemble import RandomForestRegressor
        except ImportError:
            raise InputError("estimator: found forest without scikit-learn, expected it to be installed") from None
        self._model = RandomForestRegressor(n_estimators=TREES, random_state=0, oob_score=True)
        target = np.log(times_us)
        self._model.fit(np.log2(shapes), target)
        residuals = np.abs(np.expm1(self._model.oob_prediction_ - target))
        self.error = float(np.quantile(residuals, 0.68))
        """Relative (68 %), of measurements left out of trees."""

    def times(self, shapes: Floats) -> Floats:
        """[shapes] µs"""
        return np.asarray(np.exp(self._model.predict(np.log2(shapes))))


class ForestEstimator:
    """Prices work by forests; never below the roofline of the device.

    Raises:
        InputError: no measurements are shipped for this GPU, or scikit-learn is not installed.
    """

    def __init__(self, gpu: Gpu, precision: Precision | None = None, timing: Timing = "engine"):
        self._measured = InterpolationEstimator(gpu, precision, timing)
        self._forests: dict[int, Forest] = {}

    def price(self, work: Work) -> Estimate:
        check(work)
        match work:
            case Gemm():
                found = self._price(self._measured.gemm[work.dtype].surface, [[work.n, work.k, work.m]])
            case BatchedGemm():
                found = self._price(self._measured.batched.surface, [[work.batch, work.n, work.k, work.m]])
            case GroupedGemm() if work.dtype in self._measured.grouped[work.layout].surfaces:
                active = max(float(work.active_groups), 1.0)
                shape = [work.groups, active, work.n, work.k, max(work.rows / active, 1.0)]
                found = self._price(self._measured.grouped[work.layout].surfaces[work.dtype], [shape])
            case PrefillAttention(dtype="bf16"):
                geometry = [work.heads, work.kv_heads, work.d_qk, work.d_v]
                requests = zip(work.kv_tokens.tolist(), work.new_tokens.tolist(), strict=True)
                found = self._price(self._measured.prefill.surface, [[*geometry, 1, kv, new] for kv, new in requests])
            case SparseMlaDecode():
                return self._measured.price(work)
            case DecodeAttention() | MlaDecode():
                times = self.decode_times(work, len(work.kv_tokens))
                time_us, is_estimate = times(work.kv_tokens, 1)
                return Estimate(float(time_us[0]), bool(is_estimate), times.source, times.error)
            case _:
                return self._measured.price(work)
        bound_us = roofline_us(demand(work, self._measured.precision), self._measured.gpu)
        return replace(found, time_us=max(found.time_us, bound_us))

    def decode_times(self, work: DecodeAttention | MlaDecode, batch: int) -> DecodeTimes:
        if isinstance(work, SparseMlaDecode):
            return self._measured.decode_times(work, batch)
        surface = self._measured.latent.surface if isinstance(work, MlaDecode) else self._measured.paged.surface
        site = (
            (float(work.heads), float(batch))
            if isinstance(work, MlaDecode)
            else (float(work.heads), float(work.kv_heads), float(work.head_dim), float(batch))
        )
        one = demand(_with_one_token(work), self._measured.precision)
        bound_us = roofline_us(one, self._measured.gpu)
        reach = self._measured.decode_times(work, batch)
        return ForestDecode(self._forest(surface), site, bound_us, reach)

    def times(self, demands: Demands) -> ManyTimes:
        return works_one_by_one(self, demands.works)

    def _price(self, surface: Surface, shapes: list[list[float]]) -> Estimate:
        forest, rows = self._forest(surface), np.array(shapes, dtype=np.float64)
        is_estimate = bool(surface.are_estimates(rows).any())
        kind = "estimate: forest" if is_estimate else "forest"
        return Estimate(
            math.fsum(forest.times(rows)), is_estimate, f"{kind} of {surface.structure.label}", forest.error
        )

    def _forest(self, surface: Surface) -> Forest:
        key = id(surface)
        if key not in self._forests:
            self._forests[key] = Forest(surface.shapes, surface.times_us)
        return self._forests[key]


@dataclass(frozen=True, slots=True, eq=False)
class ForestDecode:
    """Decode attention of one geometry and batch size by the mean KV length."""

    forest: Forest
    site: tuple[float, ...]
    bound_us: float
    """Roofline per KV token."""
    reach: DecodeTimes
    """Says what is an estimate."""

    @property
    def source(self) -> str:
        return f"forest on {self.reach.source}"

    @property
    def error(self) -> float:
        return self.forest.error

    def __call__(self, kv_tokens: NDArray[np.int64], steps: int) -> tuple[Floats, NDArray[np.bool_]]:
        totals = tokens_by_step(kv_tokens, steps)
        lengths = np.ceil(totals / kv_tokens.shape[-1] / LENGTH_STEP_TOKENS) * LENGTH_STEP_TOKENS
        distinct, inverse = np.unique(lengths, return_inverse=True)
        shapes = np.column_stack([np.broadcast_to(self.site, (len(distinct), len(self.site))), distinct])
        times_us = self.forest.times(shapes)[inverse.reshape(totals.shape)]
        return np.maximum(times_us, totals * self.bound_us), self.reach(kv_tokens, steps)[1]


def _with_one_token(work: DecodeAttention | MlaDecode) -> DecodeAttention | MlaDecode:
    one = np.ones(1, dtype=np.int64)
    if isinstance(work, MlaDecode):
        return MlaDecode(one, work.heads, work.d_qk, work.d_v)
    return DecodeAttention(one, work.heads, work.kv_heads, work.head_dim)
