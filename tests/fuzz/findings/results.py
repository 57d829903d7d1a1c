"""Small cases of `tests.fuzz.kinds.results` by name: those that once went wrong, and their neighbours."""

from __future__ import annotations

from typing import Final

from tests.fuzz.case import Case

CASES: Final[dict[str, Case]] = {}

WENT_WRONG: Final[frozenset[str]] = frozenset()
"""The others never did, and run with ``--long``."""
