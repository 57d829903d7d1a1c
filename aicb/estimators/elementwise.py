"""Times of memory-bound kernels: norms, RoPE, quantisation, activations, routing, copies.

Engines fuse and tune these kernels, and few are in the table. Their general time is the *envelope* of the measured
``rms_norm`` rows: the least time in which a measured kernel moved so many bytes, floor included. Measured kernels of
the same name enter as follows.

- Norms: never faster than the envelope, and never faster than their own reduction along a row.
- quant, silu_mul_quant: the table has a deliberately simple Triton kernel; an upper bound. ``engine`` timing takes the
  envelope where that is faster, ``graph`` and ``cold`` the measured kernel.
- topk: unfused ``torch.topk``; the same rule.
"""

from __future__ import annotations

from bisect import bisect_right

from aicb.estimators.curves import AXIS_REACH, CurveSet, Point
from aicb.estimators.estimate import Estimate
from aicb.estimators.measured import MeasuredTimes
from aicb.gpu import Gpu
from aicb.operators import Elementwise
from aicb.table import KernelRow

_NORM_KERNELS = frozenset({"rms_norm", "add_rms_norm"})
_UPPER_BOUNDS = ("quant", "silu_mul_quant", "topk")
_REFERENCE_BANDWIDTH_SHARE = 0.6
_REFERENCE_FLOOR_US = 2.0
"""Shape of the reference along rows (bytes / share of bandwidth + floor), see ``rms_norm`` at 8192 rows."""


class ElementwiseTimes:
    """All memory-bound kernels."""

    def __init__(self, measured: MeasuredTimes, gpu: Gpu):
        self._timing = measured.timing
        self._bandwidth = gpu.hbm_bytes_per_s
        norms = measured.table.select("rms_norm")
        self._envelope = _envelope([(_norm_bytes(row), measured.time_us(row, 0.0)) for row in norms])
        self._norm = CurveSet("rms_norm (columns)", self._points(norms, measured), self._reference(4.0))
        self.upper = {
            name: CurveSet(
                f"{name} (columns), an upper bound",
                self._points(measured.table.select(name), measured),
                self._reference(5.0 if name == "silu_mul_quant" else 3.0),
            )
            for name in _UPPER_BOUNDS
        }

    def price(self, work: Elementwise) -> Estimate:
        site, rows = (float(work.cols),), float(max(work.rows, 1))
        general = self.envelope(work.moved_bytes)
        if work.kernel in _NORM_KERNELS:
            norm = self._norm.price(site, rows)
            is_plain = work.kernel == "rms_norm"
            return norm if is_plain or norm.time_us >= general.time_us else general
        if work.kernel in self.upper:
            bound = self.upper[work.kernel].price(site, rows)
            if self._timing != "engine" or bound.time_us <= general.time_us:
                return bound
        return general

    def envelope(self, moved_bytes: float) -> Estimate:
        """Least measured time of moving so many bytes; linear between and beyond the measured volumes."""
        volumes, times = self._envelope
        right = min(max(bisect_right(volumes, moved_bytes), 1), len(volumes) - 1)
        slope = (times[right] - times[right - 1]) / (volumes[right] - volumes[right - 1])
        time_us = max(times[right - 1] + slope * (moved_bytes - volumes[right - 1]), times[0])
        is_far = moved_bytes > AXIS_REACH * volumes[-1]
        kind = "estimate: beyond" if is_far else "interpolated"
        return Estimate(time_us, is_far, f"{kind} bandwidth envelope of rms_norm")

    def _reference(self, bytes_per_element: float):  # type: ignore[no-untyped-def]
        def reference(site: tuple[float, ...], rows: float) -> float:
            moved = bytes_per_element * rows * site[0]
            return _REFERENCE_FLOOR_US + moved / (_REFERENCE_BANDWIDTH_SHARE * self._bandwidth) * 1e6

        return reference

    @staticmethod
    def _points(rows: list[KernelRow], measured: MeasuredTimes) -> list[Point]:
        return [Point((float(row["n"]),), float(row["m"]), measured.time_us(row, 0.0)) for row in rows]


def _norm_bytes(row: KernelRow) -> float:
    """bf16 read and written."""
    return 4.0 * row["m"] * row["n"]


def _envelope(points: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Least time of moving at least so many bytes, as increasing (bytes, time)."""
    volumes: list[float] = []
    times: list[float] = []
    for volume, time in sorted(points, reverse=True):
        if not times or time < times[-1]:
            volumes.append(volume)
            times.append(time)
    return volumes[::-1], times[::-1]
