"""CSV that anyone may have written: cells of any use, faults with their line."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from boundary.errors import InputError
from boundary.quoting import quoted

MOST_CELL_CHARACTERS: Final = 2**27
"""Longest cell: dependencies or hash ids of one row, joined by ``;``. Python's own bound of 131,072 is below what
an all-to-all among 256 GPUs needs."""


def csv_rows(lines: Iterable[str], source: str) -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) of every row that is not blank.

    Raises:
        InputError: naming ``source`` and the line where the text is not CSV.
    """
    csv.field_size_limit(MOST_CELL_CHARACTERS)  # of the process; there is no other way to say it
    reader = csv.reader(lines, strict=True)
    try:
        for cells in reader:
            if "".join(cells).strip():
                yield reader.line_num, cells
    except csv.Error as error:
        raise InputError(f"{source} line {max(reader.line_num, 1)}: not CSV: {error}") from None


def column_places(header: Sequence[str], where: str, required: Sequence[str]) -> dict[str, int]:
    """Places of the columns by name, each name once; columns without a name are left out.

    Raises:
        InputError: naming ``where``, and the column that is missing or stands twice.
    """
    names = [name.strip() for name in header]
    places = {name: place for place, name in enumerate(names) if name}
    for name, place in places.items():
        if names.index(name) < place:
            raise InputError(f"{where}: found {names.count(name)} columns {quoted(name)}, expected one")
    if missing := [name for name in required if name not in places]:
        raise InputError(
            f"{where}: found {quoted(','.join(names))} without {missing[0]}, expected {','.join(required)}, each once"
        )
    return places


def check_width(cells: Sequence[str], header: Sequence[str], where: str) -> None:
    """Refuses a row that is longer or shorter than the header.

    Raises:
        InputError: naming ``where`` and both lengths.
    """
    if len(cells) != len(header):
        raise InputError(f"{where}: found {len(cells)} cells, expected {len(header)}, as many as columns")
