"""What all charts share: colours, traces and axes as plotly.js takes them, and the step to a piece of the page.

Properties are those of https://plotly.com/javascript/reference and are not checked here: a test has the Python package
check every figure of a report.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

# Distinct in lightness as well as in hue, after Okabe and Ito, "Color Universal Design" (2008), darkened for white.
SERIES_COLOURS = ("#1f6fb4", "#d9730d", "#16825d", "#8e4ec6", "#b58900", "#c2407a", "#3a9dbf", "#6b6f76")
STAGE_COLOURS = {
    "queue": "#a3abb8",
    "prefill": "#1f6fb4",
    "hand-off wait": "#e3b341",
    "KV transfer": "#c2407a",
    "decode wait": "#d9730d",
}
PHASE_COLOURS = {
    "attention": "#1f6fb4",
    "dense": "#3a9dbf",
    "experts": "#16825d",
    "head": "#8e4ec6",
    "norm and small": "#b58900",
    "host": "#8a8f98",
    "other compute": "#c9cdd4",
    "communication": "#d9730d",
    "waiting": "#eceef1",
}
LINK_COLOURS = {"nvlink": "#16825d", "nic": "#1f6fb4", "fabric": "#8e4ec6"}
HEAT_SCALE = ((0.0, "#f3f5f8"), (0.5, "#7fb0d8"), (0.85, "#1f6fb4"), (1.0, "#0b2f57"))
SLO_COLOUR = "#c4262e"
FARTHEST_SLO = 3.0
"""An objective is drawn up to this multiple of the largest value; farther away it would press the data together."""
INK, GRID, RULE, FAINT = "#1c2330", "#e6e8ec", "#b4bac4", "#6a7280"
FONT = "system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
ROW_FONT = {"size": 11, "color": INK}
AXIS = {
    "gridcolor": GRID,
    "linecolor": RULE,
    "zeroline": False,
    "ticks": "outside",
    "tickcolor": RULE,
    "ticklen": 4,
    "automargin": True,
    "exponentformat": "SI",
}
LAYOUT = {
    "font": {"family": FONT, "size": 12, "color": INK},
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
    "modebar": {"bgcolor": "rgba(255,255,255,0.9)", "color": FAINT, "activecolor": INK},
    "hoverlabel": {"bgcolor": "white", "font": {"family": FONT, "size": 12}},
}

Properties = dict[str, object]
"""A trace, an axis or another part of a figure."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawn chart; ``reading`` is the sentence that says how to read it, both are plain text."""

    key: str
    title: str
    reading: str
    figure_json: str
    height_px: int
    is_wide: bool


@dataclass(frozen=True, slots=True)
class Frame:
    """The parts of a chart that are not its data."""

    key: str
    title: str
    reading: str
    height_px: int = 320
    is_wide: bool = False


def series_colour(place: int) -> str:
    return SERIES_COLOURS[place % len(SERIES_COLOURS)]


def pool_colours(names: Sequence[str]) -> Mapping[str, str]:
    """One colour per pool, the same in every chart of a report."""
    return {name: series_colour(place) for place, name in enumerate(names)}


def fainter(colour: str, opacity: float) -> str:
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def label(text: str, at_most: int = 48) -> str:
    """Text from a file as plotly text, which would otherwise read it as markup."""
    return html.escape(text if len(text) <= at_most else text[: at_most - 1] + "…", quote=False)


def compact(values: npt.ArrayLike) -> npt.NDArray[np.float32] | npt.NDArray[np.float64]:
    """Values in single precision, which halves the page, unless they differ too little for its seven digits."""
    exact = np.asarray(values, dtype=np.float64)
    known = exact[np.isfinite(exact)]
    is_offset = known.size > 1 and np.abs(known).max() > 1e3 * np.ptp(known) > 0
    return exact if is_offset else exact.astype(np.float32)


def scatter(x: npt.ArrayLike, y: npt.ArrayLike, **properties: object) -> Properties:
    """A trace of points, of a line through them, or of both."""
    return {"type": "scatter", "x": _packed(x), "y": _packed(y), **properties}


def bars(lengths: npt.ArrayLike, names: Sequence[str], **properties: object) -> Properties:
    """A trace of horizontal bars, one per name."""
    return {"type": "bar", "orientation": "h", "x": _packed(lengths), "y": names, **properties}


def heat_map(edges: npt.ArrayLike, names: Sequence[str], percents: npt.NDArray[np.float64], title: str) -> Properties:
    """A trace of percentages (0…100, shape ``[names, edges - 1]``) as colours under a scale with a title."""
    return {
        "type": "heatmap",
        "x": _packed(edges),
        "y": names,
        "z": _packed(np.round(percents, 1)),
        "zmin": 0,
        "zmax": 100,
        "colorscale": HEAT_SCALE,
        "colorbar": {"title": {"text": title, "side": "right"}, "thickness": 12, "outlinewidth": 0},
    }


