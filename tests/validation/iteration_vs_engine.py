#!/usr/bin/env python3
"""Compares iteration times with a serving engine: vLLM 0.24.0 on one H200, dummy weights, bf16.

    python tests/validation/iteration_vs_engine.py [--json | --calibrate]

Replays the two offline experiments of the measurement files with ``IterationModel``: one prompt alone, and N prompts
submitted together with 40 output tokens each (admission of 8192 tokens per step, 256 requests, the median of the last
12 inter-token times pooled over requests). Host parameters are calibrated on ``CALIBRATION``, fewer than half of the
points of each table (``--calibrate`` repeats the fit); the others are held out and reported apart. Kernel times are not
fitted to the engine. The serving runs of the same files are left for end-to-end validation.
"""

from __future__ import annotations

import gzip
import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from scipy.optimize import minimize_scalar

from aicb.iteration.host import HostModel
from aicb.iteration.model import PS_PER_US, IterationModel
from aicb.measurements.gpu import get_gpu
from aicb.model.catalog import load_model
from aicb.model.partition import Partition
from aicb.model.precision import Precision
from aicb.operators.batch import Batch
from vidur_pd._core import HostClock

MEASUREMENTS = Path(__file__).resolve().parents[3] / "shared" / "data" / "measured" / "serving"
FILES = {"qwen3-8b": "vllm-qwen3-8b-tp1.json.gz", "qwen3-30b-a3b": "vllm-qwen3-30b-a3b-tp1.json.gz"}
TOKEN_BUDGET = 8192
MAX_REQUESTS = 256
OUTPUT_TOKENS = 40
LAST_GAPS = 12
CALIBRATION = {"prefill": slice(0, 5, 2), "decode": slice(1, None, 2)}
"""Rows of each table that host parameters are fitted to: 3 of 7 and 5 of 11."""
LAUNCH_RANGE_US = (5.0, 150.0)
"""Where ``eager_launch_us`` is sought."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One measured point."""

    model: str
    table: str
    context: int
    requests: int
    measured_ms: float
    predicted_ms: float
    is_calibration: bool

    @property
    def error(self) -> float:
        return self.predicted_ms / self.measured_ms - 1.0


def first_token_ms(model: IterationModel, prompt: int) -> float:
    """Time to first token of one prompt alone on an idle engine, in chunks of the token budget; a decode follows."""
    host, latency_ps = HostClock(plans_ahead=True), round(model.host.request_latency_us * PS_PER_US)
    start_ps = decided_ps = 0
    for past in range(0, prompt, TOKEN_BUDGET):
        new = min(prompt - past, TOKEN_BUDGET)
        batch = Batch(np.array([new]), np.array([past + new]), int(past + new == prompt))
        cost = model.price_device([batch])
        taken_ps, launched_ps = host.expose(
            (cost.prepare_ps, cost.launch_ps),
            decided_ps=decided_ps,
            start_ps=start_ps,
            device_ps=np.array([cost.compute_ps]),
        )
        decided_ps, start_ps = start_ps, start_ps + int(taken_ps[0])
        host.end(launched_ps=int(launched_ps[0]), began_ps=decided_ps, ended_ps=start_ps)
    following = model.price_device([Batch.decode([prompt + 1])])
    launched_next_ps = host.ready(decided_ps) + following.prepare_ps + following.launch_ps
    return (latency_ps + max(start_ps, launched_next_ps)) / PS_PER_US / 1e3


def submit_together_ms(model: IterationModel, context: int, requests: int) -> float:
    """Median of the last inter-token times of requests submitted at once: chunked prefill beside running decodes."""
    computed = np.zeros(requests, dtype=np.int64)
    produced = np.zeros(requests, dtype=np.int64)
    token_times: list[list[float]] = [[] for _ in range(requests)]
    now_us = 0.0
    while (produced < OUTPUT_TOKENS).any():
        new = schedule(computed, produced, context)
        active = np.flatnonzero(new)
        computed[active] += new[active]
        yields = active[computed[active] >= context]
        batch = Batch(new[active], computed[active], len(yields))
        now_us += model.price([batch]).compute_ps / PS_PER_US
        produced[yields] += 1
        for request in yields:
            token_times[request].append(now_us)
    gaps = [np.diff(times)[-LAST_GAPS:] for times in token_times]
    return float(np.median(np.concatenate(gaps))) / 1e3


