"""Reference times of matrix products: tiles and waves of DeepGEMM, a smooth curve for cuBLAS.

DeepGEMM (fp8) states its tile (``deepgemm_tiles``), so its time is modelled wave by wave:

    compute = waves · (⌈k / 128⌉ steps · time of a step of that tile + start of a wave)
    time    = launch + (compute³ + memory³)^(1/3), longer by the power limit where kernels last long

A step costs its tensor-core time, a fixed latency, and scale promotion, which is slower where columns straddle weight
scale blocks. With swapped operands (few rows) a tile is of weights, and the quantisation of activations comes before.
cuBLAS (bf16) does not state its tile: its reference is smooth, and the waves of 128 × 256 tiles are only
coordinates of the residuals. Constants were least-squares values over the H200 table; residuals of measurements
correct them, so on another device they shape the interpolation and no more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aicb.kernels.fitting.kriging import Floats, Scales
from aicb.kernels.fitting.surface import ReferenceModel
from aicb.kernels.reference.deepgemm_tiles import CONTIGUOUS_ROWS, Layout, TileChooser, Tiles
from aicb.measurements.gpu import Gpu
from aicb.model.precision import MX_BLOCK, GemmDtype, weight_matrix_bytes

_LONG = 1e6
"""Correlation length of a coordinate that does not matter."""
_THROTTLING_US = 300.0
"""Kernels of this length begin to feel the power limit."""


@dataclass(frozen=True, slots=True)
class TileCosts:
    """Costs of a wave of DeepGEMM tiles."""

    launch_us: float
    group_us: float
    """Per local expert, active or not: the scheduler visits each."""
    step_us: float
    """Latency of one step of 128 along k."""
    tensor_share: float
    """Tensor-core time over that at the nominal peak."""
    uneven_us: float
    """Extra promotion time per step and 8192 outputs of a warpgroup, where columns straddle scale blocks."""
    wave_us: float
    memory_share: float
    """Memory time over that at the nominal bandwidth."""
    throttling: float
    """Slow-down per e-fold of duration."""


DENSE_COSTS = TileCosts(1.37, 0.0, 0.107, 1.10, 0.070, 1.58, 1.19, 0.048)
MASKED_COSTS = TileCosts(2.83, 0.077, 0.013, 1.28, 0.106, 0.88, 1.18, 0.0)
CONTIGUOUS_COSTS = TileCosts(6.73, 0.034, 0.055, 1.15, 0.051, 0.83, 1.20, 0.034)

SWAPPED_LAUNCH_US, SWAPPED_QUANT_US = 5.37, 0.127
"""Two launches, and quantising 1,024 columns of the activations; with the others below least squares over the 522 rows
of the H200 table: 4 % median, 11 % p90."""
SWAPPED_STEP_US = {64: 0.111, 128: 0.140}
"""One step of 128 along k of a tile of so many rows of the weights."""
SWAPPED_MEMORY_SHARE = 1.17
"""Memory time over that at the nominal bandwidth."""
SWAPPED_FEW_ROWS = 16
"""Up to so many rows of activations tiles have 64 rows of the weights, if one wave takes them all: visible in the
times, which rise by up to a third behind it."""


def _tiled_us(tiles: Tiles, k: Floats, memory_us: Floats, costs: TileCosts, gpu: Gpu) -> Floats:
    """[products] time of waves of tiles over memory traffic, without launch."""
    per_sm = gpu.peak_flops["fp8"] / gpu.sms
    tensor_us = tiles.rows * tiles.block_n * 128 * 2 / per_sm * 1e6
    promoted = tiles.rows * tiles.block_n / tiles.warpgroups / 8192
    step_us = costs.step_us + costs.tensor_share * tensor_us + costs.uneven_us * tiles.is_uneven * promoted
    compute_us = tiles.waves * (k / 128 * step_us + costs.wave_us)
    return np.asarray(np.cbrt(compute_us**3 + (costs.memory_share * memory_us) ** 3))


def _throttled(time_us: Floats, throttling: float) -> Floats:
    return np.asarray(time_us * (1.0 + throttling * np.log1p(time_us / _THROTTLING_US)))


def _tile_coordinates(tiles: Tiles, gpu: Gpu) -> Floats:
    """[products, 5] waves, tile, width of the output swizzle, efficiency of the waves."""
    swizzle = np.where(tiles.block_n % 64 == 0, 2.0, np.where(tiles.block_n % 32 == 0, 1.0, 0.0))
    efficiency = tiles.blocks / (tiles.waves * gpu.sms)
    logs = np.log2([tiles.waves, tiles.block_m, tiles.block_n])
    return np.column_stack([*logs, swizzle, efficiency])


def cold_share(moved_bytes: Floats, gpu: Gpu, is_resident: bool) -> Floats | float:
    """Share of the traffic that reaches memory: replays of a graph keep small operands in L2."""
    return np.minimum(moved_bytes / gpu.l2_bytes, 1.0) if is_resident else 1.0


def dense_reference(gpu: Gpu, dtype: GemmDtype, is_resident: bool) -> ReferenceModel:
    """Shapes (n, k, m)."""
    return _deepgemm_dense(gpu, is_resident) if dtype == "fp8" else _cublas_dense(gpu, is_resident)


def swapped_reference(gpu: Gpu, is_resident: bool) -> ReferenceModel:
    """Shapes (n, k, m): the weights pass over the SMs once, tile by tile, in steps along k."""

    def is_narrow(shapes: Floats) -> NDArray[np.bool_]:
        n, _, m = shapes.T
        return np.asarray((m <= SWAPPED_FEW_ROWS) & (n <= 64 * gpu.sms))

    def reference_us(shapes: Floats) -> Floats:
        n, k, _ = shapes.T
        memory_us = n * k / gpu.hbm_bytes_per_s * 1e6 * cold_share(n * k, gpu, is_resident)
        tile = np.where(is_narrow(shapes), 64, 128)
        waves = np.ceil(np.ceil(n / tile) / gpu.sms)
        compute_us = waves * k / 128 * np.where(tile == 64, SWAPPED_STEP_US[64], SWAPPED_STEP_US[128])
        busy_us = np.cbrt(compute_us**3 + (SWAPPED_MEMORY_SHARE * memory_us) ** 3)
        return np.asarray(SWAPPED_LAUNCH_US + SWAPPED_QUANT_US * k / 1024 + busy_us)

    def coordinates(shapes: Floats) -> Floats:
        return np.column_stack([np.log2(shapes), is_narrow(shapes)])

    scales = Scales((2.0, 2.0, 4.0, 1.0), (0.1, 0.1, 4.0, 0.5), 0.3, 0.02)
    return ReferenceModel("swapped fp8 gemm (n, k)", 2, reference_us, coordinates, scales)


def _deepgemm_dense(gpu: Gpu, is_resident: bool) -> ReferenceModel:
    choose = TileChooser(gpu.sms, "dense")

    def tiles_of(shapes: Floats) -> Tiles:
        """The choice depends on m by its tiles of 64 rows."""
        n, k, m = shapes.T
        rows = np.where(m <= 16, 16.0, np.where(m <= 32, 32.0, np.ceil(m / 64) * 64))
        return choose(rows, n, k, np.ones(len(n)))

    def reference_us(shapes: Floats) -> Floats:
        n, k, m = shapes.T
        moved = n * k + m * (k + 2.0 * n)
        memory_us = moved / gpu.hbm_bytes_per_s * 1e6 * cold_share(n * k, gpu, is_resident)
        busy_us = _tiled_us(tiles_of(shapes), k, memory_us, DENSE_COSTS, gpu)
        return _throttled(DENSE_COSTS.launch_us + busy_us, DENSE_COSTS.throttling)

    def coordinates(shapes: Floats) -> Floats:
        return np.column_stack([np.log2(shapes), _tile_coordinates(tiles_of(shapes), gpu)])

    scales = Scales(
        (3.98, 3.01, 4.85, 5.22, 2.24, 1.13, 0.3, 0.3), (0.1, 0.1, 4.0, 5.0, 2.0, _LONG, _LONG, _LONG), 0.2, 0.03
    )
    return ReferenceModel("fp8 gemm (n, k)", 2, reference_us, coordinates, scales, stand_ins=_in_tiles)


def _cublas_dense(gpu: Gpu, is_resident: bool) -> ReferenceModel:
    def reference_us(shapes: Floats) -> Floats:
        n, k, m = shapes.T
        moved = 2.0 * (n * k + m * (k + n))
        share = np.maximum(cold_share(2.0 * n * k, gpu, is_resident), 0.3)
        return _smooth_us(2.0 * m * n * k, moved * share, k, gpu)

    def coordinates(shapes: Floats) -> Floats:
        n, _, m = shapes.T
        blocks = np.ceil(m / 128) * np.ceil(n / 256)
        waves = np.ceil(blocks / gpu.sms)
        return np.column_stack([np.log2(shapes), np.log2(waves), blocks / (waves * gpu.sms)])

    scales = Scales((4.0, 4.0, 3.0, 3.0, 0.5), (0.1, 0.1, 4.0, 5.0, _LONG), 0.3, 0.1)
    return ReferenceModel("bf16 gemm (n, k)", 2, reference_us, coordinates, scales, stand_ins=_in_tiles)


def _in_tiles(shapes: Floats) -> Floats:
    """Shapes (n, k, m) with m rounded up to whole tiles of 64 rows: what a GEMM of more than one tile computes."""
    m = shapes[:, 2]
    return np.column_stack([shapes[:, :2], np.where(m <= 64, m, np.ceil(m / 64) * 64)])


def _smooth_us(flops: Floats, moved_bytes: Floats, k: Floats, gpu: Gpu) -> Floats:
    """Time of a cuBLAS kernel of unknown tile: compute, memory and latency along k."""
    compute_us = 1.33 * flops / gpu.peak_flops["bf16"] * 1e6
    memory_us = 1.17 * moved_bytes / gpu.hbm_bytes_per_s * 1e6
    latency_us = 0.078 * k / 64
    return _throttled(3.0 + np.cbrt(compute_us**3 + memory_us**3 + latency_us**3), 0.007)


def products_reference(gpu: Gpu) -> ReferenceModel:
    """Shapes (products, n, k, m) of bf16 batched GEMMs."""

    def reference_us(shapes: Floats) -> Floats:
        products, n, k, m = shapes.T
        return _smooth_us(2.0 * products * m * n * k, 2.0 * products * (n * k + m * (n + k)), k, gpu)

    scales = Scales((4.0, 4.0, 4.0, 3.0), (0.1, 0.1, 0.1, 4.0), 0.3, 0.05)
    return ReferenceModel("bmm (products, n, k)", 3, reference_us, np.log2, scales)


MXFP4_ROWS = (16, 32, 64, 128)
"""Rows of a tile of OpenAI's Triton kernels: the mean rows of all experts, to the next power of two."""
MXFP4_COLUMNS = 256
MXFP4_STEP_US = (0.76, 1.03, 1.26, 1.94)
"""One step of 128 along k of such a tile, in which weights become bf16."""
MXFP4_BOOST_MHZ = 1830.0
"""`Gpu.boost_mhz` of the H100, whose times steps are."""
MXFP4_TENSOR_SHARE = 0.75
"""Of a tensor core's peak that products reach at best, as in transfers of times; steps on the H100 take longer."""
MXFP4_LAUNCH_US, MXFP4_WAVE_US, MXFP4_MEMORY_SHARE = 7.8, 0.56, 0.56
"""With the steps least absolute values over the 200 up projections of ``aicb/data/h100/experts``: 2.2 % median, 14 %
p90; down projections take up to a third longer, which the residuals have."""
MXFP4_EDGE = 0.5
"""Tiles of an expert beyond its rows over those of a tile, as rows do not fill the last."""


