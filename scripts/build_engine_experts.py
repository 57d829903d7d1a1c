#!/usr/bin/env python3
"""Merges profiles of vLLM's fused MoE kernel over fp8 experts into ``aicb/data/h200/vllm_experts_fp8.parquet``.

    aicb profile --model deepseek-v3 --tp 1,2,4,8 --ep 1 --weights fp8 --only grouped_gemm_gathered -o ds …
    python scripts/build_engine_experts.py PROFILE_DIRECTORY… [--revision REVISION]

No time is changed. Of the launch costs of a run, only the floor of cold times is kept.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory

from aicb.profiling.store import PROVENANCE_FILE, TABLE_FILE, Row, read_table, write_table

TARGET = Path(__file__).resolve().parent.parent / "aicb" / "data" / "h200" / "vllm_experts_fp8.parquet"
KEPT = ("grouped_gemm_gathered", "null_kernel")
CAUTIONS = [
    "distribution multinomial: every token draws its experts with equal chance; one draw per token count; the others"
    " exist at 16, 64, 128, 512 and 2048 tokens",
    "sorting pairs by expert, quantisation of tokens, activation and sum over experts are separate kernels and not in"
    " these times",
    "clocks were not locked; graph_clock_mhz and rotated_clock_mhz say at which SM clock each replay ran",
    "compiled module _moe_C of vLLM, of which only code for SM90 was kept",
]
POINTS = (
    "fused MoE GEMM of fp8 experts with 128x128 weight scales and activations quantised per row and 128 columns, "
    "gate_up and down apart, with the configuration vLLM chooses (settings; is_tuned: from a file it ships for this "
    "device). "
    "DeepSeek-V3 (TP 1, 2, 4, 8), Qwen3-30B-A3B (TP 1, 2), Qwen3-235B-A22B (TP 1, 2, 4), Qwen3-Next-80B-A3B (TP 1, 2); "
    "1 to 16384 tokens; operands normal before quantisation"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directories", nargs="+", type=Path)
    parser.add_argument("--revision", help="revision of the profiler where the measuring host had no repository")
    arguments = parser.parse_args()
    rows: list[Row] = []
    for directory in arguments.directories:
        rows += [row for row in read_table(directory / TABLE_FILE) if row["op"] in KEPT]
    first = json.loads((arguments.directories[0] / PROVENANCE_FILE).read_text(encoding="utf-8"))
    facts = {
        "gpu": "h200",
        "libraries": [name for name in first["libraries"] if name.endswith("fused_moe_kernel")],
        **{name: first[name] for name in ("environment", "timing", "check_share")},
        "checked_rows": sum("error" in row for row in rows),
        "points": POINTS,
        "cautions": CAUTIONS,
    } | ({"revision": arguments.revision} if arguments.revision else {})
    with TemporaryDirectory() as made:
        folder = Path(made)
        write_table(folder, rows, facts)
        TARGET.write_bytes((folder / TABLE_FILE).read_bytes())
        TARGET.with_suffix(".provenance.json").write_bytes((folder / PROVENANCE_FILE).read_bytes())
    print(f"{len(rows)} rows written to {TARGET}")


if __name__ == "__main__":
    main()
