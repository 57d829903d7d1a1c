#!/usr/bin/env python3
"""Compares the simulator with runs of vLLM 0.24.0 on one and two H100s, and two H200s, measured after it was frozen.

    python -m tests.validation.partitions_vs_engine

Qwen3-30B-A3B and Qwen3-8B in bf16 with TP 2, Qwen3-30B-A3B with DP 2 and EP 2, prefix caching on
(``tests/data/engine``): prompts alone, steady decodes up to contexts of 16,000 tokens, prompts that share prefixes,
bursts of five; prompts and decodes of Qwen3-Next-80B-A3B cut to 16 layers with TP 2; `MODELS` on one. Times of H100
kernels are transferred from the H200. The simulator gets the engine's profile and what the engine's log says: its KV
blocks, and how it reduces among ranks. The host is the default, which was chosen before: launches of these machines
were not measured then. ``HOST`` was measured later on one of their kind, at a speed that differs from theirs as those
differ from each other. `LATER`, `MODELS` and `AGAIN` were measured once launches had kinds, with stamps inside: ``own``
is what ``aicb profile host`` makes of its loads in the very engine, before and after what is compared. `SHARED_FP8` are
the first engines of fp8 experts with EP; blind, DeepGEMM's products stood for FlashInfer's there. `ON_H200` are whole
models; hosts change their speed meanwhile, so that there is ``then`` besides: ``own`` at the speed at which the engine
launched in the very phase, which is taken from its stamps, not from times of tokens. `WITH_FLASHINFER` are four more,
frozen likewise (``1d84f522``), `THREE_MORE` once more; only they normalised by FlashInfer, as an installed vLLM does.
Prompts of fp8 models are compared ``as routed``, too: with the experts that they reach in these engines
(`PROMPT_LOADS`).
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from aicb.iteration.host import MEDIAN_HOST, OF_WORKERS, HostModel, slowest_of
from aicb.iteration.model import IterationModel
from aicb.measurements.gpu import get_gpu
from aicb.model.architecture import Model
from aicb.model.catalog import load_model
from aicb.model.partition import Partition
from aicb.model.precision import Precision
from tests.validation.engine_figures import Comparison, read_measurement
from tests.validation.held_out_vs_engine import trace_of
from vidur_pd.metrics.requests import seconds
from vidur_pd.simulation.api import prepare

SERVERS = ("tp2-qwen3-30b-a3b", "tp2-qwen3-8b", "dp2-ep2-qwen3-30b-a3b")
"""Partition and model of each measurement, as in its name."""
HYBRID = "tp2-qwen3-next-l16"
"""Without serving runs."""
LATER = ("tp2-qwen3-30b-a3b-l32", "tp2-qwen3-next-l16-later")
"""Models cut to 32 and 16 layers."""
MODELS = (
    "tp1-llama-3.1-8b-l16",
    "tp1-qwen3-32b-fp8-l16",
    "tp1-mixtral-8x7b-l4",
    "tp1-glm-4.5-air-l4",
    "tp1-qwen3-235b-a22b-fp8-l5",
    "tp1-qwen3-235b-a22b-fp8-l5-later",
    "tp1-gpt-oss-20b",
    "tp1-gpt-oss-20b-later",
)
"""On one GPU; all but gpt-oss are cut to as many layers as the name says."""
AGAIN = ("tp2-qwen3-30b-a3b-later", "dp2-ep2-qwen3-30b-a3b-later")
"""The first and the last of `SERVERS` a day later, on a machine whose host was measured in the engines."""
STAMPED = (*LATER, *MODELS, *AGAIN)
"""Those with a host of their own."""
SHARED_FP8 = ("tp2-ep2-minimax-m2-l12", "dp2-ep2-qwen3-30b-a3b-fp8-l20")
"""Models cut to 12 and 20 layers whose fp8 experts both ranks share, likewise; their hosts are not among those of which
``virtual-machine`` is the median."""
ON_H200 = ("h200-tp2-qwen3-next", "h200-tp2-qwen3-30b-a3b", "h200-dp2-ep2-qwen3-30b-a3b")
"""Whole models on two H200s, likewise, with the time of a launch in each phase."""
WITH_FLASHINFER = ("h200-tp2-qwen3-8b", "h200-tp2-glm-4.5-air", "h200-tp2-mixtral-8x7b", "h200-tp1-qwen3-30b-a3b")
"""The same with FlashInfer, whose kernel reduces among two ranks and normalises at once; contexts of 16,000 tokens, and
in the first and the last prefix caching. The last is on one GPU."""
THREE_MORE = (
    "h200-tp2-qwen3-next-flashinfer",
    "h200-tp2-qwen3-235b-a22b-fp8",
    "h200-dp2-ep2-deepseek-v3-l8",
)
"""Again (``18f581d3``): a hybrid model, 94 layers in fp8, and fp8 experts that ranks share, cut to 8 layers."""
TENSOR_PARALLEL_MLA = "h200-tp2-deepseek-v3-l8"
"""The same cut with TP 2 (``ca46ee9c``)."""
PROMPT_LOADS = {
    "tp2-ep2-minimax-m2-l12": "zipf:1.8",
    "h200-tp2-qwen3-235b-a22b-fp8": "zipf:4.2",
}
"""Popularities by which 128 tokens reach as many experts as prompts do with the random fp8 weights of these engines,
100 of 256 and 26 of 128 in the mean of their layers (``python -m tests.validation.routing_of_random_weights SERVER``).
Decodes of several requests reach as many as if tokens were independent."""
IN_PHASES = (*ON_H200, *WITH_FLASHINFER, *THREE_MORE, TENSOR_PARALLEL_MLA)
HOST = "xeon-vm-32-h100"
"""Of one worker on a machine of the same kind, stamped inside."""
OWN = "own"
"""Of the engine that is compared with."""
THEN = "then"
"""The same, as fast as the engine launched in the median of the phase that is compared."""
RUNS = ("serve_prefix", "serve_burst")
LATER_RUNS = ("serve_2.0", "serve_6.0")
H200_RUNS = (*LATER_RUNS, "serve_12.0")
LONG_RUN = "serve_long"
"""Prompts of 12,000 to 18,000 tokens."""
BLOCK_TOKENS = 16
"""Of models without delta rules, which have blocks of 544 tokens."""
APART_S = 20.0
"""Between prompts that are to be alone."""
BETWEEN_WORKERS = ("hand_over_us", "agree_us", "logits_us")
COMPARED_STEPS = 40
TOGETHER_OUTPUTS, TOGETHER_STEPS = 40, 12
"""Tokens of a request of decodes that were submitted together, and the last of them that were measured."""


def measurement(server: str) -> dict[str, Any]:
    return read_measurement(f"vllm-{'' if server in IN_PHASES else 'h100-'}{server}")


def compare_prompts(server: str, host: str | None = None, expert_load: str | None = None) -> list[Comparison]:
    """Medians of first tokens of prompts alone."""
    found = measurement(server)["prefill"]
    requests = [{"arrival": APART_S * index, "n_in": tokens, "n_out": 2} for index, (tokens, _) in enumerate(found)]
    ttft_ms = seconds(simulate(server, requests, host, "prefill", expert_load).ttft_ps) * 1e3
    return [
        Comparison(f"prefill of {tokens}", float(np.median(times)) * 1e3, float(simulated))
        for (tokens, times), simulated in zip(found, ttft_ms, strict=True)
    ]


def compare_decodes(server: str, host: str | None = None) -> list[Comparison]:
    """Steps in which all requests decode: medians measured, the mean of the last 40 before the first request ends."""
    found, rows = measurement(server), []
    steps = COMPARED_STEPS if "steady" in found else TOGETHER_STEPS
    for row in found["steady" if "steady" in found else "decode"]:
        ends_s, last = [], row.get("n_out", TOGETHER_OUTPUTS)
        for outputs in (last - steps, last):
            requests = [{"arrival": 0.0, "n_in": row["L"], "n_out": outputs} for _ in range(row["B"])]
            ends_s.append(float(seconds(simulate(server, requests, host, "decode").e2e_ps).min()))
        step_ms = (ends_s[1] - ends_s[0]) / steps * 1e3
        rows.append(Comparison(f"decode of {row['B']} x {row['L']}", row["itl_p50"] * 1e3, step_ms))
    return rows


def compare_serving(server: str, run: str, host: str | None = None) -> list[Comparison]:
    """Means and P90 of a serving run."""
    requests = measurement(server)[run]
    table = simulate(server, requests, host, run)
    comparisons = []
    for metric, times_ps in {"ttft": table.ttft_ps, "tpot": table.tpot_ps, "e2e": table.e2e_ps}.items():
        measured_s, simulated_s = np.array([request[metric] for request in requests]), seconds(times_ps)
        for name, pick in (("mean", np.mean), ("P90", lambda times: np.percentile(times, 90))):
            figures = float(pick(measured_s)) * 1e3, float(pick(simulated_s)) * 1e3
            comparisons.append(Comparison(f"{run} {metric} {name}", *figures))
    return comparisons


def own_host(server: str, phase: str = "") -> dict[str, float]:
    """Times of the engine's host, at the speed of a phase if one is named."""
    found = measurement(server)
    times: dict[str, float] = found["host"]
    if not phase:
        return times
    slower = launch_us(server, phase) / times["eager_launch_us"]
    then = {name: time * slower if name in (*OF_WORKERS, *BETWEEN_WORKERS) else time for name, time in times.items()}
    pieces = found.get("launches", {}).get(phase, {}).get("piecewise")
    return {**then, "piece_launch_us": pieces["median_us"]} if pieces else then


