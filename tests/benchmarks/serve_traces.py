#!/usr/bin/env python3
"""Whole simulations on one core: wall and CPU time, memory, and the ratio to a reference, with the machine.

    python tests/benchmarks/serve_traces.py [--only NAME]… [--requests N]

mooncake: the conversation trace (12,031 requests) on DeepSeek-V3, 2 x 16 H200s for prefill and 32 for decode, ``fluid``
coupling, prefix caching. Reference: NVIDIA's DynoSim replays the trace, without a network model, in 5 s.
tiers: the mooncake case with KV-aware routing, first as it is, then with 1 TB of CPU memory as a tier for each rank
that prefills. No reference.
llama: Llama-2-7B on one A100, chunks of 512, Azure conversation lengths at 3 requests/s, 10,240 requests. Reference:
Vidur, 22.6 s (2.07 s for 1,024 requests, so hardly any of it is for starting).
million: synthetic requests on 16 + 16 instances, ``isolated`` (1,000,000 unless --requests says fewer), written by
``--stream`` (--whole: at the end). Reference: the ten minutes that the project allows itself.
wide: 10,000 synthetic requests on 2,048 instances of Llama-2-7B, each on the 8 GPUs of a server, in a rail-optimised
cluster of 100,000 GPUs (12,500 servers), ``fluid`` coupling. No reference.
start: ``vidur-pd --help``, and the time until the first event of the mooncake case can be simulated.

Every case runs in a process of its own; ratios are to the CPU time of the whole process, result files and report
included, and to that of the simulation alone. Prints; does not gate. Traces are read from
../shared/data/traces beside the repository (--traces); cases without theirs are skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
REFERENCE_S = {"mooncake": ("DynoSim", 5.0), "llama": ("Vidur", 22.6), "million": ("limit", 600.0)}
CASES = (*REFERENCE_S, "tiers", "wide", "start")


def configuration(case: str, requests: int, traces: Path) -> dict[str, Any]:
    """The YAML tree of a case."""
    match case:
        case "llama":
            return {
                "seed": 42,
                "model": "llama-2-7b",
                "hardware": "a100",
                "workload": {
                    "kind": "trace",
                    "path": str(traces / "AzureLLMInferenceTrace_conv.csv"),
                    "arrivals": {"kind": "poisson", "qps": 3},
                    "requests": 10_240,
                    "max_tokens": 4096,
                },
                "cluster": {
                    "topology": {"kind": "single_switch"},
                    "pools": [{"name": "replica", "role": "mixed"}],
                },
                "engine": {"max_batched_tokens": 512, "max_seqs": 128},
            }
        case "wide":
            return wide_configuration(instances=2048, servers=12_500, requests=10_000)
        case "million":
            return {
                "model": "llama-2-7b",
                "hardware": "h200",
                "workload": {
                    "kind": "synthetic",
                    "requests": requests,
                    "arrivals": {"kind": "poisson", "qps": 60},
                    "lengths": {
                        "kind": "lognormal",
                        "prefill": {"median": 1020, "p90": 2734, "max": 3000},
                        "decode": {"median": 129, "p90": 450, "max": 1000},
                    },
                },
                "cluster": {
                    "topology": {"kind": "rail_optimized", "gpus_per_node": 8, "nic": "400Gbps"},
                    "pools": [
                        {"name": "prefill", "role": "prefill", "instances": 16},
                        {"name": "decode", "role": "decode", "instances": 16},
                    ],
                },
                "network": {"coupling": "isolated"},
                "output": {"iterations": False},
            }
    tree: dict[str, Any] = {
        "model": "deepseek-v3",
        "hardware": "h200",
        "workload": {"kind": "trace", "path": str(traces / "mooncake_conversation_trace.jsonl.gz")},
        "cluster": {
            "topology": {"kind": "rail_optimized", "gpus_per_node": 8, "nic": "400Gbps", "nodes": 8},
            "pools": [
                {"name": "prefill", "role": "prefill", "instances": 2, "ep": 16, "dp": 16},
                {"name": "decode", "role": "decode", "ep": 32, "dp": 32},
            ],
        },
        "engine": {"prefix_caching": True, "weights": "fp8", "expert_dispatch": "deepep"},
        "network": {"backend": "fluid", "coupling": "fluid"},
    }
    if case in ("tiers", "untiered"):
        tree["cluster"]["topology"]["pcie"] = {"rate": "504Gbps"}
        tree["routing"] = {"policy": "kv_aware", "decode_policy": "least_tokens"}
    if case == "tiers":
        tree["kv_cache"] = {"tiers": [{"kind": "cpu", "capacity": "1TB"}]}
    return tree


def wide_configuration(*, instances: int, servers: int, requests: int) -> dict[str, Any]:
    """Half of the instances prefill and half decode; each has the 8 GPUs of a server."""
    return {
        "model": "llama-2-7b",
        "hardware": "h200",
        "workload": {
            "kind": "synthetic",
            "requests": requests,
            "arrivals": {"kind": "poisson", "qps": 2 * instances},
            "lengths": {
                "kind": "lognormal",
                "prefill": {"median": 1020, "p90": 2734, "max": 3000},
                "decode": {"median": 129, "p90": 450, "max": 1000},
            },
        },
        "cluster": {
            "topology": {"kind": "rail_optimized", "gpus_per_node": 8, "nic": "400Gbps", "nodes": servers},
            "pools": [
                {"name": role, "role": role, "instances": instances // 2, "tp": 8} for role in ("prefill", "decode")
            ],
        },
        "network": {"backend": "fluid", "coupling": "fluid"},
    }


def run(case: str, requests: int, traces: Path, *, is_streamed: bool) -> dict[str, float]:
    """One case in this process: figures from the start of the interpreter's imports on."""
    begin_s = time.perf_counter()
    import yaml

    from vidur_pd.simulation.api import prepare
    from vidur_pd.simulation.output import stream_result, write_result

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(yaml.safe_dump(configuration(case, requests, traces)))
        simulation = prepare(path)
        ready_s, ready_cpu_s = time.perf_counter() - begin_s, time.process_time()
        if case == "start":
            return {"ready_s": ready_s}
        out = Path(folder) / "out"
        result = stream_result(simulation, out) if is_streamed else simulation.run()
        simulating_cpu_s = time.process_time() - ready_cpu_s
        if not is_streamed:
            write_result(result, out)
    return {
        "ready_s": ready_s,
        "simulating_cpu_s": simulating_cpu_s,
        "wall_s": time.perf_counter() - begin_s,
        "cpu_s": time.process_time(),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
        "requests": result.summary.requests,
        "completed": result.summary.completed,
        "iterations": result.summary.simulator.iterations,
    }


