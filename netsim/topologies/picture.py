"""A picture of a topology: SVG, or HTML that holds it.

GPUs stand in a row with their NVSwitches below and the tiers of the fabric above. Of a large topology the first groups
and nodes and the last are drawn, with the number of those between. Colours follow the reader's preference for light or
dark where the viewer knows it, and are legible on either without.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

import numpy as np

from boundary.errors import InputError
from netsim.topologies.hosts import without_hosts
from netsim.topologies.layout import (
    MARGIN,
    MARGIN_LEFT,
    Box,
    Hidden,
    Layout,
    arc_height,
    arranged,
)
from netsim.topologies.outline import TIERS
from netsim.topology import CableTable, LinkKind, NodeKind, Topology
from netsim.units import format_time_ps

_SUFFIXES: Final = (".svg", ".html")
_STYLE: Final = """
text{font-family:Helvetica,Arial,sans-serif;font-size:11px;fill:#24292f}
.title{font-size:16px;font-weight:600}.note{fill:#57606a}.small{font-size:9px}.halo{paint-order:stroke;stroke:#ffffff;stroke-width:4px;stroke-linejoin:round}.mid{text-anchor:middle}
.page{fill:#ffffff}.frame{fill:#8c959f;fill-opacity:.07;stroke:#8c959f;stroke-opacity:.55}
.gpu{fill:#8250df}.nvswitch{fill:#2f8f4e}.leaf,.switch{fill:#2f76c7}.spine{fill:#bc6413}.core{fill:#b03a62}
.symbol text,.onfill{fill:#ffffff}
path{fill:none;stroke-width:1}.nvlink{stroke:#2f8f4e}.nic{stroke:#2f76c7}.fabric{stroke:#bc6413}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.note{fill:#9198a1}.page{fill:#0d1117}.halo{stroke:#0d1117}
.nvlink{stroke:#4cb870}.nic{stroke:#6aa7f0}.fabric{stroke:#e0944a}}
"""
_NAMES: Final = {
    NodeKind.GPU: ("GPU", "GPUs"),
    NodeKind.NVSWITCH: ("NVSwitch", "NVSwitches"),
    NodeKind.LEAF: ("leaf", "leaves"),
    NodeKind.SWITCH: ("switch", "switches"),
    NodeKind.SPINE: ("spine", "spines"),
    NodeKind.CORE: ("core", "cores"),
}
"""Of one and of several."""
_LINK_NAMES: Final = {LinkKind.NVLINK: "NVLink", LinkKind.NIC: "NIC", LinkKind.FABRIC: "between switches"}
_DASHES: Final = ("", "7 3", "2 3", "9 3 2 3")
_LEGEND_HEIGHT: Final = 20
_HALF_SYMBOL: Final = 6
"""Lines start and end so far above or below the middle of a symbol."""


def check_picture_name(path: Path) -> None:
    """Refuses names that say no known format.

    Raises:
        InputError: the name ends in neither .svg nor .html.
    """
    if path.suffix not in _SUFFIXES:
        raise InputError(
            f"{path}: found {path.suffix or 'no suffix'}, expected .svg or .html, which browsers print as PDF"
        )


def draw(topology: Topology, path: Path) -> str:
    """The picture in the format that the name of its file says; nothing is written.

    Raises:
        InputError: as `check_picture_name`.
    """
    check_picture_name(path)
    topology = without_hosts(topology)
    svg = to_svg(topology)
    if path.suffix == ".svg":
        return svg
    title = escape(_title(topology))
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{title}</title>'
        "<style>:root{color-scheme:light dark}body{margin:0}svg{max-width:100%;height:auto}</style>\n"
        f"{svg}</html>\n"
    )


def to_svg(topology: Topology) -> str:
    """The picture as one SVG document without references to anything else."""
    topology = without_hosts(topology)
    layout = arranged(topology)
    classes = _link_classes(topology)
    legend_y = layout.bottom + 30
    height = legend_y + _LEGEND_HEIGHT * len(classes) + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{layout.width:g}" height="{height:g}" '
        f'viewBox="0 0 {layout.width:g} {height:g}" role="img">',
        f"<title>{escape(_title(topology))}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="page" width="{layout.width:g}" height="{height:g}"/>',
        _text(MARGIN, 28, _title(topology), "title"),
        _text(MARGIN, 48, _note(topology, layout), "note"),
        *map(_frame, layout.boxes),
        *_row_names(topology, layout),
        *_links(layout, classes),
        *map(_frame_name, layout.boxes),
        *_symbols(topology, layout),
        *map(_hidden, layout.hidden),
        *_legend(classes, legend_y),
        "</svg>\n",
    ]
    return "\n".join(parts)


def _title(topology: Topology) -> str:
    counts = Counter(topology.node_kind.tolist())
    return " · ".join(_count(counts[kind], kind) for kind in TIERS if counts[kind])


def _count(number: int, kind: NodeKind) -> str:
    return f"{number:,} {_NAMES[kind][number != 1]}"


def _note(topology: Topology, layout: Layout) -> str:
    per_node = topology.gpus_per_node
    servers = topology.gpus // per_node
    width = _count(per_node, NodeKind.GPU)
    nodes = "one GPU per host" if per_node == 1 else f"{servers:,} servers of {width}" if servers > 1 else "one server"
    drawn = len(layout.places)
    if drawn == topology.nodes:
        return nodes
    gpus = sum(node < topology.gpus for node in layout.places)
    switches = _count(drawn - gpus, NodeKind.SWITCH)
    return f"{nodes}; drawn are {_count(gpus, NodeKind.GPU)} and {switches}: of each row the first and the last"


def _row_names(topology: Topology, layout: Layout) -> Iterator[str]:
    counts = Counter(topology.node_kind.tolist())
    for kind, tier in TIERS.items():
        if counts[kind]:
            y = layout.gpu_y - tier * layout.row_height + layout.nvswitch_drop * (kind is NodeKind.NVSWITCH)
            yield _text(MARGIN, y + 4, _count(counts[kind], kind))


_LinkClass = tuple[LinkKind, int, int]
"""Kind, bit/s, ps."""


def _link_classes(topology: Topology) -> dict[_LinkClass, CableTable]:
    """Cables by what they are made of; links that differ by direction count one by one."""
    cables = topology.cables()
    table = topology.directed_links() if cables is None else cables
    columns = np.stack((table.kind.astype(np.int64), -table.capacity_bps, table.latency_ps), axis=1)
    found, inverse = np.unique(columns, axis=0, return_inverse=True)
    return {
        (LinkKind(kind), -bps, ps): table.take(inverse.ravel() == index)
        for index, (kind, bps, ps) in enumerate(found.tolist())
    }


def _links(layout: Layout, classes: dict[_LinkClass, CableTable]) -> Iterator[str]:
    """One path per class of links, so that a picture of thousands stays small."""
    drawn = {
        link_class: {
            (min(a, b), max(a, b))
            for a, b in zip(table.a.tolist(), table.b.tolist(), strict=True)
            if a in layout.places and b in layout.places
        }
        for link_class, table in classes.items()
    }
    for link_class, dash in zip(classes, _dashes(classes), strict=True):
        pairs = sorted(drawn[link_class])
        if pairs:
            opacity = min(0.9, max(0.3, 60 / len(pairs)))
            data = "".join(_line(layout.places[a], layout.places[b]) for a, b in pairs)
            yield (
                f'<path class="{link_class[0].name.lower()}"{dash} stroke-opacity="{opacity:.2f}" d="{data}">'
                f"<title>{escape(_describe(link_class))}</title></path>"
            )


def _line(a: tuple[float, float], b: tuple[float, float]) -> str:
    (ax, ay), (bx, by) = a, b
    if ay == by:
        return f"M{ax:g} {ay:g}Q{(ax + bx) / 2:g} {ay - 2 * arc_height(bx - ax):g} {bx:g} {by:g}"
    side = _HALF_SYMBOL if ay < by else -_HALF_SYMBOL
    return f"M{ax:g} {ay + side:g}L{bx:g} {by - side:g}"


def _symbols(topology: Topology, layout: Layout) -> Iterator[str]:
    for node, (x, y) in layout.places.items():
        kind = NodeKind(int(topology.node_kind[node]))
        name = escape(topology.node_name[node])
        width, height = (12, 12) if kind is NodeKind.GPU else (34, 17)
        shape = f'<rect x="{x - width / 2:g}" y="{y - height / 2:g}" width="{width}" height="{height}" rx="3"/>'
        label = "" if kind is NodeKind.GPU else _text(x, y + 3, _short(topology.node_name[node]), "mid small")
        yield f'<g class="symbol {kind.name.lower()}"><title>{name}</title>{shape}{label}</g>'


def _short(name: str) -> str:
    """What tells a node from the others of its row: ``0.3a`` of ``leaf0.3a``."""
    number = re.search(r"\d.*", name)
    return number[0] if number and len(number[0]) <= 7 else name[:6]


def _frame(box: Box) -> str:
    return f'<rect class="frame" x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" height="{box.height:g}" rx="6"/>'


def _frame_name(box: Box) -> str:
    if box.is_server:
        return _text(box.x + box.width / 2, box.y + box.height - 6, box.name, "mid note small")
    return _text(box.x + 8, box.y + 14, box.name, "note halo")


def _hidden(hidden: Hidden) -> str:
    number = _text(hidden.x, hidden.y + 11, f"+{hidden.count:,}", "mid note small halo")
    return _text(hidden.x, hidden.y, "· · ·", "mid note halo") + number


def _legend(classes: dict[_LinkClass, CableTable], top: float) -> Iterator[str]:
    for index, ((link_class, table), dash) in enumerate(zip(classes.items(), _dashes(classes), strict=True)):
        y = top + index * _LEGEND_HEIGHT
        style = f'class="{link_class[0].name.lower()}"{dash} stroke-width="2"'
        yield f'<path {style} d="M{MARGIN} {y:g}H{MARGIN_LEFT - 12}"/>'
        yield _text(MARGIN_LEFT, y + 4, f"{_describe(link_class)} · {len(table):,} cables")


def _describe(link_class: _LinkClass) -> str:
    kind, capacity_bps, latency_ps = link_class
    gbytes = f" ({capacity_bps / 8e9:,.4g} GB/s)" if kind is LinkKind.NVLINK else ""
    return f"{_LINK_NAMES[kind]}: {capacity_bps / 1e9:,.6g} Gbit/s{gbytes} per direction, {format_time_ps(latency_ps)}"


def _dashes(classes: Iterable[_LinkClass]) -> list[str]:
    """Attribute for the stroke of each class: links of one kind differ by their dashes."""
    seen: Counter[LinkKind] = Counter()
    dashes = []
    for kind, _, _ in classes:
        dash = _DASHES[min(seen[kind], len(_DASHES) - 1)]
        dashes.append(f' stroke-dasharray="{dash}"' if dash else "")
        seen[kind] += 1
    return dashes


def _text(x: float, y: float, text: str, style: str = "") -> str:
    css = f' class="{style}"' if style else ""
    return f'<text x="{x:g}" y="{y:g}"{css}>{escape(text)}</text>'
