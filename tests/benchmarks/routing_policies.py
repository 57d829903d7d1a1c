#!/usr/bin/env python3
"""Every routing policy on two workloads, for the table of vidur_pd/README.md.

    python -m tests.benchmarks.routing_policies

The cluster is that of examples/deepseek-v3-trace.yaml with a second decode instance: 4 prefill instances of a node, 2
decode instances of 16 ranks. Workloads: the shipped conversations, and bursts (gaps of a gamma distribution, CV 4).
About two minutes on one core; prints.
"""

from __future__ import annotations

from pathlib import Path

from vidur_pd.config.file import load_config
from vidur_pd.metrics.summary import Summary
from vidur_pd.simulation.api import simulate
from vidur_pd.workload import generator, load_workload

EXAMPLE = Path(__file__).parents[2] / "examples" / "deepseek-v3-trace.yaml"
BURSTS = {
    "kind": "synthetic",
    "requests": 2400,
    "arrivals": {"kind": "gamma", "qps": 12, "cv": 4},
    "lengths": {
        "kind": "lognormal",
        "prefill": {"median": 1020, "p90": 6000, "max": 60_000},
        "decode": {"median": 129, "p90": 450, "max": 2000},
    },
}
ROUTING: tuple[dict[str, str], ...] = (
    {"policy": "round_robin"},
    {"policy": "random"},
    {"policy": "least_requests"},
    {},
    {"decode_policy": "least_requests"},
    {"rank_policy": "round_robin"},
    {"rank_policy": "least_tokens"},
)


def summary_of(routing: dict[str, str], *, has_bursts: bool) -> Summary:
    settings = [f"routing={routing}", "output={iterations: false, links: false}"]
    if has_bursts:
        settings.append(f"workload={BURSTS}")
    config = load_config(EXAMPLE, [*settings, "cluster.pools.decode.instances=2"])
    workload = load_workload(config.workload, base_dir=EXAMPLE.parent, rng=lambda name: generator(config.seed, name))
    return simulate(config, workload).summary


def main() -> None:
    print("| `routing` | TTFT mean | p90 | p99 | TPOT mean | p99 | E2E mean | meets the SLO |")
    print("|---|---|---|---|---|---|---|---|")
    for routing in ROUTING:
        cells: list[str] = []
        found = [summary_of(routing, has_bursts=has_bursts) for has_bursts in (False, True)]
        for name, key, scale, digits in (
            ("ttft_s", "mean", 1, 2),
            ("ttft_s", "p90", 1, 2),
            ("ttft_s", "p99", 1, 2),
            ("tpot_s", "mean", 1e3, 1),
            ("tpot_s", "p99", 1e3, 1),
            ("e2e_s", "mean", 1, 2),
        ):
            cells.append(" / ".join(f"{scale * getattr(getattr(each, name), key):.{digits}f}" for each in found))
        cells.append(" / ".join(f"{100 * each.goodput_share:.1f} %" for each in found))
        label = ", ".join(f"{field}: {policy}" for field, policy in routing.items())
        print(f"| {f'`{label}`' if label else 'default'} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
