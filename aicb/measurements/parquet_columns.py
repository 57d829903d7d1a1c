"""Columns of a Parquet file as arrays: a tenth of the memory of cells, which are listed for few rows at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError

_NOTHING = np.array(None)
Cell = TypeVar("Cell", np.int32, np.int64, np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class ParquetColumns:
    """Some columns of one file, text and numbers."""

    texts: Mapping[str, tuple[NDArray[np.int32], list[str]]]
    """[rows] place of each cell in the list; the last of the list is "", for empty cells."""
    numbers: Mapping[str, NDArray[np.float64]]
    """[rows] NaN where empty"""

    @classmethod
    def read(cls, file: Path, texts: Sequence[str], numbers: Sequence[str], needed: Sequence[str]) -> ParquetColumns:
        """Those of the named columns that the file has.

        Raises:
            InputError: it has not all that are ``needed``.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        names = pq.read_schema(file).names
        missing = [name for name in needed if name not in names]
        if missing:
            raise InputError(f"{file.name}: columns: found none named {missing[0]}, expected those of the table")
        texts, numbers = ([name for name in wanted if name in names] for wanted in (texts, numbers))
        content = pq.ParquetFile(file, memory_map=True, read_dictionary=texts)
        table = content.read(columns=[*texts, *numbers], use_threads=False)  # read_table imports datasets, 0.2 s
        columns = cls(
            {name: _text(table[name].combine_chunks()) for name in texts},
            {name: _number(table[name].combine_chunks()) for name in numbers},
        )
        del table, content
        pa.default_memory_pool().release_unused()
        return columns

    def cells(self, column: str, value: str) -> dict[str, list[str] | list[float | None]]:
        """Cells of the rows that have this text in one column; None, or no text, where empty.

        By column, without those that are empty in all of these rows.
        """
        places, known = self.texts[column]
        chosen = np.flatnonzero(places == known.index(value)) if value in known else ()
        if not len(chosen):
            return {}
        cells: dict[str, list[str] | list[float | None]] = {}
        for name, (own, values) in self.texts.items():
            cells[name] = [values[place] for place in own[chosen].tolist()]
        for name, column_values in self.numbers.items():
            found = column_values[chosen]
            is_empty = np.isnan(found)
            if not is_empty.all():
                cells[name] = (np.where(is_empty, _NOTHING, found) if is_empty.any() else found).tolist()
        return cells


# Arrow's own conversions import pandas (0.3 s, 40 MB), its casts and tests for empty cells its compute functions
# (0.03 s): both are avoided for the types that tables have. pyarrow has no types: its arrays are ``Any`` here.


def _text(column: Any) -> tuple[NDArray[np.int32], list[str]]:
    column = column if hasattr(column, "dictionary") else column.cast("string").dictionary_encode()  # no cell has any
    values = [*column.dictionary.to_pylist(), ""]
    places = np.where(_is_valid(column), _cells(column.indices, np.int32), len(values) - 1)
    return places.astype(np.int32), values


def _number(column: Any) -> NDArray[np.float64]:
    if column.type == "int64":
        return np.where(_is_valid(column), _cells(column, np.int64), np.nan)
    column = column if column.type == "double" else column.cast("float64")
    return np.where(_is_valid(column), _cells(column, np.float64), np.nan)


def _is_valid(column: Any) -> NDArray[np.bool_]:
    """[rows] from Arrow's bitmap, least significant bit first; an array without empty cells has none."""
    if not column.null_count:
        return np.ones(len(column), dtype=np.bool_)
    bits = np.unpackbits(np.frombuffer(column.buffers()[0], dtype=np.uint8), bitorder="little")
    return bits[column.offset : column.offset + len(column)].astype(np.bool_)


def _cells(column: Any, dtype: type[Cell]) -> NDArray[Cell]:
    """[rows] what the array holds, whatever where it is empty."""
    buffer = column.buffers()[1] if len(column) else b""
    return np.frombuffer(buffer, dtype=dtype)[column.offset : column.offset + len(column)]
