"""How far latencies of measured vLLM serving runs and of their simulation are apart, in the mean and at the P90.

A measurement, ``vllm-MODEL-tp1.json.gz``, holds ``serve_*`` runs with one dict per request: arrival, lengths, times.
Engine settings are vLLM's own (``framework: vllm``), as the server was started without any that matter here.
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
    """One metric in one run, in seconds."""

    load: str
    metric: str
    requests: int
    measured_s: float
    """Mean."""
    simulated_s: float
    measured_p90_s: float
    simulated_p90_s: float

    @property
    def error(self) -> float:
        """Of the mean; relative, positive where the simulation is slower."""
        return self.simulated_s / self.measured_s - 1

    @property
    def p90_error(self) -> float:
        return self.simulated_p90_s / self.measured_p90_s - 1


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
        "ttft": seconds(table.ttft_ps),
        "tpot": seconds(table.tpot_ps[table.tpot_ps != NEVER]),
        "e2e": seconds(table.e2e_ps),
    }
    measured = {metric: np.array([request[metric] for request in requests]) for metric in METRICS}
    return [
        Comparison(
            name,
            metric,
            len(requests),
            float(measured[metric].mean()),
            float(simulated[metric].mean()),
            float(np.percentile(measured[metric], 90)),
            float(np.percentile(simulated[metric], 90)),
        )
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
            "engine": {"framework": "vllm", "version": "0.24.0"},
        }
    )


_ANY_LENGTHS = {"kind": "fixed", "prefill": 1, "decode": 1}
"""The measured requests take the place of the configured workload."""


def measurements(folder: Path) -> dict[str, Path]:
    """Measured models in a folder and their files."""
    paths = sorted(folder.glob("vllm-*-tp1.json.gz"))
    return {path.name.removeprefix("vllm-").removesuffix("-tp1.json.gz"): path for path in paths}
