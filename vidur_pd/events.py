"""The event queue of the simulation: ordered by time, then kind, then the order of scheduling."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from enum import IntEnum


class Priority(IntEnum):
    """What happens first at one instant."""

    COMPLETION = 0
    ARRIVAL = 1
    DISPATCH = 2


class Event:
    """A scheduled callback; ``cancel`` makes it do nothing when its time comes."""

    __slots__ = ("action", "at_ps")

    def __init__(self, at_ps: int, action: Callable[[], None]) -> None:
        self.at_ps = at_ps
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        self.action = None


class EventQueue:
    """Callbacks in the order (time, priority, serial). Zero delay is queued; the past is refused."""

    __slots__ = ("_heap", "_serial", "executed", "now_ps")

    def __init__(self) -> None:
        self.now_ps = 0
        self.executed = 0
        self._heap: list[tuple[int, int, int, Event]] = []
        self._serial = 0

    def schedule(self, at_ps: int, priority: Priority, action: Callable[[], None]) -> Event:
        """Queues ``action``; several actions of one instant and priority run in the order of their scheduling."""
        assert at_ps >= self.now_ps, f"event at {at_ps} ps scheduled in the past of {self.now_ps} ps"
        event = Event(at_ps, action)
        self._serial += 1
        heapq.heappush(self._heap, (at_ps, priority, self._serial, event))
        return event

    def next_event_ps(self) -> int | None:
        """Time of the next live event."""
        while self._heap and self._heap[0][3].action is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def run_next(self) -> None:
        """Runs the first live event; the clock moves to it."""
        at_ps, _, _, event = heapq.heappop(self._heap)
        action = event.action
        assert action is not None, "call next_event_ps first: it drops cancelled events"
        event.action = None
        self.now_ps = at_ps
        self.executed += 1
        action()

    def move_to(self, at_ps: int) -> None:
        """Moves the clock to an instant that another clock (the network) has reached."""
        assert at_ps >= self.now_ps, f"clock would go back from {self.now_ps} to {at_ps} ps"
        self.now_ps = at_ps
