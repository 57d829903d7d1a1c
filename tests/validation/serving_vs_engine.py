"""Replays measured vLLM serving runs in the simulator and prints how far the mean latencies are apart.

Usage: python tests/validation/serving_vs_engine.py [MEASUREMENT.json.gz]

The measurement (data/measured/serving of the shared data folder) holds one dict per request: arrival, lengths, times.
Engine settings are those of the measured server: bf16, 8192 batched tokens, 256 sequences, 0.9 of memory, blocks of 16.
"""

from __future__ import annotations

import gzip
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

REPOSITORY = Path(__file__).resolve().parents[2]
SERVING = REPOSITORY.parent / "shared" / "data" / "measured" / "serving"
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
    from vidur_pd.metrics.summary import times_of
    from vidur_pd.simulation import Simulation

    result = Simulation(_config(model), _workload(name, requests)).run()
    times = [times_of(journey.request) for journey in result.journeys]
    simulated = {
        "ttft": np.mean([time.ttft_ps for time in times]) / 1e12,
        "tpot": np.mean([time.tpot_ps for time in times if time.tpot_ps is not None]) / 1e12,
        "e2e": np.mean([time.e2e_ps for time in times]) / 1e12,
    }
    return [
        Comparison(name, metric, len(requests), float(np.mean([r[metric] for r in requests])), float(simulated[metric]))
        for metric in METRICS
    ]


def _workload(name: str, requests: list[dict[str, Any]]) -> Any:
    from vidur_pd.workload import Workload

    first_s = requests[0]["arrival"]
    return Workload(
        request_ids=tuple(request["rid"] for request in requests),
        arrived_ps=np.array([round((request["arrival"] - first_s) * 1e12) for request in requests], dtype=np.int64),
        prefill_tokens=np.array([request["n_in"] for request in requests], dtype=np.int64),
        decode_tokens=np.array([request["n_out"] for request in requests], dtype=np.int64),
        name=name,
        source="measured vLLM run",
    )


def _config(model: str) -> Any:
    from vidur_pd.config import SimulationConfig

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


def print_table(title: str, comparisons: list[Comparison]) -> None:
    """One line per run and metric, in milliseconds."""
    print(title)
    print(f"{'run':<12}{'requests':>9}{'metric':>8}{'measured ms':>13}{'simulated ms':>14}{'error':>9}")
    for row in comparisons:
        print(
            f"{row.load:<12}{row.requests:>9}{row.metric:>8}{1e3 * row.measured_s:>13.2f}"
            f"{1e3 * row.simulated_s:>14.2f}{100 * row.error:>8.1f}%"
        )


def main() -> int:
    """Prints the table of one measurement, or of all that are there."""
    paths = [Path(argument) for argument in sys.argv[1:]] or sorted(SERVING.glob("vllm-*-tp1.json.gz"))
    if not paths:
        print(f"no measurement in {SERVING}: nothing to compare with")
        return 1
    for path in paths:
        model = path.name.removeprefix("vllm-").removesuffix("-tp1.json.gz")
        print_table(f"{model}, one H200, vLLM 0.24.0", compare_serving(path, model))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
