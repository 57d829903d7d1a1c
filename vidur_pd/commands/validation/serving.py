"""How far the mean latencies of measured vLLM serving runs and of their simulation are apart.

A measurement, ``vllm-MODEL-tp1.json.gz``, holds ``serve_*`` runs with one dict per request: arrival, lengths, times.
Engine settings are those of the measured server: bf16, 8192 batched tokens, 256 sequences, 0.9 of memory, blocks of 16.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vidur_pd.config import SimulationConfig
from vidur_pd.metrics.requests import NEVER, seconds
from vidur_pd.simulation.api import simulate
from vidur_pd.workload import Workload

METRICS = ("ttft", "tpot", "e2e")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Mean of one metric in one run, in seconds."""

    load: str
    metric: str
    requests: int
    measured_s: float
    simulated_s: float

    @property
    def error(self) -> float:
        """Relative, positive where the simulation is slower."""
        return self.simulated_s / self.measured_s - 1


def compare_serving(measurement: Path, model: str) -> list[Comparison]:
    """Simulates every ``serve_*`` run of a measurement on one H200."""
    with gzip.open(measurement, "rt", encoding="utf-8") as file:
        runs = json.load(file)
    return [
        comparison
        for name, requests in runs.items()
        if name.startswith("serve_")
        for comparison in _compare(name, requests, model)
    ]


def _compare(name: str, requests: list[dict[str, Any]], model: str) -> list[Comparison]:
    result = simulate(_config(model), _workload(name, requests))
    table = result.table
    simulated = {
        "ttft": seconds(table.ttft_ps).mean(),
        "tpot": seconds(table.tpot_ps[table.tpot_ps != NEVER]).mean(),
        "e2e": seconds(table.e2e_ps).mean(),
    }
    return [
        Comparison(name, metric, len(requests), float(np.mean([r[metric] for r in requests])), float(simulated[metric]))
        for metric in METRICS
    ]


def _workload(name: str, requests: list[dict[str, Any]]) -> Workload:
    first_s = requests[0]["arrival"]
    return Workload(
        request_ids=tuple(request["rid"] for request in requests),
        arrived_ps=np.array([round((request["arrival"] - first_s) * 1e12) for request in requests], dtype=np.int64),
        prefill_tokens=np.array([request["n_in"] for request in requests], dtype=np.int64),
        decode_tokens=np.array([request["n_out"] for request in requests], dtype=np.int64),
        name=name,
        source="measured vLLM run",
    )


def _config(model: str) -> SimulationConfig:
    return SimulationConfig.model_validate(
        {
            "model": model,
            "hardware": "h200",
            "workload": {"kind": "synthetic", "requests": 1, "arrivals": {"kind": "static"}, "lengths": _ANY_LENGTHS},
            "cluster": {"topology": {"kind": "single_switch"}, "pools": [{"name": "server", "role": "mixed"}]},
            "engine": {"max_batched_tokens": 8192, "max_seqs": 256, "max_model_len": 32768},
        }
    )


_ANY_LENGTHS = {"kind": "fixed", "prefill": 1, "decode": 1}
"""The measured requests take the place of the configured workload."""


def measurements(folder: Path) -> dict[str, Path]:
    """Measured models in a folder and their files."""
    paths = sorted(folder.glob("vllm-*-tp1.json.gz"))
    return {path.name.removeprefix("vllm-").removesuffix("-tp1.json.gz"): path for path in paths}
