#!/usr/bin/env python3
"""Scheduling decisions per second of CPU time: what a policy in Python costs beside the core's vLLM V1.

    python -m tests.benchmarks.policy_decisions [--requests N]

Qwen3-8B on one H200, prompts of 100 tokens and outputs of 60 at 5, 20 and 60 requests/s, without jumps over plain
decodes: each iteration is a decision. `trivial` lets all that runs go on and admits what fits; `vllm_v1_python` is the
executable twin of the default; `asked` is the core's own vLLM V1 behind the door, that is, the door alone. The time is
that from the loop's question to its answer, the median over all decisions. Prints; does not gate.
"""

from __future__ import annotations

import argparse
import time
from typing import NamedTuple
from unittest.mock import patch

import numpy as np

from tests.integration.small_runs import config, pool, requests
from tests.vidur_pd.policies.others import PassThrough
from vidur_pd.execution.instances.instance import Instance
from vidur_pd.scheduling import Decision, Policy, RankView
from vidur_pd.simulation.api import prepare

POLICIES = {
    "asked": f"{PassThrough.__module__}:{PassThrough.__name__}",
    "trivial": "tests.benchmarks.policy_decisions:Trivial",
    "vllm_v1_python": "vidur_pd.scheduling.vllm_v1_python:VllmV1Python",
}


class Trivial(Policy):
    """First come, first served; there are blocks and tokens for all."""

    def decide(self, rank: RankView, decision: Decision) -> None:
        for request in rank.running:
            decision.run(request, 1)
        for request in rank.waiting:
            decision.run(request, request.prompt_tokens)


class Decisions(NamedTuple):
    """Decisions of a run."""

    count: int
    median_us: float
    requests: float
    """In one."""
    per_s: float
    """Of the CPU time of the whole simulation, which is one iteration for each."""


def decisions_of(policy: str, count: int, requests_per_s: float) -> Decisions:
    gaps = np.random.default_rng(0).exponential(1e6 / requests_per_s, count)
    rows = [(round(at), 100, 60) for at in np.cumsum(gaps)]
    simulation = prepare(config([pool("m", "mixed")], engine={"policy": policy, "fast_forward": False}), requests(rows))
    times_ns: list[int] = []

    decide = Instance.decides_run

    def timed(instance: Instance, steps: int, now_ps: int) -> bool:
        begin_ns = time.perf_counter_ns()
        is_run = decide(instance, steps, now_ps)
        times_ns.append(time.perf_counter_ns() - begin_ns)
        return is_run

    with patch.object(Instance, "decides_run", timed):
        begin_s = time.process_time()
        simulation.run()
        whole_s = time.process_time() - begin_s
    return Decisions(
        len(times_ns), float(np.median(times_ns)) / 1e3, count * 60 / len(times_ns), len(times_ns) / whole_s
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=3000)
    count = parser.parse_args().requests
    for rate in (5, 20, 60):
        for name, policy in POLICIES.items():
            made = decisions_of(policy, count, rate)
            text = f"{rate} requests/s, {name:15} {made.count:6} decisions on {made.requests:4.1f} requests"
            each = f"{made.median_us:5.1f} us each, {1e6 / made.median_us:7.0f}/s"
            print(f"{text}: {each}; {made.per_s:6.0f}/s with the whole simulation of each iteration")


if __name__ == "__main__":
    main()
