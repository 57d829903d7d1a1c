"""One HTML file that opens without a network: plain CSS, the plotting library and the data inside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from netsim import BackendUnavailable
from vidur_pd.report.charts import Chart
from vidur_pd.report.text import escape

STYLE = """
:root{color-scheme:light;--ink:#1c2330;--faint:#5b6472;--line:#dfe3e8;--card:#fff;--ground:#f5f6f8;--accent:#1f6fb4}
*{box-sizing:border-box}
html{scroll-behavior:smooth;scroll-padding-top:56px}
body{margin:0;background:var(--ground);color:var(--ink);
 font:14px/1.45 system-ui,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
header,main{max-width:1360px;margin:0 auto;padding:0 20px}
header{padding-top:22px}
h1{font-size:23px;margin:0 0 8px;overflow-wrap:anywhere}
h2{font-size:18px;margin:30px 0 10px}
h3{font-size:14px;margin:0}
dl.facts{display:grid;grid-template-columns:max-content 1fr;gap:3px 16px;margin:0 0 14px}
dl.facts dt{color:var(--faint)}
dl.facts dd{margin:0;overflow-wrap:anywhere}
nav{position:sticky;top:0;z-index:10;background:rgba(255,255,255,.96);border-block:1px solid var(--line);
 margin-top:14px}
nav div{max-width:1360px;margin:0 auto;padding:0 20px;display:flex;gap:22px;overflow-x:auto}
nav a{color:var(--ink);text-decoration:none;padding:10px 0;white-space:nowrap}
nav a:hover{color:var(--accent)}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(205px,1fr));gap:12px}
.tile,.card{background:var(--card);border:1px solid var(--line);border-radius:8px}
.tile{padding:10px 14px}
.tile .name{color:var(--faint);font-size:12px}
.tile .value{font-size:19px;font-weight:600;font-variant-numeric:tabular-nums}
.tile .note{color:var(--faint);font-size:12px;min-height:17px}
.tile.warning{border-color:#d9730d;background:#fff6ec}
.charts{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:14px;margin-bottom:14px}
.charts .card{padding:12px 14px 4px;min-width:0}
.charts .wide{grid-column:1/-1}
.reading{color:var(--faint);font-size:12.5px;margin:2px 0 0;min-height:2.9em}
.wide .reading{min-height:0}
.plot .modebar{opacity:0;transition:opacity .15s}
.plot:hover .modebar{opacity:1}
.table{overflow-x:auto;margin-bottom:14px;padding:4px 0}
table{border-collapse:collapse;width:100%;font-size:13px}
th,td{padding:5px 14px;text-align:left;border-bottom:1px solid #eef0f3;vertical-align:top;overflow-wrap:anywhere}
th{color:var(--faint);font-weight:500;border-color:var(--line);white-space:nowrap}
tr:last-child td{border-bottom:0}
.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.banner{background:#fff6ec;border:1px solid #d9730d;border-radius:8px;padding:8px 14px;margin:0 0 12px;
 overflow-wrap:anywhere}
.verdict{border-radius:8px;padding:10px 14px;margin:0 0 12px;overflow-wrap:anywhere;font-size:16px;border:1px solid}
.verdict.good{background:#eaf6f0;border-color:#16825d}
.verdict.bad{background:#fdecec;border-color:#c4262e}
.meaning{color:var(--faint);margin:0 0 12px}
.left-out{color:var(--faint);background:var(--card);border:1px dashed #c3c9d2;border-radius:8px;padding:8px 14px;
 margin:0 0 14px;overflow-wrap:anywhere}
details{padding:10px 14px;margin-bottom:40px}
summary{cursor:pointer}
pre{overflow-x:auto;font:12px/1.5 ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace}
@media(max-width:900px){.charts{grid-template-columns:minmax(0,1fr)}}
@media print{nav{position:static}.card{break-inside:avoid}}
"""

DRAW = """
for (const card of document.querySelectorAll(".plot")) {
  const figure = JSON.parse(document.getElementById("data-" + card.id).textContent);
  Plotly.newPlot(card, figure.data, figure.layout,
    {responsive: true, displaylogo: false, displayModeBar: "hover", modeBarButtons: [["toImage", "resetScale2d"]]});
}
"""

# Nothing may be fetched: a report shows the same on a machine without a network, and file text cannot load anything.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page with an entry in the navigation; ``body_html`` is ready HTML, the title plain text."""

    key: str
    title: str
    body_html: str


def charts_html(charts: Sequence[Chart | None]) -> str:
    """Cards in two columns; absent charts are left out."""
    cards = "".join(_card(chart) for chart in charts if chart is not None)
    return f'<div class="charts">{cards}</div>' if cards else ""


def page_html(title: str, facts: Sequence[tuple[str, str]], sections: Sequence[Section]) -> Iterable[str]:
    """The whole document in pieces, most of it the script. ``facts`` are plain pairs of name and value below the title.

    Raises: BackendUnavailable without the script.
    """
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts)
    links = "".join(f'<a href="#{escape(section.key)}">{escape(section.title)}</a>' for section in sections)
    bodies = "".join(
        f'<section id="{escape(section.key)}"><h2>{escape(section.title)}</h2>{section.body_html}</section>'
        for section in sections
    )
    document = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n"
        f'<body><header><h1>{escape(title)}</h1><dl class="facts">{listed}</dl></header>\n'
        f"<nav><div>{links}</div></nav>\n<main>{bodies}</main>\n"
        "<script>"
    )
    return chain((document,), _pieces(_plotly_script()), (f"</script>\n<script>{DRAW}</script></body></html>\n",))


def _plotly_script() -> Path:
    """What the Python package brings along; importing the package would take longer than the charts."""
    package = find_spec("plotly")
    folders = package.submodule_search_locations if package else None
    script = Path(next(iter(folders or ()), "plotly"), "package_data", "plotly.min.js")
    if not script.exists():
        raise BackendUnavailable(f"report: found no {script}, expected it; install plotly 5.20 or later")
    return script


def _pieces(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8") as file:
        while piece := file.read(1 << 18):
            yield piece


def _card(chart: Chart) -> str:
    key = escape(chart.key)
    data = chart.figure_json.replace("<", "\\u003c")  # no text of a file can close the script element
    return (
        f'<div class="card{" wide" if chart.is_wide else ""}"><h3>{escape(chart.title)}</h3>'
        f'<p class="reading">{escape(chart.reading)}</p>'
        f'<div class="plot" id="{key}" style="height:{chart.height_px}px"></div>'
        f'<script type="application/json" id="data-{key}">{data}</script></div>'
    )
