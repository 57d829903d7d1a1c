#!/usr/bin/env python3
"""How far estimated kernel times lie from measured ones.

    python tests/validation/compute_accuracy.py [--timing engine|graph|cold] [--json]

*Held out*: the shapes of a kernel are divided by group (whole (n, k) of a GEMM, one m of all sites, whole batch column
of an attention kernel) into five folds; each fold is predicted from the other four, so 20 % are held out at a time and
every point is predicted once. Interpolation, forest and roofline see the same folds.

*Repeated*: shapes that two measuring sessions share. An estimate cannot be nearer to a measurement than another
measurement is.

*Independent*: published tables of the same GPU and kernels (aiconfigurator 095f58a, Apache-2.0; other machines, builds
and timing methods), which nothing here is fitted to. They are read beside the repository and skipped where absent.
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

import numpy as np

from aicb.estimators import InterpolationEstimator, RooflineEstimator, Timing, price_many
from aicb.estimators.forest import Forest
from aicb.estimators.kriging import Floats
from aicb.estimators.surface import Surface
from aicb.gpu import get_gpu
from aicb.operators import (
    BatchedGemm,
    DecodeAttention,
    Elementwise,
    Gemm,
    GroupedGemm,
    MlaDecode,
    PrefillAttention,
    Work,
)
from aicb.precision import Precision
from aicb.table import EVEN_DISTRIBUTIONS, KernelRow, KernelTable

PUBLISHED = Path(__file__).resolve().parents[3] / "shared" / "data" / "kernels"
FOLDS = 5
SHORTEST_CACHE = 1024
"""KV tokens of the shortest cache in the shipped table's decode rows; shorter ones are extrapolated."""
GPU = get_gpu("h200")


@dataclass(frozen=True, slots=True)
class Errors:
    """Absolute relative errors of one kernel under one method."""

    kernel: str
    groups: str
    method: str
    points: int
    median: float
    p90: float
    within_claim: float | None
    """Share of points within the error that the estimate states; absent where none is stated."""


