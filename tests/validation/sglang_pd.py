#!/usr/bin/env python3
"""Compares the simulator with a measured pair of SGLang: one prefill and one decode H200, SGLang 0.5.17, KV by NIXL.

    python -m tests.validation.sglang_pd

Qwen3-8B, 2026-12-01 (``tests/data/pd/README.md``). The simulator was frozen before (``e98545e7``) and had read this
connector in SGLang's sources alone; what it said then is in docs/accuracy/engines.md. Since then the connector has its
host time and the way of its control messages from requests of 256 and 1,024 tokens alone, its slots from these up to
8,192 tokens and from writes without an engine, and the decode engine takes up KV before it decides a step, as SGLang's
sources and the loads say. No number is from the loads.
"""

from __future__ import annotations

import gzip
import json
import sys
from functools import cache
from typing import Any

import numpy as np

from tests.validation.pd_vs_engine import DEFAULT, FOLDER, Mean, Rows, pair_config, print_runs, workload_of
from vidur_pd.metrics.requests import NEVER, RequestTable, seconds
from vidur_pd.simulation.api import simulate

PAIR = "sglang-nixl-qwen3-8b-1p1d"


@cache
def measured_runs() -> dict[str, Rows]:
    """By run; of requests alone without the first, which meets cold buffers."""
    with gzip.open(FOLDER / f"{PAIR}.json.gz", "rt", encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    return {run: rows[1:] if run.startswith("iso") else rows for run, rows in found["runs"].items()}


@cache
def replay(run: str, connector: str = "sglang_nixl") -> RequestTable:
    """The requests of a simulated run, in the order of the measurement."""
    engine = {"framework": "sglang", "version": "0.5.23", "max_model_len": 32768, "max_seqs": 288}
    config = pair_config("qwen3-8b", engine, connector, dict.fromkeys(("prefill", "decode"), DEFAULT))
    table = simulate(config, workload_of(run, measured_runs()[run])).table
    return table.in_order_of_arrival().rows(slice(1, None))


def compare(run: str, connector: str = "sglang_nixl") -> list[Mean]:
    """Means of a run, from the instant at which the prefill engine's client has a request; ``after``: from the end of
    the prompt to the first token."""
    rows, table = measured_runs()[run], replay(run, connector)
    row_of = {name: np.array([row[name] for row in rows]) for name in ("p_start", "ttft", "tpot", "e2e")}
    computed_s = np.array([row["prefill_computed"] for row in rows])
    pairs = {
        "ttft": (row_of["ttft"] - row_of["p_start"], table.ttft_ps),
        "tpot": (row_of["tpot"], table.tpot_ps[table.tpot_ps != NEVER]),
        "e2e": (row_of["e2e"] - row_of["p_start"], table.e2e_ps),
        "prefill": (computed_s - row_of["p_start"], table.prefill_completed_ps - table.arrived_ps),
        "after": (row_of["ttft"] - computed_s, table.first_token_ps - table.prefill_completed_ps),
    }
    return [
        Mean(metric, 1e3 * float(measured_s.mean()), 1e3 * float(seconds(simulated_ps).mean()), run)
        for metric, (measured_s, simulated_ps) in pairs.items()
    ]


def main() -> int:
    """Prints all comparisons."""
    print_runs(compare)
    return 0


if __name__ == "__main__":
    sys.exit(main())
