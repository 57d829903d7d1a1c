"""The section of the report on faults."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tests.vidur_pd.report.report_page import read_figure, unpack
from tests.vidur_pd.report.report_run import Shape, write_run
from vidur_pd.report import write_report
from vidur_pd.report.figures_faults import MOST_LABELLED, MOST_SHADED, fault_tables, fault_timeline
from vidur_pd.report.load import read_run

LOSS = {"total": 1.5, "before_faults": 0.0, "during_faults": 1.5, "after_faults": 0.0, "beyond_fault_free": None}


def write_with(folder: Path, events: list[dict[str, Any]]) -> Path:
    write_run(folder, Shape(requests=60))
    path = folder / "summary.json"
    summary = json.loads(path.read_text())
    requests = {"recomputed": 3, "retried": 0, "rerouted": 1, "failed": 2}
    summary["faults"] = {"events": events, "requests": requests, "transfers_retried": 4, "slo_loss_minutes": LOSS}
    path.write_text(json.dumps(summary))
    return folder


def test_every_fault_is_a_shade_over_the_run(tmp_path: Path) -> None:
    """One that lasts for ever ends with the axis; one after the end of the run is left out."""
    events = [
        {"kind": "gpu", "target": "gpu3", "at_s": 1.0, "until_s": 2.0},
        {"kind": "link", "target": "a - <b>", "at_s": 2.0, "until_s": None},
        {"kind": "nic", "target": "gpu0", "at_s": 1e6, "until_s": None},
    ]
    chart = fault_timeline(read_run(write_with(tmp_path / "run", events)))
    assert chart is not None
    layout = read_figure(chart.figure_json)["layout"]
    spans = [(shape["x0"], shape["x1"]) for shape in layout["shapes"]]
    assert spans == [(1.0, 2.0), (2.0, layout["xaxis"]["range"][1])]
    assert [note["text"] for note in layout["annotations"]] == ["gpu gpu3", "link a - &lt;b&gt;"]


def test_each_side_of_the_chart_names_its_own_quantity(tmp_path: Path) -> None:
    events = [{"kind": "gpu", "target": "gpu3", "at_s": 1.0, "until_s": 2.0}]
    chart = fault_timeline(read_run(write_with(tmp_path / "run", events)))
    assert chart is not None
    layout = read_figure(chart.figure_json)["layout"]
    titles = [layout[axis]["title"]["text"] for axis in ("yaxis", "yaxis2")]
    assert titles == ["Output tokens per second", "TTFT (s)"]


def test_a_link_that_flaps_all_the_time_does_not_flood_the_chart(tmp_path: Path) -> None:
    events = [{"kind": "link_flap", "target": "x", "at_s": i / 500, "until_s": i / 500 + 1e-3} for i in range(500)]
    run = read_run(write_with(tmp_path / "run", events))
    chart = fault_timeline(run)
    assert chart is not None
    layout = read_figure(chart.figure_json)["layout"]
    assert len(layout["shapes"]) == MOST_SHADED
    assert [note["text"] for note in layout["annotations"]] == ["link_flap x"]
    assert "300 further intervals" in chart.reading
    assert "460 more" in fault_tables(run.summary.faults)


def test_names_of_many_faults_are_few_and_on_lines_in_turn(tmp_path: Path) -> None:
    events = [{"kind": "nic", "target": f"gpu{i}", "at_s": i / 50, "until_s": None} for i in range(2 * MOST_LABELLED)]
    chart = fault_timeline(read_run(write_with(tmp_path / "run", events)))
    assert chart is not None
    notes = read_figure(chart.figure_json)["layout"]["annotations"]
    assert [note["text"] for note in notes] == [f"nic gpu{i}" for i in range(MOST_LABELLED)]
    assert all(one["yshift"] != other["yshift"] for one, other in pairwise(notes))


def test_the_page_has_the_section_where_something_failed_and_else_not(tmp_path: Path) -> None:
    events = [{"kind": "gpu", "target": "gpu3", "at_s": 1.0, "until_s": 2.0}]
    page = write_report(write_with(tmp_path / "run", events)).read_text()
    for text in ("Faults over throughput and TTFT", "requests recomputed", "SLO-loss minutes, total", "gpu3"):
        assert text in page
    write_run(tmp_path / "plain", Shape(requests=60))
    assert "SLO-loss minutes" not in write_report(tmp_path / "plain").read_text()


def test_a_short_fault_begins_before_it_ends(tmp_path: Path) -> None:
    """50 ms from 45 s on: three digits do not tell begin and end apart."""
    events = [
        {"kind": "link_flap", "target": "x", "at_s": 45.0, "until_s": 45.05},
        {"kind": "gpu", "target": "gpu3", "at_s": 10.0, "until_s": None},
    ]
    faults = read_run(write_with(tmp_path / "run", events)).summary.faults
    assert faults is not None
    table = fault_tables(faults)
    assert all(f">{text}</td>" in table for text in ("45.00 s", "45.05 s", "10.0 s", "for ever"))


def test_names_of_faults_are_above_what_is_drawn(tmp_path: Path) -> None:
    """Two lines of 13 px of 280."""
    events = [{"kind": "nic", "target": f"gpu{i}", "at_s": i / 50, "until_s": None} for i in range(2)]
    chart = fault_timeline(read_run(write_with(tmp_path / "run", events)))
    assert chart is not None
    figure = read_figure(chart.figure_json)
    for trace, axis in zip(figure["data"], ("yaxis", "yaxis2"), strict=True):
        low, high = figure["layout"][axis]["range"]
        assert low == 0.0
        assert np.nanmax(unpack(trace["y"])) < (1 - 2 * 13 / 280) * high
