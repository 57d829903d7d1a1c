"""Tables of Alibaba's InferSim: GEMM, MHA decode and prefill, MLA decode, grouped GEMM; times in µs, L2 cold.

Head counts of attention are in the file name (``64-4-128.csv``: query heads, KV heads, head size); for MLA they come
from ``--heads``. One published decode file lacks its header and is read all the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from aicb.formats.imports.rows import count, kernel_row, number, positive_us, text
from boundary.errors import InputError

DECODE_HEADER = ["dtype", "kv_dtype", "batch_size", "kv_len", "latency_us", "mfu"]
_GEOMETRY = re.compile(r"(\d+)-(\d+)-(\d+)\.\w+$")
_BF16 = {"bf16", "bfloat16", "fp16", "float16"}


def read(rows: Sequence[Mapping[str, str]], name: str, heads: int | None) -> tuple[list[dict[str, str]], list[str]]:
    """Rows of one file and cautions.

    Raises:
        InputError: an unknown table, unknown heads, a bad number.
    """
    columns = set(rows[0])
    placed = [(row, f"{name}: line {i}") for i, row in enumerate(rows, start=2)]
    if {"m", "n", "k", "latency_us"} <= columns:
        return [_gemm(row, place) for row, place in placed], [f"{name}: taken as DeepGEMM fp8 without quantisation"]
    if {"up_proj_us", "down_proj_us"} <= columns:
        cautions = [f"{name}: grouped GEMM with equal rows per expert, fp8, every local expert active"]
        return [half for row, place in placed for half in _grouped(row, place)], cautions
    if {"latency_us"} <= columns and columns & {"kv_len", "seq_len"}:
        geometry = _geometry(name, heads)
        kept = [(row, place) for row, place in placed if _is_bf16(row, place)]
        cautions = [f"{name}: {len(rows) - len(kept)} rows of other formats than bf16 left out"]
        return [_attention(row, place, geometry) for row, place in kept], cautions if len(kept) < len(rows) else []
    raise InputError(f"{name}: header: found {', '.join(sorted(columns))}, expected a table of InferSim")


def _gemm(row: Mapping[str, str], place: str) -> dict[str, str]:
    shape = {column: count(row, column, place) for column in ("m", "n", "k")}
    return kernel_row("gemm", "infersim/gemm", "fp8", positive_us(row, "latency_us", place), shape)


def _grouped(row: Mapping[str, str], place: str) -> list[dict[str, str]]:
    is_decode = "batch_size_per_gpu" in row
    groups = count(row, "num_local_experts", place, at_least=1)
    rows = round(groups * number(row, "tokens_per_expert", place))
    hidden, width = count(row, "hidden_size", place), count(row, "intermediate_size", place)
    shared = {"groups": groups, "active_groups": min(groups, rows), "rows": rows, "max_rows": -(-rows // groups)}
    shared["batch"] = count(row, "batch_size_per_gpu" if is_decode else "seq_len_per_gpu", place)
    shared["experts_per_token"] = count(row, "topk", place)
    op = "grouped_gemm_masked" if is_decode else "grouped_gemm_contiguous"
    parts = (("up_proj_us", 2 * width, hidden), ("down_proj_us", hidden, width))
    return [
        kernel_row(op, "infersim/grouped", "fp8", positive_us(row, column, place), {**shared, "n": n, "k": k})
        | {"distribution": "balanced"}
        for column, n, k in parts
    ]


def _attention(row: Mapping[str, str], place: str, geometry: Mapping[str, int]) -> dict[str, str]:
    is_decode = "kv_len" in row
    length = count(row, "kv_len" if is_decode else "seq_len", place)
    batch = count(row, "batch_size", place) if is_decode else 1
    shape = {**geometry, "batch": batch, "q_len": 1 if is_decode else length, "kv_len": length}
    op = "prefill_attention"
    if is_decode:
        op = "mla_decode" if geometry["d_qk"] != geometry["d_v"] else "decode_attention"
    elif geometry["d_qk"] == 576:
        shape |= {"d_qk": 192, "d_v": 128, "kv_heads": geometry["heads"]}
    return kernel_row(op, "infersim/attention", "bf16", positive_us(row, "latency_us", place), shape)


def _geometry(name: str, heads: int | None) -> dict[str, int]:
    found = _GEOMETRY.search(name)
    if found:
        query, kv, dim = (int(value) for value in found.groups())
        return {"heads": query, "kv_heads": kv, "d_qk": dim, "d_v": dim}
    if heads is None:
        raise InputError(f"{name}: heads: found none in the file name, expected H-K-D.csv, or --heads for MLA")
    return {"heads": heads, "kv_heads": 1, "d_qk": 576, "d_v": 512}


def _is_bf16(row: Mapping[str, str], place: str) -> bool:
    """Whether both the computation and the cache are."""
    return text(row, "dtype", place).lower() in _BF16 and row.get("kv_dtype", "bf16").lower() in _BF16
