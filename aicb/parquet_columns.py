"""Columns of a Parquet file as arrays: a tenth of the memory of rows, which are built for few of them at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from aicb.errors import InputError

Cell = TypeVar("Cell", np.int32, np.float64, np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class ParquetColumns:
    """Some columns of one file, text and numbers."""

    texts: Mapping[str, tuple[NDArray[np.int32], list[str | None]]]
    """[rows] place of each cell in the list; the last of the list is None, for empty cells."""
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

    def rows(self, column: str, value: str) -> Iterator[dict[str, str | float | None]]:
        """Cells by column of the rows that have this text in one column; None where empty."""
        places, known = self.texts[column]
        if value not in known:
            return
        chosen = np.flatnonzero(places == known.index(value))
        cells: dict[str, list[str | float | None]] = {}
        for name, (own, values) in self.texts.items():
            cells[name] = [values[place] for place in own[chosen].tolist()]
        for name, column_values in self.numbers.items():
            cells[name] = [None if cell != cell else cell for cell in column_values[chosen].tolist()]
        for row in zip(*cells.values(), strict=True):
            yield dict(zip(cells, row, strict=True))


# Arrow's own conversions import pandas, 0.3 s and 40 MB. pyarrow has no types: its arrays are ``Any`` here.


def _text(column: Any) -> tuple[NDArray[np.int32], list[str | None]]:
    column = column if hasattr(column, "dictionary") else column.cast("string").dictionary_encode()  # no cell has any
    values = [*column.dictionary.to_pylist(), None]
    places = np.where(_is_valid(column), _cells(column.indices, np.int32), len(values) - 1)
    return places.astype(np.int32), values


def _number(column: Any) -> NDArray[np.float64]:
    return np.where(_is_valid(column), _cells(column.cast("float64"), np.float64), np.nan)


def _is_valid(column: Any) -> NDArray[np.bool_]:
    return np.asarray(_cells(column.is_valid().cast("uint8"), np.uint8) != 0)


def _cells(column: Any, dtype: type[Cell]) -> NDArray[Cell]:
    """[rows] what the array holds, whatever where it is empty."""
    buffer = column.buffers()[1] if len(column) else b""
    return np.frombuffer(buffer, dtype=dtype)[column.offset : column.offset + len(column)]
