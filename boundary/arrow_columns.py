"""Columns of Arrow tables as arrays, and arrays as columns.

Arrow's own conversions import pandas (0.3 s, 40 MB), its casts its compute functions (0.03 s). Both are avoided for the
types that tables of ours have. pyarrow has no types: its columns are ``Any`` here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, overload

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa

MOST_EXACT: Final = 2**53
"""Up to which every integer is a float."""
MOST_TEXT_BYTES: Final = 2**31 - 1
"""Of the texts of one array: their places have 32 bits (Arrow's columnar format, "Variable-size Binary Layout")."""


@dataclass(frozen=True, slots=True, eq=False)
class Texts(Sequence[str]):
    """Texts that hardly repeat, such as ids, as bytes; one becomes a ``str`` when it is asked for."""

    content: NDArray[np.uint8]
    """All of them, one after the other."""
    begins: NDArray[Any]
    ends: NDArray[Any]
    """[texts] places in the content"""

    def __len__(self) -> int:
        return len(self.begins)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> Texts: ...
    def __getitem__(self, place: int | slice) -> str | Texts:
        if isinstance(place, slice):
            return Texts(self.content, self.begins[place], self.ends[place])
        return self.content[self.begins[place] : self.ends[place]].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        content = self.content.tobytes()
        return (content[a:b].decode() for a, b in zip(self.begins.tolist(), self.ends.tolist(), strict=True))

    def places_of(self, text: str) -> list[int]:
        """Where it stands, rising."""
        wanted = text.encode()
        places = np.flatnonzero(self.ends - self.begins == len(wanted))
        for at, byte in enumerate(wanted):
            places = places[self.content[self.begins[places] + at] == byte]
        return [int(place) for place in places]


def numbers(column: Any) -> NDArray[np.float64]:
    """[rows] NaN where empty; a column of one piece without empty cells is not copied, and cannot be written to.

    Raises:
        pyarrow.ArrowException: it does not hold numbers, or some that no float is equal to.
    """
    return _joined([_floats(chunk) for chunk in column.chunks], np.dtype(np.float64))


def words(column: Any) -> tuple[NDArray[np.signedinteger[Any]], tuple[str, ...]]:
    """([rows] places in the names, names in their order), "" where empty; for text that repeats and whole numbers.

    Of some names there may be no row, as in Arrow's dictionaries.
    """
    pieces = [_coded(chunk) for chunk in column.chunks]
    names = sorted({name for _, of_piece in pieces for name in of_piece})
    place = {name: at for at, name in enumerate(names)}
    dtype = np.min_scalar_type(-max(len(names), 1))
    codes = [np.array([place[name] for name in of_piece], dtype=dtype)[codes] for codes, of_piece in pieces]
    return _joined(codes, dtype), tuple(names)


def texts(column: Any) -> Texts:
    """[rows] "" where empty."""
    pieces = [_text_places(chunk) for chunk in column.chunks]
    starts = np.cumsum([0, *(len(content) for content, _ in pieces)])
    content = _joined([content for content, _ in pieces], np.dtype(np.uint8))
    if len(pieces) == 1:
        return Texts(content, pieces[0][1][:-1], pieces[0][1][1:])
    places = [offsets.astype(np.int64) + start for (_, offsets), start in zip(pieces, starts, strict=False)]
    begins, ends = ([each[of] for each in places] for of in (slice(None, -1), slice(1, None)))
    return Texts(content, *(_joined(each, np.dtype(np.int64)) for each in (begins, ends)))


def is_valid(array: Any) -> NDArray[np.bool_]:
    """[rows] of one array; one without empty cells has no bitmap of them (least significant bit first)."""
    if not array.null_count:
        return np.ones(len(array), dtype=np.bool_)
    bits = np.unpackbits(np.frombuffer(array.buffers()[0], dtype=np.uint8), bitorder="little")
    return bits[array.offset : array.offset + len(array)].astype(np.bool_)


def cells(array: Any, dtype: Any) -> NDArray[Any]:
    """[rows] what one array holds, whatever where it is empty."""
    buffer = array.buffers()[1] if len(array) else b""
    return np.frombuffer(buffer, dtype=dtype)[array.offset : array.offset + len(array)]


def _joined(pieces: Sequence[NDArray[Any]], dtype: np.dtype[Any]) -> NDArray[Any]:
    if len(pieces) == 1:
        return pieces[0]
    return np.concatenate([np.empty(0, dtype=dtype), *pieces])


def _floats(array: Any) -> NDArray[np.float64]:
    found = cells(array, np.int64) if array.type == "int64" else None
    if found is None or (((found < -MOST_EXACT) | (found > MOST_EXACT)) & is_valid(array)).any():
        array = array if array.type == "double" else array.cast("float64")
        found = cells(array, np.float64)
    return np.where(is_valid(array), found, np.nan) if array.null_count else found.astype(np.float64, copy=False)


def _coded(array: Any) -> tuple[NDArray[Any], list[str]]:
    if array.type == "int64":
        values, codes = np.unique(cells(array, np.int64), return_inverse=True)
        names = [str(value) for value in values.tolist()]
    else:
        array = array if hasattr(array, "dictionary") else array.cast("string").dictionary_encode()
        names = ["" if name is None else str(name) for name in array.dictionary.to_pylist()]
        codes = cells(array.indices, str(array.type.index_type))
    return (np.where(is_valid(array), codes, len(names)), [*names, ""]) if array.null_count else (codes, names)


def _text_places(array: Any) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """(bytes, [rows + 1] where each text begins, and the last ends)."""
    if array.type not in ("string", "large_string"):
        array = array.cast("string")
    if not len(array):
        return np.empty(0, dtype=np.uint8), np.zeros(1, dtype=np.int32)
    _, offsets, content = array.buffers()
    places = np.frombuffer(offsets, dtype=np.int32 if array.type == "string" else np.int64)
    return np.frombuffer(content or b"", dtype=np.uint8), places[array.offset : array.offset + len(array) + 1]


def arrow_table(columns: dict[str, Any]) -> pa.Table:
    """Columns by name, arrays or of Arrow already; objects are text, also where there are none."""
    import pyarrow as pa

    found = [arrow_column(column) if isinstance(column, np.ndarray) else column for column in columns.values()]
    return pa.Table.from_arrays(found, names=list(columns))


def arrow_column(values: NDArray[Any], is_empty: NDArray[np.bool_] | None = None) -> Any:
    """Text of objects, or numbers of which those that ``is_empty`` are null."""
    import pyarrow as pa

    if values.dtype.kind == "O":
        return _text_column(values.tolist())
    assert values.dtype.kind in "iuf"  # Arrow has Booleans as bits
    bitmap = None
    if is_empty is not None and is_empty.any():
        bitmap = pa.py_buffer(np.packbits(~is_empty, bitorder="little"))
    content = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [bitmap, content])


def _text_column(found: list[str]) -> Any:
    import pyarrow as pa

    content = "".join(found).encode()
    if len(content) > MOST_TEXT_BYTES:
        middle = len(found) // 2
        halves = [_text_column(half) for half in (found[:middle], found[middle:])]
        return pa.chunked_array([chunk for half in halves for chunk in getattr(half, "chunks", [half])])
    places = np.zeros(len(found) + 1, dtype=np.int32)
    np.cumsum(np.fromiter(map(len, found), np.int32, len(found)), out=places[1:])
    if places[-1] != len(content):  # some characters take several bytes
        np.cumsum(np.fromiter((len(text.encode()) for text in found), np.int32, len(found)), out=places[1:])
    return pa.Array.from_buffers(pa.string(), len(found), [None, pa.py_buffer(places), pa.py_buffer(content)])
