"""The slowest requests of a run: where the time of each went, and whom it waited for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

from vidur_pd.metrics.attribution import MEANINGS, PARTS
from vidur_pd.metrics.quantities import to_seconds
from vidur_pd.report.charts import Chart, Frame, axis, bars, draw, label, rows_axis
from vidur_pd.report.colours import FAINT
from vidur_pd.report.figures_coupling import PART_COLOURS
from vidur_pd.report.load import RunOutput
from vidur_pd.report.page import charts_html
from vidur_pd.report.text import duration, meaning_html, note_html, table_html
from vidur_pd.report.waterfall import ATTRIBUTION_FILE, Waterfall, slowest

MOST: Final = 10
READING: Final = (
    "Each bar is one request from its arrival to its last token, cut into what its time was spent on; pieces add "
    "up to the "
    "picosecond. vidur-pd explain OUT REQUEST_ID prints all of it."
)


def slowest_requests(run: RunOutput) -> Markup:
    """Waterfalls of the requests with the longest TTFT, and whom these waited for."""
    if not len(run.completed):
        return note_html("Left out: no request completed.")
    found = slowest(run, "ttft_s", MOST)
    if not found:
        return note_html(f"Left out: the run wrote no {ATTRIBUTION_FILE}.")
    return charts_html([_chart(found)]) + _table(found) + meaning_html(_meanings(found))


def _chart(found: Sequence[Waterfall]) -> Chart:
    names = [label(each.request_id) for each in found]
    traces = []
    for part in PARTS:
        took_s = [sum(step.took_s for step in each.steps if step.part == part) for each in found]
        if any(took_s):
            words = label(part.replace("_", " "))
            traces.append(
                bars(
                    took_s,
                    names,
                    name=words,
                    marker={"color": PART_COLOURS.get(part, FAINT)},
                    hovertemplate=f"{words}: %{{x:.4g}} s<extra>request %{{y}}</extra>",
                )
            )
    frame = Frame("slowest", f"The {len(found)} longest TTFTs", READING, 130 + 26 * len(found), True)
    return draw(frame, traces, axis("Time since arrival (s)"), rows_axis(), barmode="stack", showlegend=True)


def _table(found: Sequence[Waterfall]) -> Markup:
    rows = [
        [
            each.request_id,
            f"{each.facts['prefill_instance']} → {each.facts['decode_instance'] or 'same'}",
            f"{each.facts['prefill_tokens']:,.0f} + {each.facts['decode_tokens']:,.0f}",
            duration(each.facts["ttft_s"]),
            duration(to_seconds(each.e2e_ps)),
            _waits(each),
        ]
        for each in found
    ]
    return table_html(("Request", "Instances", "Tokens", "TTFT", "E2E", "What it waited for"), rows, text_columns=3)


def _waits(found: Waterfall) -> str:
    """Notes on the largest part before the first token, and on that part alone."""
    before = [step for step in found.steps if not step.part.startswith("decode_c")]
    largest = max(before, key=lambda step: step.took_ps, default=None)
    if largest is None:
        return Markup()
    notes = f": {'; '.join(largest.notes)}" if largest.notes else ""
    return f"{largest.part.replace('_', ' ')} {duration(largest.took_s)}{notes}"


def _meanings(found: Sequence[Waterfall]) -> str:
    met = [part for part in PARTS if any(step.part == part for each in found for step in each.steps)]
    return " ".join(f"{part.replace('_', ' ').capitalize()}: {MEANINGS[part]}." for part in met)