def mxfp4_reference(gpu: Gpu, is_resident: bool) -> ReferenceModel:
    """Shapes (experts, active experts, n, k, rows per active expert) of bf16 rows times mxfp4 weights.

    On another GPU of the H100's architecture a step follows the clock, or takes what its tensor cores do.
    """
    sizes, steps_us = np.array(MXFP4_ROWS), _mxfp4_steps_us(gpu)

    def tile_of(shapes: Floats) -> NDArray[np.int64]:
        groups, active, _, _, rows = shapes.T
        return np.asarray(np.searchsorted(sizes[:-1], np.maximum(active * rows / groups, 1.0)))

    def waves_of(shapes: Floats) -> Floats:
        _, active, n, _, rows = shapes.T
        tiles = active * np.maximum(rows / sizes[tile_of(shapes)] + MXFP4_EDGE, 1.0)
        return np.asarray(np.ceil(tiles * np.ceil(n / MXFP4_COLUMNS) / gpu.sms))

    def reference_us(shapes: Floats) -> Floats:
        _, active, n, k, rows = shapes.T
        compute_us = waves_of(shapes) * (np.ceil(k / 128) * steps_us[tile_of(shapes)] + MXFP4_WAVE_US)
        moved = active * (n * k * weight_matrix_bytes(1, MX_BLOCK, "mxfp4") / MX_BLOCK + 2.0 * rows * (k + n))
        memory_us = MXFP4_MEMORY_SHARE * moved / gpu.hbm_bytes_per_s * 1e6 * cold_share(moved, gpu, is_resident)
        return np.asarray(MXFP4_LAUNCH_US + np.cbrt(compute_us**3 + memory_us**3))

    def coordinates(shapes: Floats) -> Floats:
        return np.column_stack([np.log2(shapes[:, 1:]), np.log2(waves_of(shapes)), tile_of(shapes)])

    scales = Scales((3.0, 4.0, 4.0, 3.0, 20.0, 2.24), (2.0, 0.1, 0.1, 4.0, 5.0, 2.0), 0.2, 0.03)
    return ReferenceModel("grouped mxfp4 gemm (experts, active, n, k)", 4, reference_us, coordinates, scales, (2, 3))


