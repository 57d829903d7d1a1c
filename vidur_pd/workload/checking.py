"""Checks the values of one trace file; a complaint names file, line, field, what was found and what was expected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import NoReturn

from boundary.errors import InputError
from boundary.plain_text import name_fault
from boundary.quoting import quoted
from vidur_pd.config.workload import TraceColumn
from vidur_pd.workload.formats import Layout
from vidur_pd.workload.workload import MAX_TOKENS

_MOST_DIGITS = 40


@dataclass(frozen=True, slots=True)
class RowChecker:
    """Turns raw values, text from CSV or whatever JSON holds, into whole numbers. Methods raise `InputError`."""

    path: Path
    layout: Layout
    own_names: Mapping[TraceColumn, str] = field(default_factory=dict)
    """Names that the file has for columns of the format."""

    def refuse(self, line: int, column: str, found: object, expected: str) -> NoReturn:
        """Raises, always."""
        shown = str(found)[:60] if isinstance(found, Decimal | _Count) else quoted(found)
        raise InputError(f"{self._place(line, column)}: found {shown}, expected {expected}")

    def _place(self, line: int, column: str) -> str:
        """Of a cell, by the name of the column in the file."""
        own = {str(ours): quoted(theirs) for ours, theirs in self.own_names.items()}
        return f"{self.path}: line {line}: {own.get(column, column)}"

    def name(self, line: int, column: str, found: object) -> str:
        """An id: text on one line, or a number."""
        if not isinstance(found, str | int | Decimal) or isinstance(found, bool):
            self.refuse(line, column, found, "text or a number")
        if fault := name_fault(text := str(found)):
            raise InputError(f"{self._place(line, column)}: {fault}")
        return text

    def time_ps(self, line: int, found: object) -> int:
        """An arrival time, in the unit of the format."""
        column = self.layout.arrival or "arrival"
        if not isinstance(found, str | int | Decimal) or isinstance(found, bool):
            self.refuse(line, column, found, self.layout.time_text)
        try:
            time_ps = self.layout.time_to_ps(found)
        except ValueError:
            self.refuse(line, column, found, self.layout.time_text)
        if time_ps < 0:
            self.refuse(line, column, found, "no negative time")
        return time_ps

    def tokens(self, line: int, column: str, found: object, least: int = 1, most: int = MAX_TOKENS) -> int:
        """A token count from ``least`` to ``most``."""
        if type(found) is int:
            value = found
        elif isinstance(found, str) and _is_number(found):
            value = int(found)
        else:
            self.refuse(line, column, found, f"a whole number of at least {least}")
        if not least <= value <= most:
            self.refuse(line, column, found, f"a whole number from {least} to {most}")
        return value

    def whole(self, line: int, column: str, found: object) -> int:
        """A whole number of at most 32 bits, of either sign."""
        text = found.strip() if isinstance(found, str) else ""
        value = found if type(found) is int else None
        if _is_number(text.removeprefix("-")):
            value = int(text)
        if value is None or not -(2**31) <= value < 2**31:
            self.refuse(line, column, found, f"a whole number from {-(2**31)} to {2**31 - 1}")
        return value

    def hash_ids(self, line: int, found: object, hashed_tokens: int, block_tokens: int) -> Sequence[int]:
        """One id per block."""
        if isinstance(found, str):
            parts = found.split(";") if found.strip() else []
            if not all(map(_is_number, parts)):
                self.refuse(line, "hash_ids", found, "whole numbers joined by ';'")
            ids = list(map(int, parts))
        elif isinstance(found, list) and set(map(type, found)) <= {int} and min(found, default=0) >= 0:
            ids = found
        else:
            self.refuse(line, "hash_ids", found, "a list of whole numbers")
        blocks = -(-hashed_tokens // block_tokens)
        if len(ids) != blocks:
            expected = f"{blocks} ({hashed_tokens} tokens in blocks of {block_tokens})"
            self.refuse(line, "hash_ids", _Count(len(ids)), expected)
        if max(ids) >= 2**63:
            self.refuse(line, "hash_ids", max(ids), "ids below 2^63")
        return ids


def _is_number(text: str) -> bool:
    digits = text.strip()
    return digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS


@dataclass(frozen=True, slots=True)
class _Count:
    """A number of ids, for a message."""

    ids: int

    def __str__(self) -> str:
        return f"{self.ids} ids"
