"""Names that tables can hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boundary.plain_text import MOST_NAME_CHARACTERS, first_faulty, name_fault


@pytest.mark.parametrize(
    "name", ["", "a b", "é", "日本", "\U0001f600", 'a,"b";\'c\\', "x" * MOST_NAME_CHARACTERS, "\ufeff"]
)
def test_text_on_one_line_is_a_name(name: str) -> None:
    assert name_fault(name) is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a\rb", "found the character U+000D, expected text on one line without control characters"),
        ("\u2028", "found the character U+2028, expected text on one line"),
        ("\udfff", "found the character U+DFFF, expected text on one line"),
        ("x" * (MOST_NAME_CHARACTERS + 1), "found 1025 characters, expected at most 1024"),
    ],
)
def test_what_no_table_can_hold_is_told(name: str, said: str) -> None:
    assert str(name_fault(name)).startswith(said)


@given(st.lists(st.text(st.characters(categories=None), max_size=3)))
def test_a_name_without_a_fault_is_one_line_of_utf_8(names: list[str]) -> None:
    """`str.splitlines` knows every separator of lines."""
    faulty = first_faulty(names)
    assert [name for name in names[:faulty] if name_fault(name)] == []
    assert faulty is None or name_fault(names[faulty])
    for name in names[:faulty]:
        assert len(name.encode().decode().splitlines()) <= 1
