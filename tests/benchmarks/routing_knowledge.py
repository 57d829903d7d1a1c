#!/usr/bin/env python3
"""What routers gain from knowing caches and links: the tables of docs/routing.md.

    python -m tests.benchmarks.routing_knowledge caches TRACE [TRACE ...]
    python -m tests.benchmarks.routing_knowledge late TRACE
    python -m tests.benchmarks.routing_knowledge links
    python -m tests.benchmarks.routing_knowledge local TRACE

``TRACE``: a Mooncake trace, such as ``conversation_trace.jsonl``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from vidur_pd.metrics.result import Result
from vidur_pd.simulation.api import simulate

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "routing"
POLICIES = ("round_robin", "least_tokens", "power_of_two", "prefix_affine", "kv_aware")
PACES = (1.0, 0.5, 0.3, 0.25)
"""``time_scale``: the trace as recorded, and up to four times as fast."""
DELAYS_S = (0.0, 1.0, 10.0, 60.0)
DECODE_POLICIES = ("round_robin", "kv_aware", "free_memory", "network_aware")


def run(example: str, settings: Iterable[str]) -> Result:
    return simulate(EXAMPLES / example, settings=["output.iterations=false", "output.links=false", *settings])


def row(name: str, result: Result) -> str:
    """Hit rate, TTFT and TPOT of one run."""
    summary, table = result.summary, result.table
    hits = table.cached_tokens.sum() / table.prompt_tokens.sum()
    ttft, tpot = summary.ttft_s, summary.tpot_s
    return (
        f"{name:<34}{100 * hits:>7.1f} %{ttft.mean or 0:>9.3f}{ttft.p50 or 0:>9.3f}{ttft.p90 or 0:>9.3f}"
        f"{ttft.p99 or 0:>9.3f}{1e3 * (tpot.mean or 0):>9.2f}{summary.completed:>8}"
    )


def head(what: str) -> str:
    return f"{what:<34}{'hits':>9}{'TTFT mean':>9}{'p50':>9}{'p90':>9}{'p99':>9}{'TPOT':>9}{'done':>8}"


def caches(traces: Sequence[str]) -> None:
    for trace in traces:
        print(head(Path(trace).name.partition(".")[0]))
        for pace in PACES:
            for policy in POLICIES:
                settings = [f"workload.path={trace}", f"workload.time_scale={pace}", f"routing.policy={policy}"]
                print(row(f"time_scale {pace:g}, {policy}", run("conversations.yaml", settings)), flush=True)


def late(trace: str) -> None:
    print(head("kv_aware, least_tokens, late"))
    for policy in ("kv_aware", "least_tokens"):
        for delay_s in DELAYS_S:
            settings = [f"workload.path={trace}", f"routing.policy={policy}", f"routing.index_delay_s={delay_s}"]
            print(row(f"{policy}, {delay_s:g} s", run("conversations.yaml", settings)), flush=True)


def links() -> None:
    print(head("decode_policy"))
    for oversubscription in (1, 8, 16):
        for policy in DECODE_POLICIES:
            settings = [
                f"routing.decode_policy={policy}",
                f"cluster.topology.oversubscription={oversubscription}",
            ]
            result = run("oversubscribed.yaml", settings)
            table = result.table
            travelled_s = (table.kv_arrived_ps - table.kv_sent_ps)[table.kv_arrived_ps >= 0].mean() / 1e9
            print(row(f"{oversubscription}:1, {policy}", result), f"   KV {travelled_s:8.2f} ms", flush=True)


def local(trace: str) -> None:
    print(head("disaggregate.min_prompt_tokens"))
    for tokens in (0, 512, 2048, 8192, 32_768):
        rule = f"{{min_prompt_tokens: {tokens}, min_new_share: 2}}" if tokens else "null"
        result = run("disaggregated.yaml", [f"workload.path={trace}", f"routing.disaggregate={rule}"])
        print(row(str(tokens), result), flush=True)


def main() -> int:
    match sys.argv[1:]:
        case ["caches", *traces] if traces:
            caches(traces)
        case ["late", trace]:
            late(trace)
        case ["links"]:
            links()
        case ["local", trace]:
            local(trace)
        case _:
            print(__doc__)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
