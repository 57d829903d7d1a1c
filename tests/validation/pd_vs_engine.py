#!/usr/bin/env python3
"""Compares the simulator with four measured pairs: one prefill and one decode H200, vLLM 0.24.0, NixlConnector.

    python -m tests.validation.pd_vs_engine

Qwen3-8B; on another machine Qwen3-30B-A3B; on a third Qwen3-8B again and DeepSeek-V3 of 8 layers in fp8, whose hosts
were measured inside the engines (``tests/data/pd/README.md``): ``own``, and ``then``, at the speed at which the prefill
engine launched in the very run. Of these times the connector has its forwarding and the share for which steps stand
still (the first pair), and its host time (of hand-overs of the third machine); what descriptors cost was measured
apart. The first pair's requests at 12 per second were not used for anything, nor is anything of the second.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from aicb.iteration.host import MEDIAN_HOST, OF_WORKERS
from netsim.units import PS_PER_S
from tests.validation.engine_figures import Comparison
from vidur_pd.config import SimulationConfig
from vidur_pd.metrics.requests import NEVER, RequestTable, seconds
from vidur_pd.metrics.result import Result
from vidur_pd.simulation.api import simulate
from vidur_pd.workload import Workload

FOLDER = Path(__file__).resolve().parents[1] / "data" / "pd"
DEFAULT, OWN, THEN = "xeon-vm-32", "own", "then"
PAIRS = {
    "qwen3-8b-1p1d": (DEFAULT,),
    "qwen3-30b-a3b-1p1d": (DEFAULT, MEDIAN_HOST),
    "qwen3-8b-1p1d-later": (DEFAULT, MEDIAN_HOST, OWN, THEN),
    "deepseek-v3-l8-1p1d": (DEFAULT, MEDIAN_HOST, OWN, THEN),
    "qwen3-8b-1p1d-blocks64": (DEFAULT, MEDIAN_HOST),
}
"""Pairs, and the hosts that they are simulated on."""
FITTED, SECOND_PAIR, *MEASURED_HOSTS, LARGER_BLOCKS = PAIRS
ISOLATED_TOKENS = (256, 1024, 4096, 8192, 16384)
LOADS = ("serve_2.0", "serve_6.0", "serve_12.0")
HELD_OUT = "serve_12.0"
STALLED = 1.6
"""Gap between tokens over the median, from which on steps are taken to have stood still."""
FIRST_CONTACT_S = 10.0
"""Between a request that acquaints the instances, as the measurement's warm-up did, and the first that counts."""

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Mean(Comparison):
    """Mean of a metric (``name``) over the requests of a run."""

    run: str


