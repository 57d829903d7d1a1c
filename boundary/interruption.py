"""Signals that end a process: it ends in order, with one line and the exit code that shells expect."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, NoReturn

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, what ``kill`` and batch systems send, and the end of a terminal."""
GRACE_S: Final = 2.0
"""Python sees a signal once compiled code returns, and a network of packets may be simulated for hours in one call.
After this time the process ends without cleaning up: hidden files may stay, which the next command removes."""


class Interrupted(BaseException):
    """A signal has ended the work; the message is one line."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}; no file is half written")
        self.exit_code = 128 + number


class _Handler:
    """Raises `Interrupted`, and remembers that a signal came."""

    def __init__(self) -> None:
        self.came: list[int] = []
        self.noticed = threading.Event()

    def __call__(self, number: int, frame: FrameType | None) -> NoReturn:
        del frame
        self.notice(number)
        raise Interrupted(number)

    def notice(self, number: int) -> None:
        self.came.append(number)
        self.noticed.set()


@contextmanager
def interruptible(program: str) -> Iterator[None]:
    """In the block the signals raise `Interrupted`; those that the process ignores (``nohup``) stay ignored.

    Also where a library makes another exception of it, as numpy does while it looks for a common type.
    """
    handler, previous = _Handler(), _handlers(lambda found: found in (signal.SIG_DFL, signal.default_int_handler))

    def leave() -> None:
        while previous:
            signal.signal(*previous.popitem())

    for each in previous:
        signal.signal(each, handler)
    _leave_at_fork(lambda: bool(previous), leave)
    try:
        with _watched(program, handler, bool(previous)):
            yield
    except BaseException as error:
        if handler.came and not isinstance(error, Interrupted):
            raise Interrupted(handler.came[0]) from error
        raise
    finally:
        leave()


@contextmanager
def deferred() -> Iterator[None]:
    """The signals act at the end of the block, which is short and must not be left half done."""
    came: list[int] = []
    previous = _handlers(callable)

    def hold(number: int, frame: FrameType | None) -> None:
        del frame
        came.append(number)
        handler = previous[signal.Signals(number)]
        if isinstance(handler, _Handler):
            handler.notice(number)

    for each in previous:
        signal.signal(each, hold)
    try:
        yield
    finally:
        for each, found in previous.items():
            signal.signal(each, found)
        for number in came[:1]:
            previous[signal.Signals(number)](number, None)


def _leave_at_fork(is_on: Callable[[], bool], leave: Callable[[], None]) -> None:
    """Child processes take signals as if there was nothing here, and do not tell this process of theirs."""

    def block(how: int) -> None:
        if is_on():
            signal.pthread_sigmask(how, ENDING)

    def leave_in_child() -> None:
        if is_on():
            signal.set_wakeup_fd(-1)
            leave()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)

    os.register_at_fork(
        before=lambda: block(signal.SIG_BLOCK),
        after_in_parent=lambda: block(signal.SIG_UNBLOCK),
        after_in_child=leave_in_child,
    )


def _handlers(are_wanted: Callable[[Any], bool]) -> dict[signal.Signals, Any]:
    """Handlers in force; none elsewhere than in the main thread, which alone may change them."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {each: found for each in ENDING if are_wanted(found := signal.getsignal(each))}


@contextmanager
def _watched(program: str, handler: _Handler, is_on: bool) -> Iterator[None]:
    """In the block a thread ends the process where a signal is not noticed in time."""
    if not is_on:
        yield
        return
    reading_end, writing_end = os.pipe()
    os.set_blocking(writing_end, False)
    before = signal.set_wakeup_fd(writing_end, warn_on_full_buffer=False)
    watcher = threading.Thread(target=_watch, args=(reading_end, program, handler), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writing_end)
        watcher.join()
        os.close(reading_end)


def _watch(signals: int, program: str, handler: _Handler) -> None:
    while number := os.read(signals, 1):
        if number[0] in ENDING and not handler.noticed.wait(GRACE_S):
            ended = Interrupted(number[0])
            sys.stderr.write(f"{program}: {ended}\n")
            sys.stderr.flush()
            os._exit(ended.exit_code)