MARLIN_TILES = (8, 16, 32, 48, 64)
"""Rows of a tile, of which the first is taken that the mean rows of an expert do not fill to nine tenths (vLLM 0.24.0,
``marlin_moe.py``)."""
MARLIN_LAUNCH_US, MARLIN_EDGE, MARLIN_MEMORY_SHARE, MARLIN_TENSOR_SHARE = 7.85, 0.43, 0.60, 0.26
"""Fitted to 400 times of an H200 (``aicb/data/h200/vllm_marlin.parquet``; median error 5 %, p90 20): tiles of an expert
beyond its rows over those of a tile, and the shares of nominal bandwidth and bf16 tensor peak that it reaches. Tensor
cores take 16 rows at least."""


def tile_of_marlin(mean_rows: Floats) -> NDArray[np.int64]:
    """Place in `MARLIN_TILES` by the mean rows of an expert."""
    return np.asarray(np.searchsorted(0.9 * np.array(MARLIN_TILES[:-1]), mean_rows, side="right"))


def marlin_reference(gpu: Gpu, is_resident: bool) -> ReferenceModel:
    """Shapes (experts, active experts, n, k, rows per active expert) of bf16 rows times mxfp4 weights in Marlin.

    Both sizes are padded to whole tiles of 128.
    """
    sizes = np.array(MARLIN_TILES)

    def tile_of(shapes: Floats) -> NDArray[np.int64]:
        groups, active, _, _, rows = shapes.T
        return tile_of_marlin(active * rows / groups)

    def reference_us(shapes: Floats) -> Floats:
        _, active, n, k, rows = shapes.T
        tile, elements = sizes[tile_of(shapes)], 128**2 * np.ceil(n / 128) * np.ceil(k / 128)
        computed = active * np.maximum(rows / tile + MARLIN_EDGE, 1.0) * np.maximum(tile, 16)
        compute_us = 2.0 * computed * elements / (MARLIN_TENSOR_SHARE * gpu.peak_flops["bf16"]) * 1e6
        moved = active * (elements * weight_matrix_bytes(1, MX_BLOCK, "mxfp4") / MX_BLOCK + 2.0 * rows * (k + n))
        memory_us = moved / (MARLIN_MEMORY_SHARE * gpu.hbm_bytes_per_s) * 1e6 * cold_share(moved, gpu, is_resident)
        return np.asarray(MARLIN_LAUNCH_US + np.cbrt(compute_us**3 + memory_us**3))

    def coordinates(shapes: Floats) -> Floats:
        return np.column_stack([np.log2(shapes[:, 1:]), tile_of(shapes)])

    scales = Scales((3.0, 4.0, 4.0, 3.0, 2.24), (2.0, 0.1, 0.1, 4.0, 2.0), 0.2, 0.03)
    return ReferenceModel("marlin mxfp4 gemm (experts, active, n, k)", 4, reference_us, coordinates, scales, (2, 3))


