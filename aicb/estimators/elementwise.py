"""Times of memory-bound kernels: norms, RoPE, quantisation, activations, routing, copies.

Engines fuse and tune these kernels, and few are in the table. Their general time is the *envelope* of the measured
``rms_norm`` rows: the least time in which a measured kernel moved so many bytes, floor included. The kernels measured
under their own name are upper bounds of what an engine runs: ``rms_norm`` is torch's (one block per row), ``quant``
and ``silu_mul_quant`` are deliberately simple Triton kernels, ``topk`` is unfused ``torch.topk``. So ``engine``
timing takes the envelope where it is faster; ``graph`` and ``cold`` take the measured kernel.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from aicb.estimators.estimate import Estimate
from aicb.estimators.kriging import Floats, Scales
from aicb.estimators.measured import MeasuredTimes
from aicb.estimators.surface import AXIS_REACH, Structure, Surface
from aicb.gpu import Gpu
from aicb.operators import Elementwise

_BYTES_PER_ELEMENT = {"rms_norm": 4.0, "quant": 3.0, "silu_mul_quant": 5.0, "topk": 4.0}
"""Read and written per element of [m, n] by the measured kernels: bf16 or fp32 in, bf16 or fp8 out."""
ENVELOPE_ERROR = 0.25
"""Relative error (68 %) of a kernel priced by its bytes: fused kernels of engines differ by that much from one norm."""
_REFERENCE_BANDWIDTH_SHARE = 0.6
_REFERENCE_FLOOR_US = 2.0
"""Shape of the reference along rows (bytes / share of bandwidth + floor), see ``rms_norm`` at 8192 rows."""


class ElementwiseTimes:
    """All memory-bound kernels."""

    def __init__(self, measured: MeasuredTimes, gpu: Gpu):
        self._timing = measured.timing
        self._bandwidth = gpu.hbm_bytes_per_s
        norms = measured.table.select("rms_norm")
        self._envelope = _envelope([(4.0 * row["m"] * row["n"], measured.time_us(row, 0.0)) for row in norms])
        self.measured = {kernel: self._surface(kernel, measured) for kernel in _BYTES_PER_ELEMENT}

    def price(self, work: Elementwise) -> Estimate:
        general = self.envelope(work.moved_bytes)
        surface = self.measured.get(work.kernel)
        if surface is None:
            return general
        own = surface.price(float(work.cols), float(max(work.rows, 1)))
        is_slower = self._timing == "engine" and own.time_us > general.time_us
        return general if is_slower else own

    def envelope(self, moved_bytes: float) -> Estimate:
        """Least measured time of moving so many bytes; linear between and beyond the measured volumes."""
        volumes, times = self._envelope
        right = min(max(bisect_right(volumes, moved_bytes), 1), len(volumes) - 1)
        slope = (times[right] - times[right - 1]) / (volumes[right] - volumes[right - 1])
        time_us = max(times[right - 1] + slope * (moved_bytes - volumes[right - 1]), times[0])
        is_far = moved_bytes > AXIS_REACH * volumes[-1]
        kind = "estimate: beyond" if is_far else "interpolated"
        return Estimate(time_us, is_far, f"{kind} bandwidth envelope of rms_norm", ENVELOPE_ERROR)

    def _surface(self, kernel: str, measured: MeasuredTimes) -> Surface:
        """Shapes (columns, rows)."""
        rows = measured.table.select(kernel)
        shapes = np.array([[row["n"], row["m"]] for row in rows], dtype=np.float64)
        times_us = np.array([measured.time_us(row, 0.0) for row in rows])

        def reference_us(shapes: Floats) -> Floats:
            moved = _BYTES_PER_ELEMENT[kernel] * shapes.prod(axis=1)
            return np.asarray(_REFERENCE_FLOOR_US + moved / (_REFERENCE_BANDWIDTH_SHARE * self._bandwidth) * 1e6)

        scales = Scales((4.0, 4.0), (0.1, 4.0), 0.3, 0.02)
        return Surface(Structure(f"{kernel} (columns)", 1, reference_us, np.log2, scales), shapes, times_us)


def _envelope(points: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Least time of moving at least so many bytes, as increasing (bytes, time)."""
    volumes: list[float] = []
    times: list[float] = []
    for volume, time in sorted(points, reverse=True):
        if not times or time < times[-1]:
            volumes.append(volume)
            times.append(time)
    return volumes[::-1], times[::-1]
