"""When Python searches for cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from boundary.cycles import YOUNG_OBJECTS, few_searches_for_cycles, imports_stay


@pytest.fixture(autouse=True)
def _usual() -> Iterator[None]:
    threshold = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.enable()
    gc.set_threshold(*threshold)


def test_searches_are_rare_in_a_block_and_as_before_behind_it() -> None:
    before = gc.get_threshold()
    with few_searches_for_cycles():
        assert gc.get_threshold()[0] == YOUNG_OBJECTS
    assert gc.get_threshold() == before


def test_who_has_switched_searches_off_gets_none() -> None:
    gc.set_threshold(0)
    with few_searches_for_cycles():
        assert gc.get_threshold()[0] == 0


@pytest.mark.parametrize("was_enabled", [True, False])
def test_imports_are_searched_neither_meanwhile_nor_until_a_simulation_has_ended(was_enabled: bool) -> None:
    if not was_enabled:
        gc.disable()
    with imports_stay():
        assert not gc.isenabled()
    with pytest.raises(ImportError), imports_stay():
        raise ImportError
    assert gc.isenabled() == was_enabled
    assert gc.get_freeze_count() > 0
    with few_searches_for_cycles(freezes=True):
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0
