"""One HTML file that opens without a network: plain CSS, the plotting library and the data inside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

from markupsafe import Markup

from vidur_pd.report.charts import Chart
from vidur_pd.report.colours import looks_json
from vidur_pd.report.templating import environment, in_script, part

SCRIPT: Final = Path(__file__).with_name("plotly_js") / "plotly-cartesian.min.js"
# Nothing may be fetched: a report shows the same on a machine without a network, and file text cannot load anything.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page with an entry in the navigation."""

    key: str
    title: str
    """Plain text."""
    body_html: Markup
    """Ready HTML: anything else would be shown as text."""


def charts_html(charts: Sequence[Chart | None]) -> Markup:
    """Cards in two columns; absent charts are left out."""
    shown = [chart for chart in charts if chart is not None]
    return part("charts", shown) if shown else Markup()


def page_html(
    title: str, facts: Sequence[tuple[str, str]], sections: Sequence[Section], about: Sequence[str] = ()
) -> Iterable[str]:
    """The whole document in pieces, most of it the script.

    Args:
        title: heading of the page; ``about`` follows it there, and in the title of the window.
        facts: plain pairs of name and value below the title.
        sections: in the order of the page.
        about: which run, and when; empty texts are left out.
    """
    known = [text for text in about if text]
    document = environment().get_template("page.html")
    text = document.render(
        policy=POLICY, title=title, about=known, facts=facts, sections=sections, looks_json=in_script(looks_json())
    )
    return chain((text, "<script>"), _pieces(SCRIPT), _end())


def _end() -> Iterator[str]:
    yield "</script>\n<script>"
    yield environment().get_template("draw.js").render()
    yield "</script></body></html>\n"


def _pieces(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8") as file:
        while piece := file.read(1 << 18):
            yield piece
