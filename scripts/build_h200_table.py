#!/usr/bin/env python3
"""Turns the raw H200 kernel probe into the table shipped in ``aicb/data/h200``.

    python scripts/build_h200_table.py RAW_DIRECTORY [OUTPUT_DIRECTORY]

RAW_DIRECTORY holds ``h200_kernels.csv`` (one row per timed shape) and ``env.json`` (device and library versions). The
output is ``kernels.csv`` in the schema of ``measurements/table.py`` and ``provenance.json``. Only names are translated
and notes parsed into columns; no time is changed, and rows of comparison kernels that no engine runs are left out.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path

from aicb.measurements.table import COLUMNS, SCHEMA_VERSION

OPERATIONS = {
    "linear": "gemm",
    "fp8_gemm_nt": "gemm",
    "bmm": "bmm",
    "m_grouped_fp8_gemm_nt_masked": "grouped_gemm_masked",
    "m_grouped_fp8_gemm_nt_contig": "grouped_gemm_contiguous",
    "varlen_prefill": "prefill_attention",
    "paged_decode": "decode_attention",
    "dense_decode_fwd": "mla_decode",
    "sparse_decode_fwd_fp8kv": "sparse_mla_decode",
    "sparse_prefill_fwd": "sparse_mla_prefill",
    "chunk_prefill": "gdn_prefill",
    "fused_recurrent_decode": "gdn_decode",
    "rms_norm": "rms_norm",
    "quant128": "quant",
    "silu_mul_quant128": "silu_mul_quant",
    "topk": "topk",
    "null_kernel": "null_kernel",
    "empty_event_pair": "empty_event_pair",
    "eager_launch_host": "eager_launch_host",
    "graph_1000_null": "graph_node",
    "d2d_copy_2GiB": "device_copy",
    "memset_2GiB": "memset",
}
LEFT_OUT = {
    "prefill": "torch SDPA, measured for comparison with FlashAttention-3 only",
    "varlen_prefill, grouped queries": "keys in a row, where engines read pages (vllm_fa3_prefill.parquet)",
}
DTYPES = {"bf16": "bf16", "fp8_1x128_128x128": "fp8", "bf16q_fp8kv": "bf16q_fp8kv", "bf16->fp8": "bf16->fp8", "": ""}

CAUTIONS = [
    "quant, silu_mul_quant: a simple Triton kernel (one program per 128 columns); upper bounds of an engine's kernel",
    "topk: unfused torch.topk; an upper bound of an engine's router kernel",
    "rms_norm: torch kernel, one thread block per row; fused engine kernels are faster on few rows",
    "gdn_prefill at 1024 and 4096 tokens: host-bound wrapper, not kernel time",
    "cold_us contains the event floor (null_kernel) and the write-back of the lines the flush left dirty in L2",
    "identical (n, k) of several layers were measured once, under the first layer's tag",
    "clocks were not locked: long sweeps of large GEMMs are power limited (graph up to 1.15 x cold)",
]
TIMING = {
    "cold_us": "CUDA events around one call, L2 flushed by a 384 MB memset before each sample, median of `samples`",
    "cold_p10_us, cold_p90_us": "percentiles of the same samples",
    "graph_us": "CUDA graph of 10 calls replayed with warm L2, median of 10 replays divided by 10",
}


def translate(raw: dict[str, str]) -> dict[str, str]:
    """One raw row in the shipped schema."""
    note = dict(re.findall(r"(max|active|cv)=([\d.]+)", raw["note"]))
    is_topk = raw["op"] == "topk"
    return {
        "op": OPERATIONS[raw["op"]],
        "kernel": "/".join(part for part in (raw["backend"], raw["op"]) if part),
        "dtype": DTYPES[raw["dtype"]],
        "tag": "/".join(part for part in (raw["model"], raw["tag"]) if part),
        **{name: _integer(raw[name]) for name in ("n", "k", "groups", "batch", "q_len", "kv_len")},
        "m": "" if raw["section"] == "moe" else _integer(raw["m"]),
        **{name: _integer(raw[name]) for name in ("heads", "kv_heads", "d_qk", "d_v", "rows")},
        "experts_per_token": _integer(raw["k"]) if is_topk else "",
        "active_groups": note.get("active", ""),
        "max_rows": note.get("max", ""),
        "distribution": raw["dist"],
        "cold_us": raw["t_us"],
        "cold_p10_us": raw["t_p10_us"],
        "cold_p90_us": raw["t_p90_us"],
        "graph_us": raw["t_graph_us"],
        "samples": raw["iters"],
        "run": raw["run"],
    } | ({"k": ""} if is_topk else {})


def is_left_out(raw: dict[str, str]) -> bool:
    """Whether no engine runs the kernel (`LEFT_OUT`)."""
    return raw["op"] == "prefill" or (raw["op"] == "varlen_prefill" and raw["d_qk"] == raw["d_v"])


def _integer(text: str) -> str:
    return str(int(float(text))) if text else ""


def main() -> None:
    source = Path(sys.argv[1])
    default = Path(__file__).resolve().parent.parent / "aicb" / "data" / "h200"
    target = Path(sys.argv[2]) if len(sys.argv) > 2 else default
    with (source / "h200_kernels.csv").open(newline="") as file:
        rows = [translate(raw) for raw in csv.DictReader(file) if not is_left_out(raw)]
    target.mkdir(parents=True, exist_ok=True)
    with (target / "kernels.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(COLUMNS), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    provenance = {
        "schema_version": SCHEMA_VERSION,
        "gpu": "h200",
        "rows": len(rows),
        "environment": json.loads((source / "env.json").read_text()),
        "timing": TIMING,
        "cautions": CAUTIONS,
        "left_out": LEFT_OUT,
    }
    (target / "provenance.json").write_text(json.dumps(provenance, indent=1) + "\n")
    print(f"{len(rows)} rows written to {target}")


if __name__ == "__main__":
    main()
