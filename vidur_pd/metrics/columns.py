"""A column of a result file: its name, unit and meaning, and how its values come about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from numpy.typing import NDArray

Source = TypeVar("Source")
"""Type of what the values are taken from."""

TEXT: Final = "text"
"""Unit of a column of words."""
KEY: Final = "key"
"""Unit of a column of numbers that stand for things, as names do."""


@dataclass(frozen=True, slots=True)
class Column(Generic[Source]):
    """One column; its file has the columns of a list in their order."""

    name: str
    unit: str
    """``TEXT``, ``KEY``, or that of the numbers: ``s``, ``bytes``, ``tokens``; empty for counts."""
    values: Callable[[Source], NDArray[Any]]
    """[rows]"""
    meaning: str
    is_exact: bool = False
    """Of requests: ``requests.parquet`` has the exact picoseconds too, in a column ``…_ps``."""
    in_report: bool = True
    """The report reads it, and refuses a file without it."""

    @property
    def is_text(self) -> bool:
        """The report reads it as words."""
        return self.unit in (TEXT, KEY)


def texts(columns: Sequence[Column[Any]]) -> tuple[str, ...]:
    """Names of the columns that the report reads as words."""
    return tuple(column.name for column in columns if column.in_report and column.is_text)


def numbers(columns: Sequence[Column[Any]]) -> tuple[str, ...]:
    """Names of the columns that the report reads as numbers."""
    return tuple(column.name for column in columns if column.in_report and not column.is_text)


def values_of(columns: Sequence[Column[Source]], source: Source) -> dict[str, NDArray[Any]]:
    """[rows] by name, in the order of the file."""
    return {column.name: column.values(source) for column in columns}
