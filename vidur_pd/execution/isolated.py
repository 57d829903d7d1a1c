"""Coupling ``isolated``: an iteration takes what it takes on an idle fabric."""

from __future__ import annotations

from netsim import Completion
from vidur_pd.events import EventQueue
from vidur_pd.execution.flight import Flight
from vidur_pd.execution.timing import schedule_landing, set_out, truncate


class IsolatedLauncher:
    """Adds compute and idle-fabric communication; pipeline stages are passed first in, first out."""

    carries_runs = True

    def __init__(self, queue: EventQueue) -> None:
        self._queue = queue

    def launch(self, flight: Flight) -> None:
        set_out(flight, flight.instance.stage_free_ps)
        self._schedule_landing(flight)

    def truncate(self, flight: Flight) -> None:
        if truncate(flight, self._queue.now_ps):
            self._schedule_landing(flight)

    def drop(self, flight: Flight) -> None:
        """Nothing to do: the instance cancels its landing."""

    def traffic_changes(self, at_ps: int) -> None:
        """Nothing to do: iterations do not see other traffic."""

    def completed(self, completion: Completion) -> None:
        raise AssertionError(f"{completion}, but iterations submit no graphs")

    def _schedule_landing(self, flight: Flight) -> None:
        schedule_landing(self._queue, flight, flight.instance.land)
