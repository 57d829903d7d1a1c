#!/usr/bin/env python3
"""Makes ``aicb/data/h200/vllm_mla_fa3.parquet`` of a profile of FlashAttention-3's absorbed MLA decode.

    aicb profile --model deepseek-v3 --weights fp8 --only mla_decode_fa3 -o mla …
    python scripts/build_mla_fa3.py mla [--revision REVISION]

No time is changed. Of the launch costs of the run, only the floor of cold times is kept.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory

from aicb.profiling.store import PROVENANCE_FILE, TABLE_FILE, read_table, write_table

TARGET = Path(__file__).resolve().parent.parent / "aicb" / "data" / "h200" / "vllm_mla_fa3.parquet"
KEPT = ("mla_decode_fa3", "null_kernel")
CAUTIONS = [
    "pages of 16 tokens; at most 32 splits of a request, as vLLM captures decodes; the schedule is made outside",
    "clocks were not locked; graph_clock_mhz and rotated_clock_mhz say at which SM clock each replay ran",
    "compiled module _vllm_fa3_C of vLLM 0.24.0, of which only code for SM90 was kept",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--revision", help="revision of the profiler where the measuring host had no repository")
    arguments = parser.parse_args()
    rows = [row for row in read_table(arguments.directory / TABLE_FILE) if row["op"] in KEPT]
    first = json.loads((arguments.directory / PROVENANCE_FILE).read_text(encoding="utf-8"))
    facts = {
        "gpu": "h200",
        "libraries": [name for name in first["libraries"] if name.endswith("absorbed MLA")],
        **{name: first[name] for name in ("environment", "timing", "check_share")},
        "checked_rows": sum("error" in row for row in rows),
        "points": "absorbed MLA decode of DeepSeek-V3 by FlashAttention-3, TP 1, 2, 4, 8; one and two query tokens",
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