def simulate(
    server: str,
    requests: Sequence[dict[str, Any]],
    host: str | None = None,
    phase: str = "",
    expert_load: str | None = None,
) -> Any:
    """The table of requests, in their order; by default on the default host."""
    with tempfile.TemporaryDirectory() as folder:
        trace, configuration = Path(folder) / "trace.jsonl", Path(folder) / "config.yaml"
        trace.write_text("".join(json.dumps(row) + "\n" for row in trace_of(requests)), encoding="utf-8")
        configured = _configuration(server, trace)
        if host in (OWN, THEN):
            times = own_host(server, phase if host == THEN else "")
            own = Path(folder) / "host.yaml"
            own.write_text(yaml.safe_dump({"source": server, **times}), encoding="utf-8")
            host = str(own)
        configured["engine"] |= {"host": host} if host else {}
        configured["engine"] |= {"expert_load": expert_load} if expert_load else {}
        if "config" in measurement(server):
            model = Path(folder) / "config.json"
            model.write_text(json.dumps(measurement(server)["config"]), encoding="utf-8")
            configured["model"] = str(model)
        configuration.write_text(yaml.safe_dump(configured), encoding="utf-8")
        return prepare(configuration).run().table


def _configuration(server: str, trace: Path) -> dict[str, Any]:
    found = measurement(server)
    blocks, block_tokens = found["kv_blocks"]
    return {
        "model": found["args"]["model"],
        "hardware": "h200" if server in IN_PHASES else "h100",
        "workload": {"kind": "trace", "path": str(trace), "hash_block_tokens": 16},
        "cluster": {
            "topology": {"kind": "rail_optimized", "gpus_per_node": 2},
            "pools": [{"name": "server", "role": "mixed", **_partition(found["args"])}],
        },
        "engine": {
            "framework": "vllm",
            "max_batched_tokens": 8192,
            "max_seqs": 256,
            "prefix_caching": found["args"]["enable_prefix_caching"],
            "num_kv_blocks": blocks if block_tokens == BLOCK_TOKENS else None,
            "norm_kernel": "flashinfer" if _has_flashinfer_reduce(found) else "apart",
        },
        "network": {"collectives": found["collectives"]},
    }


