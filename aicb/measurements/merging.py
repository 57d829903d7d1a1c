"""Merging repeated measurements, on columns: rows are built for what is left."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from math import fsum
from typing import Any

Cells = Mapping[str, Sequence[Any]]
"""By column, one of each row; None where empty. A column that is empty in all rows may be absent."""


def merge(cells: Cells, keys: Iterable[Hashable], averaged: Set[str]) -> tuple[list[Hashable], Cells]:
    """The distinct keys in order of first occurrence, and the cells of one row for each.

    Cells of ``averaged`` columns are the means of the known ones, others those of the first row with the key.
    """
    places: dict[Hashable, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, []).append(place)
    first = [same[0] for same in places.values()]
    repeated = [(row, same) for row, same in enumerate(places.values()) if len(same) > 1]
    merged = {name: [column[place] for place in first] for name, column in cells.items()}
    for name in cells.keys() & averaged:
        for row, same in repeated:
            merged[name][row] = _mean_known([cells[name][place] for place in same])
    return list(places), merged


def _mean_known(values: Iterable[float | None]) -> float | None:
    """Rounded once: the same whatever the order of the values."""
    known = [value for value in values if value is not None]
    return fsum(known) / len(known) if known else None
