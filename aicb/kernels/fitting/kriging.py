"""Kriging: what measurements say beyond a reference model, spread over the shapes between them.

A reference model states the time of a kernel from its structure (tiles, waves, bytes). What it misses varies slowly
with the shape, so the logarithm of ``measured / reference`` is treated as a Gaussian process over a few coordinates:
near a measurement the prediction follows it, far from all it falls back to the reference times their mean. Posterior
variance and leave-one-out residuals come from the same factorisation (Rasmussen and Williams, Gaussian Processes for
Machine Learning, 2006, equations 2.25, 2.26 and 5.12), so every prediction carries an error that the table itself
backs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

import aicb._core as _core

Floats = NDArray[np.float64]

NEIGHBOURS = 24
"""Measurements whose leave-one-out residuals scale the error of a prediction."""
LEAST_ERROR = 0.01
"""No relative error is stated below this. Measurements repeat less well: medians of 1.5 to 6 % between two sessions."""
NORMAL_MEDIAN = 0.6745
"""Median of |x| of a standard normal variable."""


@dataclass(frozen=True, slots=True)
class Scales:
    """Lengths over which residuals change. They are in the unit of the coordinates, octaves mostly."""

    lengths: tuple[float, ...]
    """Correlation lengths of what all shapes share."""
    own_lengths: tuple[float, ...]
    """Correlation lengths of what is peculiar to a shape and its nearest relatives."""
    own_share: float
    """Share of the second in the variance."""
    noise: float
    """Variance that no coordinate explains, relative to the variance of the residuals."""


class Kriging:
    """Residuals ``log(measured / reference)`` over [points, coordinates]."""

    def __init__(self, coordinates: Floats, residuals: Floats, scales: Scales):
        self._scales = scales
        self._correlation = _core.Correlation(coordinates, scales.lengths, scales.own_lengths, scales.own_share)
        mean = float(residuals.mean())
        centred = residuals - mean
        self._variance = max(float(centred @ centred) / len(centred), 1e-6)
        self._weights: Floats = np.linalg.solve(self._covariance(), centred).astype(np.float64)
        self.core = _core.Kriging(self._correlation, self._weights, mean)

    def _covariance(self) -> Floats:
        """[points, points] made when it is needed: a simulation has dozens of systems of some megabytes."""
        covariance = self._correlation.among_points()
        covariance[np.diag_indices_from(covariance)] += self._scales.noise
        return covariance

    @cached_property
    def _inverse(self) -> Floats:
        """[points, points] of the covariance: errors need it, which simulations do not ask for."""
        return np.asarray(np.linalg.inv(self._covariance()), dtype=np.float64)

    @cached_property
    def left_out(self) -> Floats:
        """[points] residual of each point against the prediction from all others."""
        return np.asarray(self._weights / np.diag(self._inverse))

    @cached_property
    def _standardised(self) -> Floats:
        """[points] size of ``left_out`` in its standard deviations."""
        return np.asarray(np.abs(self.left_out) / np.sqrt(self._variance / np.diag(self._inverse)))

    def mean(self, coordinates: Floats) -> Floats:
        """[queries] expected residual. Each is the same bit for bit, whatever it is asked for together with."""
        return self.core.at(coordinates)

    def error(self, coordinates: Floats) -> Floats:
        """[queries] relative error (68 %): the posterior deviation, scaled by how the leave-one-out residuals of the
        nearest measurements compare with theirs."""
        near = self._correlation.with_places(coordinates)
        explained = np.einsum("ij,ij->i", near @ self._inverse, near)
        deviation = np.sqrt(self._variance * np.maximum(1.0 + self._scales.noise - explained, 0.0))
        count = min(NEIGHBOURS, near.shape[1])
        neighbours = np.argpartition(-near, count - 1, axis=1)[:, :count]
        scale = np.median(self._standardised[neighbours], axis=1) / NORMAL_MEDIAN
        return np.asarray(np.maximum(deviation * np.clip(scale, 0.5, 2.0), LEAST_ERROR))
