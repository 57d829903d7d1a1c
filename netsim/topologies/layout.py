"""Where the nodes of a topology stand in a picture: rows by tier, groups side by side."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from netsim.topologies.outline import TIERS, Group, Row, gap_at, outlines
from netsim.topology import NodeKind, Topology

# All in pixels.
GPU_PITCH: Final = 18
SWITCH_PITCH: Final = 40
MARGIN_LEFT: Final = 120
MARGIN: Final = 16
HEADER_HEIGHT: Final = 64
GAP: Final = 10
PADDING: Final = 8
HIDDEN_WIDTH: Final = 46
"""Of the place of children that are not shown."""
LARGEST_ARC: Final = 200
_LEAST_ROW_HEIGHT: Final = 130
_LEAST_DROP: Final = 64
_WIDEST: Final = 1760
_LIMITS: Final = (2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class Box:
    """Frame around a group."""

    x: float
    y: float
    width: float
    height: float
    name: str
    """Empty where the switch in it says enough."""
    is_server: bool


@dataclass(frozen=True, slots=True)
class Hidden:
    """Mark for ``count`` things that are left out around (x, y)."""

    x: float
    y: float
    count: int


@dataclass(slots=True)
class Layout:
    """Places of what is drawn; built by `arranged`."""

    width: float = 0
    row_height: float = _LEAST_ROW_HEIGHT
    """From one tier to the next."""
    nvswitch_drop: float = _LEAST_DROP
    """From the row of GPUs down to that of NVSwitches."""
    tiers_with_arcs: frozenset[int] = frozenset()
    gpu_y: float = 0
    bottom: float = 0
    """Of the lowest symbol or frame."""
    places: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Node to the middle of its symbol."""
    boxes: list[Box] = field(default_factory=list)
    """Outer frames before those inside them."""
    hidden: list[Hidden] = field(default_factory=list)


def arranged(topology: Topology) -> Layout:
    """A layout of the largest part of the topology that stays readable: the first groups and nodes, and the last."""
    larger = outlines(topology, _LIMITS)
    group = next(larger)
    for candidate in larger:
        if _width(candidate) > _WIDEST:
            break
        group = candidate
    width = _width(group)
    layout = Layout(
        width=MARGIN_LEFT + max(width, 360) + MARGIN,
        row_height=max(_LEAST_ROW_HEIGHT, width / 8),  # so that lines across the picture stay apart
        nvswitch_drop=max(_LEAST_DROP, _widest_server(group) / 10),
    )
    layout.tiers_with_arcs = _tiers_with_arcs(topology)
    arcs = arc_height(width) if group.tier in layout.tiers_with_arcs else 0
    layout.gpu_y = HEADER_HEIGHT + arcs + 40 + group.tier * layout.row_height
    _place(layout, group, MARGIN_LEFT, depth=0)
    layout.bottom = max(layout.bottom, *(y + 16 for _, y in layout.places.values()))
    return layout


def arc_height(distance: float) -> float:
    """How far the arc between two switches of one row rises above them; farther ones are higher."""
    return LARGEST_ARC * abs(distance) / (abs(distance) + 500)


def _tiers_with_arcs(topology: Topology) -> frozenset[int]:
    """Tiers with cables among their own switches."""
    flat = topology.node_kind[topology.link_src] == topology.node_kind[topology.link_dst]
    kinds = np.unique(topology.node_kind[topology.link_src[flat]]).tolist()
    return frozenset(TIERS[NodeKind(kind)] for kind in kinds)


def _width(group: Group) -> float:
    own = max(
        group.gpus.places * GPU_PITCH, group.nvswitches.places * SWITCH_PITCH, group.switches.places * SWITCH_PITCH
    )
    return max(own, _children_width(group)) + (2 * PADDING if _has_frame(group) else 0)


def _children_width(group: Group) -> float:
    hidden = HIDDEN_WIDTH if group.hidden_children else 0
    return sum(_width(child) + _gap(child) for child in group.children) + hidden


def _gap(child: Group) -> float:
    """Behind a child; hosts without a frame stand close."""
    return GAP if _has_frame(child) else 2


def _widest_server(group: Group) -> float:
    return max((_widest_server(child) for child in group.children), default=_width(group))


def _place(layout: Layout, group: Group, left: float, depth: int) -> None:
    """Puts the group into the columns from ``left`` on; ``depth`` counts the frames around it."""
    width = _width(group)
    middle = left + width / 2
    switch_y = layout.gpu_y - group.tier * layout.row_height
    if _has_frame(group) and depth:
        layout.boxes.append(_frame(layout, group, left))
    _place_row(layout, group.switches, middle, switch_y, SWITCH_PITCH)
    _place_row(layout, group.gpus, middle, layout.gpu_y, GPU_PITCH)
    _place_row(layout, group.nvswitches, middle, layout.gpu_y + layout.nvswitch_drop, SWITCH_PITCH)
    x = middle - _children_width(group) / 2
    for index, child in enumerate(group.children):
        if group.hidden_children and index == gap_at(len(group.children)):
            y = layout.gpu_y - child.tier * layout.row_height
            layout.hidden.append(Hidden(x + HIDDEN_WIDTH / 2 - _gap(child) / 2, y, group.hidden_children))
            x += HIDDEN_WIDTH
        x += _gap(child) / 2
        _place(layout, child, x, depth + 1)
        x += _width(child) + _gap(child) / 2


def _has_frame(group: Group) -> bool:
    return group.gpus.places + group.switches.places > 1 or len(group.children) > 1


def _frame(layout: Layout, group: Group, left: float) -> Box:
    """Frames of inner groups end above those of the groups around them."""
    width = _width(group)
    if group.tier:
        arcs = arc_height(group.switches.places * SWITCH_PITCH) if group.tier in layout.tiers_with_arcs else 0
        top = layout.gpu_y - group.tier * layout.row_height - 30 - arcs
    else:
        top = layout.gpu_y - 16
    low = layout.nvswitch_drop if _has_nvswitches(group) else 0
    bottom = layout.gpu_y + low + 34 + 8 * _frames_inside(group)
    layout.bottom = max(layout.bottom, bottom)
    name = "" if group.switches.places == 1 else group.name
    return Box(left, top, width, bottom - top, name, not group.tier)


def _has_nvswitches(group: Group) -> bool:
    return group.nvswitches.places > 0 or any(_has_nvswitches(child) for child in group.children)


def _frames_inside(group: Group) -> int:
    return max((_has_frame(child) + _frames_inside(child) for child in group.children), default=0)


def _place_row(layout: Layout, row: Row, middle: float, y: float, pitch: float) -> None:
    x = middle - (row.places - 1) * pitch / 2
    for index, node in enumerate(row.shown):
        if row.hidden and index == gap_at(len(row.shown)):
            layout.hidden.append(Hidden(x, y, row.hidden))
            x += pitch
        layout.places[node] = (x, y)
        x += pitch
