#!/usr/bin/env python3
"""Crossings: how often a simulation calls a bound C++ function from Python, per request.

    python -m tests.benchmarks.crossings [--requests N]

Small PD clusters, by coupling and mode of KV transfers. Counted are calls of functions and methods of the cores of
``vidur_pd`` and ``netsim`` while the simulation runs, each ``Loop.run`` included, which ends with a notice; attributes
are not. Prints; ``tests/integration/test_crossings.py`` gates.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from types import FrameType
from typing import Any

from tests.integration.small_runs import config, pool, requests
from vidur_pd.config import SimulationConfig
from vidur_pd.simulation.api import prepare

CORES = ("vidur_pd._core", "netsim._core")
MODES = ("pull", "push", "layerwise")


def configuration(coupling: str, mode: str, **network: Any) -> SimulationConfig:
    """One prefill instance and one decode instance, each on the two GPUs of a server."""
    return config(
        [pool("prefill", "prefill", tp=2), pool("decode", "decode", tp=2)],
        kv_transfer={"mode": mode},
        network={"coupling": coupling, **network},
    )


def crossings(configuration: SimulationConfig, count: int, prompt_tokens: int = 700) -> Counter[str]:
    """Calls by name in the simulation of ``count`` requests, 20 a second, with one to five times the prompt tokens."""
    rows = [(50_000 * index, prompt_tokens * (1 + index % 5), 20 + 30 * (index % 4)) for index in range(count)]
    simulation = prepare(configuration, requests(rows))
    calls: Counter[str] = Counter()

    def note(_frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and getattr(called, "__module__", None) in CORES:
            calls[called.__name__] += 1

    sys.setprofile(note)
    try:
        simulation.run()
    finally:
        sys.setprofile(None)
    return calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100)
    count = parser.parse_args().requests
    for coupling in ("isolated", "fluid"):
        for mode in MODES:
            calls = crossings(configuration(coupling, mode), count)
            most = ", ".join(f"{name} {each / count:.1f}" for name, each in calls.most_common(5))
            print(f"{coupling:9} {mode:9} {calls.total() / count:7.1f} per request: {most}")


if __name__ == "__main__":
    main()
