"""Surface: the time of a kernel over all its shapes, from measured points and a reference model corrected by them.

A shape is a row of numbers: the leading ones are the *site* (the fixed part, such as (n, k) of a GEMM), the last one is
the axis along which it was measured (such as m). Measured shapes have their measured time. Others have the time of the
kernel's reference model, corrected by kriging of the residuals (``aicb.kernels.fitting.kriging``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import aicb._core as _core
from aicb.kernels.fitting.estimate import Estimate
from aicb.kernels.fitting.kriging import Floats, Kriging, Scales

SITE_REACH_OCTAVES = 2.0
"""Distance (Euclidean, of log2 coordinates) beyond which a site does not count as measured; as in aiconfigurator."""
AXIS_REACH = 4.0
"""Factor beyond the measured range of the axis from which on a time is an estimate."""
BEYOND_OCTAVES = (0.5, 1.5)
"""Distance beyond the measured range of a column from which on errors are larger than kriging says, and to which."""
BEYOND_FACTOR = 1.55
"""Up to this. Half of the octaves of a column withheld, at either end, 68 % of points more than 1.5 octaves beyond the
rest are within 1.5 to 1.6 times the error that kriging says (median of 15 kinds of kernels), within the first half
octave within 1.1 times; up to 12 octaves it does not grow (``aicb.estimators.accuracy.held_out.beyond``)."""
MAX_POINTS = 900
"""Largest number of measurements in one kriging system; beyond it each site uses its nearest ``LOCAL_POINTS``."""
LOCAL_POINTS = 500
FEW_SHAPES = 32
"""Up to so many shapes are looked up among those asked for before."""


@dataclass(frozen=True, slots=True)
class ReferenceModel:
    """Reference model of a kernel, which measurements correct."""

    label: str
    """Name of the model in `Estimate.source`, with the columns of the site."""
    site_columns: int
    """Number of leading columns of a shape that are its site."""
    reference_us: Callable[[Floats], Floats]
    """[shapes, columns] → [shapes] µs; a constant factor does not matter."""
    coordinates: Callable[[Floats], Floats]
    """[shapes, columns] → [shapes, coordinates] in which residuals are kriged."""
    scales: Scales
    local_columns: tuple[int, ...] | None = None
    """Columns whose distance decides which measurements a local system has; by default those of the site."""
    stand_ins: Callable[[Floats], Floats] = lambda shapes: shapes
    """[shapes, columns] → shapes whose residuals are used instead; few distinct ones make many prices cheap."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Errors of predicting each measured point from the others."""

    relative: Floats
    """[points] predicted / measured − 1"""
    claimed: Floats
    """[points] error that each prediction stated (68 %)."""


