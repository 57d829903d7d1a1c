"""Messages, numbers in text, text files, JSON and CSV."""

from __future__ import annotations

import gzip
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boundary.csv_text import check_width, column_places, csv_rows
from boundary.errors import InputError
from boundary.json_text import parse_json
from boundary.numbers import real_number, whole_number
from boundary.quoting import MOST_MESSAGE_CHARACTERS, one_line, quoted
from boundary.text_files import read_text


@given(st.text(st.characters(exclude_categories=[])))
def test_a_message_is_one_printable_line(text: str) -> None:
    line = one_line(text)
    assert len(line) <= MOST_MESSAGE_CHARACTERS
    assert line.isprintable()
    line.encode()  # no lone surrogate is left


def test_a_long_message_keeps_its_place_and_its_end() -> None:
    line = one_line("c.yaml field: found " + "x" * 10**6 + ", expected a rate")
    assert line.startswith("c.yaml field: found xxx")
    assert line.endswith("xxx, expected a rate")
    assert len(line) == MOST_MESSAGE_CHARACTERS


def test_a_long_message_of_words_is_cut_between_them() -> None:
    line = one_line("c.yaml: found [] expected one of " + ", ".join(f"Name{n}ForCausalLM" for n in range(40)))
    begin, end = line.split(" … ")
    assert begin.endswith("ForCausalLM,")
    assert end.startswith("Name")
    assert MOST_MESSAGE_CHARACTERS - 60 < len(line) <= MOST_MESSAGE_CHARACTERS


def test_a_short_message_stays_as_it_is() -> None:
    assert one_line("c.yaml: found 'µs' –  expected\n a rate") == "c.yaml: found 'µs' – expected a rate"


@pytest.mark.parametrize("value", [0, -1, 1.5, None, True, "abc", [1, 2], {"a": 1}])
def test_small_values_are_quoted_as_they_are(value: object) -> None:
    assert quoted(value) == repr(value)


def test_large_values_are_quoted_in_short() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    for value in ("x" * 10**7, [[0] * 1000] * 1000, 10**100_000, deep, {str(i): i for i in range(10**5)}):
        assert len(quoted(value)) <= 60
    assert quoted(10**100_000) == "a number of about 100001 digits"


@pytest.mark.parametrize("text", ["", "-1", "1.0", "1e3", "١٢", "²", "1_000", "0x10", "9" * 5000, "101", "nan"])
def test_what_is_no_whole_number_in_the_bounds_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"T.csv line 2 ranks: found .*, expected a count, 1 to 100"):
        whole_number(text, "T.csv line 2 ranks", "a count", 1, 100)


@pytest.mark.parametrize("text", ["", "nan", "inf", "1e400", "١", "1e-9", "11", "0x1p3", "1" * 5000, "1_0"])
def test_what_is_no_number_in_the_bounds_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"time: found .*, expected us, 1e-06 to 10"):
        real_number(text, "time", "us", 1e-6, 10)


def test_numbers_in_the_bounds_are_taken() -> None:
    assert whole_number(" 100 ", "n", "a count", 1, 100) == 100
    assert real_number(" 1e1 ", "n", "us", 1e-6, 10) == 10


def test_texts_are_read_plain_or_packed_without_a_mark(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfa\r\nb")
    (tmp_path / "b").write_bytes(gzip.compress(b"a\r\nb"))
    assert read_text(tmp_path / "a", "text") == read_text(tmp_path / "b", "text") == "a\r\nb"


def test_files_that_are_no_text_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"a\n\xff")
    (tmp_path / "damaged").write_bytes(gzip.compress(b"a" * 1000)[:-9])
    (tmp_path / "bomb").write_bytes(gzip.compress(bytes(10**7)))
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name, message in [
        ("bytes", "bytes line 2: found bytes that are not UTF-8, expected a table"),
        ("damaged", "damaged: found a damaged gzip file"),
        ("bomb", "bomb: found more than 1000000 bytes"),
        ("loop", "loop: cannot be read"),
        ("none", "none: found no such file"),
        ("", "found a folder"),
        ("n" * 300, "cannot be read (file name too long)"),
        ("a\0b", "cannot be read (a name that no file can have)"),
        ("\udc80/\ud800", "cannot be read (a name that no file can have)"),
    ]:
        with pytest.raises(InputError) as caught:
            read_text(tmp_path / name, "a table", most_bytes=10**6)
        assert message in str(caught.value)


def test_a_device_that_never_ends_is_read_up_to_the_bound() -> None:
    with pytest.raises(InputError, match="more than 1000 bytes"):
        read_text(Path("/dev/zero"), "a table", most_bytes=1000)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no named pipes in the file system")
def test_a_pipe_is_read(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"a,b")
    os.close(writing)
    assert read_text(Path(f"/dev/fd/{reading}"), "a table") == "a,b"
    os.close(reading)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "a": 2}', "found the key 'a' twice"),
        ("[NaN]", "found NaN, which is no number"),
        ("[" * 10**5, "nested deeper"),
        ("[" + "9" * 5000 + "]", "a number of thousands of digits"),
        ("{a: 1}", "found text that is not JSON"),
        ("", "found text that is not JSON"),
        ('[1,\n"a\n"]', "c.json line 2: found text that is not JSON"),
    ],
)
def test_json_that_nobody_means_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_json(text, "c.json", "a model")
    assert message in str(caught.value)
    assert str(caught.value).endswith("expected a model")


def test_cells_may_be_long_and_blank_rows_do_not_count() -> None:
    deps = ";".join(map(str, range(100_000)))
    rows = list(csv_rows(f'a,b\n\n , \n1,"{deps}"\n'.splitlines(keepends=True), "F.csv"))
    assert rows == [(1, ["a", "b"]), (4, ["1", deps])]


def test_broken_csv_is_refused_with_its_line() -> None:
    with pytest.raises(InputError, match=r"F.csv line 2: not CSV"):
        list(csv_rows(["a,b\n", 'x,"y"z\n'], "F.csv"))


def test_columns_stand_once_and_none_is_missing() -> None:
    assert column_places([" a", "", "b ", ""], "F.csv line 1", ["b"]) == {"a": 0, "b": 2}
    with pytest.raises(InputError, match="line 1: found 2 columns 'a', expected one"):
        column_places(["a", "b", " a"], "F.csv line 1", ["b"])
    with pytest.raises(InputError, match="line 1: found 'a' without b, expected a,b, each once"):
        column_places(["a"], "F.csv line 1", ["a", "b"])
    with pytest.raises(InputError, match="line 2: found 1 cells, expected 2"):
        check_width(["1"], ["a", "b"], "F.csv line 2")
