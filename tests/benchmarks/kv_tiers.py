#!/usr/bin/env python3
"""What tiers of KV are worth on Mooncake's traces, for docs/tiers.md: hits, TTFT and what crossed PCIe and NICs.

    python -m tests.benchmarks.kv_tiers [kinds|evictions|ways]… TRACE.jsonl…

Eight H200s of one server with Llama 3.1 8B (examples/routing/conversations.yaml), with hosts: kinds of tiers; each
eviction policy on little memory; ways to load, write, prefetch and route, as HiCache's, and two servers of four GPUs.
Prints; does not gate.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from vidur_pd.simulation.api import simulate

CONFIG = Path(__file__).parents[2] / "examples/routing/conversations.yaml"
DISK = {"kind": "nvme", "capacity": "8TB", "read": "24GB/s", "written": "12GB/s", "latency": "100us", "scope": "server"}
LITTLE = "64GB"


Case = tuple[str, str, list[dict[str, Any]], dict[str, Any]]
"""(name, routing policy, tiers, other settings by their paths)"""


def kinds() -> Iterator[Case]:
    for routing in ("kv_aware", "least_tokens"):
        yield f"{routing}: none", routing, [], {}
        yield "128 GB for each GPU", routing, [{"kind": "cpu", "capacity": "128GB"}], {}
        yield "1 TB for all", routing, [{"kind": "cpu", "capacity": "1TB", "scope": "server"}], {}
        yield "256 GB for all, disks", routing, [{"kind": "cpu", "capacity": "256GB", "scope": "server"}, DISK], {}


def evictions() -> Iterator[Case]:
    for eviction in ("lru", "lfu", "s3_fifo", "arc"):
        tier = {"kind": "cpu", "capacity": LITTLE, "scope": "server", "eviction": eviction}
        yield f"{LITTLE} for all, {eviction}", "least_tokens", [tier], {}


def ways() -> Iterator[Case]:
    own: dict[str, Any] = {"kind": "cpu", "capacity": "128GB"}
    layerwise = {"kv_cache.layerwise": True}
    yield "128 GB for each GPU, host_weight 0.75", "kv_aware", [own], {"routing.policy_options": {"host_weight": 0.75}}
    shared = [{"kind": "cpu", "capacity": "1TB", "scope": "server"}]
    yield "1 TB for all, layerwise", "least_tokens", shared, layerwise
    memory = {"kind": "cpu", "capacity": "256GB", "scope": "server"}
    yield "256 GB for all, disks, layerwise", "least_tokens", [memory, DISK], layerwise
    for prefetch in ("best_effort", "timeout", "wait_complete"):
        tiers = [memory, DISK | {"prefetch": prefetch}]
        yield f"256 GB for all, disks, {prefetch}", "least_tokens", tiers, layerwise
    engine = {"engine": {"framework": "sglang", "block_tokens": 64}}
    hicache = engine | layerwise | {"kv_cache.chunk_tokens": 64, "kv_cache.load_tokens_min": 10}
    yield "SGLang: none", "kv_aware", [], engine
    for write in ("through", "selective", "back"):
        yield f"SGLang: 128 GB for each GPU, {write}", "kv_aware", [own | {"write": write}], hicache
    servers = {"cluster.topology.gpus_per_node": 4}
    yield "two servers: 512 GB for each", "least_tokens", [memory | {"capacity": "512GB"}], servers
    for place in ("spread", "writer"):
        tiers = [{"kind": "pooled", "capacity": "512GB", "place": place}]
        yield f"two servers: 512 GB pooled, {place}", "least_tokens", tiers, servers


def put(tree: dict[str, Any], path: str, value: Any) -> None:
    *above, last = path.split(".")
    for name in above:
        tree = tree.setdefault(name, {})
    tree[last] = value


def main(arguments: list[str]) -> None:
    sets = {"kinds": kinds, "evictions": evictions, "ways": ways}
    asked = [name for name in arguments if name in sets] or list(sets)
    traces = [name for name in arguments if name not in sets]
    for trace in traces:
        columns = (
            "tiers",
            "hits",
            "loaded",
            "TTFT mean",
            "p50",
            "p99",
            "loaded GB",
            "waited s",
            "computing s",
            "CPU s",
        )
        print(f"\n{Path(trace).name}\n| {' | '.join(columns)} |")
        for name, routing, tiers, others in (case for each in asked for case in sets[each]()):
            tree = yaml.safe_load(CONFIG.read_text())
            tree["workload"]["path"] = str(Path(trace).absolute())
            tree["routing"]["policy"] = routing
            tree["cluster"]["topology"]["pcie"] = {"rate": "504Gbps", "gpus_per_switch": 2}
            if tiers:
                tree["kv_cache"] = {"tiers": tiers}
            for path, value in others.items():
                put(tree, path, value)
            begun_s = time.process_time()
            result = simulate(tree)
            took_s, found, summary = time.process_time() - begun_s, result.summary.tiers or (), result.summary
            tokens = sum(request.prompt_tokens for request in result.requests if request.status.value == "completed")
            loaded = sum(each.loaded_tokens for each in found)
            print(
                f"| {name} | {100 * (summary.cached_input_share or 0):.1f} | {100 * loaded / tokens:.1f} "
                f"| {summary.ttft_s.mean:.3f} | {summary.ttft_s.p50:.3f} | {summary.ttft_s.p99:.2f} "
                f"| {sum(each.loaded_bytes for each in found) / 1e9:.0f} | {sum(each.load_s for each in found):.0f} "
                f"| {sum(each.recompute_s for each in found):.0f} | {took_s:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
