"""Tables of NVIDIA's aiconfigurator: one file per operation, known by its columns.

Read: GEMM, context and generation attention, generation MLA. Times are ``latency_us``, or ``latency`` in ms as in the
project's own files. A file may hold several systems, frameworks and versions; rows of different origin are never mixed,
so conditions must leave one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aicb.formats.imports.rows import count, kernel_row, positive_us
from boundary.errors import InputError

ORIGIN = ("system", "framework", "version", "kernel", "kernel_source", "sample")
"""Columns that tell where a row was measured; each may have one value only (a repeated sample is averaged)."""
DTYPES = {"bfloat16": "bf16", "float16": "bf16", "fp8_block": "fp8"}
"""Formats of this project; rows of others are left out with a caution."""
MLA_DIMENSIONS = {"d_qk": 576, "d_v": 512}
QUANTISED = "fp8_block GEMM times include the dynamic 1x128 quantisation of activations (about 1.2 x the kernel alone)"


def read(rows: Sequence[Mapping[str, str]], name: str) -> tuple[list[dict[str, str]], list[str]]:
    """Rows of one file and cautions; ``name`` is what errors call it.

    Raises:
        InputError: an unknown table, several origins, a bad number.
    """
    columns = set(rows[0])
    if {"m", "n", "k", "gemm_dtype"} <= columns:
        convert, dtype = _gemm, "gemm_dtype"
    elif {"seq_len", "num_heads", "num_kv_heads", "head_dim"} <= columns:
        convert, dtype = _context, "attn_dtype"
    elif {"kv_len", "num_heads", "num_kv_heads", "head_dim"} <= columns:
        convert, dtype = _generation, "attn_dtype"
    elif {"kv_len", "num_heads", "batch_size", "kv_cache_dtype"} <= columns:
        convert, dtype = _latent, "kv_cache_dtype"
    else:
        found = ", ".join(sorted(columns))
        raise InputError(f"{name}: header: found {found}, expected a GEMM, attention or MLA table of aiconfigurator")
    _check_origin(rows, name)
    kept = [(i, row) for i, row in enumerate(rows, start=2) if row.get(dtype) in DTYPES]
    cautions = []
    if left_out := len(rows) - len(kept):
        cautions.append(f"{name}: {left_out} rows of other formats than {', '.join(DTYPES)} left out")
    if any(row.get("gemm_dtype") == "fp8_block" for _, row in kept):
        cautions.append(f"{name}: {QUANTISED}")
    cautions.append(f"{name}: several weight copies per CUDA graph, L2 partly cold, clocks as they were")
    return [convert(row, f"{name}: line {i}") for i, row in kept], cautions


def _check_origin(rows: Sequence[Mapping[str, str]], name: str) -> None:
    for column in ORIGIN[:-1]:
        found = sorted({row[column] for row in rows if column in row})
        if len(found) > 1:
            raise InputError(
                f"{name}: {column}: found {', '.join(found[:6])}, expected one (--where {column}={found[0]})"
            )


def _time(row: Mapping[str, str], place: str) -> float:
    if "latency_us" in row:
        return positive_us(row, "latency_us", place)
    return positive_us(row, "latency", place, us_per_unit=1000.0)


def _kernel(row: Mapping[str, str], operation: str) -> str:
    source = row.get("kernel") or row.get("kernel_source") or operation
    return f"{row.get('framework', 'aiconfigurator')} {row.get('version', '')}/{source}"


def _gemm(row: Mapping[str, str], place: str) -> dict[str, str]:
    includes = "+quant" if row["gemm_dtype"] == "fp8_block" else ""
    shape = {column: count(row, column, place) for column in ("m", "n", "k")}
    return kernel_row("gemm", _kernel(row, "gemm") + includes, DTYPES[row["gemm_dtype"]], _time(row, place), shape)


def _attention(row: Mapping[str, str], place: str) -> dict[str, int]:
    heads, kv_heads = count(row, "num_heads", place), count(row, "num_kv_heads", place)
    dim = count(row, "head_dim", place)
    shape = {"batch": count(row, "batch_size", place), "heads": heads, "d_qk": dim, "d_v": dim}
    return {**shape, "kv_heads": kv_heads or heads}  # 0 stands for as many KV heads as query heads


def _context(row: Mapping[str, str], place: str) -> dict[str, str]:
    length = count(row, "seq_len", place)
    shape = {**_attention(row, place), "q_len": length, "kv_len": length}
    return kernel_row("prefill_attention", _kernel(row, "context"), "bf16", _time(row, place), shape)


def _generation(row: Mapping[str, str], place: str) -> dict[str, str]:
    shape = {**_attention(row, place), "q_len": 1, "kv_len": count(row, "kv_len", place)}
    return kernel_row("decode_attention", _kernel(row, "generation"), "bf16", _time(row, place), shape)


def _latent(row: Mapping[str, str], place: str) -> dict[str, str]:
    shape = {
        "batch": count(row, "batch_size", place),
        "q_len": 1,
        "kv_len": count(row, "kv_len", place),
        "heads": count(row, "num_heads", place),
        "kv_heads": 1,
        **MLA_DIMENSIONS,
    }
    return kernel_row("mla_decode", _kernel(row, "mla"), "bf16", _time(row, place), shape)
