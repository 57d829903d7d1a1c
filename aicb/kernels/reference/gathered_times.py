"""Reference times of products of experts whose rows a kernel gathers: vLLM's, in Triton.

An expert's rows fill whole tiles, and random routing decides how many: their mean has no steps. What a kernel takes
depends on the size of its tiles, which engines choose by the batch (`aicb.kernels.engine_tiles`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from aicb.kernels.fitting.kriging import Floats, Scales
from aicb.kernels.fitting.surface import ReferenceModel
from aicb.kernels.reference.product_times import cold_share
from aicb.measurements.gpu import Gpu
from aicb.model.precision import ELEMENT_BYTES, GemmDtype

TENSOR_SHARE = {16: 0.127, 32: 0.24, 64: 0.318, 128: 0.656}
"""By rows of a tile, of the tensor cores' peak."""
LAUNCH_US, MEMORY_SHARE = 7.8, 1.03
"""With the shares least absolute values over the 1,318 products of vLLM's kernel under uniform routing on the H200:
6.5 % median."""
_MANY_TILES = 16
"""Tiles of an expert beyond which the mean no longer feels where they end."""
_erf = np.frompyfunc(math.erf, 1, 1)
"""SciPy's takes longer to import than all that are asked for here."""


def gathered_reference(
    gpu: Gpu, dtype: GemmDtype, is_resident: bool, tiles_of: Callable[[Floats], Floats]
) -> ReferenceModel:
    """Shapes (experts, active experts, n, k, tokens, mean rows per active expert) of a kernel that gathers its rows.

    Tiles are those that random routing fills on average. Launches of many tiles lie between even work for all SMs and
    whole waves. ``tiles_of``: [shapes, 3] rows and columns of a tile, and whether it is tuned for the site.
    """

    def reference_us(shapes: Floats) -> Floats:
        height, width, _ = tiles_of(shapes).T
        return in_tiles_us(gpu, dtype, shapes, (height, width), tensor_share(height), is_resident=is_resident)

    def coordinates(shapes: Floats) -> Floats:
        _, active, n, k, _, rows = shapes.T
        height, width, is_tuned = tiles_of(shapes).T
        octaves = np.log2([active, n, k, rows, filled_tiles(rows, height), height, width])
        return np.column_stack([octaves.T, is_tuned])

    scales = Scales((3.0, 4.0, 4.0, 3.0, 6.0, 2.5, 2.5, 2.0), (2.0, 0.1, 0.1, 4.0, 2.0, 2.0, 2.0, 2.0), 0.2, 0.03)
    return ReferenceModel(
        f"gathered grouped {dtype} gemm (experts, active, n, k)", 4, reference_us, coordinates, scales, (2, 3)
    )


def in_tiles_us(
    gpu: Gpu, dtype: GemmDtype, shapes: Floats, tile: tuple[Floats, Floats], share: Floats, *, is_resident: bool
) -> Floats:
    """[shapes] time in tiles of so many rows and columns that reach a share of the tensor cores' peak."""
    (_, active, n, k, _, rows), (height, width), size = shapes.T, tile, ELEMENT_BYTES[dtype]
    waves = active * filled_tiles(rows, height) * np.ceil(n / width) / gpu.sms
    waves = (np.maximum(waves, 1.0) + np.ceil(waves)) / 2
    compute_us = waves * 2.0 * height * width * k / (share * gpu.peak_flops[dtype] / gpu.sms) * 1e6
    moved = active * (n * k * size + rows * (k * size + 2.0 * n))
    memory_us = moved / gpu.hbm_bytes_per_s * 1e6 * cold_share(moved, gpu, is_resident)
    return np.asarray(LAUNCH_US + np.cbrt(compute_us**3 + (MEMORY_SHARE * memory_us) ** 3))


def tensor_share(height: Floats) -> Floats:
    """[tiles] of so many rows, the share of the tensor cores' peak that vLLM's kernel reaches."""
    return np.interp(height, list(TENSOR_SHARE), list(TENSOR_SHARE.values()))


def filled_tiles(rows: Floats, height: Floats) -> Floats:
    """[shapes] mean tiles of an expert that gets so many rows by chance (normal, of equal variance and mean), at least
    one."""
    ends = height[:, None] * np.arange(1, 2 * _MANY_TILES) + 0.5
    within = np.minimum(rows, _MANY_TILES * height)
    beyond = (within[:, None] - ends) / np.sqrt(2.0 * within)[:, None]
    by_chance = 1.0 + (0.5 + 0.5 * np.asarray(_erf(beyond), dtype=np.float64)).sum(axis=1)
    return np.where(rows < _MANY_TILES * height, by_chance, rows / height + 0.5)
