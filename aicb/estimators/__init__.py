"""Estimators of kernel times: measured tables with interpolation (default), forests on them, the bare roofline."""

from aicb.estimators.estimate import DecodeTimes, Estimate, Estimator, ManyTimes, Timing
from aicb.estimators.forest import ForestEstimator
from aicb.estimators.interpolation import InterpolationEstimator
from aicb.estimators.price_many import price_many
from aicb.estimators.roofline import RooflineEstimator
from aicb.measurements.gpu import Gpu
from aicb.model.precision import Precision
from boundary.errors import InputError

__all__ = [
    "DecodeTimes",
    "Estimate",
    "Estimator",
    "ForestEstimator",
    "InterpolationEstimator",
    "ManyTimes",
    "RooflineEstimator",
    "Timing",
    "make_estimator",
    "price_many",
]


def make_estimator(name: str, gpu: Gpu, precision: Precision, timing: Timing = "engine") -> Estimator:
    """The estimator of this name: interpolation, forest or roofline; ``timing`` does not matter to the last.

    Raises:
        InputError: unknown name, or no measurements are shipped for this GPU.
    """
    match name:
        case "interpolation":
            return InterpolationEstimator(gpu, precision, timing)
        case "forest":
            return ForestEstimator(gpu, precision, timing)
        case "roofline":
            return RooflineEstimator(gpu, precision)
    raise InputError(f"estimator: found {name!r}, expected interpolation, forest or roofline")
