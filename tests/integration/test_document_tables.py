"""Tables of all pages have as many columns in their headings as below, without which they are shown as text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("aicb", "boundary", "examples", "netsim", "simccl", "tests", "vidur_pd")
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *(page for package in PACKAGES for page in (ROOT / package).glob("**/*.md")),
    ]
)
RULE = re.compile(r"\s*\|(\s*:?-+:?\s*\|)+\s*")
CELL = re.compile(r"(?<!\\)\|")


def columns(line: str) -> int:
    return len(CELL.findall(line.strip().strip("|"))) + 1


def uneven(text: str) -> list[int]:
    """Numbers of lines whose heading has another number of columns."""
    lines = text.splitlines()
    rules = (at for at, line in enumerate(lines) if at and RULE.fullmatch(line))
    return [at + 1 for at in rules if columns(lines[at - 1]) != columns(lines[at])]


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_tables_have_a_column_for_each_heading(page: Path) -> None:
    assert uneven(page.read_text(encoding="utf-8")) == []


def test_a_heading_too_many_is_found() -> None:
    assert uneven("| a | b |\n|---|\n| 1 |\n\n| a |\n|---|\n") == [2]
