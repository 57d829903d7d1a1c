"""Points of grouped products of experts that are measured: partitions, batches and their routing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from aicb.kernels.point import Point, SweptModel, point
from aicb.kernels.routing import DISTRIBUTIONS, busiest_rank, expert_rows
from aicb.measurements.table import KernelRow
from aicb.model.architecture import MoeFfn
from aicb.model.precision import SCALE_BLOCK, GemmDtype, WeightDtype, activation_bytes_per_row, weight_matrix_bytes

MASKED_TOKENS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Tokens per rank of decode batches."""
CONTIGUOUS_TOKENS = (32, 64, 128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
"""Tokens per rank of prefill batches."""
GATHERED_TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192)
ENGINE_TOKENS = (*GATHERED_TOKENS[:-1], 6144, 8192, 12288, 16384)
"""Tokens of batches of an engine's kernel, whose tiles depend on them."""
SGLANG_OPERATION = "grouped_gemm_sglang"
"""Of SGLang's kernel, whose shapes are those of vLLM's."""
MARLIN_OPERATION = "grouped_gemm_marlin"
"""Of vLLM's Marlin kernel, the products of mxfp4 experts alone."""
UNIFORM = "multinomial"
"""Distribution of the times of an engine's kernel: every token draws its experts with equal chance."""
SHARED = " of "
"""Between the distribution and the experts of all ranks, where those of a point are one rank's of several."""
ALSO = " and one that all choose"
"""After the distribution, where the last expert is a shared one among the routed ones."""
SKEWED_TOKENS = (16, 64, 128, 512, 2048)
_OPERAND_LIMIT_BYTES = 40 << 30
_ROW_ALIGNMENT = 128


def experts_of_all_ranks(point: Point | KernelRow) -> int:
    """Experts of a layer, of which a point's ``groups`` are one rank's."""
    _, _, total = point.distribution.partition(SHARED)
    return int(total) if total else point["groups"]


def shared_points(
    experts: int, experts_per_token: int, ranks: int, columns: tuple[int, int], tokens: Sequence[int]
) -> Iterator[Point]:
    """Both projections of bf16 experts that ranks share, on the rank with the most rows.

    Args:
        experts, experts_per_token: of a layer.
        ranks: that share them.
        columns: hidden size, width of an expert.
        tokens: of all ranks together, a batch each.
    """
    hidden, width = columns
    for batch in tokens:
        rows = busiest_rank(expert_rows(UNIFORM, experts, batch, experts_per_token), ranks)
        if not rows.sum():
            continue
        shape = {"m": batch * experts_per_token, "groups": len(rows), "active_groups": int((rows > 0).sum())}
        shape |= {"rows": int(rows.sum()), "max_rows": int(rows.max()), "batch": batch}
        for n, k, per_row in ((2 * width, hidden, experts_per_token), (hidden, width, 1)):
            yield point(
                "grouped_gemm_gathered",
                "bf16",
                shape | {"n": n, "k": k, "experts_per_token": per_row},
                lengths=tuple(int(count) for count in rows),
                distribution=f"{UNIFORM}{SHARED}{experts}",
            )


def sglang_points(
    moe: MoeFfn, hidden: int, dtype: GemmDtype, tokens: Sequence[int], *, slices: int = 1, is_fused: bool = False
) -> Iterator[Point]:
    """Both projections of experts in SGLang's kernel, all of them on a rank, each perhaps a slice.

    Args:
        hidden: size of the model.
        tokens: a batch each.
        slices: of each expert, one per rank.
        is_fused: the shared expert is one of them.
    """
    for batch in tokens:
        rows = expert_rows(UNIFORM, moe.experts, batch, moe.experts_per_token)
        rows = np.append(rows, batch) if is_fused else rows
        for site in _sites(moe, hidden, slices, int(is_fused)):
            yield _engine_point(
                SGLANG_OPERATION, dtype, site, rows, batch, f"{UNIFORM}{ALSO}" if is_fused else UNIFORM, {}
            )


def sglang_shared_points(
    moe: MoeFfn, hidden: int, dtype: GemmDtype, tokens: Sequence[int], *, ranks: int
) -> Iterator[Point]:
    """The same of experts that ``ranks`` share, on the one with the most rows; ``tokens`` are of all ranks together."""
    for batch in tokens:
        rows = busiest_rank(expert_rows(UNIFORM, moe.experts, batch, moe.experts_per_token), ranks)
        for site in _sites(moe, hidden, 1, 0) if rows.sum() else ():
            distribution, pairs = f"{UNIFORM}{SHARED}{moe.experts}", {"m": batch * moe.experts_per_token}
            yield _engine_point(SGLANG_OPERATION, dtype, site, rows, batch, distribution, pairs)


def marlin_points(moe: MoeFfn, hidden: int, tokens: Sequence[int], *, slices: int = 1) -> Iterator[Point]:
    """Both projections of mxfp4 experts in vLLM's Marlin kernel, all of them on a rank, each perhaps a slice.

    Args:
        hidden: size of the model.
        tokens: a batch each.
        slices: of each expert, one per rank.
    """
    for batch in tokens:
        rows = expert_rows(UNIFORM, moe.experts, batch, moe.experts_per_token)
        for site in _sites(moe, hidden, slices, 0):
            yield _engine_point(MARLIN_OPERATION, "mxfp4", site, rows, batch, UNIFORM, {})


