"""Errors of estimates against published tables of the same GPU and kernels.

The tables are those of aiconfigurator 095f58a (Apache-2.0): other machines, builds and timing methods, to which nothing
here is fitted. They are not shipped: who has them as ``NAME.csv.gz`` names their folder.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from aicb.estimators.accuracy.held_out import GPU, Errors, errors_of
from aicb.estimators.estimator import CostTable
from aicb.estimators.interpolation import InterpolationEstimator
from aicb.estimators.price_many import price_many
from aicb.kernels.elementwise import Elementwise
from aicb.kernels.fitting.kriging import Floats
from aicb.kernels.gemm import Gemm
from aicb.kernels.grouped_gemm import GroupedGemm
from aicb.kernels.kernel import Kernel
from aicb.kernels.prefill_attention import PrefillAttention
from aicb.measurements.clock import steady_us
from aicb.model.precision import GemmDtype, Precision
from boundary.errors import InputError

TABLES = ("gemm", "attention_context", "attention_generation", "moe_wideep_generation")
LONG_PROMPT = 1024
"""Tokens from which on the attention kernel itself is most of the published time."""
SHORTEST_CACHE = 1024
"""KV tokens of the shortest cache in the shipped table's decode rows; shorter ones are extrapolated."""


def published(folder: Path) -> Iterator[Errors]:
    """All comparisons.

    Raises:
        InputError: a table is missing.
    """
    for name in TABLES:
        if not (folder / f"{name}.csv.gz").is_file():
            raise InputError(f"{folder}: found no {name}.csv.gz, expected the published tables {', '.join(TABLES)}")
    yield published_gemms(folder, "0.5.9", "fp8")
    yield published_gemms(folder, "0.5.14", "fp8")
    yield published_gemms(folder, "0.5.14", "bf16")
    for framework in ("sglang", "vllm"):
        yield from published_prefill(folder, framework)
    for framework in ("sglang", "vllm"):
        for short in (False, True):
            yield published_decode(folder, framework, short)
    yield published_experts(folder)


def _rows(folder: Path, name: str, **chosen: str) -> list[dict[str, str]]:
    with gzip.open(folder / f"{name}.csv.gz", "rt", encoding="utf-8") as file:
        wanted = {"system": "h200_sxm", **chosen}
        return [row for row in csv.DictReader(file) if all(row[key] == value for key, value in wanted.items())]


def _steady(kernels: Sequence[Kernel], time_us: Floats) -> Floats:
    """Times as benchmarks take them: each kernel back to back, at the clock it sustains."""
    _, clocked, tensor = CostTable.of(kernels, Precision()).loads_us(GPU, time_us)
    assert GPU.clock is not None
    return steady_us(GPU.clock, time_us, clocked, tensor)


def _columns(rows: list[dict[str, str]], *names: str) -> list[Floats]:
    return [np.array([float(row[name]) for row in rows]) for name in names]


def published_gemms(folder: Path, version: str, dtype: str) -> Errors:
    """Within reach of measured sites, m up to 16384. Their fp8 time includes the activation's quantisation: ours is
    added. Weights alternate between copies there, so they are cold as inside a model."""
    estimator = InterpolationEstimator(GPU)
    rows = _rows(folder, "gemm", version=version, gemm_dtype="fp8_block" if dtype == "fp8" else "bfloat16")
    m, n, k, time_us = _columns(rows, "m", "n", "k", "latency_us")
    many = price_many(estimator, "gemm_fp8" if dtype == "fp8" else "gemm_bf16", {"n": n, "k": k, "m": m})
    form: GemmDtype = "fp8" if dtype == "fp8" else "bf16"
    kernels = [Gemm(int(a), int(b), int(c), form) for a, b, c in zip(m, n, k, strict=True)]
    predicted = _steady(kernels, many.time_us)
    if dtype == "fp8":
        pairs, inverse = np.unique(np.column_stack([m, k]), axis=0, return_inverse=True)
        quant = [
            estimator.price(Elementwise("quant", int(a), int(b), round(3.03125 * a * b))).time_us for a, b in pairs
        ]
        predicted = predicted + np.array(quant)[inverse.reshape(-1)]
    kept = ~many.is_estimate & (m <= 16384)
    return errors_of(f"{dtype} GEMM", f"SGLang {version}", "published", predicted[kept] / time_us[kept] - 1.0)


