"""Names that go into tables and pages as they are: text on one line that every file format can hold."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

MOST_NAME_CHARACTERS: Final = 1024
"""Longest name; an UUID has 36. A row of a CSV file has to fit into the block of a reader (Arrow's: 1 MiB)."""
_NO_TEXT = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Control characters, separators of lines, and halves of surrogate pairs, which UTF-8 does not have."""


def name_fault(name: str) -> str | None:
    """What is wrong with a name, as "found …, expected …"; ``None`` where nothing is."""
    if len(name) > MOST_NAME_CHARACTERS:
        return f"found {len(name)} characters, expected at most {MOST_NAME_CHARACTERS}"
    if found := _NO_TEXT.search(name):
        return f"found the character U+{ord(found.group()):04X}, expected text on one line without control characters"
    return None


def first_faulty(names: Sequence[str]) -> int | None:
    """Place of the first name with a fault."""
    if not _NO_TEXT.search("".join(names)) and max(map(len, names), default=0) <= MOST_NAME_CHARACTERS:
        return None
    return next(place for place, name in enumerate(names) if name_fault(name))
