"""Parts of an engine's steps, from the stamps of `aicb.profiling.engine_host.engine.record` [s]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from boundary.errors import InputError


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an engine; of several workers, the time of each part in the slowest of them [s]."""

    mode: str
    """What was replayed: ``full``, ``piecewise`` or ``eager``."""
    tokens: int
    requests: int
    prompts: int
    schedule_s: float
    hand_over_s: float
    """From the end of scheduling to where the last worker begins."""
    prepare_s: float
    """In the worker, to the forward pass."""
    launch_s: float
    sample_s: float
    """From the end of the forward pass to the end of sampling."""
    output_s: float
    calls: dict[str, tuple[int, float]]
    """How often what `stamping.CALLS` names was called, and the time of all calls in the slowest worker [s]."""
    first_sampled_s: float = 0.0
    """From the end of the forward pass in the slowest worker to the end of sampling in the first, which returns it;
    negative where the first is far ahead."""
    result_s: float = 0.0
    """From the end of the forward pass in the slowest worker to where the scheduler takes the result."""


def steps_of(recording: dict[str, Any]) -> list[Step]:
    """Steps of a recording in their order, one data-parallel rank after another.

    Raises:
        InputError: scheduler and workers of a rank noted other steps than each other.
    """
    return [step for rank in recording["ranks"] for step in _steps_of_rank(rank, recording["began"])]


def slowest_rank_factor(recording: dict[str, Any]) -> float:
    """Launching an eager prompt in the slowest data-parallel rank over that in the median step of all ranks."""
    ranks = [
        [step.launch_s for step in _steps_of_rank(rank, recording["began"]) if step.mode == "eager" and step.prompts]
        for rank in recording["ranks"]
    ]
    launching = [times for times in ranks if times]
    return max(map(median, launching)) / median(time for times in launching for time in times) if launching else 1.0


def _steps_of_rank(rank: dict[str, Any], began: float) -> list[Step]:
    rows = [row for row in rank["scheduler"] if row[1] >= began]
    scheduled = [row for row in rows if row[0] == "schedule"]
    updated = [row for row in rows if row[0] == "update"]
    steps = []
    in_workers = list(zip(*rank["workers"], strict=True))
    if len(in_workers) == len(scheduled) == len(updated) + 1:
        in_workers.pop()  # decided ahead for requests that ended with the step before, whose end nobody awaits
    for number, workers in enumerate(in_workers):
        if number >= len(updated) or any(worker[0] != scheduled[number][3] for worker in workers):
            raise InputError(f"stamps: step {number}: found no step of as many tokens in the scheduler, expected one")
        _, begin, end, tokens, requests, prompts = scheduled[number]
        launched = max(worker[4] for worker in workers)
        steps.append(
            Step(
                mode=workers[0][1],
                tokens=tokens,
                requests=requests,
                prompts=prompts,
                schedule_s=end - begin,
                hand_over_s=max(worker[2] for worker in workers) - end,
                prepare_s=max(worker[3] - worker[2] for worker in workers),
                launch_s=max(worker[4] - worker[3] for worker in workers),
                sample_s=max(worker[6] - worker[4] for worker in workers),
                output_s=updated[number][2] - updated[number][1],
                calls=_slowest([worker[7] for worker in workers]),
                first_sampled_s=workers[0][6] - launched,
                result_s=updated[number][1] - launched,
            )
        )
    return steps


def _slowest(calls: Sequence[dict[str, Any]]) -> dict[str, tuple[int, float]]:
    """Calls by name, with the time of the worker that took longest for them."""
    names = sorted({name for worker in calls for name in worker})
    slowest = {
        name: max((worker.get(name, (0, 0.0)) for worker in calls), key=lambda found: found[1]) for name in names
    }
    return {name: (int(number), float(time)) for name, (number, time) in slowest.items()}


def middle_us(steps: Sequence[Step], part: str) -> float:
    """Median of a part [µs]; ``part``: a field of `Step` that is a time."""
    return float(median(getattr(step, part) for step in steps)) * 1e6


def request_latency_us(recording: dict[str, Any]) -> float:
    """From the client's call to the scheduler, and from a result to the client: medians of prompts alone [µs]."""
    stamped = (row for rank in recording["ranks"] for row in rank["scheduler"])
    rows = sorted((row for row in stamped if row[1] >= recording["began"]), key=lambda row: row[1])
    added = [row for row in rows if row[0] == "add"]
    updated = [row[2] for row in rows if row[0] == "update"]
    sent = sorted(recording["requests"], key=lambda request: float(request[1]))
    there, back = [], []
    for number, (request, add) in enumerate(zip(sent, added, strict=True)):
        is_first = number == 0 or sent[number - 1][2][-1] <= request[1]
        is_last = number == len(sent) - 1 or request[2][-1] <= sent[number + 1][1]
        results = [end for end in updated if add[1] < end <= request[2][0]]
        if is_first and is_last and results:
            there.append(add[1] - request[1])
            back.append(request[2][0] - results[-1])
    return float(median(there) + median(back)) * 1e6
