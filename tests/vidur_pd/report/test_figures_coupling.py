"""Charts and tables of what shared links cost."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.vidur_pd.report.report_page import read_figure, unpack
from tests.vidur_pd.report.report_run import write_run
from tests.vidur_pd.report.report_table import links_of
from vidur_pd.metrics.attribution import PARTS
from vidur_pd.report import comparison_table, write_report
from vidur_pd.report.figures_coupling import (
    PART_COLOURS,
    attribution_chart,
    cost_text,
    energy_text,
    link_heat_map,
    sources_table,
)
from vidur_pd.report.load import read_run


def test_each_part_of_latency_has_a_colour_of_its_own() -> None:
    assert list(PART_COLOURS) == list(PARTS)
    assert len(set(PART_COLOURS.values())) == len(PARTS)


def test_the_heat_map_shows_which_link_is_full_in_which_window() -> None:
    """Link x: 30 + 40 % of the first second. Link y: 50 % of the first, 90 % of the second, so it comes first. NVLink,
    though full, is not between nodes."""
    chart = link_heat_map(
        links_of(
            [
                ("x", "nic", "kv", 0.0, 1.0, 0.3e9),
                ("x", "nic", "collective", 0.0, 1.0, 0.4e9),
                ("y", "fabric", "kv", 0.0, 1.0, 0.5e9),
                ("y", "fabric", "kv", 1.0, 2.0, 0.9e9),
                ("z", "nvlink", "collective", 0.0, 1.0, 1e9),
            ]
        )
    )
    assert chart is not None
    (trace,) = read_figure(chart.figure_json)["data"]
    assert trace["y"] == ["y → b", "x → b"]
    assert np.array(unpack(trace["z"])).reshape(2, 2) == pytest.approx(np.array([[50.0, 90.0], [70.0, 0.0]]))


def test_without_links_between_nodes_there_is_no_heat_map() -> None:
    assert link_heat_map(links_of([("z", "nvlink", "collective", 0.0, 1.0, 1e9)])) is None


def test_parts_of_the_latency_are_stacked_and_empty_ones_left_out(tmp_path: Path) -> None:
    chart = attribution_chart(read_run(write_run(tmp_path / "run")).summary)
    assert chart is not None
    drawn = {trace["name"]: float(unpack(trace["x"])[0]) for trace in read_figure(chart.figure_json)["data"]}
    expected = {"queue": 0.1, "prefill compute": 0.3, "KV transfer": 0.2, "decode compute": 1.4}
    assert drawn == pytest.approx(expected, rel=1e-6)


def test_sources_of_communication_time_and_energy_are_told(tmp_path: Path) -> None:
    """1.5 MJ over the GPUs of the run."""
    summary = read_run(write_run(tmp_path / "run")).summary
    table = sources_table(summary)
    assert all(text in table for text in ("priced on an idle fabric", "62.5", "shared links", "simulated as flows"))
    told = energy_text(summary)
    assert told is not None
    assert told.startswith("1,500 kJ in GPUs")


def test_results_that_record_neither_show_neither(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    tree = json.loads((folder / "summary.json").read_text())
    for name in ("attribution_s", "communication", "energy"):
        del tree[name]
    (folder / "summary.json").write_text(json.dumps(tree))
    summary = read_run(folder).summary
    assert attribution_chart(summary) is None
    assert sources_table(summary) == ""
    assert energy_text(summary) is None


def test_cost_is_told_on_the_page_and_compared(tmp_path: Path) -> None:
    """A run with a price list, and one without: only what is known has a row and a tile."""
    folder = write_run(tmp_path / "priced")
    tree = json.loads((folder / "summary.json").read_text())
    cost = {"currency": "EUR", "per_hour": 168.0, "per_million_input_tokens": 0.5, "per_million_output_tokens": 12.25}
    (folder / "summary.json").write_text(json.dumps(tree | {"cost": cost | {"as_of": "2026-11"}}))
    told = cost_text(read_run(folder).summary)
    assert told == (
        "EUR 168 per hour; EUR 0.500 per million input tokens; EUR 12.2 per million output tokens (prices of 2026-11)"
    )
    text = write_report(folder).read_text(encoding="utf-8")
    assert '<div class="value">EUR 12.2</div>' in text
    bare = write_run(tmp_path / "bare")
    rows = {row["metric"]: row["texts"] for row in comparison_table([folder, bare])}
    assert rows["Cost per million output tokens"] == {"priced": "EUR 12.2", "bare": "–"}
    assert "Cost per hour" not in {row["metric"] for row in comparison_table([bare])}


def test_costs_in_other_currencies_have_no_change(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name) for name in ("first", "dearer", "abroad")]
    for folder, currency, per_hour in zip(folders, ("EUR", "EUR", "USD"), (100.0, 150.0, 150.0), strict=True):
        tree = json.loads((folder / "summary.json").read_text())
        cost = {"currency": currency, "per_hour": per_hour}
        (folder / "summary.json").write_text(json.dumps(tree | {"cost": cost}))
    row = next(row for row in comparison_table(folders) if row["metric"] == "Cost per hour")
    assert row["texts"] == {"first": "EUR 100", "dearer": "EUR 150", "abroad": "USD 150"}
    assert row["change_texts"] == {"dearer": "+50.0 %", "abroad": ""}
    assert row["changes_percent"] == {"dearer": pytest.approx(50.0), "abroad": None}
