"""Coupling ``isolated``: an iteration takes what it takes on an idle fabric."""

from __future__ import annotations

import numpy as np

from netsim import GraphHandle
from vidur_pd.events import EventQueue, Priority
from vidur_pd.execution.flight import Flight


class IsolatedLauncher:
    """Adds compute and idle-fabric communication; pipeline stages are passed first in, first out."""

    def __init__(self, queue: EventQueue) -> None:
        self._queue = queue

    def launch(self, flight: Flight) -> None:
        stages = flight.instance.stage_free_ps
        if len(stages) > 1:
            flight.ends_ps = np.array([pass_stages(flight, stages)], dtype=np.int64)
        else:
            flight.ends_ps = flight.start_ps + np.cumsum(flight.compute_ps + flight.communication_ps)
        schedule_landing(self._queue, flight)

    def truncate(self, flight: Flight) -> None:
        truncate_at_step(self._queue, flight)

    def traffic_changed(self) -> None:
        """Nothing to do: iterations do not see other traffic."""

    def completed(self, handle: GraphHandle, at_ps: int) -> None:
        raise AssertionError(f"graph {handle} completed at {at_ps} ps, but iterations submit none")


def pass_stages(flight: Flight, stage_free_ps: list[int]) -> int:
    """Passes a flight through the pipeline stages, each busy with one flight at a time; returns its end."""
    at_ps = flight.start_ps
    for stage, price in enumerate(flight.prices):
        begin_ps = max(at_ps, stage_free_ps[stage])
        at_ps = begin_ps + price.cost.compute_ps + round(price.communication_ps * flight.stretch)
        stage_free_ps[stage] = at_ps
    return at_ps


def schedule_landing(queue: EventQueue, flight: Flight) -> None:
    """(Re-)schedules the end of a flight."""
    if flight.event is not None:
        flight.event.cancel()
    flight.event = queue.schedule(int(flight.ends_ps[-1]), Priority.COMPLETION, lambda: flight.instance.land(flight))


def truncate_at_step(queue: EventQueue, flight: Flight) -> None:
    """Ends a run with the step in progress; a step that ends at this very instant is the last one."""
    steps = int(np.searchsorted(flight.ends_ps, queue.now_ps)) + 1
    if steps < flight.steps:
        flight.keep_steps(steps)
        schedule_landing(queue, flight)
