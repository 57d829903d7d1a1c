#!/usr/bin/env python3
"""Compares iteration times with a serving engine: vLLM 0.24.0 on one H200, dummy weights, bf16.

    python tests/validation/iteration_vs_engine.py [--json | --calibrate]

Replays the two offline experiments of the measurement files with ``IterationModel``: one prompt alone, and N prompts
submitted together with 40 output tokens each (admission of 8192 tokens per step, 256 requests, the median of the last
12 inter-token times pooled over requests). Host parameters were calibrated on the Qwen3-8B tables, so its row shows
how well the model can represent the engine (``--calibrate`` repeats the fit). Qwen3-30B-A3B is a prediction, with
experts as flagged estimates. The serving runs of the same files are left for end-to-end validation.
"""

from __future__ import annotations

import gzip
import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from aicb.batch import Batch
from aicb.catalog import load_model
from aicb.gpu import get_gpu
from aicb.host import HostModel
from aicb.iteration import PS_PER_US, IterationModel
from aicb.parallelism import Partition
from aicb.precision import Precision

MEASUREMENTS = Path(__file__).resolve().parents[3] / "shared" / "data" / "measured" / "serving"
FILES = {"qwen3-8b": "vllm-qwen3-8b-tp1.json.gz", "qwen3-30b-a3b": "vllm-qwen3-30b-a3b-tp1.json.gz"}
TOKEN_BUDGET = 8192
MAX_REQUESTS = 256
OUTPUT_TOKENS = 40
LAST_GAPS = 12


@dataclass(frozen=True, slots=True)
class Comparison:
    """One measured point."""

    model: str
    table: str
    context: int
    requests: int
    measured_ms: float
    predicted_ms: float

    @property
    def error(self) -> float:
        return self.predicted_ms / self.measured_ms - 1.0


def first_token_ms(model: IterationModel, prompt: int) -> float:
    """Time to first token of one prompt alone, in chunks of the token budget."""
    total_us, past = model.host.request_latency_us, 0
    while past < prompt:
        new = min(prompt - past, TOKEN_BUDGET)
        rows = 1 if past + new == prompt else 0
        batch = Batch(np.array([new]), np.array([past + new]), rows)
        total_us += model.price([batch]).compute_ps / PS_PER_US
        past += new
    return total_us / 1e3


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
    return IterationModel(load_model(name), Partition(), Precision(), gpu, max_seqs=MAX_REQUESTS, host=host)


def calibrate() -> HostModel:
    """Host parameters of least squared relative error, none negative, over the Qwen3-8B tables.

    Step times are linear in ``step_us`` and ``request_us`` to first order, so unit changes give the regressors; the
    latency follows from the prompts with those two in place.
    """
    tables = load_tables("qwen3-8b")
    measured = np.array([step_s for _, _, step_s in tables["decode"]]) * 1e3
    none = replace(HostModel(), step_us=0.0, request_us=0.0, request_latency_us=0.0)

    def steps_ms(host: HostModel) -> np.ndarray:  # type: ignore[type-arg]
        model = iteration_model("qwen3-8b", host)
        return np.array([submit_together_ms(model, int(c), int(n)) for c, n, _ in tables["decode"]])

    base = steps_ms(none)
    slopes = [steps_ms(replace(none, step_us=1.0)) - base, steps_ms(replace(none, request_us=1.0)) - base]
    relative = np.column_stack(slopes) / measured[:, None]
    (step_us, request_us), _ = nnls(relative, 1.0 - base / measured)
    fitted = replace(none, step_us=float(step_us), request_us=float(request_us))
    model = iteration_model("qwen3-8b", fitted)
    ttft_ms = np.array([ttft_s for _, ttft_s, _ in tables["prefill"]]) * 1e3
    rest_ms = ttft_ms - np.array([first_token_ms(model, int(prompt)) for prompt, _, _ in tables["prefill"]])
    latency_ms = np.average(rest_ms, weights=1.0 / ttft_ms**2)
    return replace(fitted, request_latency_us=float(latency_ms) * 1e3)


def compare(name: str) -> list[Comparison]:
    """All points of the prefill and decode tables of one model."""
    tables = load_tables(name)
    model = iteration_model(name)
    prefill = [
        Comparison(name, "prefill", int(prompt), 1, ttft_s * 1e3, first_token_ms(model, int(prompt)))
        for prompt, ttft_s, _ in tables["prefill"]
    ]
    decode = [
        Comparison(name, "decode", int(c), int(n), step_s * 1e3, submit_together_ms(model, int(c), int(n)))
        for c, n, step_s in tables["decode"]
    ]
    return prefill + decode


def main() -> int:
    if not MEASUREMENTS.is_dir():
        print(f"skipped: no measurements at {MEASUREMENTS.name}")
        return 0
    if "--calibrate" in sys.argv[1:]:
        print(calibrate())
        return 0
    points = [point for name in FILES for point in compare(name)]
    summary = {}
    for name in FILES:
        for table in ("prefill", "decode"):
            errors = [abs(p.error) for p in points if p.model == name and p.table == table]
            summary[f"{name} {table}"] = {"mean": float(np.mean(errors)), "worst": float(np.max(errors))}
    if "--json" in sys.argv[1:]:
        listed = [asdict(point) | {"error": point.error} for point in points]
        print(json.dumps({"points": listed, "summary": summary}, indent=1))
        return 0
    for point in points:
        print(
            f"{point.model:15s} {point.table:8s} context {point.context:6d} requests {point.requests:4d}  "
            f"measured {point.measured_ms:8.2f} ms  predicted {point.predicted_ms:8.2f} ms  {point.error:+7.1%}"
        )
    for key, errors in summary.items():
        print(f"{key:25s} mean {errors['mean']:.1%}  worst {errors['worst']:.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