class Surface:
    """Times of one kernel. ``shapes`` is [points, columns]; repeated shapes are averaged."""

    def __init__(self, reference: ReferenceModel, shapes: Floats, times_us: Floats):
        self.reference = reference
        self.shapes, inverse = np.unique(shapes, axis=0, return_inverse=True)
        inverse = inverse.reshape(-1)
        self.times_us = np.bincount(inverse, times_us) / np.bincount(inverse)
        self._exact = {tuple(shape): time for shape, time in zip(self.shapes.tolist(), self.times_us, strict=True)}
        keys = _keys(self.shapes)
        self._order = np.argsort(keys)
        self._sorted_keys = keys[self._order]
        sites, owner = np.unique(self.shapes[:, : reference.site_columns], axis=0, return_inverse=True)
        self._sites, owner = sites, owner.reshape(-1)
        axis = self.shapes[:, -1]
        self._low = np.array([axis[owner == site].min() for site in range(len(sites))])
        self._high = np.array([axis[owner == site].max() for site in range(len(sites))])
        octaves = _log2(self.shapes)
        self._range_octaves = octaves.min(axis=0), octaves.max(axis=0)
        self._local = list(reference.local_columns or range(reference.site_columns))
        self._points = reference.coordinates(self.shapes)
        self._residuals = np.log(self.times_us / reference.reference_us(self.shapes))
        self._models: dict[Hashable, Kriging] = {}
        self._errors_near: dict[Hashable, float] = {}
        self._values: dict[Hashable, float] = {}
        self._octaves_to: dict[Hashable, Floats] = {}

    def price(self, *shape: float) -> Estimate:
        """Time of one shape, with its error and source."""
        exact = self._exact.get(shape)
        label = self.reference.label
        if exact is not None:
            return Estimate(float(exact), False, f"measured {label}", lambda: self._error_at(shape))
        row = np.array([shape], dtype=np.float64)
        time_us = float(self._modelled(row)[0])

        def error() -> float:
            return self._error_near(self._model_of(row[0]), shape)

        octaves = self._octaves_from(shape[: self.reference.site_columns])
        nearest = int(octaves.argmin())
        overshoot = self._overshoot(row[:, -1])[0]
        if octaves[nearest] == 0.0 and overshoot[nearest] <= AXIS_REACH:
            kind = "interpolated" if overshoot[nearest] == 1.0 else "interpolated (beyond the axis)"
            return Estimate(time_us, False, f"{kind} {label}", error)
        name = str(tuple(round(value) for value in self._sites[nearest]))
        if bool(((octaves <= SITE_REACH_OCTAVES) & (overshoot <= AXIS_REACH)).any()):
            return Estimate(time_us, False, f"borrowed {label}, nearest {name}", error)
        gap = float(np.hypot(octaves, np.log2(overshoot)).min())
        return Estimate(time_us, True, f"estimate: {label}, nearest measured {name}, {gap:.1f} octaves away", error)

    def _error_at(self, shape: tuple[float, ...]) -> float:
        """Error of the model at a measured shape."""
        if shape not in self._errors_near:
            self._errors_near[shape] = float(self.errors(np.array([shape], dtype=np.float64))[0])
        return self._errors_near[shape]

    def _error_near(self, model: Kriging, shape: tuple[float, ...]) -> float:
        """Error of ``model`` at the quarter octave of the axis next to ``shape``: it varies slowly, prices are many."""
        *others, axis = shape
        quarter = round(4.0 * math.log2(axis)) if axis > 0.0 else None
        key = ("quarter octave", *others, quarter)
        if key not in self._errors_near:
            near = np.array([[*others, axis if quarter is None else 2.0 ** (quarter / 4.0)]], dtype=np.float64)
            coordinates = self.reference.coordinates(self.reference.stand_ins(near))
            self._errors_near[key] = float(model.error(coordinates)[0] * self._beyond(near)[0])
        return self._errors_near[key]

    def times(self, shapes: Floats) -> Floats:
        """[shapes] µs: the measurement where there is one, else the corrected model."""
        return self.times_and_hits(shapes)[0]

    def times_and_hits(self, shapes: Floats) -> tuple[Floats, NDArray[np.bool_]]:
        """[shapes] µs, and whether each is a measurement."""
        times_us = self._modelled(shapes)
        if len(shapes) <= FEW_SHAPES:
            exact = [self._exact.get(shape) for shape in map(tuple, shapes.tolist())]
            is_exact = np.array([time is not None for time in exact])
            return np.where(is_exact, np.array(exact, dtype=np.float64), times_us), is_exact
        keys = _keys(shapes)
        found = self._order[np.minimum(np.searchsorted(self._sorted_keys, keys), len(self._order) - 1)]
        is_exact = (self.shapes[found] == shapes).all(axis=1)
        return np.where(is_exact, self.times_us[found], times_us), is_exact

    def errors(self, shapes: Floats) -> Floats:
        """[shapes] relative error (68 %) of modelled times."""
        return self._by_model(shapes, Kriging.error) * self._beyond(shapes)

    def _beyond(self, shapes: Floats) -> Floats:
        """[shapes] factor on errors of shapes beyond the measured ranges, 1 within."""
        octaves, (low, high) = _log2(shapes), self._range_octaves
        beyond = np.maximum(low - octaves, octaves - high).max(axis=1)
        return np.asarray(np.interp(beyond, BEYOND_OCTAVES, (1.0, BEYOND_FACTOR)))

    def are_estimates(self, shapes: Floats) -> NDArray[np.bool_]:
        """[shapes] whether no measurement within reach supports the time."""
        sites, inverse = distinct_shapes(shapes[:, : self.reference.site_columns])
        near = np.array([self._octaves_from(tuple(site)) <= SITE_REACH_OCTAVES for site in sites.tolist()])
        is_within = self._overshoot(shapes[:, -1]) <= AXIS_REACH
        return np.asarray(~(near[inverse] & is_within).any(axis=1))

    def _octaves_from(self, site: tuple[float, ...]) -> Floats:
        """[measured sites] distance from this one."""
        if site not in self._octaves_to:
            self._octaves_to[site] = _octaves(self._sites, np.array([site]))[:, 0]
        return self._octaves_to[site]

    def _overshoot(self, axis: Floats) -> Floats:
        """[shapes, measured sites] factor by which the axis lies beyond the measured range, 1 within."""
        return np.asarray(np.maximum(np.maximum(self._low / axis[:, None], axis[:, None] / self._high), 1.0))

    def hold_out(self, folds: Sequence[Hashable]) -> HeldOut:
        """Each point predicted without all points of its fold; ``folds`` is [points] in the order of ``shapes``."""
        relative, claimed = np.zeros(len(folds)), np.zeros(len(folds))
        for out, rest in self.without_each(folds):
            relative[out] = rest.times(self.shapes[out]) / self.times_us[out] - 1.0
            claimed[out] = rest.errors(self.shapes[out])
        return HeldOut(relative, claimed)

    def without_each(self, folds: Sequence[Hashable]) -> Iterator[tuple[NDArray[np.bool_], Surface]]:
        """[points] whether a point belongs to a fold, and the surface without the fold, which is not all points.

        One surface exists at a time: the systems of a large table take gigabytes."""
        for fold in dict.fromkeys(folds):
            out = np.array([other == fold for other in folds])
            if not out.all():
                yield out, Surface(self.reference, self.shapes[~out], self.times_us[~out])

    def _modelled(self, shapes: Floats) -> Floats:
        return np.asarray(self.reference.reference_us(shapes) * np.exp(self._by_model(shapes, Kriging.mean)))

    def _by_model(self, shapes: Floats, quantity: Callable[[Kriging, Floats], Floats]) -> Floats:
        """[shapes] a quantity of the kriging system that covers each shape."""
        shown = self.reference.stand_ins(shapes)
        if len(shown) <= FEW_SHAPES:
            return self._remembered(shown, quantity)
        distinct, inverse = distinct_shapes(shown)
        return self._of_distinct(distinct, quantity)[inverse]

    def _remembered(self, shapes: Floats, quantity: Callable[[Kriging, Floats], Floats]) -> Floats:
        """[shapes] values that are kept: simulations ask for the same shapes again."""
        keys = [(quantity.__name__, *shape) for shape in shapes.tolist()]
        unknown = {key: place for place, key in enumerate(keys) if key not in self._values}
        if unknown:
            found = self._of_distinct(shapes[list(unknown.values())], quantity)
            self._values.update(zip(unknown, found.tolist(), strict=True))
        return np.array([self._values[key] for key in keys])

    def _of_distinct(self, shapes: Floats, quantity: Callable[[Kriging, Floats], Floats]) -> Floats:
        coordinates = self.reference.coordinates(shapes)
        if len(self.shapes) <= MAX_POINTS:
            return quantity(self._model_of(shapes[0]), coordinates)
        first, inverse = distinct_shapes(shapes[:, self._local])
        found = np.empty(len(shapes))
        for index, local in enumerate(first):
            here = np.flatnonzero(inverse == index)
            found[here] = quantity(self._model_near(local), coordinates[here])
        return found

    def residuals_near(self, local: tuple[float, ...]) -> _core.Kriging:
        """Residuals of the reference at shapes with these local columns."""
        return self._model_near(np.array(local)).core

    def _model_of(self, shape: Floats) -> Kriging:
        """The kriging system that covers a shape."""
        return self._model_near(shape[self._local])

    def _model_near(self, local: Floats) -> Kriging:
        """The kriging system that covers the shapes with these local columns."""
        is_whole = len(self.shapes) <= MAX_POINTS
        key = () if is_whole else tuple(local)
        if key not in self._models:
            chosen = slice(None) if is_whole else self._nearest(local)
            self._models[key] = Kriging(self._points[chosen], self._residuals[chosen], self.reference.scales)
        return self._models[key]

    def _nearest(self, local: Floats) -> NDArray[np.intp]:
        """The points nearest to ``local`` in the local columns."""
        octaves = _octaves(self.shapes[:, self._local], local[None, :])[:, 0]
        return np.argsort(octaves, kind="stable")[:LOCAL_POINTS]


