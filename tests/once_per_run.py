"""Expensive set-ups of which one serves a whole test run, whichever of its workers ask for them."""

from __future__ import annotations

import fcntl
import os
import pickle
from collections.abc import Callable
from typing import TypeVar

import pytest

T = TypeVar("T")


def once_per_run(folders: pytest.TempPathFactory, name: str, make: Callable[[], T]) -> T:
    """What ``make`` returns, which has to pickle: the first worker that asks makes it, the others wait for that.

    Where it fails, it does so once: the tests that ask afterwards fail at once with the same message.
    """
    own = folders.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    made, failed = shared / f"{name}.pickle", shared / f"{name}.failed"
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if failed.exists():
            pytest.fail(failed.read_text())
        if not made.exists():
            try:
                content = pickle.dumps(make())
            except Exception as error:
                failed.write_text(f"{name}: {error!r}")
                raise
            made.write_bytes(content)
    found: T = pickle.loads(made.read_bytes())
    return found