def _has_flashinfer_reduce(found: dict[str, Any]) -> bool:
    """Whether the engine's log says that FlashInfer's all-reduce was made ready."""
    return any("Initialized FlashInfer Allreduce" in line for line in found.get("log", ()))


def _partition(arguments: dict[str, Any]) -> dict[str, int]:
    """Degrees of a pool; vLLM spreads experts over all ranks, or over none."""
    tp, dp = arguments["tensor_parallel_size"], arguments.get("data_parallel_size", 1)
    return {"tp": tp, "dp": dp, "ep": tp * dp if arguments.get("enable_expert_parallel") else 1}


def model_of(server: str) -> Model:
    """The model that an engine ran."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.json"
        file.write_text(json.dumps(measurement(server)["config"]), encoding="utf-8")
        return load_model(str(file))


def compare(server: str, host: str | None = None) -> list[Comparison]:
    """All that was measured of a server."""
    runs = [run for run in (*RUNS, LONG_RUN, *H200_RUNS) if run in measurement(server)]
    served = (row for run in runs for row in compare_serving(server, run, host))
    return [*compare_prompts(server, host), *compare_decodes(server, host), *served]


def launch_us(server: str, phase: str) -> float:
    """A launch of eager prompts during a phase of one of `LATER` or `IN_PHASES`: of a worker in the mean, over those
    counted."""
    found = measurement(server)
    if "launches" in found:
        return float(found["launches"][phase]["eager"]["median_us"])
    (steps,) = (each["steps"] for each in found["during"] if each["during"] == phase)
    eager = [row for row in steps if row["mode"] == "eager" and row["kind"].startswith("prompt")]
    passes = sum(row["number"] for row in eager)
    time_us = sum(row["launch_us"] * row["number"] for row in eager) / passes
    iterations = IterationModel(
        model_of(server), Partition(tp=2), Precision(), get_gpu("h100"), hybrid_kernels="compiled"
    )
    slower = slowest_of(2, HostModel().speed_spread)
    return float(time_us / iterations.launches(0).eager_time / slower)


def main() -> int:
    for server in (*SERVERS, HYBRID, *STAMPED, *SHARED_FP8, *IN_PHASES):
        has_own = server in (*STAMPED, *SHARED_FP8, *IN_PHASES)
        hosts = (None, HOST, *((OWN,) if has_own else ()), *((MEDIAN_HOST, THEN) if server in IN_PHASES else ()))
        for row, *others in zip(*(compare(server, host) for host in hosts), strict=True):
            times = f"measured {row.measured_ms:9.2f} ms  simulated {row.simulated_ms:9.2f} ms"
            named = "  ".join(f"{host} {other.error:+6.1%}" for host, other in zip(hosts[1:], others, strict=True))
            print(f"{server:24s} {row.name:24s} {times}  {row.error:+6.1%}  {named}")
    for server, load in PROMPT_LOADS.items():
        for row in compare_prompts(server, OWN, load):
            print(f"{server:24s} {row.name:24s} as routed {row.error:+6.1%}")
    for server in LATER:
        phases = [each["during"] for each in measurement(server)["during"]]
        print(server, "launches", {phase: round(launch_us(server, phase), 1) for phase in phases})
    return 0


if __name__ == "__main__":
    sys.exit(main())
