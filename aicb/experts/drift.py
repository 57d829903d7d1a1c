"""Drift of expert popularity in time.

A layer's popularities stay what they are; which expert has which changes. Behind each expert stands an
Ornstein-Uhlenbeck process of its own, stationary, with mean 0, deviation 1 and one correlation time τ; at any instant
the expert with the i-th largest value has the i-th largest popularity of the layer. At time 0 the order is that of
``aicb.experts.load``, so that at any instant the load is distributed as without drift, and instants much further apart
than τ are independent.

    x(t + Δ) = e^(−Δ/τ)·x(t) + √(1 − e^(−2Δ/τ))·ξ,   ξ normal

This is a model, not a measurement: τ is the user's to state. DeepSeek-V3's deployment adjusts its redundant experts
"every 10 minutes" (arXiv 2412.19437, 3.4.1), which says on what scale popularity moves there. Assumes that experts and
layers drift independently; that the shape of the distribution changes with the requests is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from aicb.experts.load import BalancedLoad, ExpertDraw, ExpertLoad, draw_experts
from boundary.errors import InputError

KEPT_STEPS = 4
"""Steps whose draws are kept: instances that share a process ask for the same ones at about the same time."""
STREAM = 0x0D21F7
"""Part of the seeds of the process that no draw of a load has."""


@dataclass(frozen=True, slots=True)
class ExpertDrift:
    """How fast popularity moves, and how often it is looked at.

    Raises:
        InputError: a time that is not positive.
    """

    correlation_s: float
    """τ: after this time the correlation of an expert's place with its earlier one is 1/e."""
    step_s: float
    """Popularity is constant within steps of this length."""

    def __post_init__(self) -> None:
        for name in ("correlation_s", "step_s"):
            if not getattr(self, name) > 0.0:
                raise InputError(f"ExpertDrift.{name}: found {getattr(self, name)}, expected above 0")


class DriftingLayers:
    """Draws of a load, layer by layer, at each step of time; the same arguments give the same draws.

    Args:
        load: popularities of the layers.
        shape: experts, experts per token, ranks of the group.
        layers: number of draws.
        drift: without one every step has the draws of the first.
        seed: of the load and of the process.
    """

    def __init__(
        self, load: ExpertLoad, shape: tuple[int, int, int], layers: int, drift: ExpertDrift | None, seed: int
    ) -> None:
        assert not isinstance(load, BalancedLoad), "balanced experts have no popularity"
        self._load, self._shape, self._drift, self._seed = load, shape, drift, seed
        self._first: list[ExpertDraw] = [draw_experts(load, shape, layer, seed) for layer in range(layers)]
        self._by_popularity = np.argsort([draw.popularity for draw in self._first], axis=1, kind="stable")
        self._draws: dict[int, list[ExpertDraw]] = {0: self._first}
        self._restart()

    def at(self, step: int) -> list[ExpertDraw]:
        """[layers] draws in a step, which is 0 at the beginning."""
        step = step if self._drift is not None else 0
        if step not in self._draws:
            orders = self._orders(step)
            self._draws[step] = [
                draw_experts(self._load, self._shape, layer, self._seed, order) for layer, order in enumerate(orders)
            ]
            for old in sorted(set(self._draws) - {0, step})[:-KEPT_STEPS]:
                del self._draws[old]
        return self._draws[step]

    def _restart(self) -> None:
        """Values of step 0: normal, in the order of the popularities."""
        rng = np.random.default_rng([self._seed, STREAM])
        self._step, self._values = 0, np.empty(self._by_popularity.shape)
        np.put_along_axis(
            self._values, self._by_popularity, np.sort(rng.standard_normal(self._values.shape), axis=1), axis=1
        )

    def _orders(self, step: int) -> NDArray[np.int64]:
        """[layers, experts] whose first popularity each expert has."""
        assert self._drift is not None
        if step < self._step:
            self._restart()
        kept = np.exp(-self._drift.step_s / self._drift.correlation_s)
        while self._step < step:
            self._step += 1
            moved = np.random.default_rng([self._seed, STREAM, self._step]).standard_normal(self._values.shape)
            self._values = kept * self._values + np.sqrt(1.0 - kept * kept) * moved
        orders = np.empty_like(self._by_popularity)
        np.put_along_axis(orders, np.argsort(self._values, axis=1, kind="stable"), self._by_popularity, axis=1)
        return orders


@lru_cache(maxsize=16)
def drifting_layers(
    load: ExpertLoad, shape: tuple[int, int, int], layers: int, drift: ExpertDrift | None, seed: int
) -> DriftingLayers:
    """The process of these arguments, shared by all who ask: what users ask for is the same wherever it is served."""
    return DriftingLayers(load, shape, layers, drift, seed)
