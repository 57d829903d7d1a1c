"""What all charts share: colours, axes and the step from a plotly figure to a piece of the page.

Only this module and the ``figures_*`` modules touch plotly, and they import it when a chart is drawn.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import plotly.graph_objects as go

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
SLO_COLOUR = "#c4262e"
FARTHEST_SLO = 3.0
"""An objective is drawn up to this multiple of the largest value; farther away it would press the data together."""
INK, GRID, RULE, FAINT = "#1c2330", "#e6e8ec", "#b4bac4", "#6a7280"
FONT = "system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


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


def log_axis(*series: npt.ArrayLike) -> dict[str, object]:
    """A logarithmic axis that covers the positive values, with ticks a reader can name: 1, 2, 5 or powers of ten."""
    values = np.concatenate([np.ravel(np.asarray(each, dtype=np.float64)) for each in series])
    low, high = values[values > 0].min(), values[values > 0].max()
    margin = max(0.04 * np.log10(high / low), 0.03)
    first, last = np.log10(low) - margin, np.log10(high) + margin
    steps = (1, 2, 5) if last - first < 3.2 else (1,)
    ticks = [step * 10.0**power for power in range(int(np.floor(first)), int(np.ceil(last)) + 1) for step in steps]
    shown = [tick for tick in ticks if first <= np.log10(tick) <= last]
    return {
        "type": "log",
        "range": [float(first), float(last)],
        "tickvals": shown or [float(low)],
        "ticktext": [f"{tick:,.6g}" for tick in shown or [float(low)]],
    }


def time_axis(edges_s: npt.NDArray[np.float64]) -> dict[str, object]:
    """The whole span of the bins, so that charts of one run line up."""
    return {"range": [float(edges_s[0]), float(edges_s[-1])]}


def finish(figure: go.Figure, frame: Frame, x_title: str, y_title: str) -> Chart:
    """Applies the common look and closes the figure."""
    axis = {
        "gridcolor": GRID,
        "linecolor": RULE,
        "zeroline": False,
        "ticks": "outside",
        "tickcolor": RULE,
        "ticklen": 4,
        "automargin": True,
        "title_standoff": 8,
        "exponentformat": "SI",
    }
    figure.update_layout(
        template="none",
        font={"family": FONT, "size": 12, "color": INK},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        margin={"l": 60, "r": 16, "t": 34, "b": 46},
        height=frame.height_px,
        legend={
            "orientation": "h",
            "traceorder": "normal",
            "x": 0,
            "y": 1.0,
            "xanchor": "left",
            "yanchor": "bottom",
            "font": {"size": 11},
        },
        modebar={"bgcolor": "rgba(255,255,255,0.9)", "color": FAINT, "activecolor": INK},
        hoverlabel={"bgcolor": "white", "font": {"family": FONT, "size": 12}},
    )
    figure.update_xaxes(title_text=x_title, **axis)
    figure.update_yaxes(**axis)  # one on the right has its own title
    figure.layout.yaxis.title.text = y_title
    return Chart(frame.key, frame.title, frame.reading, figure.to_json(), frame.height_px, frame.is_wide)


def near_slo(value: float | None, largest: float) -> float | None:
    """The objective, if it is to be drawn beside values up to ``largest``."""
    return value if value is not None and value <= FARTHEST_SLO * largest else None


def mark_slo(figure: go.Figure, value: float | None, largest: float, unit: str, *, vertical: bool = True) -> None:
    """A dashed line at an objective, in words where it lies far beyond the values; nothing where none was set."""
    if value is None:
        return
    line = {"color": SLO_COLOUR, "width": 1.5, "dash": "dash"}
    font = {"color": SLO_COLOUR, "size": 11}
    is_near = near_slo(value, largest) is not None
    text = f"SLO {value:g} {unit}" + ("" if is_near else ", beyond the axis")
    note = {"text": text, "font": font, "bgcolor": "rgba(255,255,255,0.85)", "showarrow": False}
    if not is_near:
        corner = {"x": 1, "xref": "paper", "xanchor": "right", "yref": "paper"}
        figure.add_annotation(**corner, **({"y": 0.02, "yanchor": "bottom"} if vertical else {"y": 1}), **note)
    elif vertical:
        is_log = figure.layout.xaxis.type == "log"
        figure.add_shape(type="line", x0=value, x1=value, y0=0, y1=1, yref="paper", line=line)
        x = float(np.log10(value)) if is_log else value  # annotations on a log axis take exponents, shapes values
        figure.add_annotation(x=x, y=0.02, yref="paper", xanchor="auto", yanchor="bottom", **note)
    else:
        is_log = figure.layout.yaxis.type == "log"
        figure.add_shape(type="line", x0=0, x1=1, xref="paper", y0=value, y1=value, line=line)
        y = float(np.log10(value)) if is_log else value
        figure.add_annotation(y=y, x=1, xref="paper", xanchor="right", yanchor="bottom", **note)