def _packed(values: npt.ArrayLike) -> Properties | list[object]:
    """Numbers as the typed array that plotly.js unpacks (from 2.28 on), in less room than their digits."""
    array = compact(values)
    if not array.size:
        return []
    packed: Properties = {"dtype": array.dtype.str[1:], "bdata": base64.b64encode(array.tobytes()).decode("ascii")}
    return packed if array.ndim == 1 else {**packed, "shape": ", ".join(str(size) for size in array.shape)}


LEAST: Final = 1e-18
"""On a logarithmic axis, in whatever unit; an attosecond is nothing that a simulation tells apart."""


def axis(title: str, /, **properties: object) -> Properties:
    return {**AXIS, "title": {"text": title, "standoff": 8}, **properties}


def rows_axis(**properties: object) -> Properties:
    """Names from the top downwards."""
    return axis("", autorange="reversed", type="category", **properties)


def log_axis(title: str, *series: npt.ArrayLike) -> Properties:
    """A logarithmic axis that covers the positive values, with ticks a reader can name: 1, 2, 5 or powers of ten.

    It begins at `LEAST` where they are smaller.
    """
    values = np.concatenate([np.ravel(np.asarray(each, dtype=np.float64)) for each in series])
    positive = np.maximum(values[values > 0], LEAST)
    low, high = positive.min(), positive.max()
    margin = max(0.04 * np.log10(high / low), 0.03)
    first, last = np.log10(low) - margin, np.log10(high) + margin
    steps = (1, 2, 5) if last - first < 3.2 else (1,)
    ticks = [step * 10.0**power for power in range(int(np.floor(first)), int(np.ceil(last)) + 1) for step in steps]
    shown = [tick for tick in ticks if first <= np.log10(tick) <= last]
    return axis(
        title,
        type="log",
        range=[float(first), float(last)],
        tickvals=shown or [float(low)],
        ticktext=[f"{tick:,.6g}" for tick in shown or [float(low)]],
    )


def time_axis(edges_s: npt.NDArray[np.float64]) -> Properties:
    """The whole span of the bins, so that charts of one run line up."""
    return axis("Simulated time (s)", range=[float(edges_s[0]), float(edges_s[-1])])


def draw(
    frame: Frame, traces: Sequence[Properties], x_axis: Properties, y_axis: Properties, /, **layout: object
) -> Chart:
    """The chart of the traces; ``layout`` is what it has besides the common look."""
    whole = {**LAYOUT, "height": frame.height_px, "xaxis": x_axis, "yaxis": y_axis, **layout}
    figure_json = json.dumps({"data": traces, "layout": whole}, separators=(",", ":"), allow_nan=False)
    return Chart(frame.key, frame.title, frame.reading, figure_json, frame.height_px, frame.is_wide)


def near_slo(value: float | None, largest: float) -> float | None:
    """The objective, if it is to be drawn with values up to ``largest``."""
    return value if value is not None and value <= FARTHEST_SLO * largest else None


def slo_mark(
    value: float | None, largest: float, unit: str, along: Properties, *, is_vertical: bool = True
) -> Properties:
    """Layout of a dashed line at an objective on the axis ``along``, in words where it lies far beyond the values;
    nothing where none was set."""
    if value is None:
        return {}
    is_near = near_slo(value, largest) is not None
    note = {
        "text": f"SLO {value:g} {unit}" + ("" if is_near else ", beyond the axis"),
        "font": {"color": SLO_COLOUR, "size": 11},
        "bgcolor": "rgba(255,255,255,0.85)",
        "showarrow": False,
    }
    if not is_near:
        corner = {"x": 1, "xref": "paper", "xanchor": "right", "yref": "paper"}
        return {"annotations": [{**corner, **({"y": 0.02, "yanchor": "bottom"} if is_vertical else {"y": 1}), **note}]}
    line = {"type": "line", "line": {"color": SLO_COLOUR, "width": 1.5, "dash": "dash"}}
    place = float(np.log10(value)) if along.get("type") == "log" else value  # notes on a log axis take exponents
    if is_vertical:
        ends = {"x0": value, "x1": value, "y0": 0, "y1": 1, "yref": "paper"}
        at = {"x": place, "y": 0.02, "yref": "paper", "xanchor": "auto", "yanchor": "bottom"}
    else:
        ends = {"y0": value, "y1": value, "x0": 0, "x1": 1, "xref": "paper"}
        at = {"y": place, "x": 1, "xref": "paper", "xanchor": "right", "yanchor": "bottom"}
    return {"shapes": [{**line, **ends}], "annotations": [{**at, **note}]}
