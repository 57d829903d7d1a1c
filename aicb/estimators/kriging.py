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

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

NEIGHBOURS = 24
"""Measurements whose leave-one-out residuals scale the error of a prediction."""
LEAST_ERROR = 0.01
"""No relative error is stated below this. Measurements repeat less well: medians of 1.5 to 6 % between two sessions."""
NORMAL_MEDIAN = 0.6745
"""Median of |x| of a standard normal variable."""
_CHUNK = 4096


@dataclass(frozen=True, slots=True)
class Scales:
    """How fast residuals change. Lengths are in the unit of the coordinates, octaves mostly."""

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
        self._points, self._scales = coordinates, scales
        self._mean = float(residuals.mean())
        centred = residuals - self._mean
        self._variance = max(float(centred @ centred) / len(centred), 1e-6)
        covariance = self._correlation(coordinates)
        covariance[np.diag_indices_from(covariance)] += scales.noise
        self._inverse = np.linalg.inv(covariance)
        self._weights = self._inverse @ centred
        spread = 1.0 / np.diag(self._inverse)
        self.left_out = self._weights * spread
        """[points] residual of each point against the prediction from all others."""
        self._standardised = np.abs(self.left_out) / np.sqrt(self._variance * spread)

    def mean(self, coordinates: Floats) -> Floats:
        """[queries] expected residual."""
        parts = [self._correlation(part) @ self._weights for part in _chunks(coordinates)]
        return np.asarray(self._mean + np.concatenate(parts))

    def error(self, coordinates: Floats) -> Floats:
        """[queries] relative error (68 %): the posterior deviation, scaled by how the leave-one-out residuals of the
        nearest measurements compare with theirs."""
        return np.concatenate([self._errors(part) for part in _chunks(coordinates)])

    def _errors(self, queries: Floats) -> Floats:
        near = self._correlation(queries)
        explained = np.einsum("ij,ij->i", near @ self._inverse, near)
        deviation = np.sqrt(self._variance * np.maximum(1.0 + self._scales.noise - explained, 0.0))
        count = min(NEIGHBOURS, near.shape[1])
        neighbours = np.argpartition(-near, count - 1, axis=1)[:, :count]
        scale = np.median(self._standardised[neighbours], axis=1) / NORMAL_MEDIAN
        return np.asarray(np.maximum(deviation * np.clip(scale, 0.5, 2.0), LEAST_ERROR))

    def _correlation(self, queries: Floats) -> Floats:
        """[queries, points]"""
        share = self._scales.own_share
        common = _matern(queries, self._points, self._scales.lengths)
        if share == 0.0:
            return common
        return np.asarray((1.0 - share) * common + share * _matern(queries, self._points, self._scales.own_lengths))


def _matern(a: Floats, b: Floats, lengths: tuple[float, ...]) -> Floats:
    """[a, b] correlation of smoothness 3/2."""
    a, b = a / np.array(lengths), b / np.array(lengths)
    square = (a * a).sum(1)[:, None] + (b * b).sum(1)[None, :] - 2.0 * (a @ b.T)
    distance = np.sqrt(3.0 * np.maximum(square, 0.0))
    return np.asarray((1.0 + distance) * np.exp(-distance))


def _chunks(queries: Floats) -> list[Floats]:
    return [queries[start : start + _CHUNK] for start in range(0, len(queries), _CHUNK)] or [queries]
