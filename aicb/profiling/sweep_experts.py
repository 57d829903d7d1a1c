"""Grouped-GEMM points of a model's routed experts: expert parallelism, tokens, routing distributions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from aicb.model.architecture import Model, MoeFfn
from aicb.model.precision import ELEMENT_BYTES, WeightDtype
from aicb.profiling.point import Point, point
from aicb.profiling.routing import DISTRIBUTIONS, busiest_rank, expert_rows

MASKED_TOKENS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Tokens per rank of decode batches."""
CONTIGUOUS_TOKENS = (32, 64, 128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
"""Tokens per rank of prefill batches."""
GATHERED_TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192)
SKEWED_TOKENS = (16, 64, 128, 512, 2048)
_OPERAND_LIMIT_BYTES = 40 << 30
_ROW_ALIGNMENT = 128


def expert_points(
    model: Model, weights: Sequence[WeightDtype], tp: Sequence[int], ep: Sequence[int], tokens: Sequence[int]
) -> Iterator[Point]:
    """Points of every kind of routed experts: whole experts at each ``ep``, sliced ones (ep 1) at each ``tp``.

    Rows are those of the busiest rank: ``tokens`` per rank times ``ep`` ranks are routed together.
    """
    kinds = dict.fromkeys(layer.ffn for layer in model.layers if isinstance(layer.ffn, MoeFfn))
    for moe, dtype in product(kinds, weights):
        sliced = [(1, size) for size in tp if moe.intermediate % size == 0]
        whole = [(size, 1) for size in ep if size > 1 and moe.experts % size == 0]
        for ranks, slices in [*sliced, *whole]:
            yield from _partition(model, moe, dtype, (ranks, slices), max(tokens))


def _partition(model: Model, moe: MoeFfn, dtype: WeightDtype, parts: tuple[int, int], most: int) -> Iterator[Point]:
    ranks, slices = parts
    width = moe.intermediate // slices
    tag = f"{model.name}/{{}}/ep{ranks}" + (f"tp{slices}" if slices > 1 else "")
    layouts = [("masked", MASKED_TOKENS), ("contiguous", CONTIGUOUS_TOKENS)]
    if dtype == "bf16":
        layouts.append(("gathered", GATHERED_TOKENS))
    for layout, counts in layouts:
        for tokens, distribution in product(counts, DISTRIBUTIONS):
            if tokens > most or (distribution != "balanced" and tokens not in SKEWED_TOKENS):
                continue
            rows = busiest_rank(expert_rows(distribution, moe.experts, tokens * ranks, moe.experts_per_token), ranks)
            for name, n, k, per_row in (
                ("up", 2 * width, model.hidden, moe.experts_per_token),
                ("down", model.hidden, width, 1),
            ):
                yield from _layout_points(layout, dtype, (n, k, per_row), rows, tokens, distribution, tag.format(name))


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
    held = groups * n * k * ELEMENT_BYTES[dtype]
    if layout == "masked":
        shape |= {"max_m": capacity, "expected_m": -(-total // groups)}
        held += groups * capacity * (k * ELEMENT_BYTES[dtype] + 2 * n)
    if layout == "gathered":
        shape["experts_per_token"] = per_row
    if held + total * (k + n) * 4 > _OPERAND_LIMIT_BYTES or total == 0:
        return
    lengths = tuple(int(count) for count in rows)
    yield point(f"grouped_gemm_{layout}", dtype, shape, lengths=lengths, distribution=distribution, tag=tag)
    if layout == "masked" and distribution == "balanced" and tokens in (16, 128):
        roomy = shape | {"max_m": 4 * capacity}
        yield point(f"grouped_gemm_{layout}", dtype, roomy, lengths=lengths, distribution=distribution, tag=tag)
