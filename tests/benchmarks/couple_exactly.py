#!/usr/bin/env python3
"""Exact coupling on packets for a PD pair of 16 GPUs: wall time of 200 requests, and how far `fluid` is from it.

    python tests/benchmarks/couple_exactly.py [--requests 200] [--variants]

Qwen3-30B-A3B on nodes of four H200s with 400 Gbit/s NICs: a prefill instance of tensor-parallel 8 and a decode instance
of data-parallel 8 with experts over all of them, each on two nodes, so that rings, expert all-to-all and KV caches
share NICs. ``--variants`` also runs cells of four packets and skipping of steady states at 1 %. The reference is
10 minutes for 200 requests. Prints; does not gate.
"""

from __future__ import annotations

import argparse
import os
import platform
from functools import partial
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"

from vidur_pd.config import SimulationConfig
from vidur_pd.metrics.result import Result
from vidur_pd.simulation.api import simulate
from vidur_pd.workload import generator, load_workload

REFERENCE_S = 600.0
PACKETS = {"backend": "packet", "coupling": "exact"}
NETWORKS = {"fluid": {"coupling": "fluid"}, "exact on fluid": {"coupling": "exact"}, "exact on packet": PACKETS}
VARIANTS = {
    "cells of 4 packets": {**PACKETS, "roce": {"cell_packets": 4}},
    "steady states skipped, 1 %": {**PACKETS, "roce": {"skip_tolerance": 0.01}},
}
METRICS = (("ttft_s", "mean"), ("ttft_s", "p99"), ("tpot_s", "mean"), ("tpot_s", "p99"), ("e2e_s", "mean"))


def run(network: dict[str, object], requests: int) -> Result:
    config = SimulationConfig.model_validate(
        {
            "model": "qwen3-30b-a3b",
            "hardware": "h200",
            "workload": {
                "kind": "synthetic",
                "requests": requests,
                "arrivals": {"kind": "poisson", "qps": 12},
                "lengths": {
                    "kind": "lognormal",
                    "prefill": {"mu": 6.3, "sigma": 0.7, "min": 32, "max": 4000},
                    "decode": {"mu": 3.6, "sigma": 0.6, "min": 4, "max": 200},
                },
            },
            "cluster": {
                "topology": {"kind": "rail_optimized", "gpus_per_node": 4, "nic": "400Gbps"},
                "pools": [
                    {"name": "prefill", "role": "prefill", "tp": 8, "ep": 8},
                    {"name": "decode", "role": "decode", "dp": 8, "ep": 8},
                ],
            },
            "engine": {"max_batched_tokens": 4096, "max_seqs": 64},
            "kv_transfer": {"first_token": "decode_after_transfer"},
            "network": network,
        }
    )
    workload = load_workload(config.workload, base_dir=Path(), rng=partial(generator, config.seed))
    return simulate(config, workload)


def figures(result: Result) -> list[float]:
    return [1e3 * getattr(getattr(result.summary, metric), statistic) for metric, statistic in METRICS]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--variants", action="store_true", help="cells and skipping as well")
    arguments = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {arguments.requests} requests")
    networks = NETWORKS | (VARIANTS if arguments.variants else {})
    found = {name: run(network, arguments.requests) for name, network in networks.items()}
    exact = figures(found["exact on packet"])
    print(f"{'':28s}{'CPU s':>8s}" + "".join(f"{f'{metric[:-2]} {what}':>18s}" for metric, what in METRICS))
    for name, result in found.items():
        cells = [f"{ms:8.2f} ms {100 * (ms / of - 1):+5.1f} %" for ms, of in zip(figures(result), exact, strict=True)]
        print(f"{name:28s}{result.summary.simulator.cpu_s:8.1f}" + "".join(f"{cell:>20s}" for cell in cells))
    allowed_s = REFERENCE_S * arguments.requests / 200
    cpu_s = found["exact on packet"].summary.simulator.cpu_s
    print(f"exact on packet: {cpu_s:.0f} s of {allowed_s:.0f} s, ratio {cpu_s / allowed_s:.2f}")


if __name__ == "__main__":
    main()
