"""Estimators of kernel times: measured tables with interpolation (default), and the bare roofline."""

from aicb.errors import InputError
from aicb.estimators.estimate import DecodeTimes, Estimate, Estimator, Timing
from aicb.estimators.interpolation import InterpolationEstimator
from aicb.estimators.roofline import RooflineEstimator
from aicb.gpu import Gpu
from aicb.precision import Precision

__all__ = [
    "DecodeTimes",
    "Estimate",
    "Estimator",
    "InterpolationEstimator",
    "RooflineEstimator",
    "Timing",
    "make_estimator",
]


def make_estimator(name: str, gpu: Gpu, precision: Precision) -> Estimator:
    """The estimator of this name.

    Raises:
        InputError: unknown name, or no measurements are shipped for this GPU.
    """
    match name:
        case "interpolation":
            return InterpolationEstimator(gpu, precision)
        case "roofline":
            return RooflineEstimator(gpu, precision)
    raise InputError(f"estimator: found {name!r}, expected interpolation or roofline")