GRID_PER_OCTAVE = 16


def on_grid(values: Floats, per_octave: int = GRID_PER_OCTAVE) -> Floats:
    """The nearest values of a geometric grid."""
    return np.asarray(np.exp2(np.round(np.log2(values) * per_octave) / per_octave))


def _log2(shapes: Floats) -> Floats:
    """[shapes, columns] Octaves; of nothing, as of a KV that is empty, as of a thousandth."""
    return np.asarray(np.log2(np.maximum(shapes, 2.0**-10)))


def _octaves(sites: Floats, others: Floats) -> Floats:
    """[sites, others] Euclidean distance of log2 coordinates."""
    gaps = np.log2(sites)[:, None, :] - np.log2(others)[None, :, :]
    return np.asarray(np.sqrt((gaps * gaps).sum(axis=2)))


def distinct_shapes(shapes: Floats) -> tuple[Floats, NDArray[np.intp]]:
    """Distinct rows, in no order, and where each row is among them; many times as fast as numpy's."""
    if len(shapes) == 1:
        return shapes, np.zeros(1, dtype=np.intp)
    _, first, inverse = np.unique(_keys(shapes), return_index=True, return_inverse=True)
    return shapes[first], inverse.reshape(-1)


def _keys(shapes: Floats) -> NDArray[np.uint64]:
    """[shapes] hash of each row; equal rows have equal hashes."""
    mixed = np.zeros(len(shapes), dtype=np.uint64)
    for column in np.ascontiguousarray(shapes.T, dtype=np.float64).view(np.uint64):
        mixed = (mixed ^ column) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(32)
    return mixed
