"""Small runs with a planner: Qwen3-8B on single H200s, each in a server of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from boundary.fields import Section
from vidur_pd.cluster.planner.planner import Observation, Planner

LAYER_PARAMETERS = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 12_288 + 2 * 4096 + 2 * 128
WEIGHTS_BYTES = 2 * (2 * 151_936 * 4096 + 36 * LAYER_PARAMETERS + 4096)
"""Qwen3-8B in bf16, from the shapes of its published ``config.json``: embedding and head, 36 layers, the last norm."""


class Scripted(Planner):
    """Plans by the clock."""

    class Options(Section):
        plans: tuple[tuple[float, dict[str, int]], ...]
        """(from when on [s], instances by pool), rising."""

    options: Options

    def plan(self, seen: Observation) -> Mapping[str, int]:
        known = [plan for at_s, plan in self.options.plans if at_s <= seen.now_s]
        return known[-1] if known else {}


SCRIPTED = f"{__name__}:{Scripted.__name__}"


def configuration(planner: dict[str, Any] | None, **sections: Any) -> dict[str, Any]:
    """Two prefill and two decode instances, and 10 requests per second for 12 seconds."""
    tree: dict[str, Any] = {
        "model": "qwen3-8b",
        "hardware": "h200",
        "workload": {
            "kind": "synthetic",
            "requests": 120,
            "arrivals": {"kind": "poisson", "qps": 10},
            "lengths": {"kind": "uniform", "min": 16, "max": 1500, "prefill_to_decode": 10},
        },
        "cluster": {
            "topology": {"kind": "rail_optimized", "gpus_per_node": 1, "nic": "400Gbps"},
            "pools": [
                {"name": "prefill", "role": "prefill", "instances": 2},
                {"name": "decode", "role": "decode", "instances": 2},
            ],
        },
        "engine": {"max_batched_tokens": 8192},
        "kv_transfer": {"mode": "pull", "first_token": "decode_after_transfer"},
        **sections,
    }
    return tree if planner is None else {**tree, "planner": planner}


def scripted(*plans: tuple[float, dict[str, int]], **fields: Any) -> dict[str, Any]:
    """A planner that plans by the clock, every second; instances take 2 s to start."""
    return {
        "policy": SCRIPTED,
        "options": {"plans": plans},
        "interval_s": 1.0,
        "startup": {"engine_s": 2.0},
        "pools": {"prefill": {}, "decode": {}},
        **fields,
    }
