#!/usr/bin/env python3
"""Scheduling decisions per second of CPU time: what a policy in Python costs beside the core's vLLM V1.

    python -m tests.benchmarks.policy_decisions [--requests N]

Qwen3-8B on one H200, prompts of 100 tokens and outputs of 60 at 20, 60 and 120 requests/s, without jumps over plain
decodes: each iteration is a decision. `trivial` lets all that runs go on and admits what fits; `vllm_v1_python` is the
executable twin of the default; `asked` is the core's own vLLM V1 behind the door, that is, the door alone. Decisions/s
are those of policy and door: the whole run's CPU time less that of the core's. Prints; does not gate.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from tests.integration.small_runs import config, pool, requests
from tests.vidur_pd.policies.others import PassThrough
from vidur_pd.scheduling import Decision, Policy, RankView
from vidur_pd.simulation import Simulation

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


def cpu_s(policy: str, count: int, requests_per_s: float) -> tuple[float, int, float]:
    """(CPU seconds, iterations, mean requests in one)"""
    gaps = np.random.default_rng(0).exponential(1e6 / requests_per_s, count)
    rows = [(round(at), 100, 60) for at in np.cumsum(gaps)]
    engine = {"policy": policy, "fast_forward": False}
    simulation = Simulation(config([pool("m", "mixed")], engine=engine), requests(rows))
    begin_s = time.process_time()
    result = simulation.run()
    iterations = result.summary["simulator"]["iterations"]
    return time.process_time() - begin_s, iterations, count * 60 / iterations


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=3000)
    count = parser.parse_args().requests
    for rate in (20, 60, 120):
        core_s, decisions, size = min(cpu_s("vllm_v1", count, rate) for _ in range(3))
        print(f"{rate} requests/s: {decisions} decisions, {size:.1f} requests each; core {core_s:.2f} s")
        for name, policy in POLICIES.items():
            found_s, decisions, _ = min(cpu_s(policy, count, rate) for _ in range(3))
            each_us = (found_s - core_s) / decisions * 1e6
            print(f"  {name:15} {found_s:6.2f} s, {each_us:5.1f} us each, {1e6 / each_us:9.0f} decisions/s")


if __name__ == "__main__":
    main()
