"""The driver of a run: events of the loop and of the network, in the order of one clock."""

from __future__ import annotations

from collections.abc import Callable

from vidur_pd._core import Loop, Notice
from vidur_pd.clock import EventQueue
from vidur_pd.execution.coupling.launcher import Launcher
from vidur_pd.execution.network_clock import FAR_PS
from vidur_pd.metrics.records import Records
from vidur_pd.simulation.lifecycle import RequestLifecycle
from vidur_pd.simulation.state import SimulationState

PROGRESS_EVERY_EVENTS = 256

Progress = Callable[[int, int, float], None]
"""Called with (requests done, requests in all, simulated seconds)."""


class Driver:
    """Lets the loop and the network take turns, and answers what the loop asks for."""

    def __init__(
        self,
        state: SimulationState,
        loop: Loop,
        queue: EventQueue,
        lifecycle: RequestLifecycle,
        launcher: Launcher,
    ) -> None:
        self._network = state.network
        self._instances = state.instances
        self._loop = loop
        self._queue = queue
        self._lifecycle = lifecycle
        self._launcher = launcher
        self._handlers = self._handlers_of_notices()

    def run(self, records: Records, requests: int, progress: Progress | None) -> None:
        """Runs until nothing happens any more; what is left of ``requests`` has been failed by then."""
        while True:
            network_ps = self._run_loop(records, requests, progress)
            next_ps = self._loop.next_event_ps()
            if network_ps is not None:
                self._advance_network(network_ps, next_ps)
            elif next_ps is None and (not self._lifecycle.unfinished or not self._lifecycle.end_all()):
                break
        if progress is not None:
            self._report(progress, requests)

    def _run_loop(self, records: Records, requests: int, progress: Progress | None) -> int | None:
        """Runs the loop's events as long as the network has nothing to do before; returns when it has."""
        told_events = self._loop.executed
        while True:
            network_ps = self._network.next_event_ps()
            notice = self._loop.run(records.until_ps if network_ps is None else network_ps)
            records.pass_on()
            if notice is None:
                return network_ps
            self._handlers[notice.what](notice)
            if progress is not None and self._loop.executed - told_events >= PROGRESS_EVERY_EVENTS:
                told_events = self._loop.executed
                self._report(progress, requests)

    def _report(self, progress: Progress, requests: int) -> None:
        progress(self._loop.requests.ended, requests, self._queue.now_ps / 10**12)

    def _handlers_of_notices(self) -> dict[str, Callable[[Notice], None]]:
        """By ``Notice.what``."""
        instances, hand_over = self._instances, self._lifecycle.hand_over
        return {
            "call": lambda notice: self._queue.call(notice.number),
            "before_step": lambda notice: hand_over.before_step(instances[notice.instance]),
            "schedule": lambda notice: instances[notice.instance].decide(notice.number),
            "price": lambda notice: instances[notice.instance].executor.price(notice.flight),
            "parts": lambda notice: instances[notice.instance].executor.supply(),
            "communication": lambda notice: instances[notice.instance].executor.communicate(notice.rank, notice.number),
            "launch": lambda notice: self._launcher.launch(notice.flight),
            "launched": lambda notice: hand_over.launched(notice.flight, self._queue.now_ps),
            "accept": lambda notice: instances[notice.instance].accept(notice.flight),
            "prefilled": lambda notice: hand_over.prefilled(notice.request),
            "rests": lambda notice: self._launcher.rests(notice.instance),
        }

    def _advance_network(self, network_ps: int, next_ps: int | None) -> None:
        """Runs the network to the next event of the loop, or to the first instant at which something completes.

        Where the coupling follows the network, only to its own next event.
        """
        until_ps = FAR_PS if next_ps is None else next_ps
        if self._launcher.follows_network:
            until_ps = min(until_ps, network_ps)
        completions = self._network.advance(until_ps)
        if not completions:
            self._launcher.network_moved()
        else:
            self._loop.move_to(completions[0].at_ps)
        for completion in completions:
            if completion.flow is None and not self._lifecycle.hand_over.arrived(completion):
                self._launcher.completed(completion)
                self._land()

    def _land(self) -> None:
        """What the last completion has ended is credited before the next one is dealt with."""
        while (notice := self._loop.run(self._queue.now_ps)) is not None:
            self._handlers[notice.what](notice)