def _mxfp4_steps_us(gpu: Gpu) -> Floats:
    """[sizes of tiles]"""
    by_clock = 1.0 if gpu.boost_mhz is None else MXFP4_BOOST_MHZ / gpu.boost_mhz
    flops = 2.0 * np.array(MXFP4_ROWS) * MXFP4_COLUMNS * 128
    products_us = flops / (MXFP4_TENSOR_SHARE * gpu.peak_flops["bf16"] / gpu.sms) * 1e6
    return np.asarray(np.maximum(by_clock * np.array(MXFP4_STEP_US), products_us))


def grouped_reference(gpu: Gpu, layout: Layout, is_resident: bool) -> ReferenceModel:
    """Shapes (experts, active experts, n, k, rows per active expert) of DeepGEMM's fp8 products."""
    costs = MASKED_COSTS if layout == "masked" else CONTIGUOUS_COSTS
    choose = TileChooser(gpu.sms, layout)

    def tiles_of(shapes: Floats) -> Tiles:
        _, active, n, k, rows = shapes.T
        if layout == "masked":
            return choose(np.ceil(rows), n, k, active)
        padded = np.ceil(rows / CONTIGUOUS_ROWS) * CONTIGUOUS_ROWS * active
        return choose(padded, n, k, np.ones(len(n)))

    def reference_us(shapes: Floats) -> Floats:
        groups, active, n, k, rows = shapes.T
        moved = active * (n * k + rows * (k + 2.0 * n))
        memory_us = moved / gpu.hbm_bytes_per_s * 1e6 * cold_share(moved, gpu, is_resident)
        busy_us = _tiled_us(tiles_of(shapes), k, memory_us, costs, gpu)
        return _throttled(costs.launch_us + costs.group_us * groups + busy_us, costs.throttling)

    def coordinates(shapes: Floats) -> Floats:
        tiles = tiles_of(shapes)
        return np.column_stack([np.log2(shapes[:, 1:]), np.log2([tiles.waves, tiles.block_m, tiles.block_n]).T])

    scales = Scales((3.0, 4.0, 4.0, 3.0, 20.0, 2.24, 2.0), (2.0, 0.1, 0.1, 4.0, 5.0, 2.0, _LONG), 0.2, 0.03)
    return ReferenceModel(
        f"{layout} grouped fp8 gemm (experts, active, n, k)", 4, reference_us, coordinates, scales, (2, 3)
    )
