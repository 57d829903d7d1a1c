"""Profiles of Microsoft's Vidur: ``mlp.csv`` and ``attention.csv``; times in ms, 16-bit floats.

Projections become GEMMs, norms ``rms_norm``, attention its kernels. What has no counterpart here (RoPE, activation,
reshapes, embedding) is left out. Head size is n_embd / n_head, as in Vidur.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aicb.formats.imports.rows import count, kernel_row, number, positive_us, text
from boundary.errors import InputError

STATISTIC = "median"
CAUTION = "16-bit floats (fp16 or bf16) taken as bf16; times are medians of a profiler, kernels without launch gaps"


def read(rows: Sequence[Mapping[str, str]], name: str) -> tuple[list[dict[str, str]], list[str]]:
    """Rows of one file and cautions.

    Raises:
        InputError: an unknown table, sizes that do not divide, a bad number.
    """
    columns = set(rows[0])
    if "num_tokens" in columns:
        convert = _mlp
    elif {"prefill_chunk_size", "kv_cache_size"} <= columns:
        convert = _attention
    else:
        raise InputError(f"{name}: header: found {len(columns)} columns, expected Vidur's mlp.csv or attention.csv")
    listed = [kernel for i, row in enumerate(rows, start=2) for kernel in convert(row, f"{name}: line {i}")]
    return listed, [f"{name}: {CAUTION}"]


def _time(row: Mapping[str, str], op: str, place: str) -> float | None:
    """µs, or nothing where the row did not run the operator."""
    column = f"time_stats.{op}.{STATISTIC}"
    if row.get(column, "") in ("", "nan", "None"):
        return None
    if number(row, column, place) == 0.0:
        return None
    return positive_us(row, column, place, us_per_unit=1000.0)


def _mlp(row: Mapping[str, str], place: str) -> list[dict[str, str]]:
    heads, kv_heads, hidden, width, tp, tokens = (
        count(row, column, place)
        for column in (
            "n_head",
            "n_kv_head",
            "n_embd",
            "n_expanded_embd",
            "num_tensor_parallel_workers",
            "num_tokens",
        )
    )
    dim = _divided(hidden, heads, "n_embd", place)
    columns = (heads + 2 * max(kv_heads, tp)) * dim
    up = width * (2 if text(row, "use_gated_mlp", place).lower() in ("true", "1") else 1)
    shapes = {
        "attn_pre_proj": (_divided(columns, tp, "qkv columns", place), hidden),
        "attn_post_proj": (hidden, _divided(hidden, tp, "n_embd", place)),
        "mlp_up_proj": (_divided(up, tp, "n_expanded_embd", place), hidden),
        "mlp_down_proj": (hidden, _divided(width, tp, "n_expanded_embd", place)),
    }
    listed = []
    for op, (n, k) in shapes.items():
        if (time_us := _time(row, op, place)) is not None:
            listed.append(kernel_row("gemm", f"vidur/{op}", "bf16", time_us, {"m": tokens, "n": n, "k": k}))
    if (time_us := _time(row, "input_layernorm", place)) is not None:
        listed.append(kernel_row("rms_norm", "vidur/input_layernorm", "bf16", time_us, {"m": tokens, "n": hidden}))
    return listed


def _attention(row: Mapping[str, str], place: str) -> list[dict[str, str]]:
    tp, query_heads = count(row, "num_tensor_parallel_workers", place), count(row, "n_q_head", place)
    dim = _divided(count(row, "n_embd", place), query_heads, "n_embd", place)
    chunk, cached = count(row, "prefill_chunk_size", place), count(row, "kv_cache_size", place)
    is_prefill = text(row, "is_prefill", place).lower() in ("true", "1")
    time_us = _time(row, "attn_prefill" if is_prefill else "attn_decode", place)
    if time_us is None:
        return []
    shape = {
        "batch": count(row, "batch_size", place),
        "q_len": chunk if is_prefill else 1,
        "kv_len": cached + chunk if is_prefill else max(cached, 1),
        "heads": _divided(query_heads, tp, "n_q_head", place),
        "kv_heads": max(count(row, "n_kv_head", place) // tp, 1),
        "d_qk": dim,
        "d_v": dim,
    }
    op = "prefill_attention" if is_prefill else "decode_attention"
    return [kernel_row(op, f"vidur/{row.get('attention_backend', 'attention')}", "bf16", time_us, shape)]


def _divided(size: int, parts: int, what: str, place: str) -> int:
    if parts < 1 or size % parts:
        raise InputError(f"{place}: {what}: found {size}, expected a multiple of {parts}")
    return size // parts
