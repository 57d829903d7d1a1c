#!/usr/bin/env python3
"""Merges the outputs of ``aicb profile`` on an H200 into ``aicb/data/h200/profile``.

    python scripts/build_h200_profile.py PROFILE_DIRECTORY… [--revision REVISION]

Writes ``profile.parquet`` with ``profile.provenance.json``, one kernel per operation and shape, fit to be a part of the
table (``measurements/table.py``), and ``other_kernels/`` with the kernels measured for comparison. No time is changed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from aicb.profiling.convert import split_kernels
from aicb.profiling.store import PROVENANCE_FILE, TABLE_FILE, Row, read_table, write_table

TARGET = Path(__file__).resolve().parent.parent / "aicb" / "data" / "h200" / "profile"
CAUTIONS = [
    "rows of one run were measured in shuffled order at default clocks; sm_clock_mhz and power_w are momentary readings"
    " after the cold samples",
    "large GEMMs are power limited in graph replays, which run back to back: graph_us may exceed cold_us",
    "cold_us contains the event floor of its run (null_kernel)",
    "clocks were not locked: 205 GEMMs measured again in another run differ by +0.5 % in the median, 10th to 90th"
    " percentile -9 to +10 % (graph_us), -7 to +7 % (cold_us)",
    "triton_own kernels are this project's; they stand for kernels an engine's compiler generates, not for vLLM's own",
    "grouped_gemm_gathered: Triton kernel of this project, tile chosen per shape among ten by time",
    "sampling: logits.float() and argmax of torch, two kernels",
    "decode_attention: FlashAttention-3 with pages of 16 tokens and without precomputed scheduler metadata",
    "prefill_attention of grouped queries, over keys in a row, left this table for vllm_fa3_prefill.parquet, over"
    " pages",
    "mla_decode: split schedule computed outside the timed call, as once per step in an engine",
    "gdn_prefill: the wrapper's host time is hidden in cold_us by longer flushes and absent from graph_us",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directories", nargs="+", type=Path)
    parser.add_argument("--revision", help="revision of the profiler where the measuring host had no repository")
    arguments = parser.parse_args()
    rows: list[Row] = []
    runs: dict[str, object] = {}
    for directory in arguments.directories:
        rows += read_table(directory / TABLE_FILE)
        runs[directory.name] = json.loads((directory / PROVENANCE_FILE).read_text(encoding="utf-8"))
    chosen, others = split_kernels(rows)
    facts = {"gpu": "h200", "runs": _shortened(runs), "cautions": CAUTIONS}
    if arguments.revision:
        facts["revision"] = arguments.revision
    (TARGET / "other_kernels").mkdir(parents=True, exist_ok=True)
    write_table(TARGET, chosen, facts)
    write_table(TARGET / "other_kernels", others, facts)
    print(f"{len(chosen)} rows and {len(others)} of other kernels written to {TARGET}")


def _shortened(runs: dict[str, object]) -> dict[str, object]:
    """What the runs share once, what differs by run."""
    provenances = {name: value for name, value in runs.items() if isinstance(value, dict)}
    first = next(iter(provenances.values()))
    shared = {key: first[key] for key in first if all(run.get(key) == first[key] for run in provenances.values())}
    own = {name: {key: value for key, value in run.items() if key not in shared} for name, run in provenances.items()}
    return {"shared": shared, "by_run": own}


if __name__ == "__main__":
    main()
