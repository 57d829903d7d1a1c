"""Measurement of an engine, for ``vidur-pd validate --engine``: what was recorded of its runs, and its host's times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean, quantiles
from typing import Any

from aicb.commands.host_of_steps import host_of
from aicb.iteration.drafting_host import UNMEASURED, DraftingHost
from aicb.iteration.host import HostModel, slowest_of
from aicb.iteration.launches import Launches
from aicb.measurements.gpu import gpu_of_device
from aicb.profiling.engine_host.parts import Step, middle_us, request_latency_us, slowest_rank_factor, steps_of

FORMAT = 1
LOADS = ("loads_before", "loads_after")
"""Phases that tell the host's times."""
QUEUED_TOKENS = 2048
"""Launches of larger batches wait for the device, which takes no more of them while it computes: before steady decodes
of Qwen3-8B one took 85 us in the median of batches up to so many tokens, 307 above 6,000
(``tests/data/engine/vllm-h200-tp1-qwen3-8b-eagle2.json.gz``); in loads both took the same."""
FEWEST_STEPS = 5
"""Of a kind, for medians."""
PARTS = ("schedule_s", "hand_over_s", "prepare_s", "launch_s", "sample_s", "output_s", "first_sampled_s", "result_s")
OF_THE_DEVICE = ("step_us", "gap_us", "speed_spread")
"""Fields of `HostModel` that stamps of a host do not tell."""


def measurement_of(
    recording: dict[str, Any], launches: Launches, drafting: DraftingHost = UNMEASURED
) -> dict[str, Any]:
    """What `aicb.profiling.engine_host.runs.record_runs` has recorded, as a file holds it [s; host times µs].

    Args:
        recording: with ``config``, that of the model, and ``speculative``, if there are drafts.
        launches: of the model as it ran.
        drafting: what drafts take on a host, where there are any.

    Raises:
        InputError: phases or kinds of steps are missing that the host is found from.
    """
    phases, args = recording["phases"], recording["args"]
    tp, dp = args["tensor_parallel_size"], args["data_parallel_size"]
    host = _host(phases, launches, tp, dp, drafting)
    environment = recording["environment"]
    kept = {name: recording[name] for name in ("args", "config", "collectives", "norm_kernel", "kv_blocks")}
    served = {name: phase["found"] for name, phase in phases.items() if name.startswith("serve_")}
    return {
        "format": FORMAT,
        "what": f"vLLM {environment['versions']['vllm']} on {', '.join(environment['gpus'])}",
        "gpu": gpu_of_device(environment["gpus"][0]),
        **kept,
        **{name: recording[name] for name in ("speculative", "draft_config", "compiling_s") if recording.get(name)},
        "environment": environment,
        "host": {
            name: round(time, 2)
            for name, time in asdict(host).items()
            if name not in OF_THE_DEVICE and time is not None
        },
        "launches": {name: _launches_us(steps_in(phase), launches, host, tp * dp) for name, phase in phases.items()},
        "parts": {name: _parts_us(steps_in(phase)) for name, phase in phases.items() if not name.startswith("serve_")},
        "prefill": phases["prefill"]["found"],
        "steady": phases["decode"]["found"],
        **served,
    }


def steps_in(phase: dict[str, Any]) -> list[Step]:
    """Steps of a phase."""
    return steps_of({"began": phase["began"], "ranks": phase["ranks"]})


def _host(phases: dict[str, Any], launches: Launches, tp: int, dp: int, drafting: DraftingHost) -> HostModel:
    loads = [phases[name] for name in LOADS if name in phases]
    steps = [step for load in loads for step in steps_in(load)]
    latency_us = fmean(request_latency_us(load) for load in loads)
    factor = fmean(slowest_rank_factor(load) for load in loads)
    return host_of(steps, launches, latency_us, tp, dp, factor, drafting)


def _launches_us(
    steps: Sequence[Step], launches: Launches, host: HostModel, workers: int
) -> dict[str, dict[str, float]]:
    """Time of a launch in batches with prompts, of a worker in the mean [µs], by what is replayed."""
    slowest = slowest_of(workers, host.speed_spread)
    with_prompts = [step for step in steps if step.prompts]
    prompts = [step for step in with_prompts if step.tokens <= QUEUED_TOKENS] or with_prompts
    times_us = {
        "eager": [step.launch_s * 1e6 / launches.eager_time for step in prompts if step.mode == "eager"],
        "piecewise": [
            (step.launch_s * 1e6 - host.launch_us * slowest) / launches.pieces_time
            for step in prompts
            if step.mode == "piecewise"
        ],
    }
    return {mode: _spread([time / slowest for time in times]) for mode, times in times_us.items() if len(times) > 1}


def _parts_us(steps: Sequence[Step]) -> list[dict[str, Any]]:
    """Medians of the parts of prompts alone and of decodes [µs], by what is replayed, requests, tokens of a prompt."""
    kinds = defaultdict[tuple[str, int, int], list[Step]](list)
    for step in steps:
        if step.requests == 1 or not step.prompts:
            kinds[step.mode, step.requests, step.tokens if step.prompts else 0].append(step)
    return [
        {
            "mode": mode,
            "requests": requests,
            "prompt_tokens": tokens,
            "steps": len(found),
            **{f"{part.removesuffix('_s')}_us": round(middle_us(found, part), 1) for part in PARTS},
        }
        for (mode, requests, tokens), found in sorted(kinds.items())
        if len(found) >= FEWEST_STEPS
    ]


def _spread(times_us: Sequence[float]) -> dict[str, float]:
    tenths = quantiles(times_us, n=10, method="inclusive")
    found = {"median_us": tenths[4], "p10_us": tenths[0], "p90_us": tenths[-1]}
    return {name: round(time, 1) for name, time in found.items()} | {"steps": len(times_us)}