def in_own_process(arguments: list[str]) -> tuple[str, float, float]:
    """(standard output, wall, CPU seconds) of a fresh interpreter on one thread."""
    before, begin_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    one_thread = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    compiled = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, *arguments], check=True, capture_output=True, text=True, env=compiled | one_thread
    )
    wall_s, after = time.perf_counter() - begin_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    return done.stdout, wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def report(case: str, requests: int, traces: Path, options: list[str]) -> None:
    if case not in ("million", "wide") and not traces.is_dir():
        print(f"{case:9} skipped: no {traces}")
        return
    if case == "start":
        _, wall_s, cpu_s = in_own_process(["-m", "vidur_pd", "--help"])
        print(f"{case:9} vidur-pd --help {wall_s:.2f} s wall, {cpu_s:.2f} s CPU")
    if case == "tiers":
        report("untiered", requests, traces, options)
    out, wall_s, cpu_s = in_own_process(
        [__file__, "--case", case, "--requests", str(requests), "--traces", str(traces), *options]
    )
    found = json.loads(out)
    if case == "start":
        print(f"{case:9} ready for the first event after {found['ready_s']:.2f} s wall")
        return
    name, reference_s = REFERENCE_S.get(case, ("", 0.0))
    alone_s = found["simulating_cpu_s"]
    ratios = f"{reference_s / cpu_s:.2f} x the whole, {reference_s / alone_s:.2f} x the simulation"
    print(
        f"{case:9} {found['requests']:>9,.0f} requests ({found['completed']:,.0f} completed, "
        f"{found['iterations']:,.0f} iterations): {wall_s:.1f} s wall, {cpu_s:.1f} s CPU "
        f"(ready after {found['ready_s']:.1f} s wall, simulation alone {alone_s:.2f} s CPU), "
        f"peak {found['peak_mb']:.0f} MB" + (f"; {name} {reference_s:g} s = {ratios}" if name else "")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=CASES, help="run this case alone (repeatable)")
    parser.add_argument("--requests", type=int, default=1_000_000, help="of the million case")
    parser.add_argument("--traces", type=Path, default=ROOT.parent / "shared/data/traces")
    parser.add_argument("--whole", action="store_true", help="the million case without --stream")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        is_streamed = options.case == "million" and not options.whole
        print(json.dumps(run(options.case, options.requests, options.traces, is_streamed=is_streamed)))
        return
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    for case in options.only or CASES:
        report(case, options.requests, options.traces, ["--whole"] if options.whole else [])


if __name__ == "__main__":
    main()
