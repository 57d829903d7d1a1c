"""Rows of a result file as columns, and what is taken of them by what they belong to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vidur_pd.report.series import Floats, Ints

Rows = NDArray[np.bool_] | NDArray[np.integer[Any]] | slice
"""Which rows: whether each, their places, or a range."""


@dataclass(frozen=True, slots=True, eq=False)
class Words:
    """A column of text."""

    codes: NDArray[np.signedinteger[Any]]
    """[rows] place of each in the names"""
    names: Sequence[str]
    """All different; rising, except for ids, which stand in the order of the file."""

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, row: int) -> str:
        return self.names[int(self.codes[row])]

    def __iter__(self) -> Iterator[str]:
        return (self.names[code] for code in self.codes.tolist())

    def rows(self, which: Rows) -> Words:
        return Words(self.codes[which], self.names)

    def are(self, *names: str) -> NDArray[np.bool_]:
        """[rows] whether they have one of these names."""
        places = [place for place, name in enumerate(self.names) if name in names]
        return np.isin(self.codes, places) if len(places) != 1 else np.asarray(self.codes == places[0])

    def present(self) -> list[int]:
        """Codes that some row has, rising."""
        return [int(code) for code in np.flatnonzero(np.bincount(self.codes, minlength=len(self.names)))]


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Columns of one length by name."""

    numbers: Mapping[str, Floats]
    """NaN where empty."""
    words: Mapping[str, Words]
    """"" where empty."""

    def __len__(self) -> int:
        return len(next(iter(self.numbers.values())))

    def __getitem__(self, name: str) -> Floats:
        return self.numbers[name]

    def rows(self, which: Rows) -> Table:
        """Some of the rows, in the order in which they are named; the table itself where a mask keeps all."""
        if isinstance(which, np.ndarray) and which.dtype == np.bool_ and which.all():
            return self
        numbers = {name: values[which] for name, values in self.numbers.items()}
        return Table(numbers, {name: words.rows(which) for name, words in self.words.items()})

    def known(self, *names: str) -> NDArray[np.bool_]:
        """[rows] whether none of these numbers is empty."""
        return np.asarray(~np.any([np.isnan(self[name]) for name in names], axis=0))

    def row(self, place: int) -> dict[str, Any]:
        """One row by name."""
        numbers = {name: float(values[place]) for name, values in self.numbers.items()}
        return {name: words[place] for name, words in self.words.items()} | numbers


def distinct(values: NDArray[Any]) -> tuple[Ints, Ints]:
    """([groups] first row of each value, in the order of rows; [rows] group of each)."""
    _, first, groups = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return first[order], place[groups.reshape(-1)]


def sums(groups: NDArray[np.integer[Any]], values: Floats, count: int) -> Floats:
    """[count] sum of the values of each group, empty ones left out.

    It does not depend on the order of the rows: coarse parts of the values, multiples of one power of two for each
    group, add up exactly, and what is left of them is too small for its rounding to show.
    """
    known = np.where(np.isnan(values), 0.0, values)
    largest = np.zeros(count)
    np.maximum.at(largest, groups, np.abs(known))
    _, exponents = np.frexp(largest * np.bincount(groups, minlength=count))
    units = np.ldexp(1.0, np.maximum(exponents - 52, -1000))[groups]
    coarse = np.rint(known / units) * units
    return np.asarray(np.bincount(groups, coarse, count) + np.bincount(groups, known - coarse, count))


def greatest(groups: NDArray[np.integer[Any]], values: Floats, count: int) -> Floats:
    """[count] greatest value of each group, NaN without any."""
    found = np.full(count, np.nan)
    np.fmax.at(found, groups, values)
    return found
