"""Columns of a Parquet file as arrays: a tenth of the memory of cells, which are listed for few rows at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boundary import arrow_columns
from boundary.arrow_columns import cells, is_valid
from boundary.errors import InputError

_NOTHING = np.array(None)


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
            {name: arrow_columns.numbers(table[name]) for name in numbers},
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


def _text(column: Any) -> tuple[NDArray[np.int32], list[str]]:
    column = column if hasattr(column, "dictionary") else column.cast("string").dictionary_encode()  # no cell has any
    values = [*column.dictionary.to_pylist(), ""]
    places = np.where(is_valid(column), cells(column.indices, np.int32), len(values) - 1)
    return places.astype(np.int32), values
