"""Numbers as text, and tables of text as HTML."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from vidur_pd.report.templating import part

NONE = "–"


@dataclass(frozen=True, slots=True)
class Tile:
    """One headline figure: a name, a value, and a line below it; plain text."""

    name: str
    value: str
    note: str = ""
    is_warning: bool = False


def duration(seconds: float | None) -> str:
    """Three digits in the unit that fits: µs, ms or s."""
    if seconds is None or not math.isfinite(seconds):
        return NONE
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if abs(seconds) >= scale:
            return f"{digits(seconds / scale)} {unit}"
    return f"{digits(seconds * 1e6)} µs" if seconds else "0 s"


def digits(value: float | None) -> str:
    """Three significant digits, more only before the decimal point."""
    if value is None or not math.isfinite(value):
        return NONE
    if value == 0:
        return "0"
    places = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(places, 6)}f}"


def count(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def percent(share: float | None) -> str:
    """With one digit after the point; what is below zero by rounding alone is zero."""
    return NONE if share is None or not math.isfinite(share) else f"{round(share * 100, 1) + 0.0:.1f} %"


def tiles_html(tiles: Sequence[Tile]) -> Markup:
    return part("tiles", tiles)


def table_html(
    columns: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int = 1, texts: Collection[int] = ()
) -> Markup:
    """A table of plain text whose first ``text_columns`` columns and those at the places ``texts`` are flush left and
    wrap; the others are numbers."""
    return part("table", columns, rows, {*range(text_columns), *texts})


def note_html(text: str, *, is_warning: bool = False) -> Markup:
    return part("note", text, is_warning)


def meaning_html(text: str) -> Markup:
    """What the figures that follow are."""
    return part("meaning", text)


def folded_html(title: str, text: str, *, is_open: bool = False) -> Markup:
    """Long text as it is, behind its title."""
    return part("folded", title, text, is_open)
