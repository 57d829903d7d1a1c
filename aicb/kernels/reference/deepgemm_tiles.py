"""The tile DeepGEMM runs on SM90, so that a time can be predicted wave by wave.

DeepGEMM's kernels are persistent: blocks of ``block_m × block_n`` outputs are dealt to the SMs in waves. Before a
launch it weighs all tiles that fit and takes the one with the least ``max(L1 cycles, L2 cycles) / wave efficiency``
(DeepGEMM, ``csrc/jit_kernels/heuristics/sm90.hpp``). Time follows that choice in steps: it is constant while the
number of waves is, and jumps where a tile with an unfavourable ``block_n`` wins. This module repeats the choice.

Left out: the swizzle of the operands (all tiles here have the widest) and tiles for fp32 output.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Layout = Literal["dense", "masked", "contiguous"]
Floats = NDArray[np.float64]

SHARED_MEMORY_BYTES = 232_448
"""Per block on SM90."""
MAX_STAGES = 16
WGMMA_ROWS = 64
"""Rows of one tensor-core instruction; a smaller tile computes as many."""
CONTIGUOUS_ROWS = 128
"""Row alignment of each expert in the contiguous layout (``get_mk_alignment_for_contiguous_layout``)."""
L1_BYTES_PER_CYCLE = 128
"""Per SM, as DeepGEMM assumes."""
L2_BYTES_PER_CYCLE = 8e6 / 1.3e3
"""Of the whole device, as DeepGEMM assumes; at most 64 per SM."""
_CHUNK = 2048
_BARRIER_BYTES = 16 * 8 * 2
"""Barriers of all stages."""


@dataclass(frozen=True, slots=True, eq=False)
class Tiles:
    """The chosen tile of each product."""

    block_m: Floats
    block_n: Floats
    cluster: Floats
    """Blocks that share operands by multicast, 1 or 2."""
    blocks: Floats
    waves: Floats

    @property
    def rows(self) -> Floats:
        """Rows a block computes."""
        return np.maximum(self.block_m, WGMMA_ROWS)

    @property
    def warpgroups(self) -> Floats:
        return np.where(self.block_m <= WGMMA_ROWS, 1.0, 2.0)

    @property
    def is_uneven(self) -> NDArray[np.bool_]:
        """Whether blocks of columns straddle weight-scale blocks of 128 in the slow way (80, 96, 112, 144, …)."""
        return np.asarray((128 % self.block_n != 0) & (self.block_n != 192))


def choose_tiles(m: Floats, n: Floats, k: Floats, groups: Floats, *, sms: int, layout: Layout) -> Tiles:
    """Tiles of fp8 products ``[m, k] × [n, k]`` with bf16 output.

    Args:
        m: [products] rows; for grouped layouts rows per group (masked: the expected number).
        n, k: [products] columns and inner dimension.
        groups: [products] groups that have rows; 1 if dense.
        sms: streaming multiprocessors.
        layout: rule for the rows of a tile.
    """
    return TileChooser(sms, layout)(m, n, k, groups)


class TileChooser:
    """``choose_tiles`` of one device and layout that remembers its choices: few products are asked for often."""

    def __init__(self, sms: int, layout: Layout):
        self._sms, self._layout = sms, layout
        self._chosen: dict[tuple[float, ...], int] = {}

    def __call__(self, m: Floats, n: Floats, k: Floats, groups: Floats) -> Tiles:
        """Arguments as ``choose_tiles``."""
        products = list(zip(m.tolist(), n.tolist(), k.tolist(), groups.tolist(), strict=True))
        unknown = list({product: None for product in products if product not in self._chosen})
        for start in range(0, len(unknown), _CHUNK):
            part = unknown[start : start + _CHUNK]
            cycles = _cycles(np.array(part).T, self._sms, self._layout)
            self._chosen.update(zip(part, cycles.argmin(axis=0).tolist(), strict=True))  # ties keep the first
        table = _candidates(self._layout)[[self._chosen[product] for product in products]]
        blocks = np.ceil(m / table[:, 0]) * np.ceil(n / table[:, 1]) * groups
        return Tiles(table[:, 0], table[:, 1], table[:, 2] * table[:, 3], blocks, np.ceil(blocks / self._sms))


def _cycles(products: Floats, sms: int, layout: Layout) -> Floats:
    """[candidates, products] DeepGEMM's cost of each tile; infinite where it may not be used.

    ``products`` is [4, products]: m, n, k and groups of ``choose_tiles``.
    """
    m, n, k, groups = products
    block_m, block_n, cluster_m, cluster_n = _candidates(layout).T[:, :, None]
    columns = np.ceil(n / block_n)
    blocks = np.ceil(m / block_m) * columns * groups
    waves = np.ceil(blocks / sms)
    output = 2.0 * block_m * block_n
    l2 = (k * (block_m / cluster_n + block_n / cluster_m) + output) * blocks / min(64.0 * sms, L2_BYTES_PER_CYCLE)
    operands = block_m + np.maximum(WGMMA_ROWS, block_m) + 2.0 * block_n
    l1 = (k * operands + 2.0 * output) * blocks / (L1_BYTES_PER_CYCLE * sms)
    is_pair = cluster_m * cluster_n > 1
    refused = ~_fits(block_m, block_n, k) | (is_pair & (waves <= 1))
    if layout == "dense":
        refused |= (block_m < WGMMA_ROWS) & (m > block_m)
    if layout == "masked":
        refused |= is_pair & ((columns % 2 != 0) | (m <= block_m))
    return np.where(refused, np.inf, np.floor(np.maximum(l1, l2)) * waves * sms / blocks)


@cache
def _candidates(layout: Layout) -> Floats:
    """[candidates, 4] block_m, block_n, cluster_m, cluster_n in the order in which DeepGEMM tries them."""
    rows = {"dense": (64, 128, 16, 32, 256), "masked": (64, 128), "contiguous": (CONTIGUOUS_ROWS,)}[layout]
    tiles = [
        (block_m, block_n, *cluster)
        for cluster in ((1, 1), (1, 2), (2, 1))
        for block_m in rows
        for block_n in range(16, 193, 16)
        if not (block_m > 128 and block_n > 128)
        and (block_n <= 128 or block_n % (block_n - 128) == 0 or 128 % (block_n - 128) == 0)
    ]
    return np.array(tiles, dtype=np.float64)


def _fits(block_m: Floats, block_n: Floats, k: Floats) -> NDArray[np.bool_]:
    """Whether shared memory holds enough pipeline stages to hide the latency of loads."""
    scales = np.ceil(k / 128) * 4 * np.where(128 % block_n == 0, 1, 2)
    output = np.ceil(2 * block_m * block_n / 1024) * 1024
    stage = 128 * (block_m + block_n) + np.ceil(4 * block_m / 128) * 128
    free = SHARED_MEMORY_BYTES - output - _BARRIER_BYTES - np.ceil(scales / 8) * 8
    stages = np.minimum(free // stage, MAX_STAGES)
    return np.asarray(stages >= np.where(block_m * block_n >= 128 * 192, 3, 4))
