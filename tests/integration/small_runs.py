"""Small simulations for integration tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from vidur_pd.config import SimulationConfig
from vidur_pd.metrics.result import Result
from vidur_pd.simulation import api
from vidur_pd.workload import Workload

ANY_WORKLOAD = {
    "kind": "synthetic",
    "requests": 1,
    "arrivals": {"kind": "static"},
    "lengths": {"kind": "fixed", "prefill": 1, "decode": 1},
}
"""Stands in the configuration where the test brings its own requests."""


def pool(name: str, role: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "role": role, **fields}


NO_HOST = {"host": str(Path(__file__).with_name("no_host.yaml"))}
"""Fields of ``engine``: no time of a host."""


def config(pools: list[dict[str, Any]], **sections: Any) -> SimulationConfig:
    """Qwen3-8B in bf16 on a rail-optimised fabric of 2-GPU nodes, unless the sections say otherwise."""
    topology = sections.pop("topology", {"kind": "rail_optimized", "gpus_per_node": 2})
    tree = {
        "model": "qwen3-8b",
        "hardware": "h200",
        "workload": ANY_WORKLOAD,
        "cluster": {"topology": topology, "pools": pools},
        **sections,
    }
    return SimulationConfig.model_validate(tree)


def requests(rows: list[tuple[int, int, int]]) -> Workload:
    """(arrival in µs, prompt tokens, output tokens) of each request, sorted by arrival."""
    ordered = sorted(rows, key=lambda row: row[0])
    return Workload(
        request_ids=tuple(f"r{index}" for index in range(len(ordered))),
        arrived_ps=np.array([row[0] * 10**6 for row in ordered], dtype=np.int64),
        prefill_tokens=np.array([row[1] for row in ordered], dtype=np.int64),
        decode_tokens=np.array([row[2] for row in ordered], dtype=np.int64),
    )


def simulate(configuration: SimulationConfig, rows: list[tuple[int, int, int]]) -> Result:
    return api.simulate(configuration, requests(rows))
