"""Colours of charts, and the two looks of a page: plotly templates for light and for dark screens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

# Distinct in lightness as well as in hue, after Okabe and Ito, "Color Universal Design" (2008), for white and for dark.
SERIES_COLOURS = ("#2b7cc4", "#d9730d", "#1f9a70", "#9a60d0", "#b58900", "#d0528a", "#3a9dbf", "#7d828b")
STAGE_COLOURS = {
    "queue": "#a3abb8",
    "prefill": "#2b7cc4",
    "hand-off wait": "#e3b341",
    "KV transfer": "#d0528a",
    "decode wait": "#d9730d",
}
PHASE_COLOURS = {
    "attention": "#2b7cc4",
    "dense": "#3a9dbf",
    "experts": "#1f9a70",
    "head": "#9a60d0",
    "norm and small": "#b58900",
    "host": "#7d828b",
    "other compute": "#c9cdd4",
    "communication": "#d9730d",
    "waiting": "#e4e7eb",
}
LINK_COLOURS = {"nvlink": "#1f9a70", "nic": "#2b7cc4", "fabric": "#9a60d0"}
SLO_COLOUR = "#d9363e"
RULE, FAINT = "#9aa2ae", "#7d8591"
"""Lines that both looks share: outlines, and what is not a series."""
FONT = "system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


@dataclass(frozen=True, slots=True)
class Look:
    """What differs between a light and a dark page."""

    ink: str
    grid: str
    rule: str
    ground: str
    """Behind hovering text."""
    heat: Sequence[tuple[float, str]]
    """From nothing to everything."""


LOOKS: Final[Mapping[str, Look]] = {
    "light": Look(
        ink="#1c2330",
        grid="#e6e8ec",
        rule="#b4bac4",
        ground="#ffffff",
        heat=((0.0, "#f3f5f8"), (0.5, "#7fb0d8"), (0.85, "#1f6fb4"), (1.0, "#0b2f57")),
    ),
    "dark": Look(
        ink="#e4e8ee",
        grid="#2c333e",
        rule="#4a5361",
        ground="#1b2129",
        heat=((0.0, "#222933"), (0.5, "#2a6ba8"), (0.85, "#7fb8ea"), (1.0, "#d3e7fb")),
    ),
}


def template(look: Look) -> dict[str, object]:
    """What all charts of a page with this look share."""
    axis = {
        "gridcolor": look.grid,
        "linecolor": look.rule,
        "zeroline": False,
        "ticks": "outside",
        "tickcolor": look.rule,
        "ticklen": 4,
        "automargin": True,
        "exponentformat": "SI",
    }
    layout = {
        "font": {"family": FONT, "size": 12, "color": look.ink},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 60, "r": 16, "t": 34, "b": 46},
        "legend": {
            "orientation": "h",
            "traceorder": "normal",
            "x": 0,
            "y": 1.0,
            "xanchor": "left",
            "yanchor": "bottom",
            "font": {"size": 11},
        },
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": FAINT, "activecolor": look.ink},
        "hoverlabel": {"bgcolor": look.ground, "font": {"family": FONT, "size": 12, "color": look.ink}},
        "annotationdefaults": {"bgcolor": look.ground, "font": {"color": look.ink}},
        "xaxis": axis,
        "yaxis": axis,
    }
    bar = {"thickness": 12, "outlinewidth": 0}
    heat_map = {"type": "heatmap", "colorscale": look.heat, "colorbar": bar}
    return {"layout": layout, "data": {"heatmap": [heat_map]}}


def looks_json() -> str:
    """Both templates, by look."""
    return json.dumps({name: template(look) for name, look in LOOKS.items()}, separators=(",", ":"))


def series_colour(place: int) -> str:
    return SERIES_COLOURS[place % len(SERIES_COLOURS)]


def pool_colours(names: Sequence[str]) -> Mapping[str, str]:
    """One colour per pool, the same in every chart of a report."""
    return {name: series_colour(place) for place, name in enumerate(names)}


def fainter(colour: str, opacity: float) -> str:
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"
