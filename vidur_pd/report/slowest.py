"""The slowest requests of a run: where the time of each went, and whom it waited for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

from vidur_pd.metrics.attribution import MEANINGS, PARTS
from vidur_pd.metrics.quantities import to_seconds
from vidur_pd.report.charts import Chart, Frame, axis, bars, draw, label, rows_axis
from vidur_pd.report.colours import FAINT
from vidur_pd.report.figures_coupling import PART_COLOURS, part_words
from vidur_pd.report.load import RunOutput
from vidur_pd.report.page import charts_html
from vidur_pd.report.text import duration, meaning_html, note_html, table_html
from vidur_pd.report.waterfall import ATTRIBUTION_FILE, Waterfall, longest, slowest

MOST: Final = 10
READING: Final = (
    "Each bar is one request from its arrival to its last token, cut into what its time was spent on; the pieces add "
    "up to E2E. vidur-pd explain OUT REQUEST_ID prints all of it."
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
            words = label(part_words(part))
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
    columns = ("Request", "Instances", "Tokens", "TTFT", "E2E", "What it waited for before the first token")
    return table_html(columns, rows, text_columns=3, texts=(5,))


def _waits(found: Waterfall) -> str:
    """The part that took most before the first token, how long until then, and what is known of it."""
    before = found.before_first_token
    largest = longest(before)
    if largest is None:
        return Markup()
    notes = [note for step in found.steps if step.part == largest for note in step.notes]
    return f"{part_words(largest)} {duration(to_seconds(before[largest]))}{': ' if notes else ''}{'; '.join(notes)}"


def _meanings(found: Sequence[Waterfall]) -> str:
    met = [part for part in PARTS if any(step.part == part for each in found for step in each.steps)]
    return " ".join(f"{_sentence_case(part_words(part))}: {MEANINGS[part]}." for part in met)


def _sentence_case(text: str) -> str:
    return text[:1].upper() + text[1:]