def published_prefill(folder: Path, framework: str) -> Iterator[Errors]:
    """FA3, bf16, long and short prompts (128 tokens and more) without past, head dimension 128; every third row."""
    estimator = InterpolationEstimator(GPU)
    rows = _rows(folder, "attention_context", framework=framework, attn_dtype="bfloat16", kv_cache_dtype="bfloat16")
    kernels, times, is_long = [], [], []
    for row in rows[::3]:
        heads, kv_heads, dim, batch, length = (
            int(row[key]) for key in ("num_heads", "num_kv_heads", "head_dim", "batch_size", "seq_len")
        )
        if dim != 128 or length < 128:
            continue
        lengths = np.full(batch, length)
        kernel = PrefillAttention(lengths, lengths, heads, kv_heads, dim, dim)
        found = estimator.price(kernel)
        if not found.is_estimate:
            kernels.append(kernel)
            times.append((found.time_us, float(row["latency_us"])))
            is_long.append(length >= LONG_PROMPT)
    ours, theirs = np.array(times).T
    relative = _steady(kernels, ours) / theirs - 1.0
    long = np.array(is_long)
    yield errors_of(f"FA3 prefill from {LONG_PROMPT}", framework, "published", relative[long])
    yield errors_of(f"FA3 prefill below {LONG_PROMPT}", framework, "published", relative[~long])


def published_decode(folder: Path, framework: str, short: bool) -> Errors:
    """FA3, bf16 cache, head dimension 128."""
    rows = _rows(folder, "attention_generation", framework=framework, kv_cache_dtype="bfloat16", head_dim="128")
    names = ("num_heads", "num_kv_heads", "head_dim", "batch_size", "kv_len", "latency_us")
    heads, kv_heads, dim, batch, kv, time_us = _columns(rows, *names)
    columns = {"heads": heads, "kv_heads": kv_heads, "d_qk": dim, "batch": batch, "kv_len": kv}
    many = price_many(InterpolationEstimator(GPU, timing="graph"), "decode_attention", columns)
    is_short = kv < SHORTEST_CACHE
    kept = ~many.is_estimate & (is_short if short else ~is_short)
    name = f"FA3 decode, KV {'below' if short else 'from'} {SHORTEST_CACHE}"
    return errors_of(name, framework, "published", many.time_us[kept] / time_us[kept] - 1.0)


def published_experts(folder: Path) -> Errors:
    """DeepSeek-V3 experts of one rank in the masked layout, equal rows: up, activation with quantisation, down."""
    estimator = InterpolationEstimator(GPU)
    relative = []
    for row in _rows(folder, "moe_wideep_generation", distribution="uniform"):
        local = 256 // int(row["moe_ep_size"])
        rows = int(row["num_tokens_global"]) * int(row["topk"]) / 256
        per_expert, active = max(int(rows), 1), local if rows >= 1 else max(round(rows * local), 1)
        total = per_expert * active
        kernels: list[Kernel] = [
            GroupedGemm(total, local, active, 4096, 7168, "fp8", "masked"),
            Elementwise("silu_mul_quant", total, 2048, round(5.03125 * total * 2048)),
            GroupedGemm(total, local, active, 7168, 2048, "fp8", "masked"),
        ]
        predicted = _steady(kernels, np.array([estimator.price(kernel).time_us for kernel in kernels])).sum()
        relative.append(predicted / float(row["latency_us"]) - 1.0)
    return errors_of("masked experts", "SGLang 0.5.10", "published", np.array(relative))
