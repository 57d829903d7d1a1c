"""A report read back: its structure by an HTML parser, its charts as the JSON that the browser would draw."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go

DTYPES = {"f4": np.float32, "f8": np.float64, "i1": np.int8, "i2": np.int16, "i4": np.int32, "u1": np.uint8}


@dataclass
class Page(HTMLParser):
    """Collects while it is fed; ``text`` is all text outside scripts and styles."""

    title: str = ""
    text: str = ""
    tags: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    outside_references: list[str] = field(default_factory=list)
    section_ids: list[str] = field(default_factory=list)
    charts: dict[str, dict[str, Any]] = field(default_factory=dict)
    chart_sections: dict[str, str] = field(default_factory=dict)
    readings: dict[str, str] = field(default_factory=dict)
    banners: list[str] = field(default_factory=list)
    left_out: dict[str, list[str]] = field(default_factory=dict)
    script_count: int = 0
    security_policy: str = ""

    def __post_init__(self) -> None:
        super().__init__()
        self._open: list[tuple[str, dict[str, str]]] = []
        self._reading = ""
        self._rows: dict[str, list[list[str]]] = {}

    def values(self, chart: str, trace: int, axis: str | None = None) -> np.ndarray:
        """Numbers of one axis of a trace; by default those of its values (z, or x of a bar lying on its side, or y)."""
        data = self.charts[chart]["data"][trace]
        if axis is None:
            axis = "z" if data["type"] == "heatmap" else "x" if data.get("orientation") == "h" else "y"
        return unpack(data[axis])

    def rows_of(self, section: str) -> list[list[str]]:
        """Rows of the tables in a section, without their heads."""
        return self._rows.get(section, [])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.tags.add(tag)
        if "href" in attributes:
            self.links.append(attributes["href"])
        self.outside_references += [attributes[name] for name in ("src", "data", "srcset") if name in attributes]
        if tag == "meta":
            if attributes.get("http-equiv") == "Content-Security-Policy":
                self.security_policy = attributes["content"]
            return
        self._open.append((tag, attributes))
        if tag == "section":
            self.section_ids.append(attributes["id"])
        if tag == "script":
            self.script_count += 1
        if attributes.get("class") == "plot":
            self.chart_sections[attributes["id"]] = self.section_ids[-1]
            self.readings[attributes["id"]] = self._reading
        if tag == "tr":
            self._rows.setdefault(self.section_ids[-1], []).append([])
        if tag == "td":
            self._rows[self.section_ids[-1]][-1].append("")
        if tag == "p":
            self._start_paragraph(attributes.get("class", ""))

    def _start_paragraph(self, kind: str) -> None:
        if kind == "banner":
            self.banners.append("")
        elif kind == "left-out":
            self.left_out.setdefault(self.section_ids[-1], []).append("")
        elif kind == "reading":
            self._reading = ""

    def handle_endtag(self, tag: str) -> None:
        opened, _ = self._open.pop()
        assert opened == tag, f"</{tag}> closes <{opened}>"
        if tag == "thead":
            self._rows[self.section_ids[-1]].pop()

    def handle_data(self, data: str) -> None:
        if not self._open:
            return
        tag, attributes = self._open[-1]
        if tag == "script":
            if attributes.get("id", "").startswith("data-"):
                self.charts[attributes["id"].removeprefix("data-")] = read_figure(data)
            return
        if tag == "style":
            return
        self.text += data
        if tag == "h1":
            self.title += data
        elif tag == "td":
            self._rows[self.section_ids[-1]][-1][-1] += data
        elif tag == "p":
            self._continue_paragraph(attributes.get("class", ""), data)

    def _continue_paragraph(self, kind: str, data: str) -> None:
        if kind == "banner":
            self.banners[-1] += data
        elif kind == "left-out":
            self.left_out[self.section_ids[-1]][-1] += data
        elif kind == "reading":
            self._reading += data


def read_figure(text: str) -> dict[str, Any]:
    """A chart as the browser gets it, of properties and values that plotly knows and would leave as they are."""
    figure: dict[str, Any] = json.loads(text)
    known = json.loads(go.Figure(figure).to_json())
    assert known["data"] == figure["data"]
    assert {name: of for name, of in known["layout"].items() if name != "template"} == figure["layout"]
    return figure


def unpack(packed: Any) -> np.ndarray:
    """Numbers of a trace as they are written: a list, or the bytes of an array in base64."""
    if isinstance(packed, dict):
        return np.frombuffer(base64.b64decode(packed["bdata"]), DTYPES[packed["dtype"]]).astype(float)
    return np.array([np.nan if value is None else value for value in packed], dtype=float)


def parse_page(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    page.close()
    assert not page._open, f"left open: {page._open}"
    return page
