#!/usr/bin/env python3
"""Makes ``aicb/data/h200/vllm_group_quant.parquet`` of vLLM's quantisations in ``profile/other_kernels``.

    python scripts/build_group_quant.py

Profiles of 2026-11-23 and before list ``per_token_group_fp8_quant`` as another kernel of the operation ``quant``; it is
an operation of its own since, ``group_quant``. No time is changed.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from aicb.profiling.store import PROVENANCE_FILE, TABLE_FILE, read_table, write_table

H200 = Path(__file__).resolve().parent.parent / "aicb" / "data" / "h200"
MEASURED = H200 / "profile" / "other_kernels"
TARGET = H200 / "vllm_group_quant.parquet"
KERNEL = "vllm/per_token_group_fp8_quant"
POINTS = (
    "1x128 quantisation of bf16 rows to e4m3, scales column by column, as vLLM 0.24.0 does it before fp8 products; "
    "shapes of the models of profile/profile.provenance.json"
)


def main() -> None:
    rows = [row | {"op": "group_quant"} for row in read_table(MEASURED / TABLE_FILE) if row["kernel"] == KERNEL]
    facts = json.loads((MEASURED / PROVENANCE_FILE).read_text(encoding="utf-8"))
    facts = {name: facts[name] for name in ("gpu", "runs", "cautions")} | {"points": POINTS}
    with TemporaryDirectory() as made:
        folder = Path(made)
        write_table(folder, rows, facts)
        TARGET.write_bytes((folder / TABLE_FILE).read_bytes())
        TARGET.with_suffix(".provenance.json").write_bytes((folder / PROVENANCE_FILE).read_bytes())
    print(f"{len(rows)} rows written to {TARGET}")


if __name__ == "__main__":
    main()