def errors_of(kernel: str, groups: str, method: str, relative: Floats, claimed: Floats | None = None) -> Errors:
    size = np.abs(relative)
    within = None if claimed is None else float((size <= claimed).mean())
    return Errors(kernel, groups, method, len(size), float(np.median(size)), float(np.quantile(size, 0.9)), within)


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel and the columns of its shapes that are held out together."""

    kernel: str
    groups: str
    surface: Surface
    columns: tuple[int, ...]
    work: Callable[[list[float]], Work]


def cases(timing: Timing) -> list[Case]:
    """All kernels with enough shapes."""
    estimator = InterpolationEstimator(GPU, Precision(state="fp32"), timing)
    found = []
    for dtype in ("fp8", "bf16"):
        surface = estimator.gemm[dtype].surface
        for groups, columns in (("(n, k)", (0, 1)), ("m", (2,))):
            found.append(Case(f"{dtype} GEMM", groups, surface, columns, lambda s, d=dtype: _gemm(s, d)))
    for layout, experts in estimator.grouped.items():
        for dtype, surface in experts.surfaces.items():
            if dtype == "bf16" and layout != "masked":
                continue  # both layouts take the gathered kernel's times
            for groups, columns in (("(n, k)", (2, 3)), ("experts, (n, k)", (0, 1, 2, 3))):
                make = lambda s, d=dtype, at=layout: _grouped(s, d, at)  # noqa: E731
                found.append(
                    Case(
                        f"{dtype} grouped GEMM, {layout if dtype == 'fp8' else 'gathered'}",
                        groups,
                        surface,
                        columns,
                        make,
                    )
                )
    return [
        *found,
        Case("bmm", "m", estimator.batched.surface, (3,), lambda s: BatchedGemm(*map(int, (s[0], s[3], s[1], s[2])))),
        Case("FA3 prefill", "(q, S)", estimator.prefill.surface, (5, 6), _prefill),
        Case("FA3 decode", "batch column", estimator.paged.surface, (0, 1, 2, 3), _decode),
        Case("FlashMLA decode", "batch column", estimator.latent.surface, (0, 1), _mla),
        Case("RMSNorm + add", "columns", estimator.elementwise.measured["add_rms_norm"], (0,), _norm),
    ]


def _gemm(shape: list[float], dtype: str) -> Work:
    n, k, m = map(int, shape)
    return Gemm(m, n, k, dtype)  # type: ignore[arg-type]


def _grouped(shape: list[float], dtype: str, layout: str) -> Work:
    groups, active, n, k, rows = shape
    return GroupedGemm(rows * active, int(groups), active, int(n), int(k), dtype, layout)  # type: ignore[arg-type]


def _prefill(shape: list[float]) -> Work:
    heads, kv_heads, d_qk, d_v, _, kv, new = map(int, shape)
    return PrefillAttention(np.array([new]), np.array([kv]), heads, kv_heads, d_qk, d_v)


def _decode(shape: list[float]) -> Work:
    heads, kv_heads, dim, batch, kv = map(int, shape)
    return DecodeAttention(np.full(batch, kv), heads, kv_heads, dim)


def _mla(shape: list[float]) -> Work:
    heads, batch, kv = map(int, shape)
    return MlaDecode(np.full(batch, kv), heads, 576, 512)


def _norm(shape: list[float]) -> Work:
    columns, rows = map(int, shape)
    return Elementwise("add_rms_norm", rows, columns, 8 * rows * columns)


def held_out(case: Case) -> Iterator[Errors]:
    """One kernel under the three methods."""
    surface = case.surface
    groups = [tuple(shape) for shape in surface.shapes[:, case.columns].tolist()]
    order = np.random.default_rng(0).permutation(len(distinct := sorted(set(groups))))
    fold_of = {group: int(position) % FOLDS for group, position in zip(distinct, order, strict=True)}
    folds = [fold_of[group] for group in groups]
    kriged = surface.hold_out(folds)
    yield errors_of(case.kernel, case.groups, "interpolation", kriged.relative, kriged.claimed)
    predicted = np.empty(len(folds))
    for fold in range(FOLDS):
        out = np.array(folds) == fold
        if out.any():
            predicted[out] = Forest(surface.shapes[~out], surface.times_us[~out]).times(surface.shapes[out])
    yield errors_of(case.kernel, case.groups, "forest", predicted / surface.times_us - 1.0)
    roofline = RooflineEstimator(GPU)
    bound = np.array([roofline.price(case.work(shape)).time_us for shape in surface.shapes.tolist()])
    yield errors_of(case.kernel, case.groups, "roofline", bound / surface.times_us - 1.0)


def _published(name: str, **chosen: str) -> list[dict[str, str]]:
    with gzip.open(PUBLISHED / f"{name}.csv.gz", "rt", encoding="utf-8") as file:
        wanted = {"system": "h200_sxm", **chosen}
        return [row for row in csv.DictReader(file) if all(row[key] == value for key, value in wanted.items())]


def _columns(rows: list[dict[str, str]], *names: str) -> list[Floats]:
    return [np.array([float(row[name]) for row in rows]) for name in names]


def published_gemms(version: str, dtype: str) -> Errors:
    """Within reach of measured sites, m up to 16384. Their fp8 time includes the activation's quantisation: ours is
    added. Weights alternate between copies there, so they are cold as inside a model."""
    estimator = InterpolationEstimator(GPU)
    rows = _published("gemm", version=version, gemm_dtype="fp8_block" if dtype == "fp8" else "bfloat16")
    m, n, k, time_us = _columns(rows, "m", "n", "k", "latency_us")
    many = price_many(estimator, "gemm_fp8" if dtype == "fp8" else "gemm_bf16", {"n": n, "k": k, "m": m})
    predicted = many.time_us
    if dtype == "fp8":
        pairs, inverse = np.unique(np.column_stack([m, k]), axis=0, return_inverse=True)
        quant = [
            estimator.price(Elementwise("quant", int(a), int(b), round(3.03125 * a * b))).time_us for a, b in pairs
        ]
        predicted = predicted + np.array(quant)[inverse.reshape(-1)]
    kept = ~many.is_estimate & (m <= 16384)
    return errors_of(f"{dtype} GEMM", f"SGLang {version}", "published", predicted[kept] / time_us[kept] - 1.0)


def published_prefill(framework: str) -> Errors:
    """FA3, bf16, prompts of 128 tokens and more without past, head dimension 128; every third row."""
    estimator = InterpolationEstimator(GPU)
    rows = _published("attention_context", framework=framework, attn_dtype="bfloat16", kv_cache_dtype="bfloat16")
    relative = []
    for row in rows[::3]:
        heads, kv_heads, dim, batch, length = (
            int(row[key]) for key in ("num_heads", "num_kv_heads", "head_dim", "batch_size", "seq_len")
        )
        if dim != 128 or length < 128:
            continue
        lengths = np.full(batch, length)
        found = estimator.price(PrefillAttention(lengths, lengths, heads, kv_heads, dim, dim))
        if not found.is_estimate:
            relative.append(found.time_us / float(row["latency_us"]) - 1.0)
    return errors_of("FA3 prefill", framework, "published", np.array(relative))


def published_decode(framework: str, short: bool) -> Errors:
    """FA3, bf16 cache, head dimension 128."""
    rows = _published("attention_generation", framework=framework, kv_cache_dtype="bfloat16", head_dim="128")
    names = ("num_heads", "num_kv_heads", "head_dim", "batch_size", "kv_len", "latency_us")
    heads, kv_heads, dim, batch, kv, time_us = _columns(rows, *names)
    columns = {"heads": heads, "kv_heads": kv_heads, "d_qk": dim, "batch": batch, "kv_len": kv}
    many = price_many(InterpolationEstimator(GPU, timing="graph"), "decode_attention", columns)
    is_short = kv < SHORTEST_CACHE
    kept = ~many.is_estimate & (is_short if short else ~is_short)
    name = f"FA3 decode, KV {'below' if short else 'from'} {SHORTEST_CACHE}"
    return errors_of(name, framework, "published", many.time_us[kept] / time_us[kept] - 1.0)


def published_experts() -> Errors:
    """DeepSeek-V3 experts of one rank in the masked layout, equal rows: up, activation with quantisation, down."""
    estimator = InterpolationEstimator(GPU)
    relative = []
    for row in _published("moe_wideep_generation", distribution="uniform"):
        local = 256 // int(row["moe_ep_size"])
        rows = int(row["num_tokens_global"]) * int(row["topk"]) / 256
        per_expert, active = max(int(rows), 1), local if rows >= 1 else max(round(rows * local), 1)
        total = per_expert * active
        works: list[Work] = [
            GroupedGemm(total, local, active, 4096, 7168, "fp8", "masked"),
            Elementwise("silu_mul_quant", total, 2048, round(5.03125 * total * 2048)),
            GroupedGemm(total, local, active, 7168, 2048, "fp8", "masked"),
        ]
        predicted = sum(estimator.price(work).time_us for work in works)
        relative.append(predicted / float(row["latency_us"]) - 1.0)
    return errors_of("masked experts", "SGLang 0.5.10", "published", np.array(relative))


def published() -> list[Errors]:
    """All comparisons with published tables; none where they are absent."""
    if not PUBLISHED.is_dir():
        return []
    return [
        published_gemms("0.5.9", "fp8"),
        published_gemms("0.5.14", "fp8"),
        published_gemms("0.5.14", "bf16"),
        *(published_prefill(framework) for framework in ("sglang", "vllm")),
        *(published_decode(framework, short) for framework in ("sglang", "vllm") for short in (False, True)),
        published_experts(),
    ]


def repeats(timing: Timing) -> list[Errors]:
    """Shapes that two measuring sessions share: the later time against the earlier, event floors included."""
    table = KernelTable.load("h200")
    probe = KernelTable("h200", table.rows, {})
    found = []
    for op in ("gemm", "grouped_gemm_masked", "grouped_gemm_contiguous", *ATTENTION):
        earlier = {_key(row): row for row in probe.select(op, distribution="even")}
        pairs = [(earlier[key], row) for part in table.parts for row in part.rows(op) if (key := _key(row)) in earlier]
        times = [(_time(old, timing), _time(new, timing)) for old, new in pairs]
        both = np.array([pair for pair in times if None not in pair], dtype=np.float64)
        if len(both):
            found.append(errors_of(op, "sessions", "repeat", both[:, 1] / both[:, 0] - 1.0))
    return found


ATTENTION = ("prefill_attention", "decode_attention", "mla_decode")


def _key(row: KernelRow) -> tuple[object, ...]:
    kind = "even" if row.distribution in EVEN_DISTRIBUTIONS else row.distribution + row.lengths
    return (row.dtype, kind, *sorted(row.shape.items()))


def _time(row: KernelRow, timing: Timing) -> float | None:
    return row.graph_us if timing == "graph" else row.cold_us


def _print_held_out(found: list[Errors]) -> None:
    print("| kernel | held out | points | interpolation | within its claim | forest | roofline |")
    print("|---|---|---|---|---|---|---|")
    for kriged, forest, roofline in zip(found[::3], found[1::3], found[2::3], strict=True):
        cells = [f"{100 * each.median:.1f} / {100 * each.p90:.1f}" for each in (kriged, forest, roofline)]
        within = f"{kriged.within_claim:.0%}"
        print(
            f"| {kriged.kernel} | {kriged.groups} | {kriged.points} | {cells[0]} | {within} | {cells[1]} | {cells[2]} |"
        )


def main() -> None:
    arguments = sys.argv[1:]
    timing = arguments[arguments.index("--timing") + 1] if "--timing" in arguments else "graph"
    if timing not in get_args(Timing):
        sys.exit(f"timing: found {timing!r}, expected one of {', '.join(get_args(Timing))}")
    own = [errors for case in cases(timing) for errors in held_out(case)]  # type: ignore[arg-type]
    again, theirs = repeats(timing), published()  # type: ignore[arg-type]
    if "--json" in arguments:
        print(json.dumps([asdict(errors) for errors in (*own, *again, *theirs)]))
        return
    print(f"Held out, {timing} times, absolute relative error in %, median / p90\n")
    _print_held_out(own)
    print("\nThe same shapes in two sessions; published tables: % of their time\n")
    print("| kernels | table | points | median | p90 |\n|---|---|---|---|---|")
    for each in (*again, *theirs):
        print(f"| {each.kernel} | {each.groups} | {each.points} | {100 * each.median:.1f} | {100 * each.p90:.1f} |")


if __name__ == "__main__":
    main()
