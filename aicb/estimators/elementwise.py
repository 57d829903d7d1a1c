"""Times of memory-bound kernels: norms, RoPE, quantisation, activations, routing, copies.

A kernel measured under its own name has a surface over (columns, rows). Of several implementations of one kernel only
the one of the last part of the table counts: mixing them would bend the surface. Kernels that were not measured take
the *envelope* of the ``rms_norm`` rows: the least time in which a norm moved so many bytes, floor included.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from aicb.estimators.estimate import Estimate
from aicb.estimators.kriging import Floats, Scales
from aicb.estimators.surface import AXIS_REACH, Structure, Surface
from aicb.measurements.gpu import Gpu
from aicb.measurements.table import KernelRow
from aicb.measurements.timing import MeasuredTimes
from aicb.operators.operator import Elementwise

_BYTES_PER_ELEMENT = {
    **{"quant": 3.0, "silu_mul": 6.0, "silu_mul_quant": 5.0, "add": 6.0, "add_rms_norm": 8.0, "merge_states": 6.0},
    **{"kv_write_fp8": 3.0, "latent_write_fp8": 3.0, "latent_gather_fp8": 3.0, "index_write": 3.0, "index_gather": 2.0},
}
"""Read and written per element of [m, n], 4 elsewhere: bf16 or fp32 in, bf16 or fp8 out."""
KERNELS = (
    *("rms_norm", "add_rms_norm", "head_norm", "rope", "quant", "silu_mul", "silu_mul_quant", "topk", "permute"),
    *("unpermute", "kv_write", "embedding", "sampling", "conv", "add", "grouped_topk", "kv_write_fp8"),
    *("latent_write", "latent_write_fp8", "latent_write_sparse_fp8", "merge_states", "index_write", "index_gather"),
    *("latent_gather", "latent_gather_fp8", "latent_gather_sparse_fp8", "moe_align"),
)
"""Kernels that may be measured; those without rows in the table take the envelope."""
ENVELOPE_ERROR = 0.25
"""Relative error (68 %) of a kernel priced by its bytes: fused kernels of engines differ by that much from one norm."""
_REFERENCE_BANDWIDTH_SHARE = 0.6
_REFERENCE_FLOOR_US = 2.0
"""Shape of the reference along rows (bytes / share of bandwidth + floor), see ``rms_norm`` at 8192 rows."""


class ElementwiseTimes:
    """All memory-bound kernels."""

    def __init__(self, measured: MeasuredTimes, gpu: Gpu):
        self._bandwidth = gpu.hbm_bytes_per_s
        norms = measured.table.select("rms_norm")
        self._envelope = _envelope([(4.0 * row["m"] * row["n"], measured.time_us(row, 0.0)) for row in norms])
        selected = {kernel: measured.table.select(kernel) for kernel in KERNELS}
        self.measured = {kernel: self._surface(kernel, rows, measured) for kernel, rows in selected.items() if rows}

    def price(self, work: Elementwise) -> Estimate:
        surface = self.measured.get(work.kernel)
        if surface is None:
            return self.envelope(work.moved_bytes)
        return surface.price(float(work.cols), float(max(work.rows, 1)))

    def envelope(self, moved_bytes: float) -> Estimate:
        """Least measured time of moving so many bytes; linear between and beyond the measured volumes."""
        volumes, times = self._envelope
        right = min(max(bisect_right(volumes, moved_bytes), 1), len(volumes) - 1)
        slope = (times[right] - times[right - 1]) / (volumes[right] - volumes[right - 1])
        time_us = max(times[right - 1] + slope * (moved_bytes - volumes[right - 1]), times[0])
        is_far = moved_bytes > AXIS_REACH * volumes[-1]
        kind = "estimate: beyond" if is_far else "interpolated"
        return Estimate(time_us, is_far, f"{kind} bandwidth envelope of rms_norm", ENVELOPE_ERROR)

    def _surface(self, kernel: str, rows: list[KernelRow], measured: MeasuredTimes) -> Surface:
        """Shapes (columns, rows)."""
        latest = [row for row in rows if row.kernel == rows[-1].kernel]
        shapes = np.array([[row["n"], row["m"]] for row in latest], dtype=np.float64)
        times_us = np.array([measured.time_us(row, 0.0) for row in latest])
        per_element = _BYTES_PER_ELEMENT.get(kernel, 4.0)

        def reference_us(shapes: Floats) -> Floats:
            moved = per_element * shapes.prod(axis=1)
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
