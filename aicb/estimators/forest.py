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

import aicb._core as _core
from aicb.estimators.estimator import CostTable, times_one_by_one
from aicb.estimators.interpolation import InterpolationEstimator
from aicb.estimators.roofline import roofline_us
from aicb.kernels.core_times import kv_cost
from aicb.kernels.fitting.estimate import DecodeTimes, Estimate, ManyTimes, tokens_by_step
from aicb.kernels.fitting.kriging import Floats
from aicb.kernels.fitting.surface import Surface
from aicb.kernels.kernel import CacheKernel, CacheTimes, Kernel, Shape
from aicb.measurements.gpu import Gpu
from aicb.measurements.timing import Timing
from aicb.model.precision import Precision
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
    """Times of kernels by forests; never below the roofline of the device.

    Raises:
        InputError: no measurements are shipped for this GPU, or scikit-learn is not installed.
    """

    def __init__(self, gpu: Gpu, precision: Precision | None = None, timing: Timing = "engine"):
        self._measured = InterpolationEstimator(gpu, precision, timing)
        self._forests: dict[int, Forest] = {}

    def price(self, kernel: Kernel) -> Estimate:
        kernel.check()
        times = self._measured.times_of(kernel)
        if isinstance(kernel, CacheKernel):
            if not isinstance(times, CacheTimes) or times.site(kernel, len(kernel.kv_tokens)) is None:
                return self._measured.price(kernel)
            decode = self.decode_times(kernel, len(kernel.kv_tokens))
            time_us, is_estimate = decode(kernel.kv_tokens, 1)
            return Estimate(float(time_us[0]), bool(is_estimate), decode.source, decode.error)
        parts = times.parts(kernel) if times is not None else None
        if parts is None:
            return self._measured.price(kernel)
        found = self._price(*parts)
        bound_us = roofline_us(kernel.cost(self._measured.precision), self._measured.gpu)
        return replace(found, time_us=max(found.time_us, bound_us))

    def decode_times(self, kernel: CacheKernel, batch: int) -> DecodeTimes:
        times, reach = self._measured.times_of(kernel), self._measured.decode_times(kernel, batch)
        place = times.site(kernel, batch) if isinstance(times, CacheTimes) else None
        if place is None:
            return reach
        bound = kv_cost(kernel, self._measured.precision, batch, self._measured.gpu, (1.0, 1.0))
        return ForestDecode(self._forest(place[0]), place[1], bound, reach)

    def times(self, costs: CostTable) -> ManyTimes:
        return times_one_by_one(self, costs.kernels)

    def _price(self, surface: Surface, shapes: list[Shape]) -> Estimate:
        forest, rows = self._forest(surface), np.array(shapes, dtype=np.float64)
        is_estimate = bool(surface.are_estimates(rows).any())
        kind = "estimate: forest" if is_estimate else "forest"
        return Estimate(
            math.fsum(forest.times(rows)), is_estimate, f"{kind} of {surface.reference.label}", forest.error
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
    bound: _core.KvCost
    """Roofline."""
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
        return np.maximum(times_us, self.bound.least_us(totals)), self.reach(kv_tokens, steps)[1]