def schedule(computed: np.ndarray, produced: np.ndarray, context: int) -> np.ndarray:  # type: ignore[type-arg]
    """New tokens of each request in the next step: running requests first, then waiting ones in order."""
    new = np.zeros_like(computed)
    budget = TOKEN_BUDGET
    running = (computed > 0) & (produced < OUTPUT_TOKENS)
    for request in [*np.flatnonzero(running), *np.flatnonzero(computed == 0)]:
        wanted = 1 if computed[request] >= context else context - computed[request]
        if budget == 0 or (computed[request] == 0 and np.count_nonzero(running | (new > 0)) >= MAX_REQUESTS):
            break
        new[request] = min(wanted, budget)
        budget -= int(new[request])
    return new


def load_tables(name: str) -> dict[str, list[list[float]]]:
    """The prefill and decode tables of one model; the serving runs are left unread."""
    with gzip.open(MEASUREMENTS / FILES[name], "rt") as file:
        tables = json.load(file)
    return {key: tables[key] for key in ("prefill", "decode")}


def iteration_model(name: str, host: HostModel | None = None) -> IterationModel:
    """The measured configuration."""
    gpu = get_gpu("h200")
    return IterationModel(
        load_model(name),
        Partition(),
        Precision(),
        gpu,
        max_seqs=MAX_REQUESTS,
        host=host,
        gqa_kernel="fa3_captured",
        moe_kernels="vllm",
    )


def compare(name: str) -> list[Comparison]:
    """All points of the prefill and decode tables of one model."""
    tables = load_tables(name)
    model = iteration_model(name)
    prefill = [(int(row[0]), 1, row[1] * 1e3, first_token_ms(model, int(row[0]))) for row in tables["prefill"]]
    decode = [
        (int(row[0]), int(row[1]), row[2] * 1e3, submit_together_ms(model, int(row[0]), int(row[1])))
        for row in tables["decode"]
    ]
    points = []
    for table, rows in (("prefill", prefill), ("decode", decode)):
        fitted = set(range(len(rows))[CALIBRATION[table]])
        points += [Comparison(name, table, *row, is_calibration=index in fitted) for index, row in enumerate(rows)]
    return points


def summarise(points: list[Comparison]) -> dict[str, dict[str, float]]:
    """Mean and worst absolute error of each model, table and half."""
    summary = {}
    for name in FILES:
        for table in ("prefill", "decode"):
            here = [point for point in points if (point.model, point.table) == (name, table)]
            halves = {
                "": here,
                " calibration": [point for point in here if point.is_calibration],
                " held out": [point for point in here if not point.is_calibration],
            }
            for half, chosen in halves.items():
                errors = [abs(point.error) for point in chosen]
                summary[f"{name} {table}{half}"] = {"mean": float(np.mean(errors)), "worst": float(np.max(errors))}
    return summary


def fitted_launch_us() -> float:
    """``eager_launch_us`` of the default host with the least squares of relative errors of the calibration prompts."""
    rows = {name: load_tables(name)["prefill"][CALIBRATION["prefill"]] for name in FILES}

    def squares(launch_us: float) -> float:
        host = replace(HostModel(), eager_launch_us=launch_us)
        models = {name: iteration_model(name, host) for name in FILES}
        errors = [
            first_token_ms(models[name], int(row[0])) / (row[1] * 1e3) - 1.0 for name in FILES for row in rows[name]
        ]
        return float(np.sum(np.square(errors)))

    return float(minimize_scalar(squares, bounds=LAUNCH_RANGE_US, method="bounded", options={"xatol": 0.05}).x)


def main() -> int:
    if not MEASUREMENTS.is_dir():
        print(f"skipped: no measurements at {MEASUREMENTS.name}")
        return 0
    if "--calibrate" in sys.argv[1:]:
        print(f"eager_launch_us: {fitted_launch_us():.1f}")
        return 0
    points = [point for name in FILES for point in compare(name)]
    summary = summarise(points)
    if "--json" in sys.argv[1:]:
        listed = [asdict(point) | {"error": point.error} for point in points]
        print(json.dumps({"points": listed, "summary": summary}, indent=1))
        return 0
    for point in points:
        print(
            f"{point.model:15s} {point.table:8s} context {point.context:6d} requests {point.requests:4d}  "
            f"measured {point.measured_ms:8.2f} ms  predicted {point.predicted_ms:8.2f} ms  {point.error:+7.1%}"
            f"{'  fitted' if point.is_calibration else ''}"
        )
    for key, errors in summary.items():
        print(f"{key:36s} mean {errors['mean']:.1%}  worst {errors['worst']:.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
