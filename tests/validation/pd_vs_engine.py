#!/usr/bin/env python3
"""Compares the simulator with two measured pairs: one prefill and one decode H200, vLLM 0.24.0, NixlConnector.

    python -m tests.validation.pd_vs_engine

Qwen3-8B and, on another machine, Qwen3-30B-A3B in bf16, two GPUs of a virtual machine that do not see each other's
memory, so that UCX copies KV through the host (``kv_transfer.connector.path: host``). ``tests/data/pd/README.md`` says
what was measured and which costs of the connector come from the first; its requests at 12 per second were not used for
any, nor is anything of the second.
"""

from __future__ import annotations

import gzip
import json
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from aicb.iteration.host import MEDIAN_HOST
from netsim.units import PS_PER_S
from vidur_pd.config import SimulationConfig
from vidur_pd.metrics.requests import NEVER, RequestTable, seconds
from vidur_pd.simulation.api import simulate
from vidur_pd.workload import Workload

FOLDER = Path(__file__).resolve().parents[1] / "data" / "pd"
PAIRS = {"qwen3-8b": ("xeon-vm-32",), "qwen3-30b-a3b": ("xeon-vm-32", MEDIAN_HOST)}
"""Models, and the hosts that they are simulated on. The second pair's was slower than the default and not measured."""
FITTED, HELD_OUT_PAIR = PAIRS
ISOLATED_TOKENS = (256, 1024, 4096, 8192, 16384)
LOADS = ("serve_2.0", "serve_6.0", "serve_12.0")
HELD_OUT = "serve_12.0"
FIRST_CONTACT_S = 10.0
"""Between a request that acquaints the instances, as the measurement's warm-up did, and the first that counts."""

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of one run, in seconds."""

    run: str
    metric: str
    measured_s: float
    simulated_s: float

    @property
    def error(self) -> float:
        """Relative; positive where the simulation is slower."""
        return self.simulated_s / self.measured_s - 1.0


@cache
def measurement(model: str) -> dict[str, Rows]:
    """Requests of each run; the first of an isolated length meets cold buffers and is left out."""
    with gzip.open(FOLDER / f"vllm-nixl-{model}-1p1d.json.gz", "rt", encoding="utf-8") as file:
        found: dict[str, Rows] = json.load(file)
    return {run: rows[1:] if run.startswith("iso") else rows for run, rows in found.items()}


def replay(run: str, model: str, host: str, **connector: Any) -> RequestTable:
    """The simulation of a run, its requests in the order of the measurement; ``connector`` changes costs."""
    rows = measurement(model)[run]
    table = simulate(_config(model, host, connector), _workload(run, rows)).table.in_order_of_arrival()
    return table.rows(slice(1, None))


def compare(run: str, model: str = FITTED, host: str = "xeon-vm-32", **connector: Any) -> list[Comparison]:
    """Means of a run, from the instant at which the prefill engine's client has a request."""
    rows, table = measurement(model)[run], replay(run, model, host, **connector)
    sent_s = np.array([row["p_start"] for row in rows])
    measured = {
        "ttft": np.array([row["ttft"] for row in rows]) - sent_s,
        "tpot": np.array([row["tpot"] for row in rows]),
        "e2e": np.array([row["e2e"] for row in rows]) - sent_s,
        "prefill": np.array([row["prefill_done"] for row in rows]) - sent_s,
    }
    simulated = {
        "ttft": table.ttft_ps,
        "tpot": table.tpot_ps[table.tpot_ps != NEVER],
        "e2e": table.e2e_ps,
        "prefill": table.prefill_completed_ps - table.arrived_ps,
    }
    return [
        Comparison(run, metric, float(measured[metric].mean()), float(seconds(simulated[metric]).mean()))
        for metric in measured
    ]


def _workload(run: str, rows: Rows) -> Workload:
    sent_s = [0.0, *(FIRST_CONTACT_S + row["arrival"] + row["p_start"] for row in rows)]
    return Workload(
        request_ids=("first contact", *(row["rid"] for row in rows)),
        arrived_ps=np.array([round(at_s * PS_PER_S) for at_s in sent_s], dtype=np.int64),
        prefill_tokens=np.array([1024, *(row["n_in"] for row in rows)], dtype=np.int64),
        decode_tokens=np.array([8, *(row["n_out"] for row in rows)], dtype=np.int64),
        name=run,
        source="measured pair",
    )


def _config(model: str, host: str, connector: dict[str, Any]) -> SimulationConfig:
    return SimulationConfig.model_validate(
        {
            "model": model,
            "hardware": "h200",
            "workload": {
                "kind": "synthetic",
                "requests": 1,
                "arrivals": {"kind": "static"},
                "lengths": {"kind": "fixed", "prefill": 1, "decode": 1},
            },
            "cluster": {
                "topology": {"kind": "rail_optimized", "gpus_per_node": 2},
                "pools": [{"name": "prefill", "role": "prefill"}, {"name": "decode", "role": "decode"}],
            },
            "engine": {
                "framework": "vllm",
                "version": "0.24.0",
                "max_model_len": 32768,
                "max_seqs": 256,
                "gpu_memory_utilization": 0.85,
                "prefix_caching": False,
                "host": host,
            },
            "kv_transfer": {"connector": {"kind": "nixl", "path": "host", **connector}},
        }
    )


def main() -> int:
    """Prints all comparisons."""
    print(f"{'run':<12}{'metric':>9}{'measured ms':>13}{'simulated ms':>14}{'error':>9}")
    for model, hosts in PAIRS.items():
        for host in hosts:
            print(f"{model} on host {host}")
            for run in (*(f"iso{tokens}" for tokens in ISOLATED_TOKENS), *LOADS):
                for row in compare(run, model, host):
                    times = f"{1e3 * row.measured_s:>13.2f}{1e3 * row.simulated_s:>14.2f}"
                    print(f"{row.run:<12}{row.metric:>9}{times}{100 * row.error:>8.1f}%")
    return 0


if __name__ == "__main__":
    sys.exit(main())
