"""Figures are plain dictionaries; the Python package of plotly knows which ones plotly.js understands."""

from __future__ import annotations

import json
from typing import Any

import plotly.graph_objects as go
import pytest

from tests.vidur_pd.report.report_page import parse_page
from tests.vidur_pd.report.report_run import Shape, write_run
from vidur_pd.report import write_comparison, write_report


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, dict[str, Any]]]:
    """(chart, figure) of the pages of a run with faults and near objectives, of one whose decode instances are a band,
    and of a comparison."""
    folder = tmp_path_factory.mktemp("runs")
    whole, wide = write_run(folder / "whole"), write_run(folder / "wide", Shape(requests=60, decode_instances=9))
    summary = json.loads((whole / "summary.json").read_text())
    events = [{"kind": "gpu", "target": "gpu3", "at_s": 1.0, "until_s": 2.0}]
    summary["faults"] = {"events": events, "requests": {"recomputed": 3}, "slo_loss_minutes": {"total": 1.5}}
    summary["slo"] = {"ttft_s": 0.3, "tpot_s": 0.02}
    (whole / "summary.json").write_text(json.dumps(summary))
    paths = [write_report(whole), write_report(wide), write_comparison([whole, wide], folder / "both.html")]
    return [item for path in paths for item in parse_page(path).charts.items()]


def test_every_figure_is_one_that_plotly_accepts(figures: list[tuple[str, dict[str, Any]]]) -> None:
    assert {"faults", "busy", "batch", "attribution", "efficiency"} <= {chart for chart, _ in figures}
    for chart, figure in figures:
        try:
            go.Figure(figure)
        except ValueError as error:
            pytest.fail(f"{chart}: {error}")


def test_an_unknown_property_of_a_trace_or_an_axis_would_be_noticed(figures: list[tuple[str, dict[str, Any]]]) -> None:
    _, figure = figures[0]
    trace, layout = figure["data"][0], figure["layout"]
    with pytest.raises(ValueError, match="colour"):
        go.Figure({**figure, "data": [{**trace, "colour": "red"}]})
    with pytest.raises(ValueError, match="unit"):
        go.Figure({**figure, "layout": {**layout, "xaxis": {**layout["xaxis"], "unit": "s"}}})
