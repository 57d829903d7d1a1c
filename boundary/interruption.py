"""Signals that end a process: it ends in order, with one line and the exit code that shells expect."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, what ``kill`` and batch systems send, and the end of a terminal."""


class Interrupted(BaseException):
    """A signal has ended the work; the message is one line."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}; no file is half written")
        self.exit_code = 128 + number


@contextmanager
def interruptible() -> Iterator[None]:
    """In the block the signals raise `Interrupted`; those that the process ignores (``nohup``) stay ignored.

    Also where a library makes another exception of it, as numpy does while it looks for a common type.
    """
    came: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        del frame
        came.append(number)
        raise Interrupted(number)

    previous = {}
    if threading.current_thread() is threading.main_thread():
        by_default = (signal.SIG_DFL, signal.default_int_handler)
        previous = {each: found for each in ENDING if (found := signal.getsignal(each)) in by_default}
    for each in previous:
        signal.signal(each, interrupt)
    try:
        yield
    except BaseException as error:
        if came and not isinstance(error, Interrupted):
            raise Interrupted(came[0]) from error
        raise
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)


@contextmanager
def deferred() -> Iterator[None]:
    """The signals act at the end of the block, which is short and must not be left half done."""
    came: list[int] = []
    previous = {}
    if threading.current_thread() is threading.main_thread():
        previous = {each: found for each in ENDING if callable(found := signal.getsignal(each))}
    for each in previous:
        signal.signal(each, lambda number, frame: came.append(number))  # noqa: ARG005
    try:
        yield
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)
        for number in came[:1]:
            previous[signal.Signals(number)](number, None)
