"""Numbers and tables as HTML text. Everything that comes from a file passes `escape` here."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

NONE = "–"


@dataclass(frozen=True, slots=True)
class Tile:
    """One headline figure: a name, a value, and a line below it; plain text."""

    name: str
    value: str
    note: str = ""
    is_warning: bool = False


def escape(text: object) -> str:
    return html.escape(str(text))


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
    return NONE if share is None or not math.isfinite(share) else f"{share * 100:.1f} %"


def tiles_html(tiles: Sequence[Tile]) -> str:
    cells = (
        f'<div class="tile{" warning" if tile.is_warning else ""}"><div class="name">{escape(tile.name)}</div>'
        f'<div class="value">{escape(tile.value)}</div><div class="note">{escape(tile.note)}</div></div>'
        for tile in tiles
    )
    return f'<div class="tiles">{"".join(cells)}</div>'


def table_html(columns: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int = 1) -> str:
    """A table of plain text whose first ``text_columns`` columns are flush left and the others are numbers."""
    head = "".join(_cell("th", place < text_columns, name) for place, name in enumerate(columns))
    lines = ("".join(_cell("td", place < text_columns, cell) for place, cell in enumerate(row)) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="card table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def note_html(text: str, *, is_warning: bool = False) -> str:
    return f'<p class="{"banner" if is_warning else "left-out"}">{escape(text)}</p>'


def meaning_html(text: str) -> str:
    """What the figures that follow are."""
    return f'<p class="meaning">{escape(text)}</p>'


def _cell(tag: str, is_text: bool, content: str) -> str:
    side = "" if is_text else ' class="number"'
    return f"<{tag}{side}>{escape(content)}</{tag}>"
