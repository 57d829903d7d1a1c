"""Measurement of an SGLang engine, for ``vidur-pd validate --engine``: what was recorded of its runs, and how fast its
host was in each phase.

A host is as fast as it launches prompts that do not keep the GPU longer than itself, against what
`aicb.iteration.sglang_host` says for the default host.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from statistics import median
from typing import Any

from aicb.commands.engine_measurement import FEWEST_STEPS, FORMAT, LOADS, OF_THE_DEVICE
from aicb.iteration.host import OF_WORKERS, GraphMode, HostModel
from aicb.iteration.launches import Launches
from aicb.iteration.sglang_host import host_of
from aicb.measurements.gpu import gpu_of_device
from boundary.errors import InputError

LAUNCHING_TOKENS = 2500
"""Prompts of up to so many tokens tell the host's speed; before longer ones end, launching has long ended, too."""
MODES = {"eager": GraphMode.EAGER, "full": GraphMode.PIECEWISE}
"""Of passes of prompts, by how they are noted: a graph that SGLang replays is broken at each attention."""


def measurement_of(recording: dict[str, Any], launches: Launches) -> dict[str, Any]:
    """What `aicb.profiling.engine_host.runs.record_runs` has recorded of SGLang, as a file holds it [s; host times µs].

    Args:
        recording: with ``config``, that of the model.
        launches: of the model as SGLang runs it.

    Raises:
        InputError: no phase has a prompt that tells the host's speed.
    """
    environment, phases = recording["environment"], recording["phases"]
    speeds = {name: _slower(phase, launches) for name, phase in phases.items()}
    in_loads = [found for name in LOADS for found in speeds.get(name, ())]
    if not in_loads:
        raise InputError(f"stamps: found no prompt of up to {LAUNCHING_TOKENS} tokens, expected some in {LOADS[0]}")
    eager_us = HostModel().eager_launch_us
    slower = median(in_loads)
    host = {
        name: round(time * slower, 2) if name in OF_WORKERS else time
        for name, time in asdict(HostModel()).items()
        if name not in OF_THE_DEVICE and time is not None
    }
    return {
        "format": FORMAT,
        "framework": "sglang",
        "what": f"SGLang {environment['versions']['sglang']} on {', '.join(environment['gpus'])}",
        "gpu": gpu_of_device(environment["gpus"][0]),
        **{name: recording[name] for name in ("args", "config", "collectives", "norm_kernel", "kv_blocks")},
        **{name: recording[name] for name in ("compiling_s",) if recording.get(name)},
        "environment": environment,
        "host": host,
        "launches": {
            name: {"eager": {"median_us": round(eager_us * median(found), 1)}}
            for name, found in speeds.items()
            if found
        },
        "parts": {name: _parts_us(phase) for name, phase in phases.items() if not name.startswith("serve_")},
        "prefill": phases["prefill"]["found"],
        "steady": phases["decode"]["found"],
        **{name: phase["found"] for name, phase in phases.items() if name.startswith("serve_")},
    }


def _slower(phase: dict[str, Any], launches: Launches) -> list[float]:
    """How many times as long as on the default host prompts of one request were launched."""
    host = host_of("sglang", HostModel())
    of_pass = {name: host.launching_us(mode, launches) - host.sample_us for name, mode in MODES.items()}
    return [
        (step[4] - step[3]) * 1e6 / of_pass[step[1]]
        for step, scheduled in _steps(phase)
        if scheduled[5] and scheduled[4] == 1 and step[0] <= LAUNCHING_TOKENS
    ]


def _steps(phase: dict[str, Any]) -> Iterator[tuple[list[Any], list[Any]]]:
    """Rows of a worker and of its scheduler for each step; of several workers the first."""
    for rank in phase["ranks"]:
        scheduled = [row for row in rank["scheduler"] if row[0] == "schedule"]
        for workers in rank["workers"][:1]:
            for number, step in enumerate(workers):
                if number >= len(scheduled) or scheduled[number][3] != step[0]:
                    raise InputError(
                        f"stamps: step {number}: found no step of as many tokens in the scheduler, expected one"
                    )
                yield step, scheduled[number]


def _parts_us(phase: dict[str, Any]) -> list[dict[str, Any]]:
    """Medians of the parts of prompts alone and of decodes [µs], by what is replayed, requests, tokens of a prompt."""
    kinds = defaultdict[tuple[str, int, int], list[tuple[float, ...]]](list)
    for step, scheduled in _steps(phase):
        tokens = step[0] if scheduled[5] else 0
        if scheduled[4] == 1 or not tokens:
            parts = (scheduled[2] - scheduled[1], step[3] - step[2], step[4] - step[3], step[5] - step[4], step[8])
            kinds[step[1], scheduled[4], tokens].append(parts)
    names = ("schedule_us", "prepare_us", "launch_us", "sample_us", "pass_us")
    return [
        {"mode": mode, "requests": requests, "prompt_tokens": tokens, "steps": len(found)}
        | {name: round(median(times) * 1e6, 1) for name, times in zip(names, zip(*found, strict=True), strict=True)}
        for (mode, requests, tokens), found in sorted(kinds.items())
        if len(found) >= FEWEST_STEPS
    ]
