"""When the steps of a flight end: set at its launch, and again when its communication gets slower or faster."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from vidur_pd.events import EventQueue, Priority
from vidur_pd.execution.flight import Flight


def set_out(flight: Flight, stage_free_ps: list[int]) -> None:
    """Times of a flight that starts now: step after step, or through stages that take one flight at a time."""
    if flight.is_pipelined:
        _pass_stages(flight, stage_free_ps)
    else:
        flight.ends_ps = flight.start_ps + np.cumsum(_step_ps(flight))


def retime_steps(flight: Flight, stretch: float, now_ps: int) -> None:
    """Gives communication a new stretch: what is done of the step in progress stays done, the rest follows suit."""
    step = int(np.searchsorted(flight.ends_ps, now_ps, side="right"))
    old_step_ps, flight.stretch = _step_ps(flight), [stretch]
    if step == flight.steps:
        return
    left_ps = int(flight.ends_ps[step]) - now_ps
    step_ps = _step_ps(flight)[step:]
    step_ps[0] = _rescaled(left_ps, int(old_step_ps[step]), int(step_ps[0]))
    flight.ends_ps = np.concatenate((flight.ends_ps[:step], now_ps + np.cumsum(step_ps)))


def retime_stages(
    flights: Sequence[Flight], stretches: Sequence[list[float]], stage_free_ps: list[int], now_ps: int
) -> None:
    """The same for all flights in a pipeline, first in, first out; ``stage_free_ps`` is set to what follows from it."""
    free_ps = [0] * len(stage_free_ps)
    for flight, stretch in zip(flights, stretches, strict=True):
        begins_ps, ends_ps = flight.stage_begins_ps, flight.stage_ends_ps
        old_ps = [_stage_ps(flight, stage) for stage in range(len(free_ps))]
        flight.stretch = stretch
        for stage in range(len(free_ps)):
            if begins_ps[stage] >= now_ps:
                begins_ps[stage] = max(ends_ps[stage - 1] if stage else flight.start_ps, free_ps[stage])
                ends_ps[stage] = begins_ps[stage] + _stage_ps(flight, stage)
            elif ends_ps[stage] > now_ps:
                left_ps = ends_ps[stage] - now_ps
                ends_ps[stage] = now_ps + _rescaled(left_ps, old_ps[stage], _stage_ps(flight, stage))
            free_ps[stage] = ends_ps[stage]
        flight.ends_ps = np.array([ends_ps[-1]], dtype=np.int64)
    stage_free_ps[:] = free_ps


def truncate(flight: Flight, now_ps: int) -> bool:
    """Ends a run with the step in progress, or with one that ends at this very instant; True if that cuts it short."""
    steps = int(np.searchsorted(flight.ends_ps, now_ps)) + 1
    if steps >= flight.steps:
        return False
    flight.keep_steps(steps)
    return True


def schedule_landing(queue: EventQueue, flight: Flight, land: Callable[[Flight], None]) -> None:
    """(Re-)schedules the end of a flight."""
    if flight.event is not None:
        flight.event.cancel()
    flight.event = queue.schedule(int(flight.ends_ps[-1]), Priority.COMPLETION, lambda: land(flight))


def _pass_stages(flight: Flight, stage_free_ps: list[int]) -> None:
    at_ps = flight.start_ps
    for stage in range(len(flight.prices)):
        flight.stage_begins_ps.append(max(at_ps, stage_free_ps[stage]))
        at_ps = flight.stage_begins_ps[-1] + _stage_ps(flight, stage)
        flight.stage_ends_ps.append(at_ps)
        stage_free_ps[stage] = at_ps
    flight.ends_ps = np.array([at_ps], dtype=np.int64)


def _step_ps(flight: Flight) -> NDArray[np.int64]:
    """[steps]"""
    return flight.compute_ps + flight.stage_communication_ps(0)


def _stage_ps(flight: Flight, stage: int) -> int:
    return flight.prices[stage].cost.compute_ps + flight.stage_communication_ps(stage)


def _rescaled(left_ps: int, old_duration_ps: int, duration_ps: int) -> int:
    """What is left of something whose whole duration changes; never nothing."""
    return -(-(left_ps * duration_ps) // old_duration_ps)
