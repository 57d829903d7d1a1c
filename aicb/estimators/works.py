"""Times of many works at once, from the measurements of one GPU: what a simulation asks for first-time pricing.

Works of one kernel family are shapes of one surface, which prices them together. Kinds that an iteration has one of,
such as attention, and shapes that take another surface's time are priced one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from aicb.estimators.estimate import ManyTimes
from aicb.estimators.roofline import Demands, check
from aicb.estimators.surface import Surface
from aicb.operators.operator import BatchedGemm, Elementwise, Gemm, GroupedGemm, Work

if TYPE_CHECKING:
    from aicb.estimators.interpolation import InterpolationEstimator

Shape = tuple[float, ...]


def interpolate_works(estimator: InterpolationEstimator, demands: Demands) -> ManyTimes:
    """``InterpolationEstimator.price`` of each work."""
    families: dict[int, tuple[Surface, list[int], list[Shape]]] = {}
    alone: list[int] = []
    for place, work in enumerate(demands.works):
        found = _place_of(estimator, work)
        if found is None:
            alone.append(place)
        else:
            _, places, shapes = families.setdefault(id(found[0]), (found[0], [], []))
            places.append(place)
            shapes.append(found[1])
    times = ManyTimes(np.zeros(len(demands.works)), np.zeros(len(demands.works), dtype=np.bool_))
    for surface, places, shapes in families.values():
        alone += _fill(estimator, demands, times, (surface, places, shapes))
    for place in alone:
        one = estimator.price(demands.works[place])
        times.time_us[place], times.is_estimate[place] = one.time_us, one.is_estimate
    return times


def _place_of(estimator: InterpolationEstimator, work: Work) -> tuple[Surface, Shape] | None:
    """The surface of a kind of work, and its shape there."""
    match work:
        case Gemm():
            return estimator.gemm[work.dtype].surface, (float(work.n), float(work.k), float(work.m))
        case BatchedGemm():
            return estimator.batched.surface, (float(work.batch), float(work.n), float(work.k), float(work.m))
        case GroupedGemm():
            check(work)
            grouped = estimator.grouped[work.layout]
            surface = grouped.surfaces.get(work.dtype)
            return None if surface is None else (surface, grouped.shape_of(work))
        case Elementwise():
            kernel = estimator.elementwise.measured.get(work.kernel)
            return None if kernel is None else (kernel, (float(work.cols), float(max(work.rows, 1))))
    return None


def _fill(
    estimator: InterpolationEstimator,
    demands: Demands,
    times: ManyTimes,
    family: tuple[Surface, Sequence[int], Sequence[Shape]],
) -> list[int]:
    """Writes the times of one family; returns the places of works that have to be priced alone."""
    surface, places, shapes = family[0], np.array(family[1]), np.array(family[2])
    if not (shapes >= 1.0).all():
        for place in family[1]:
            check(demands.works[place])
    time_us, is_measured = surface.times_and_hits(shapes)
    own = demands.take(places)
    # Activations within L2 and weights replayed in a graph need not cross the memory bus; evicted weights must.
    is_resident = np.full(len(places), estimator.timing == "graph" or isinstance(own.works[0], Elementwise))
    bounded_us = np.maximum(time_us, own.roofline_us(estimator.gpu, is_resident))
    times.time_us[places] = np.where(is_measured, time_us, bounded_us)
    times.is_estimate[places] = is_far = surface.are_estimates(shapes) & ~is_measured
    return places[is_far].tolist() if isinstance(own.works[0], GroupedGemm) else []
