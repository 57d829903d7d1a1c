"""What all charts share: traces, axes, marks, and the step from figures to a piece of the page.

Traces, axes and layouts are dictionaries of plotly.js's properties; tests have the Python package check them."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from vidur_pd.report.colours import SLO_COLOUR

FARTHEST_SLO = 3.0
"""An objective is drawn up to this multiple of the largest value; farther away it would press the data together."""
ROW_FONT = {"size": 11}
Properties = dict[str, object]
"""An axis or another part of a layout."""
Trace: TypeAlias = Properties


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawn chart; ``reading`` is the sentence that says how to read it, both are plain text."""

    key: str
    title: str
    reading: str
    figure_json: str
    """Without a template: the page has one for each look (`vidur_pd.report.colours`)."""
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


def label(text: str, at_most: int = 48) -> str:
    """Text from a file as plotly text, which would otherwise read it as markup."""
    return html.escape(text if len(text) <= at_most else text[: at_most - 1] + "…", quote=False)


def compact(values: npt.ArrayLike) -> npt.NDArray[np.float32] | npt.NDArray[np.float64]:
    """Values in single precision, which halves the page, unless they differ too little for its seven digits."""
    exact = np.asarray(values, dtype=np.float64)
    known = exact[np.isfinite(exact)]
    is_offset = known.size > 1 and np.abs(known).max() > 1e3 * np.ptp(known) > 0
    return exact if is_offset else exact.astype(np.float32)


def scatter(x: npt.ArrayLike, y: npt.ArrayLike, **properties: object) -> Trace:
    """A trace of points, of a line through them, or of both."""
    return {"type": "scatter", "x": compact(x), "y": compact(y), **properties}


def bars(lengths: npt.ArrayLike, names: Sequence[str], **properties: object) -> Trace:
    """A trace of horizontal bars, one per name."""
    return {"type": "bar", "orientation": "h", "x": compact(lengths), "y": names, **properties}


def heat_map(
    edges: npt.ArrayLike, names: Sequence[str], percents: npt.NDArray[np.float64], title: str, **properties: object
) -> Trace:
    """A trace of percentages (0…100, shape ``[names, edges - 1]``) as colours under a scale with a title."""
    scale = {"title": {"text": title, "side": "right"}}
    z = compact(np.round(percents, 1))
    whole = {"x": compact(edges), "y": names, "z": z, "zmin": 0, "zmax": 100, "colorbar": scale}
    return {"type": "heatmap", **whole, **properties}


LEAST: Final = 1e-18
"""On a logarithmic axis, in whatever unit; an attosecond is nothing that a simulation tells apart."""


def axis(title: str, /, **properties: object) -> Properties:
    return {"title": {"text": title, "standoff": 8}, **properties}


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


def draw(frame: Frame, traces: Sequence[Trace], x_axis: Properties, y_axis: Properties, /, **layout: object) -> Chart:
    """The chart of the traces; ``layout`` is what it has besides the common look."""
    whole = {"height": frame.height_px, "xaxis": x_axis, "yaxis": y_axis, **layout}
    figure = json.dumps({"data": traces, "layout": whole}, separators=(",", ":"), allow_nan=False, default=_packed)
    return Chart(frame.key, frame.title, frame.reading, figure, frame.height_px, frame.is_wide)


def _packed(values: npt.NDArray[np.float32] | npt.NDArray[np.float64]) -> Properties:
    """Numbers as plotly.js reads them: their bytes in base64, with what they are (NaN: there is none)."""
    packed = base64.b64encode(values.tobytes()).decode("ascii")
    shape = {"shape": ", ".join(map(str, values.shape))} if values.ndim > 1 else {}
    return {"dtype": f"{values.dtype.kind}{values.dtype.itemsize}", "bdata": packed, **shape}


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
