"""Columns of Arrow as arrays and back, against Arrow's own conversions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boundary import arrow_columns
from boundary.arrow_columns import arrow_column, arrow_table, numbers, texts, words

SOME_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


def pieces_of(cells: list[Any], kind: Any, cuts: list[int]) -> Any:
    """A column in pieces, each of which is a slice of a longer array, as rows of a larger table are."""
    ends = sorted({cut % (len(cells) + 1) for cut in cuts} | {len(cells)})
    whole = pa.array([*cells[:1], *cells], kind)
    return pa.chunked_array([whole.slice(1 + a, b - a) for a, b in zip([0, *ends], ends, strict=False)], kind)


@given(st.lists(st.none() | SOME_TEXT), st.lists(st.integers(0, 50), max_size=3))
def test_text_is_what_arrow_has_and_empty_where_it_has_nothing(cells: list[str | None], cuts: list[int]) -> None:
    expected = [cell or "" for cell in cells]
    for kind in (pa.string(), pa.large_string()):
        found = texts(pieces_of(cells, kind, cuts))
        assert list(found) == expected
        assert [found[place] for place in range(len(found))] == expected
        for text in {*expected, "absent"}:
            assert found.places_of(text) == [place for place, cell in enumerate(expected) if cell == text]
        assert list(found[1:3]) == expected[1:3]


@given(st.lists(st.none() | SOME_TEXT), st.lists(st.integers(0, 50), max_size=3), st.booleans())
def test_words_are_codes_of_rising_names(cells: list[str | None], cuts: list[int], is_coded: bool) -> None:
    column = pieces_of(cells, pa.string(), cuts)
    codes, names = words(column.dictionary_encode() if is_coded else column)
    assert [names[code] for code in codes] == [cell or "" for cell in cells]
    assert list(names) == sorted(set(names))


def test_whole_numbers_that_stand_for_things_are_named_by_their_digits() -> None:
    codes, names = words(pa.chunked_array([pa.array([10, 9, None, 10])]))
    assert [names[code] for code in codes] == ["10", "9", "", "10"]


def test_more_than_127_names_need_wider_codes() -> None:
    codes, names = words(pa.chunked_array([pa.array([f"{place:03}" for place in range(300)])]))
    assert codes.tolist() == list(range(300))
    assert len(names) == 300


@given(st.lists(st.none() | st.integers(-(2**53), 2**53)), st.lists(st.integers(0, 50), max_size=3))
def test_numbers_are_floats_and_nan_where_empty(cells: list[int | None], cuts: list[int]) -> None:
    expected = np.array([np.nan if cell is None else cell for cell in cells], dtype=float)
    for kind in (pa.int64(), pa.float64()):
        np.testing.assert_array_equal(numbers(pieces_of(cells, kind, cuts)), expected)


def test_a_whole_number_that_is_no_float_is_refused() -> None:
    for number in (2**53 + 1, -(2**63)):
        with pytest.raises(pa.ArrowInvalid, match="not in range"):
            numbers(pa.chunked_array([pa.array([number])]))


def test_numbers_of_other_types_are_read_too_and_words_are_not() -> None:
    assert numbers(pa.chunked_array([pa.array([1, 2], pa.int32()), pa.array([3], pa.int32())])).tolist() == [1, 2, 3]
    with pytest.raises(pa.ArrowInvalid):
        numbers(pa.chunked_array([pa.array(["x"])]))


@given(st.lists(st.tuples(SOME_TEXT, st.integers(-(2**63), 2**63 - 1), st.floats(), st.booleans())))
def test_what_is_written_is_what_arrow_would_write(rows: list[tuple[str, int, float, bool]]) -> None:
    """To the byte of the Parquet file; the column of numbers with gaps is a slice of every other row of a table."""
    names, counts, times, is_empty = (list(of) for of in zip(*rows, strict=True)) if rows else ([], [], [], [])
    texts_of, absent = np.array(names, dtype=object), np.array(is_empty, dtype=bool)
    numbers_of, seconds = np.array(counts, dtype=np.int64), np.array(times, dtype=float)
    strided = np.stack([seconds, seconds], axis=1)[:, 0]
    ours = arrow_table({"a": texts_of, "b": numbers_of, "c": arrow_column(numbers_of, absent), "d": strided})
    theirs = pa.table(
        {"a": pa.array(texts_of, pa.string()), "b": numbers_of, "c": pa.array(numbers_of, mask=absent), "d": seconds}
    )
    assert ours.schema == theirs.schema
    files = [pa.BufferOutputStream() for _ in range(2)]
    for table, file in zip((ours, theirs), files, strict=True):
        table.validate(full=True)
        pq.write_table(table, file)
    assert files[0].getvalue().equals(files[1].getvalue())


def test_more_text_than_one_array_can_hold_comes_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_columns, "MOST_TEXT_BYTES", 8)
    column = arrow_column(np.array(["four", "four", "é", "four", ""], dtype=object))
    assert column.num_chunks > 1
    assert column.to_pylist() == ["four", "four", "é", "four", ""]