def _sites(moe: MoeFfn, hidden: int, slices: int, more: int) -> tuple[tuple[int, int, int], ...]:
    """Columns, inner size and pairs per row of both projections."""
    width = moe.intermediate // slices
    return (2 * width, hidden, moe.experts_per_token + more), (hidden, width, 1)


def _engine_point(
    operation: str,
    dtype: WeightDtype,
    site: tuple[int, int, int],
    rows: NDArray[np.int64],
    batch: int,
    distribution: str,
    pairs: Mapping[str, int],
) -> Point:
    n, k, per_row = site
    shape = {"n": n, "k": k, "groups": len(rows), "active_groups": int((rows > 0).sum()), "rows": int(rows.sum())}
    shape |= {"max_rows": int(rows.max()), "batch": batch, "experts_per_token": per_row, **pairs}
    lengths = tuple(int(count) for count in rows)
    return point(operation, dtype, shape, lengths=lengths, distribution=distribution)


def partition_points(swept: SweptModel, moe: MoeFfn, dtype: WeightDtype, parts: tuple[int, int]) -> Iterator[Point]:
    """``parts``: ranks that share the experts, slices of each expert."""
    ranks, slices = parts
    width, hidden = moe.intermediate // slices, swept.model.hidden
    tag = f"{swept.model.name}/{{}}/ep{ranks}" + (f"tp{slices}" if slices > 1 else "")
    for layout, tokens, distribution in _batches(dtype, parts, width):
        if tokens > swept.most_counted_tokens:
            continue
        rows = busiest_rank(expert_rows(distribution, moe.experts, tokens * ranks, moe.experts_per_token), ranks)
        for name, n, k, per_row in (("up", 2 * width, hidden, moe.experts_per_token), ("down", hidden, width, 1)):
            yield from _layout_points(layout, dtype, (n, k, per_row), rows, tokens, distribution, tag.format(name))


def _batches(dtype: WeightDtype, parts: tuple[int, int], width: int) -> Iterator[tuple[str, int, str]]:
    """(layout, tokens, distribution) of the points of one partition.

    bf16 experts are gathered in all partitions, mxfp4 ones where every rank holds all. fp8 experts are where an engine
    does so: with all experts on every rank and whole scale blocks (vLLM 0.24, ``oracle/fp8.py`` and
    ``quantization/fp8.py``), for uniform routing above all.
    """
    if dtype == "mxfp4":
        yield from (("gathered", tokens, UNIFORM) for tokens in ENGINE_TOKENS if parts[0] == 1)
        return
    layouts = [("masked", MASKED_TOKENS), ("contiguous", CONTIGUOUS_TOKENS)]
    if dtype == "bf16":
        layouts.append(("gathered", GATHERED_TOKENS))
    for layout, counts in layouts:
        for tokens, distribution in product(counts, DISTRIBUTIONS):
            if distribution == "balanced" or tokens in SKEWED_TOKENS:
                yield layout, tokens, distribution
    if dtype == "fp8" and parts[0] == 1 and width % SCALE_BLOCK == 0:
        yield from (("gathered", tokens, UNIFORM) for tokens in ENGINE_TOKENS)
        yield from product(("gathered",), SKEWED_TOKENS, [name for name in DISTRIBUTIONS if name != UNIFORM])


def _layout_points(
    layout: str,
    dtype: WeightDtype,
    site: tuple[int, int, int],
    rows: NDArray[np.int64],
    tokens: int,
    distribution: str,
    tag: str,
) -> Iterator[Point]:
    n, k, per_row = site
    groups, total, largest = len(rows), int(rows.sum()), int(rows.max())
    shape = {"n": n, "k": k, "groups": groups, "active_groups": int((rows > 0).sum()), "rows": total}
    shape |= {"max_rows": largest, "batch": tokens}
    capacity = -(-largest // _ROW_ALIGNMENT) * _ROW_ALIGNMENT
    held = groups * weight_matrix_bytes(n, k, dtype)
    priority = int(layout == "gathered" and dtype == "fp8" and distribution != UNIFORM)
    if layout == "masked":
        shape |= {"max_m": capacity, "expected_m": -(-total // groups)}
        held += groups * capacity * (activation_bytes_per_row(k, "fp8" if dtype == "fp8" else "bf16") + 2 * n)
    if layout == "gathered":
        shape["experts_per_token"] = per_row
    if held + total * (k + n) * 4 > _OPERAND_LIMIT_BYTES or total == 0:
        return
    lengths = tuple(int(count) for count in rows)
    is_fused = dtype == "mxfp4" and per_row > 1
    op = "grouped_gemm_swiglu" if is_fused else f"grouped_gemm_{layout}"
    yield point(op, dtype, shape, lengths=lengths, distribution=distribution, tag=tag, priority=priority)
    if layout == "masked" and distribution == "balanced" and tokens in (16, 128):
        roomy = shape | {"max_m": 4 * capacity}
        yield point(f"grouped_gemm_{layout}", dtype, roomy, lengths=lengths, distribution=distribution, tag=tag)
