"""Rare searches for cycles by Python: what a simulation imports and makes stays, so that they find hardly anything."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG_OBJECTS = 100_000
"""Objects between two searches. Our choice."""


@contextmanager
def few_searches_for_cycles(*, freezes: bool = False) -> Iterator[None]:
    """Python's own threshold comes back, and none is set for who has switched them off.

    ``freezes``: what there is outlives the block, and is not searched.
    """
    youngest, *older = gc.get_threshold()
    if freezes:
        gc.freeze()
    gc.set_threshold(max(youngest, YOUNG_OBJECTS) if youngest else 0, *older)
    try:
        yield
    finally:
        gc.set_threshold(youngest, *older)
        if freezes:
            gc.unfreeze()


@contextmanager
def imports_stay() -> Iterator[None]:
    """Modules that are imported in the block stay for good: Python searches them for cycles neither meanwhile nor
    afterwards, until a block of `few_searches_for_cycles` that ``freezes`` has ended. Nor does it search until then
    what there was before the block.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
