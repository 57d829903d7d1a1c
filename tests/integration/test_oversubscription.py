"""The example with racks whose uplinks carry a quarter of their NICs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.vidur_pd.report.report_table import LINK_WORDS, table_of
from vidur_pd.config.file import load_config
from vidur_pd.metrics.result import Result
from vidur_pd.report.figures_coupling import link_heat_map
from vidur_pd.simulation.api import simulate
from vidur_pd.workload import generator, load_workload

EXAMPLE = Path(__file__).parents[2] / "examples" / "qwen3-30b-oversubscribed.yaml"


def run(*settings: str) -> Result:
    config = load_config(EXAMPLE, ["engine.estimator=roofline", *settings])
    workload = load_workload(config.workload, base_dir=EXAMPLE.parent, rng=partial(generator, config.seed))
    return simulate(config, workload)


@pytest.fixture(scope="module")
def oversubscribed() -> Result:
    return run()


def ttft_p99(result: Result) -> float:
    return float(result.summary.ttft_s.p99)


def test_uplinks_of_a_quarter_raise_p99_ttft_by_a_fifth_and_more_against_no_contention(oversubscribed: Result) -> None:
    assert ttft_p99(oversubscribed) > 1.2 * ttft_p99(run("network.backend=analytical"))


def test_they_raise_it_by_a_fifth_against_full_uplinks_too(oversubscribed: Result) -> None:
    assert ttft_p99(oversubscribed) > 1.2 * ttft_p99(run("cluster.topology.oversubscription=1"))


def test_with_full_uplinks_more_than_half_of_the_difference_is_gone(oversubscribed: Result) -> None:
    full, alone = run("cluster.topology.oversubscription=1"), run("network.backend=analytical")
    assert ttft_p99(full) - ttft_p99(alone) < 0.5 * (ttft_p99(oversubscribed) - ttft_p99(alone))


def test_the_links_log_shows_the_uplinks_as_the_full_ones(oversubscribed: Result) -> None:
    """The fullest links of the run, and the fullest window of all, lie between switches; the report draws them."""
    import pandas as pd

    columns: dict[str, Any] = oversubscribed.link_columns()
    table = pd.DataFrame(columns)
    lengths_s = table["window_end_s"] - table["window_start_s"]
    use = (table["carried_bytes"] * 8 / table["capacity_bps"] / lengths_s).groupby(
        [table["kind"], table["link"], table["window_start_s"]]
    )
    peaks = use.sum().groupby("kind").max()
    assert peaks["fabric"] > 0.8
    assert peaks["fabric"] > 1.5 * peaks["nvlink"]
    assert peaks["fabric"] > peaks["nic"]
    means = (
        table.groupby(["kind", "link"])["carried_bytes"].sum() / table.groupby(["kind", "link"])["capacity_bps"].max()
    )
    assert str(means.idxmax()[0]) == "fabric"
    chart = link_heat_map(table_of(columns, LINK_WORDS))
    assert chart is not None
    assert "spine0" in chart.figure_json


def test_time_on_the_way_is_where_the_latency_goes(oversubscribed: Result) -> None:
    parts = oversubscribed.summary.attribution_s
    alone = run("network.backend=analytical").summary.attribution_s
    grown = {name: parts[name] - alone[name] for name in parts}
    assert max(grown, key=lambda name: grown[name]) == "kv_transfer"
    assert np.isclose(sum(grown.values()), oversubscribed.summary.e2e_s.mean - sum(alone.values()))
