"""Callbacks of Python on the clock of the core's loop (``core/loop.hpp``)."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

from vidur_pd._core import Loop


class Priority(IntEnum):
    """What happens first at one instant."""

    COMPLETION = 0
    ARRIVAL = 1
    DISPATCH = 2


class Event:
    """A scheduled callback; ``cancel`` makes it do nothing when its time comes."""

    __slots__ = ("_calls", "_number", "at_ps")

    def __init__(self, at_ps: int, calls: dict[int, Callable[[], None]], number: int) -> None:
        self.at_ps = at_ps
        self._calls = calls
        self._number = number

    def cancel(self) -> None:
        self._calls.pop(self._number, None)


class EventQueue:
    """Callbacks in the order (time, priority, serial), among the loop's own events. The past is refused."""

    __slots__ = ("_calls", "_loop")

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._calls: dict[int, Callable[[], None]] = {}

    @property
    def now_ps(self) -> int:
        return self._loop.now_ps

    def schedule(self, at_ps: int, priority: Priority, action: Callable[[], None]) -> Event:
        """Queues ``action``; several actions of one instant and priority run in the order of their scheduling."""
        number = self._loop.schedule_call(at_ps, priority)
        self._calls[number] = action
        return Event(at_ps, self._calls, number)

    def call(self, number: int) -> None:
        """Runs the action that the loop has come to; nothing for a cancelled one."""
        action = self._calls.pop(number, None)
        if action is not None:
            action()
