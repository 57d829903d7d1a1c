"""Grouped bf16 GEMM of routed experts in Triton: rows gathered by index, one expert per row tile.

The form engines run for bf16 experts: (token, expert) pairs sorted by expert and padded to the row tile; the kernel
gathers its rows, so nothing is permuted in memory. Tile sizes are chosen by timing candidates on the shape at hand.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl


@dataclass(frozen=True, slots=True)
class Tile:
    """Launch configuration."""

    m: int
    n: int
    k: int
    warps: int
    stages: int
    group: int = 8
    """Row tiles that share their weight tiles in L2."""


CANDIDATES = (
    Tile(16, 64, 128, 4, 4, 1),
    Tile(16, 64, 256, 4, 2, 1),
    Tile(16, 128, 128, 4, 3, 1),
    Tile(16, 256, 128, 8, 2, 1),
    Tile(32, 128, 128, 4, 3, 1),
    Tile(32, 256, 64, 8, 3),
    Tile(64, 128, 64, 4, 4),
    Tile(64, 256, 64, 8, 3),
    Tile(128, 128, 64, 8, 3),
    Tile(128, 256, 64, 8, 3),
)
"""Tried on every shape whose mean rows per active expert lie within a factor of four of the row tile."""


@triton.jit  # type: ignore[untyped-decorator]
def _experts(  # type: ignore[no-untyped-def]
    x,
    weights,
    out,
    order,
    owners,
    padded_rows,
    pairs,
    columns,
    inner,
    PAIRS_PER_ROW: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    GROUP: tl.constexpr,
):
    tile = tl.program_id(0)
    row_tiles, column_tiles = padded_rows // M, tl.cdiv(columns, N)
    band = tile // (GROUP * column_tiles)
    band_rows = min(row_tiles - band * GROUP, GROUP)
    within = tile % (GROUP * column_tiles)
    row_tile = band * GROUP + within % band_rows
    column_tile = within // band_rows

    pair = tl.load(order + row_tile * M + tl.arange(0, M))
    is_pair = pair < pairs
    expert = tl.load(owners + row_tile).to(tl.int64)
    column = column_tile * N + tl.arange(0, N)
    lane = tl.arange(0, K)
    row = (pair // PAIRS_PER_ROW).to(tl.int64)
    a = x + row[:, None] * inner + lane[None, :]
    b = weights + expert * columns * inner + (column % columns)[None, :] * inner + lane[:, None]
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, inner, K):
        left = tl.load(a, is_pair[:, None] & (lane[None, :] < inner - start), 0.0)
        right = tl.load(b, lane[:, None] < inner - start, 0.0)
        total = tl.dot(left, right, total)
        a += K
        b += K
    at = out + pair.to(tl.int64)[:, None] * columns + column[None, :]
    tl.store(at, total.to(tl.bfloat16), is_pair[:, None] & (column[None, :] < columns))


@dataclass(frozen=True, slots=True)
class Schedule:
    """Pairs sorted by expert, each expert padded to the row tile with the index ``pairs`` (none)."""

    order: torch.Tensor
    owners: torch.Tensor
    pairs: int


def schedule(rows_per_expert: tuple[int, ...], tile_rows: int, device: str) -> Schedule:
    """For pair numbers drawn in random order, as routing leaves them."""
    counts = torch.tensor(rows_per_expert)
    pairs = int(counts.sum())
    padded = (counts + tile_rows - 1) // tile_rows * tile_rows
    order = torch.full((int(padded.sum()),), pairs, dtype=torch.int32)
    shuffled = torch.randperm(pairs, generator=torch.Generator().manual_seed(pairs)).to(torch.int32)
    expert_of = torch.arange(len(counts)).repeat_interleave(counts)
    first_padded = padded.cumsum(0) - padded
    first = counts.cumsum(0) - counts
    place = torch.arange(pairs) - first[expert_of] + first_padded[expert_of]
    order[place] = shuffled
    owners = torch.arange(len(counts), dtype=torch.int32).repeat_interleave(padded // tile_rows)
    return Schedule(order.to(device), owners.to(device), pairs)


def launch(
    x: torch.Tensor, weights: torch.Tensor, out: torch.Tensor, plan: Schedule, tile: Tile, pairs_per_row: int
) -> None:
    """out[p] = x[p // pairs_per_row] · weights[expert of p]ᵀ.

    x: [rows, k]; weights: [experts, n, k]; out: [pairs, n].
    """
    columns, inner = weights.shape[1], weights.shape[2]
    padded = plan.order.shape[0]
    grid = (padded // tile.m * triton.cdiv(columns, tile.n),)
    _experts[grid](
        x,
        weights,
        out,
        plan.order,
        plan.owners,
        padded,
        plan.pairs,
        columns,
        inner,
        pairs_per_row,
        tile.m,
        tile.n,
        tile.k,
        tile.group,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
