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
    """What ``make`` returns, which has to pickle: the first worker that asks makes it, the others wait for that."""
    own = folders.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    made = shared / f"{name}.pickle"
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            content = pickle.dumps(make())
            made.write_bytes(content)
    found: T = pickle.loads(made.read_bytes())
    return found
