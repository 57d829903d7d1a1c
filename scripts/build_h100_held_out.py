#!/usr/bin/env python3
"""Makes ``aicb/data/h100/held_out.parquet`` of profiles of an H100, against which transferred times are scored.

    aicb profile --model qwen3-8b --model deepseek-v3 --tp 1,8 --ep 8 --max-tokens 8192 --max-kv 16384 -o DIRECTORY …
    python scripts/build_h100_held_out.py DIRECTORY… --clocks CLOCKS.csv

Nothing is priced from it: it is not a part of a table, so that an H100's times stay transferred. No time is changed.
``clocks.csv`` is that of ``scripts/measure_clocks.py``.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from aicb.profiling.store import PROVENANCE_FILE, TABLE_FILE, read_table, write_table

FOLDER = Path(__file__).resolve().parent.parent / "aicb" / "data" / "h100"
HOST_OPERATIONS = frozenset({"empty_event_pair", "eager_launch_host", "graph_node", "graph_replay_host"})
CLOCK_METHOD = (
    "each product back to back for 0.35 s with operand sets in turns; clock: mean of the last 0.1 s, cycles over "
    "nanoseconds counted on the SMs; power: one NVML reading near the end"
)
LEFT_OUT = frozenset({"graph_p10_us", "graph_p90_us", "rotated_p10_us", "rotated_p90_us", "sm_clock_mhz", "power_w"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directories", nargs="+", type=Path)
    parser.add_argument("--clocks", required=True, type=Path)
    arguments = parser.parse_args()
    read = [row for directory in arguments.directories for row in read_table(directory / TABLE_FILE)]
    kept = [row for row in read if row["op"] not in HOST_OPERATIONS]
    rows = [{name: value for name, value in row.items() if name not in LEFT_OUT} for row in kept]
    provenances = [json.loads((each / PROVENANCE_FILE).read_text(encoding="utf-8")) for each in arguments.directories]
    first = provenances[0]
    facts = {
        "gpu": "h100",
        "libraries": sorted({library.split(",")[0] for each in provenances for library in each["libraries"]}),
        **{name: first[name] for name in ("environment", "timing", "check_share")},
        "checked_rows": sum(row.get("error") is not None for row in rows),
        "points": "held out: of Qwen3-8B and DeepSeek-V3 (TP 1 and 8, EP 8), as many as 130 seconds of measuring took",
        "cautions": [
            "clocks were not locked; graph_clock_mhz and rotated_clock_mhz say at which SM clock each replay ran",
            "few fp8 products: most of the time went into compiling them",
        ],
    }
    FOLDER.mkdir(exist_ok=True)
    with TemporaryDirectory() as made:
        folder = Path(made)
        write_table(folder, rows, facts)
        (FOLDER / "held_out.parquet").write_bytes((folder / TABLE_FILE).read_bytes())
        (FOLDER / "held_out.provenance.json").write_bytes((folder / PROVENANCE_FILE).read_bytes())
    shutil.copyfile(arguments.clocks, FOLDER / "clocks.csv")
    _write_clock_provenance(first["environment"], facts["libraries"])
    print(f"{len(rows)} rows written to {FOLDER}")


def _write_clock_provenance(environment: dict[str, str], libraries: list[str]) -> None:
    """Device and method of ``clocks.csv``."""
    facts = {
        "schema_version": 1,
        **{name: environment[name] for name in ("device", "driver")},
        **{name: round(float(environment[name])) for name in ("power_limit_w", "sm_clock_max_mhz")},
        "clocks": "default, not locked",
        "libraries": [name for name in libraries if name.startswith("torch")],
        "method": CLOCK_METHOD,
        "written_by": "scripts/measure_clocks.py",
    }
    (FOLDER / "clocks.provenance.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