@cache
def measurement(pair: str) -> dict[str, Any]:
    """What was measured; the first request of an isolated length meets cold buffers and is left out."""
    with gzip.open(FOLDER / f"vllm-nixl-{pair}.json.gz", "rt", encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    runs = {run: rows[1:] if run.startswith("iso") else rows for run, rows in found["runs"].items()}
    return {**found, "runs": runs}


def replay(run: str, pair: str, host: str, **connector: Any) -> RequestTable:
    """The requests of a simulated run, in the order of the measurement; ``connector`` changes costs."""
    return _simulated(run, pair, host, connector).table.in_order_of_arrival().rows(slice(1, None))


def _simulated(run: str, pair: str, host: str, connector: dict[str, Any]) -> Result:
    rows: Rows = measurement(pair)["runs"][run]
    with tempfile.TemporaryDirectory() as folder:
        return simulate(_config(pair, run, host, Path(folder), connector), workload_of(run, rows))


def stalls_ms(run: str, pair: str = FITTED, host: str = DEFAULT, **connector: Any) -> tuple[float, float]:
    """Excess of long gaps between tokens over the median, by all gaps of a run: measured and simulated."""
    measured_s = np.concatenate([row["itl"] for row in measurement(pair)["runs"][run]])
    gaps_s, counts = _simulated(run, pair, host, connector).iterations.gaps()
    return _excess_ms(measured_s), _excess_ms(np.repeat(gaps_s, counts))


def _excess_ms(gaps_s: NDArray[np.float64]) -> float:
    usual_s = float(np.median(gaps_s))
    return float((gaps_s[gaps_s > STALLED * usual_s] - usual_s).sum()) / len(gaps_s) * 1e3


def compare(run: str, pair: str = FITTED, host: str = DEFAULT, **connector: Any) -> list[Mean]:
    """Means of a run, from the instant at which the prefill engine's client has a request."""
    rows, table = measurement(pair)["runs"][run], replay(run, pair, host, **connector)
    sent_s = np.array([row["p_start"] for row in rows])
    measured = {
        "ttft": np.array([row["ttft"] for row in rows]) - sent_s,
        "tpot": np.array([row["tpot"] for row in rows]),
        "e2e": np.array([row["e2e"] for row in rows]) - sent_s,
        "prefill": np.array([row["prefill_done"] for row in rows]) - sent_s,
        "hand-over": np.array([row["ttft"] - row["prefill_done"] for row in rows]),
    }
    simulated = {
        "ttft": table.ttft_ps,
        "tpot": table.tpot_ps[table.tpot_ps != NEVER],
        "e2e": table.e2e_ps,
        "prefill": table.prefill_completed_ps - table.arrived_ps,
        "hand-over": table.first_token_ps - table.prefill_completed_ps,
    }
    return [
        Mean(metric, 1e3 * float(measured[metric].mean()), 1e3 * float(seconds(simulated[metric]).mean()), run)
        for metric in measured
    ]


def own_hosts(pair: str, run: str) -> dict[str, dict[str, float]]:
    """By pool: times of its engine's host; with a run, of the prefill engine's at the speed of that run."""
    found = measurement(pair)
    hosts: dict[str, dict[str, float]] = found["hosts"]
    if not run:
        return hosts
    times, launched = hosts["prefill"], found["launches"]["prefill"][run]
    mode, field = ("eager", "eager_launch_us") if "eager" in launched else ("piecewise", "piece_launch_us")
    slower = launched[mode][0] / times[field]
    return hosts | {"prefill": {name: time * (slower if name in OF_WORKERS else 1) for name, time in times.items()}}


def workload_of(run: str, rows: Rows) -> Workload:
    """The requests of a run, as the prefill engine's client sent them, after one that acquaints the instances."""
    sent_s = [0.0, *(FIRST_CONTACT_S + row["arrival"] + row["p_start"] for row in rows)]
    return Workload(
        request_ids=("first contact", *(row["rid"] for row in rows)),
        arrived_ps=np.array([round(at_s * PS_PER_S) for at_s in sent_s], dtype=np.int64),
        prefill_tokens=np.array([1024, *(row["n_in"] for row in rows)], dtype=np.int64),
        decode_tokens=np.array([8, *(row["n_out"] for row in rows)], dtype=np.int64),
        name=run,
        source="measured pair",
    )


def _config(pair: str, run: str, host: str, folder: Path, connector: dict[str, Any]) -> SimulationConfig:
    model, found = pair.partition("-1p1d")[0], measurement(pair)
    if "config" in found:
        file = folder / "config.json"
        file.write_text(json.dumps(found["config"]), encoding="utf-8")
        model = str(file)
    hosts = {"prefill": host, "decode": host}
    if host in (OWN, THEN):
        for pool, times in own_hosts(pair, run if host == THEN else "").items():
            file = folder / f"{pool}.yaml"
            file.write_text(yaml.safe_dump({"source": pair, **times}), encoding="utf-8")
            hosts[pool] = str(file)
    engine = {
        "framework": "vllm",
        "version": "0.24.0",
        "max_model_len": 32768,
        "max_seqs": 256,
        "gpu_memory_utilization": 0.85,
        "prefix_caching": False,
        **found.get("engine", {}),
    }
    return pair_config(model, engine, {"kind": "nixl", **connector}, hosts)


def pair_config(
    model: str, engine: Mapping[str, Any], connector: str | Mapping[str, Any], hosts: Mapping[str, str]
) -> SimulationConfig:
    """A prefill and a decode H200 in one node; its workload is replaced by that of a run. ``hosts``: by pool."""
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
                "pools": [{"name": pool, "role": pool, "engine": {"host": host}} for pool, host in hosts.items()],
            },
            "engine": engine,
            "kv_transfer": {"connector": connector},
        }
    )


def print_runs(compared: Callable[[str], list[Mean]]) -> None:
    """Prints the comparisons of all runs; ``compared``: of one."""
    print(f"{'run':<12}{'metric':>10}{'measured ms':>13}{'simulated ms':>14}{'error':>9}")
    for run in (*(f"iso{tokens}" for tokens in ISOLATED_TOKENS), *LOADS):
        for row in compared(run):
            times = f"{row.measured_ms:>13.2f}{row.simulated_ms:>14.2f}"
            print(f"{row.run:<12}{row.name:>10}{times}{100 * row.error:>8.1f}%")


def main() -> int:
    """Prints all comparisons."""
    for pair, hosts in PAIRS.items():
        for host in hosts:
            print(f"{pair} on host {host}")
            print_runs(partial(compare, pair=pair, host=host))
    return 0


if __name__ == "__main__":
    sys.exit(main())
